"""Random nests of loops do what their code does, offloaded; ``tests/fuzz/fuzz_loops.py`` goes on with ever new ones."""

from __future__ import annotations

import pytest

from oracles.offload import PIPELINE, wrong_functions

FUNCTIONS = 40


@pytest.mark.parametrize("seed", range(12))
def test_random_loops_do_what_their_code_does(seed):
    assert list(wrong_functions(PIPELINE, seed, FUNCTIONS)) == []
