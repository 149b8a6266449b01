"""Loops that count in 64 bits, and addresses that 64 bits are wrapped to, run as those of 32 bits do."""

from __future__ import annotations

from functools import cache

import pytest

from loops import as_bits, compile_c, memory_after_init
from oracles.offload import PIPELINE, Judge

SOURCE = """
#include "loops.h"
#define MOST 3000
int a[MOST], b[MOST];
i64 words[MOST];
void EXPORT(init)(void) {
  for (int i = 0; i < MOST; i++) a[i] = i * 7919, b[i] = i ^ 33, words[i] = (i64)i << 30;
}
void EXPORT(by_words)(i64 n) { for (i64 i = 0; i < n; i++) b[i] = a[i] * 3; }
void EXPORT(to_an_int)(int n) { for (i64 i = 0; i < n; i++) b[i] = a[i] * 3; }
void EXPORT(as_a_value)(i64 n) { for (i64 i = 0; i < n; i++) words[i] = words[i] + i * 5; }
void EXPORT(without_sign)(u64 n) { for (u64 i = 0; i < n; i++) b[i] = (int)i + a[i]; }
void EXPORT(down)(i64 n) { for (i64 i = n - 1; i >= 0; i--) b[i] = a[i] - 1; }
void EXPORT(in_steps)(i64 n, i64 step) { for (i64 i = 0; i < n; i += step) b[i] = a[i] - 1; }
void EXPORT(matrix)(i64 n) { for (i64 i = 0; i < n; i++) for (i64 j = 0; j < n; j++) b[i * n + j] = a[j * n + i]; }
i64 EXPORT(sum)(i64 n) { i64 s = 0; for (i64 i = 0; i < n; i++) s += a[i]; return s; }
void EXPORT(triangle)(i64 n) { for (i64 i = 0; i < n; i++) for (i64 j = i; j < n; j++) b[i * 50 + j] = a[j]; }
void EXPORT(two_widths)(i64 n) { for (i64 i = 0; i < n; i++) for (int j = 0; j < (int)i; j++) b[i * 50 + j] = a[j]; }
void EXPORT(halves)(i64 n) { for (i64 i = 0; i < n; i++) b[i] = a[i / 2]; }
void EXPORT(from_above)(i64 n) { for (u64 i = 1ull << 32; i < (1ull << 32) + n; i++) b[(u32)i] = a[(u32)i] - 1; }
void EXPORT(across_the_end)(i64 n) {
  for (u64 i = 0xfffffff0; i < 0xfffffff0 + n; i++) b[(int)(u32)i + 20] = a[(int)(u32)i + 20] - 1;
}
void EXPORT(across_the_end_in_bytes)(i64 n) {
  for (u64 i = 0xfffffff0; i < 0xfffffff0 + n; i++) ((u8 *)b)[(u32)(i + 16)] = ((u8 *)a)[(u32)(i + 16)] - 1;
}
void EXPORT(past_the_greatest)(u64 n) { for (u64 i = 0 - n; i != 5; i++) b[(u32)i + 20] = a[(u32)i + 21]; }
void EXPORT(far_out)(i64 n) { for (i64 i = 0; i < n; i++) b[(u32)(i << 20)] = a[i]; }
"""

CALLS = [
    *((name, (99,)) for name in ("by_words", "to_an_int", "as_a_value", "without_sign", "down", "halves")),
    *((name, (40,)) for name in ("matrix", "triangle", "two_widths")),
    *((name, (99,)) for name in ("from_above", "across_the_end", "across_the_end_in_bytes")),
    ("in_steps", (99, 3)),
    ("sum", (1500,)),
]


@cache
def judge_of(level):
    wasm = compile_c(SOURCE, level)
    return Judge(PIPELINE, wasm, memory_after_init(wasm))


def judged(level, name, *arguments):
    judge = judge_of(level)
    judgement = judge.judge(name, as_bits(judge.signature(name)[0], arguments))
    assert judgement.wrong == []
    return judgement


@pytest.mark.parametrize("level", ["-O1", "-O2"])
@pytest.mark.parametrize(("name", "arguments"), CALLS)
def test_a_loop_that_counts_in_64_bits_runs_in_parallel(name, arguments, level):
    assert judged(level, name, *arguments).codes > 0


@pytest.mark.parametrize("level", ["-O1", "-O2"])
@pytest.mark.parametrize(("name", "arguments"), [("past_the_greatest", (9,)), ("far_out", (5000,))])
def test_what_is_not_proven_of_64_bits_declines(name, arguments, level):
    assert judged(level, name, *arguments).codes == 0
