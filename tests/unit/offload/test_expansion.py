"""Cells stand for an array that each row fills and reads anew, so that rows are parallel."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from oracles.nest import faults, run_nest
from oracles.offload import judged_program
from strategies.nests import MEMORY_BYTES, random_memory
from tensorwasm.offload.nest import ALWAYS, Affine, Load, Loop, Nest, Statement, Store
from tensorwasm.offload.program import For
from tensorwasm.offload.scheduling import expansion, storage
from tensorwasm.offload.scheduling.footprints import cell_accesses
from tensorwasm.offload.scheduling.model import model
from tensorwasm.offload.scheduling.polyhedra import limited_context
from tensorwasm.offload.scheduling.rewriting import statements_in

ROWS = """
#define N 84
double a[N][N], b[N][N], t[N], u[N], v[N];
float f[2 * N];
int count[N];
void __attribute__((export_name("init"))) init(void) {
  for (int i = 0; i < N; i++) {
    t[i] = i / 8.0; u[i] = i; v[i] = 3 - i; f[i] = i + 1; f[N + i] = i + 2; count[i] = 2 * i;
    for (int j = 0; j < N; j++) {
      a[i][j] = (i * 7 + j * 3) % 11 - 4.5;
      b[i][j] = (i * 5 + j) % 13 / 4.0;
    }
  }
}
#define FILL(last) \\
  for (int p = 0; p < last; p++) { \\
    double sum = 0; \\
    for (int s = 0; s < m; s++) sum += a[i][s] * b[s][p]; \\
    t[p] = sum; \\
  }
