"""Random reductions beside loads and stores that may overlap do what their code does, offloaded."""

from __future__ import annotations

import pytest

from loops import LEVELS, compile_c, memory_after_init
from oracles.offload import PIPELINE, Judge
from strategies.reductions import reductions

FUNCTIONS = 15


@pytest.mark.parametrize("seed", [4, 5, 7, 10])
def test_random_reductions_do_what_their_code_does(seed):
    source, trips = reductions(seed, FUNCTIONS)
    wasm = compile_c(source, LEVELS[seed % len(LEVELS)], *(() if seed % 2 else ("-fno-vectorize",)))
    judge = Judge(PIPELINE, wasm, memory_after_init(wasm))
    judged = [judge.judge(f"f{number}", [trip]) for number, trip in enumerate(trips)]
    assert {number: each.wrong for number, each in enumerate(judged) if each.wrong} == {}
    assert sum(each.codes > 0 for each in judged) > FUNCTIONS // 5
