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


BESIDE = r"""#include "loops.h"
int a[4096], p[4];
float x[4096], y[4096];
int c[4096];
int *volatile pa = a, *volatile pp = p;
void EXPORT(init)(void) {
  for (int i = 0; i < 4096; i++) { a[i] = i * 7 + 1; c[i] = i & 1; x[i] = -1.0f - i; y[i] = -2.0f - i; }
  x[101] = -0.0f; y[101] = 0.0f;
  x[201] = 0.0f; y[201] = -0.0f;
}
#define IN_PLACE(name, body) \
  static __attribute__((noinline)) void name##_of(int *p, int *a, int n) { \
    for (int i = 0; i < n; i++) { int t = a[i]; body } \
  } \
  void EXPORT(name)(int n) { name##_of(pp, pa, n); }
IN_PLACE(sum_and_mirror, a[n - i] = i; *p += t;)
IN_PLACE(largest_and_mirror, a[n - i] = i; if (t > *p) *p = t;)
IN_PLACE(sum_and_next, a[i + 1] = i; *p += t;)
IN_PLACE(sum_and_next_of_load, *p += t; a[i + 1] = t ^ i;)
float EXPORT(largest_of_two_zeros)(int n, float m) {
  for (int i = 0; i < n; i++) if (c[i]) { if (x[i] > m) m = x[i]; if (y[i] > m) m = y[i]; }
  return m;
}
float EXPORT(least_of_two_zeros)(int n, float m) {
  for (int i = 0; i < n; i++) if (c[i]) { if (-x[i] < m) m = -x[i]; if (-y[i] < m) m = -y[i]; }
  return m;
}
int w[64][64];
int EXPORT(sums_beside_rows)(int n, int rows) {
  int s = 0;
  for (int t = 0; t < rows; t++) {
    for (int k = 0; k < rows; k++)
      for (int i = 0; i < 30; i++)
        for (int j = 0; j < 20; j++) w[i][j] = 5;
    for (int i = 0; i < n; i++) s += a[i + t] * 3;
  }
  return s;
}
"""


@cache
def judge_beside(*options):
    wasm = compile_c(BESIDE, *options)
    return Judge(PIPELINE, wasm, memory_after_init(wasm))


def judged_beside(name, arguments, *options):
    judge = judge_beside(*options)
    judgement = judge.judge(name, as_bits(judge.signature(name)[0], arguments))
    assert judgement.wrong == []
    return judgement


@pytest.mark.parametrize("options", [("-O1",), ("-O3", "-fno-vectorize")])
@pytest.mark.parametrize("name", ["sum_and_mirror", "largest_and_mirror", "sum_and_next", "sum_and_next_of_load"])
def test_a_store_beside_a_lifted_place_stays_behind_the_load_before_it(name, options):
    assert judged_beside(name, (3000,), *options).nests > 0


@pytest.mark.parametrize(("name", "least"), [("largest_of_two_zeros", -1e30), ("least_of_two_zeros", 1e30)])
def test_the_sign_of_a_zero_is_that_of_the_first_of_two_in_one_iteration(name, least):
    assert judged_beside(name, (3000, least), "-O1").nests > 0


def test_a_loop_that_becomes_two_has_two_counters():
    assert judged_beside("sums_beside_rows", (3000, 2), "-O1", "-fno-vectorize", "-fno-unroll-loops").programs > 0
