"""Every loop of the corpus that is offloaded does what its code does: as a nest, and as a program in any order."""

from __future__ import annotations

from functools import cache

import pytest

from loops import LEVELS, as_bits, compile_c, corpus, memory_after_init
from oracles.offload import PIPELINE, Judge


@cache
def _judge(source: str, level: str) -> Judge:
    wasm = compile_c(source, level)
    return Judge(PIPELINE, wasm, memory_after_init(wasm))


@pytest.mark.parametrize("run", corpus(), ids=str)
def test_a_loop_of_the_corpus_does_what_its_code_does(run):
    wrong, judged = {}, set()
    for level in LEVELS:
        judge = _judge(run.source, level)
        code = (judge.code_of(run.name), judge.memory)
        if code not in judged:  # levels often make the same code
            judged.add(code)
            arguments = as_bits(judge.signature(run.name)[0], run.arguments)
            wrong[level] = judge.judge(run.name, arguments).wrong
    assert not any(wrong.values()), wrong
