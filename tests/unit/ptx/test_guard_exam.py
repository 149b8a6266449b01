"""The exam of safety on the emulator: hostile kernels, guarded, beside a victim in the same context.

A kernel may be refused. One that is accepted harms nobody, reads nothing of others, faults nowhere and ends after its
deadline, whatever it does to itself.
"""

from __future__ import annotations

import sys

import pytest

from oracles.guarding import guarded_text, verified_text
from oracles.windows import Exam
from strategies.hostile import DELIBERATE, generate
from strategies.hostile.damage import damage
from tensorwasm import ptx
from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx.guard import guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a window maps one file again and again")
SEEDS = 500
PARTS = 4
WIDE_SHARE = 5
"""One of so many kernels is examined as a wide one, too."""
WIDE_BYTES = 16 << 30


@pytest.fixture(scope="module")
def exam():
    exam = Exam(7)
    yield exam
    exam.close()


@pytest.fixture(scope="module")
def wide_exam():
    exam = Exam(11, WIDE_BYTES)
    yield exam
    exam.close()


def violations(exam, kernels, width="narrow"):
    """Run kernels; return what those that are accepted did, and how many these were."""
    found, accepted = {}, 0
    for name, hostile in kernels:
        try:
            text = guarded_text(hostile.text, hostile.entry, width)
        except MalformedPtx:
            continue
        outcome = exam.run(hostile, text)
        accepted += not outcome.lacking
        if outcome.violations:
            found[name] = outcome.violations
    return found, accepted


@pytest.mark.parametrize("part", range(PARTS))
def test_generated_kernels_harm_nobody(exam, part):
    found, accepted = violations(exam, [(seed, generate(seed)) for seed in range(part, SEEDS, PARTS)])
    assert found == {}
    assert accepted > SEEDS // PARTS // 4


@pytest.mark.parametrize("part", range(PARTS))
def test_every_deliberate_attack_harms_nobody(exam, part):
    kernels = [*DELIBERATE.items()][part::PARTS]
    found, accepted = violations(exam, kernels)
    assert found == {}
    assert accepted > len(kernels) // 2


def test_wide_kernels_harm_nobody(wide_exam):
    kernels = [*[(seed, generate(seed)) for seed in range(SEEDS)], *DELIBERATE.items()][::WIDE_SHARE]
    found, accepted = violations(wide_exam, kernels, "wide")
    assert found == {}
    assert accepted > len(kernels) // 3


@pytest.mark.parametrize("width", ["narrow", "wide"])
def test_what_the_verifier_accepts_of_damaged_guards_harms_nobody(exam, wide_exam, width):
    names, found, accepted = list(DELIBERATE), {}, 0
    exam = wide_exam if width == "wide" else exam
    for seed in range(600):
        hostile = DELIBERATE[names[seed * 7 % len(names)]]
        try:
            made = guard(ptx.extract(ptx.parse(hostile.text), hostile.entry), 0, width=width)
            text = verified_text(made, damage(made.module, seed, times=1 + seed % 3))
        except MalformedPtx:
            continue
        outcome = exam.run(hostile, text)
        accepted += not outcome.lacking
        if outcome.violations:
            found[seed] = outcome.violations
    assert found == {}
    assert accepted > 20