#define EXPORT(name) __attribute__((export_name(#name))) name
void EXPORT(product)(int n, int m) {
  for (int i = 0; i < n; i++) {
    FILL(m)
#pragma clang loop unroll(disable) vectorize(disable)
    for (int p = 0; p < m; p++) a[i][p] = t[p] * 0.5;
  }
}
void EXPORT(moved)(int n, int m) {
  for (int i = 0; i < n; i++) {
    FILL(m)
    __builtin_memcpy(a[i], t, m * sizeof(double));
  }
}
void EXPORT(of_two)(int n, int m) {
  for (int i = 0; i < n; i++) {
    FILL(m)
#pragma clang loop unroll(disable) vectorize(disable)
    for (int p = 0; p < m; p++) u[p] = t[p] + a[i][p];
#pragma clang loop unroll(disable) vectorize(disable)
    for (int p = 0; p < m; p++) a[i][p] = t[p] * u[p];
  }
}
void EXPORT(read_before)(int n, int m) {
  for (int i = 0; i < n; i++) {
    for (int p = 0; p < m; p++) v[p] += t[p];
    FILL(m)
    for (int p = 0; p < m; p++) a[i][p] = t[p];
  }
}
void EXPORT(fewer_written)(int n, int m) {
  for (int i = 0; i < n; i++) {
    FILL(m / 2)
    for (int p = 0; p < m; p++) a[i][p] = t[p];
  }
}
void EXPORT(more_each_time)(int n, int m) {
  for (int i = 0; i < n; i++) {
    FILL((n - i))
    for (int p = 0; p < n - i; p++) a[i][p] = t[p];
  }
}
void EXPORT(at_times)(int n, int m) {
  for (int i = 0; i < n; i++) {
    if (i % 3 == 0) {
      FILL(m)
    }
    for (int p = 0; p < m; p++) a[i][p] = t[p];
  }
}
void EXPORT(one_place)(int n, int m) {
  for (int i = 0; i < n; i++) {
    for (int p = 0; p < m; p++) {
      double sum = 0;
      for (int s = 0; s < m; s++) sum += a[i][s] * b[s][p];
      *(volatile double *)t = sum;
    }
    for (int p = 0; p < m; p++) a[i][p] = t[0];
  }
}
void EXPORT(halves)(int n, int m) {
  for (int i = 0; i < n; i++) {
    FILL(m)
    for (int p = 0; p < m; p++) a[i][p] = ((float *)t)[2 * p + 1];
  }
}
void EXPORT(shifted)(int n, int m) {
  for (int i = 0; i < n; i++) {
    FILL(m)
    for (int p = 0; p < m; p++) a[i][p] = t[p + 1];
  }
}
"""
LEVELS = ("-O1", "-O2", "-O3", "-Os")


program_of = partial(judged_program, ROWS)


def axes(program):
    """Return how many parallel loops each kernel has."""
    counts = []
    for step in program.steps:
        body, count = step.body, 0
        while len(body) == 1 and isinstance(body[0], For) and body[0].parallel:
            body, count = body[0].body, count + 1
        counts.append(count)
    return counts


def has_cells_of_rows(program):
    """Return whether loops read cells that other loops have set."""
    accesses = (access for each in statements_in(program.nest.body) for access in cell_accesses(each))
    return any(access.counters != access.cell.counters for access in accesses)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("name", "expected"), [("product", [2, 1, 2]), ("moved", [2, 1, 2]), ("of_two", [2, 1, 1, 2])])
def test_rows_with_an_array_of_their_own_are_parallel(name, expected, level):
    program = program_of(name, level, 80, 9)
    assert has_cells_of_rows(program)
    assert axes(program) == expected


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sizes", [(80, 9), (7, 8)])
@pytest.mark.parametrize(
    "name", ["read_before", "fewer_written", "more_each_time", "at_times", "one_place", "halves", "shifted"]
)
def test_an_array_that_rows_hand_on_stays_one(name, sizes, level):
    program = program_of(name, level, *sizes)
    assert program is None or not has_cells_of_rows(program)


def test_cells_that_would_take_too_much_memory_are_none(monkeypatch):
    monkeypatch.setattr(expansion, "MAX_SCRATCH_BYTES", 80 * 9 * 8 - 1)
    assert not has_cells_of_rows(program_of("product", "-O2", 80, 9))
    monkeypatch.setattr(expansion, "MAX_SCRATCH_BYTES", 80 * 9 * 8)
    assert has_cells_of_rows(program_of("product", "-O2", 80, 9))


def test_an_order_whose_cells_take_too_much_memory_together_is_not_taken(monkeypatch):
    monkeypatch.setattr(storage, "MAX_SCRATCH_BYTES", 2 * 80 * 9 * 8 - 1)
    assert not has_cells_of_rows(program_of("of_two", "-O2", 80, 9))


small, few = st.integers(0, 2), st.integers(1, 3)
places = st.tuples(small, st.sampled_from([0, 0, 0, 1, 3]), small)


@settings(max_examples=300, deadline=None)
@given(st.tuples(few, few, few), places, st.none() | places, st.sampled_from([False, False, True]))
def test_a_changed_nest_does_the_same(trips, written, other, swapped):
    read, reads = (written, trips[1]) if other is None else (other, trips[2])

    def at(numbers, inner):
        constant, outer, stride = numbers
        return Affine(8 * constant, tuple((term, 8 * each) for term, each in ((0, outer), (inner, stride)) if each))

    source = Load("f64.load", Affine(512, ((0, 64), (2, 8))), 0)
    fill = Loop(2, Affine(trips[1]), (Statement(0, ALWAYS, (source, Store("f64.store", at(written, 2), 0, source))),))
    handed = Load("i64.load", at(read, 3), 0)
    place = Affine(1024, ((0, 64), (3, 8)))
    use = Loop(3, Affine(reads), (Statement(1, ALWAYS, (handed, Store("i64.store", place, 0, handed))),))
    nest = Nest((Loop(0, Affine(trips[0]), (use, fill) if swapped else (fill, use)),))
    with limited_context(1_000_000) as context:
        changed, origins = expansion.expanded(nest, model(context, nest, MEMORY_BYTES))
    memories = [random_memory(1), random_memory(1)]
    for each, memory in zip((nest, changed), memories, strict=True):
        assert faults(each) == []
        run_nest(each, {}, memory)
    assert memories[0] == memories[1]
    event(f"changed: {bool(origins)}")
