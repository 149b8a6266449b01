"""Loops that reduce many terms to one run in parts, and no others; what depends on order declines."""

from __future__ import annotations

from functools import cache

import pytest

from loops import CORPUS, as_bits, compile_c, memory_after_init
from oracles.offload import PIPELINE, Judge

IN_PARTS = [
    *((name, (1101,)) for name in ("sum", "dot", "product", "minus", "wide", "largest_int", "least_unsigned")),
    *((name, (1101,)) for name in ("sum_and_least", "sum_of_some", "sum_beside_stores", "widest_float", "largest")),
    *((name, (1101,)) for name in ("in_memory", "in_memory_beside_stores", "two_in_memory", "largest_by_instruction")),
    ("bits", (2203,)),
    ("count_above", (1101, 5)),
    ("least_of_zeros", (1101, 0)),
    ("largest_of_zeros", (1101, 0)),
    ("matrix", (34,)),
    ("many_short_rows", (8200,)),
    ("largest_of_matrix", (34,)),
]


@cache
def judge_of(level):
    wasm = compile_c((CORPUS / "reductions.c").read_text(), level)
    return Judge(PIPELINE, wasm, memory_after_init(wasm))


def judged(level, name, *arguments):
    judge = judge_of(level)
    judgement = judge.judge(name, as_bits(judge.signature(name)[0], arguments))
    assert judgement.wrong == []
    return judgement


@pytest.mark.parametrize("level", ["-O1", "-O2"])
@pytest.mark.parametrize(("name", "arguments"), IN_PARTS)
def test_a_reduction_runs_in_parts(name, arguments, level):
    made = judged(level, name, *arguments)
    assert made.codes > 0
    assert made.codes == made.programs


@pytest.mark.parametrize("level", ["-O1", "-O2"])
@pytest.mark.parametrize("name", ["prefix_sums", "remainders", "sum_of_doubles", "in_memory_that_it_reads"])
def test_what_depends_on_order_stays_sequential(name, level):
    made = judged(level, name, 1101)
    assert made.programs == 0
    assert "program: SEQUENTIAL" in made.declined


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("least_of_zeros", (1101, 1)),
        ("largest_of_zeros", (1101, 1)),
        ("largest_beside_nan", (1101,)),
        ("largest_compared", (1101,)),
    ],
)
@pytest.mark.parametrize("level", ["-O1", "-O2"])
def test_a_least_float_that_depends_on_order_is_given_up(name, arguments, level):
    made = judged(level, name, *arguments)
    assert made.declined.get("host: NOT_A_NUMBER")
    assert made.codes == 0
