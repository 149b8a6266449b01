"""Random straight-line programs answer on the emulator what a card answered to them, to the bit.

`tools/straight_lines.py` compares many more of them on a card, and keeps its answers to the first ones: those of a
compiler that does not optimise where the one that does is wrong. So no card is held to them here.
"""

from __future__ import annotations

import numpy as np
import pytest

from conformance.straight import FIELDS, answers, columns
from oracles.straight import FILE, KEPT, MODULE, Kept, checksums, digest
from strategies.straight_lines import module, program, records
from tensorwasm.gpu.opening import open_device


@pytest.fixture(scope="module")
def kept():
    assert FILE.exists(), f"{FILE.name} is committed; tools/straight_lines.py --keep writes it on a GPU"
    return Kept.read()


@pytest.fixture(scope="module")
def emulator():
    device, _ = open_device("emulator")
    yield device
    device.close()


@pytest.mark.parametrize("number", range(KEPT // MODULE))
def test_programs_answer_what_a_card_answered(emulator, kept, number):
    programs = [program(at) for at in range(number * MODULE, (number + 1) * MODULE)]
    given = np.concatenate([records(one.number) for one in programs])
    assert digest(module(programs), given) == kept.texts[number], "the generator changed: a card must answer anew"
    wrong = []
    for one, answer in zip(programs, answers(emulator, programs), strict=True):
        assert not isinstance(answer, str), f"program {one.number}: {answer}"
        found = zip(FIELDS, checksums(columns(answer)), kept.checksums[one.number].tolist(), strict=True)
        wrong += [f"program {one.number}: {name}" for name, have, want in found if have != want]
    assert not wrong, f"{len(wrong)} registers differ from the card's: {wrong[:20]}"
