"""Steps that change a matrix in place by one row and one column of it run all elements at once."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from loops import compile_c
from oracles.nest import faults, run_nest
from oracles.offload import judged_program
from strategies.nests import MEMORY_BYTES, random_memory
from tensorwasm.offload.nest import ALWAYS, Affine, Constant, Load, Loop, Nest, Operation, Statement, Store
from tensorwasm.offload.program import For, HostLoop
from tensorwasm.offload.scheduling.footprints import cell_accesses
from tensorwasm.offload.scheduling.model import model
from tensorwasm.offload.scheduling.pivots import with_pivots
from tensorwasm.offload.scheduling.polyhedra import limited_context
from tensorwasm.offload.scheduling.rewriting import statements_in
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs

STEPS = """
#define N 24
int p[N + 1][N], w[N][N];
double d[N][N];
void __attribute__((export_name("init"))) init(void) {
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      p[i][j] = (i * 7 + j * 5) % 23 - 4;
      w[i][j] = (i + j) % 3;
      d[i][j] = (i * 5 + j) % 13 / 64.0 - 0.1;
    }
}
#define EXPORT(name) __attribute__((export_name(#name))) name
#define ALL(steps, rows, columns) \\
  for (int k = 0; k < steps; k++) \\
    for (int i = 0; i < rows; i++) \\
      for (int j = 0; j < columns; j++)
void EXPORT(paths)(int n, int m) {
  ALL(n, n, n) p[i][j] = p[i][j] < p[i][k] + p[k][j] ? p[i][j] : p[i][k] + p[k][j];
}
void EXPORT(products)(int n, int m) { ALL(m, n, n) d[i][j] = d[i][j] * 0.5 + d[k][j] * d[i][k]; }
void EXPORT(wide)(int n, int m) { ALL(m, m, n) p[i][j] = p[i][j] - p[k][j] * p[i][k]; }
void EXPORT(next_row)(int n, int m) { ALL(n, n, n) p[i][j] += p[i][k] * p[k + 1][j]; }
void EXPORT(weighted)(int n, int m) { ALL(n, n, n) p[i][j] += p[i][k] * p[k][j] + w[i][j]; }
void EXPORT(by_step)(int n, int m) { ALL(n, n, n) p[i][j] += p[i][k] * p[k][j] + k; }
void EXPORT(below)(int n, int m) {
  for (int k = 0; k < n; k++)
    for (int i = 0; i < n; i++)
      for (int j = 0; j <= i; j++) p[i][j] += p[i][k] * p[k][j];
}
void EXPORT(more_steps)(int n, int m) { ALL(n, m, m) p[i][j] += p[i][k] * p[k][j]; }
void EXPORT(one_dimension)(int n, int m) { ALL(n, n, n) p[0][i + j] += p[0][i + k] * p[0][k + j]; }
"""
LEVELS = ("-O1", "-O2", "-O3", "-Os")


program_of = partial(judged_program, STEPS)


def has_lines(program):
    """Return whether loops read cells that other loops have set."""
    accesses = (access for each in statements_in(program.nest.body) for access in cell_accesses(each))
    return any(access.counters != access.cell.counters for access in accesses)


def axes(steps):
    counts = []
    for step in steps:
        body, count = step.body, 0
        while len(body) == 1 and isinstance(body[0], For) and body[0].parallel:
            body, count = body[0].body, count + 1
        counts.append(count)
    return counts


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sizes", [(8, 5), (13, 11)])
@pytest.mark.parametrize("name", ["paths", "products", "wide"])
def test_a_step_is_three_launches(name, sizes, level):
    program = program_of(name, level, *sizes)
    (host,) = program.steps
    assert isinstance(host, HostLoop)
    assert axes(host.body) == [1, 1, 2]
    assert has_lines(program)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["next_row", "weighted", "by_step", "below", "more_steps", "one_dimension"])
def test_other_steps_have_no_lines(name, level):
    program = program_of(name, level, 9, 6)
    assert program is None or not has_lines(program)


@pytest.mark.parametrize("name", ["paths", "products"])
def test_memory_is_that_of_the_steps_on_a_device(name):
    with Runtime("emulator") as runtime:
        wasm = compile_c(STEPS, "-O2")
        plain, offloaded = runtime.load(wasm), runtime.load(wasm, offload="gpu", offload_waits=True)
        found = compare_runs(plain, offloaded, [MeasuredCall("init", [])], MeasuredCall(name, [21, 17]))
        assert found.difference == ""
        assert sum(each.taken for each in offloaded.offloading.statistics) > 0


bit = st.integers(0, 1)


@settings(max_examples=300, deadline=None)
@given(
    st.tuples(st.integers(1, 4), *[st.integers(2, 5)] * 2),
    st.lists(st.sampled_from([(1, 2), (1, 0), (0, 2)]) | st.tuples(*[st.integers(0, 2)] * 2, bit, bit), min_size=1),
    st.sampled_from([1, 4, 5, 6]),
)
def test_a_changed_nest_does_the_same(trips, chosen, width):
    def at(row, column, down=0, right=0):
        terms = {}
        for counter, stride in ((row, 8 * width), (column, 8)):
            terms[counter] = terms.get(counter, 0) + stride
        return Affine(8 * (width * down + right), tuple(sorted(terms.items())))

    loads = [Load("i64.load", at(row, column, *by), 0) for row, column, *by in chosen[:3]]
    value = loads[0]
    for load in loads[1:]:
        value = Operation("i64", "i64.mul", (Operation("i64", "i64.add", (value, Constant("i64", 3))), load))
    body = Statement(0, ALWAYS, (*loads, Store("i64.store", at(1, 2), 0, value)))
    steps, rows, columns = map(Affine, trips)
    nest = Nest((Loop(0, steps, (Loop(1, rows, (Loop(2, columns, (body,)),)),)),))
    with limited_context(1_000_000) as context:
        changed = with_pivots(nest, model(context, nest, MEMORY_BYTES))
    memories = [random_memory(1), random_memory(1)]
    for each, memory in zip((nest, changed), memories, strict=True):
        assert faults(each) == []
        run_nest(each, {}, memory)
    assert memories[0] == memories[1]
    event(f"changed: {changed is not nest}")


@pytest.mark.parametrize(
    ("opcode", "loaded"), [("i64.store", None), ("i64.store16", None), ("i64.store", "i64.load"), ("i64.store32", None)]
)
def test_elements_without_a_row_and_a_column_have_no_lines(opcode, loaded):
    place = Affine(0, ((1, 40), (2, 8)))
    loads = [Load(loaded, place, 0)] if loaded else []
    body = Statement(0, ALWAYS, (*loads, Store(opcode, place, 0, loads[0] if loads else Constant("i64", 5))))
    nest = Nest((Loop(0, Affine(3), (Loop(1, Affine(4), (Loop(2, Affine(5), (body,)),)),)),))
    with limited_context(1_000_000) as context:
        assert with_pivots(nest, model(context, nest, MEMORY_BYTES)) is nest
