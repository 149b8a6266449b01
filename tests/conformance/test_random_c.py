"""Functions of C that nvcc compiled answer what the host's compiler makes of them, to the bit.

The corpus is made by ``tests/fuzz/fuzz_c.py --keep``, which goes on with ever new functions where nvcc and gcc are.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conformance.compiled_c import run

CORPUS = sorted((Path(__file__).resolve().parents[1] / "golden" / "c").glob("*.npz"))


def test_the_corpus_has_the_arithmetic_of_int128():
    assert "int128" in [path.stem for path in CORPUS]


@pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
def test_compiled_functions_answer_what_the_processor_answers(launcher, path):
    with np.load(path, allow_pickle=False) as kept:
        text, given, answers = kept["ptx"].item().decode(), kept["given"], kept["answers"]
    found = run(launcher, text, given, len(answers))
    wrong = [f"k{k}, lane {lane}, out[{at}]: {found[k, lane, at]:#x}" for k, lane, at in np.argwhere(found != answers)]
    assert not wrong, f"{len(wrong)} results differ: {wrong[:10]}"
