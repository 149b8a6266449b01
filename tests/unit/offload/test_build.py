from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings

from loops import compile_c
from oracles.nest import faults, statements
from oracles.wasm_interpreter import Interpreter
from strategies.wasm import modules
from tensorwasm.offload.analysis.build import build_nest, read_region
from tensorwasm.offload.analysis.regions import LoopRegion, find_regions
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Affine, Load, Loop, SetCell, Store, While
from tensorwasm.wasm.definitions import CodeEntry
from tensorwasm.wasm.module import Module, decode, encode
from tensorwasm.wasm.types import FuncType, MemoryType

STORE = (("local.get", 0), ("f64.const", 0), ("f64.store", (3, 0, 0)))


def step(local, by=1):
    return (("local.get", local), ("i32.const", by), ("i32.add",), ("local.tee", local))


def nest_of(code, inputs, results=()):
    """Build the nest of a function of (i32, i32, f64) with two more i32 and an f64, 3 to 5."""
    signature = FuncType(("i32", "i32", "f64"), results)
    body = CodeEntry.build([(2, "i32"), (1, "f64")], code)
    module = Module(types=(signature,), functions=(0,), memories=(MemoryType(1, None),), bodies=(body,))
    regions = [region for region in find_regions(module) if isinstance(region, LoopRegion)]
    nest = build_nest(read_region(module, regions[0]), inputs)
    assert faults(nest) == []
    return nest


def nest_of_c(body, level="-Os", **integers):
    source = f'double A[64][64], B[64][64];\n__attribute__((export_name("f"))) void f(int n) {{ {body} }}'
    module = decode(compile_c(source, level))
    region = next(region for region in find_regions(module) if isinstance(region, LoopRegion))
    code = read_region(module, region)
    starts = _live_in(module, region, integers["n"])
    nest = build_nest(code, {local: starts[local] for local, _ in region.inputs})
    assert faults(nest) == []
    return nest


def _live_in(module, region, n):
    part = (region.function, region.start, region.end + 1)
    interpreter = Interpreter(encode(module), (part,))
    interpreter.call_export("f", n)
    return interpreter.visits[part][0].locals_before


def reason(code, inputs):
    with pytest.raises(Declined) as declined:
        nest_of(code, inputs)
    return declined.value.reason


def test_a_pointer_that_is_bumped_is_affine():
    nest = nest_of(
        (("loop", None), *STORE, *step(0, 8), ("i32.const", 80), ("i32.ne",), ("br_if", 0), ("end",)), {0: 16}
    )
    (loop,) = nest.body
    assert loop.trip == Affine(8)
    assert loop.body[0].effects[0].pointer == Affine(16, ((0, 8),))


def test_an_exit_that_is_stepped_over_declines():
    code = (("loop", None), *STORE, *step(0, 8), ("i32.const", 81), ("i32.ne",), ("br_if", 0), ("end",))
    assert reason(code, {0: 16}) is DeclineReason.CONTROL_FLOW


def test_a_loop_that_may_go_on_without_its_test_declines():
    again = (("local.get", 3), ("i32.const", 1), ("i32.and",), ("br_if", 0), ("br", 1))
    code = (("loop", None), *STORE, *step(0, 8), ("drop",), *step(3), ("drop",), ("block", None), *again, ("end",))
    code += (("local.get", 3), ("i32.const", 9), ("i32.ne",), ("br_if", 0), ("end",))
    assert reason(code, {0: 0, 3: 0}) is DeclineReason.CONTROL_FLOW


def test_a_loop_that_counts_for_ever_declines():
    assert reason((("loop", None), *STORE, ("br", 0), ("end",)), {0: 0}) is DeclineReason.CONTROL_FLOW


def test_a_condition_on_data_declines():
    code = (("loop", None), *STORE, ("local.get", 2), ("f64.const", 0), ("f64.lt",), ("br_if", 0), ("end",))
    assert reason(code, {0: 0}) is DeclineReason.DATA_DEPENDENT


def test_an_address_from_memory_declines():
    load = (("local.get", 0), ("i32.load", (2, 0, 0)), ("f64.const", 0), ("f64.store", (3, 0, 0)))
    code = (("loop", None), *load, *step(0, 8), ("i32.const", 80), ("i32.ne",), ("br_if", 0), ("end",))
    assert reason(code, {0: 16}) is DeclineReason.DATA_DEPENDENT


def test_a_local_that_grows_by_what_itself_counts_is_no_address():
    grow = (("local.get", 0), *step(3), ("i32.add",), ("local.set", 0))
    code = (("loop", None), *STORE, *grow, ("local.get", 3), ("i32.const", 9), ("i32.ne",), ("br_if", 0), ("end",))
    assert reason(code, {0: 0, 3: 0}) is DeclineReason.DATA_DEPENDENT


def test_locals_that_are_exchanged_change_at_once():
    swap = (("local.get", 2), ("local.get", 5), ("local.set", 2), ("local.set", 5))
    store = (("local.get", 0), ("local.get", 2), ("f64.store", (3, 0, 0)))
    code = (("loop", None), *store, *swap, *step(0, 8), ("i32.const", 80), ("i32.ne",), ("br_if", 0), ("end",))
    nest = nest_of((*code, ("local.get", 5)), {0: 16}, ("f64",))
    last = [statement for statement, around in statements(nest.body) if around][-1]
    first, second = [effect for effect in last.effects if isinstance(effect, SetCell)]
    assert (first.value.cell, second.value.cell) == (second.cell, first.cell)


def test_a_sum_that_is_only_returned_is_a_result():
    add = (("local.get", 2), ("local.get", 0), ("f64.load", (3, 0, 0)), ("f64.add",), ("local.set", 2))
    code = (("loop", None), *add, *step(0, 8), ("i32.const", 80), ("i32.ne",), ("br_if", 0), ("end",))
    nest = nest_of((*code, ("local.get", 2)), {0: 16}, ("f64",))
    assert list(nest.results) == [2]


def test_the_input_of_the_next_iteration_is_loaded_again():
    nest = nest_of_c(
        "for (int i = 1; i < n; i++) for (int j = 1; j < 63; j++) B[i][j] = A[i][j-1] + A[i][j];", "-O2", n=20
    )
    effects = [effect for statement, _ in statements(nest.body) for effect in statement.effects]
    assert not any(isinstance(effect, SetCell) for effect in effects)


def test_what_a_store_may_change_is_not_loaded_again():
    nest = nest_of_c("for (int j = 1; j < n; j++) A[0][j] = A[0][j-1] + B[0][j-1] + B[0][j];", "-O2", n=20)
    effects = [effect for statement, _ in statements(nest.body) for effect in statement.effects]
    assert any(isinstance(effect, SetCell) for effect in effects)


@pytest.mark.parametrize("level", ["-O1", "-O2", "-O3", "-Os"])
def test_a_triangle_is_modelled_at_every_level(level):
    nest = nest_of_c("for (int i = 0; i < n; i++) for (int j = 0; j <= i; j++) A[i][j] = B[j][i] * 3;", level, n=20)
    found = list(statements(nest.body))
    assert any(isinstance(effect, Store) for statement, _ in found for effect in statement.effects)
    assert any(isinstance(effect, Load) for statement, _ in found for effect in statement.effects)
    assert isinstance(nest.body[0], Loop)


def test_clearing_of_rows_is_part_of_a_nest():
    nest = nest_of_c(
        "for (int i = 0; i < n; i++) { for (int j = 0; j < 60; j++) A[i][j] = 0; B[i][0] = B[i][1]; }", "-O2", n=20
    )
    opcodes = {
        getattr(effect, "opcode", "cell") for statement, _ in statements(nest.body) for effect in statement.effects
    }
    assert opcodes == {"i64.store", "f64.load", "f64.store"}


def whiles(nest):
    return [
        effect for statement, _ in statements(nest.body) for effect in statement.effects if isinstance(effect, While)
    ]


@pytest.mark.parametrize("level", ["-O1", "-O2", "-O3", "-Os"])
def test_a_search_is_a_loop_of_data_with_no_more_turns_than_its_counter_allows(level):
    text = "for (int i = 0; i < n; i++) { int k = 0; while (k < n && B[k][0] < A[i][0]) k++; A[i][1] = k; }"
    found = whiles(nest_of_c(text, level, n=20))
    assert found
    assert all(loop.turns in {Affine(20), Affine(21)} for loop in found)


def test_a_loop_without_a_counter_has_no_limit():
    text = "for (int i = 0; i < n; i++) { double x = B[i][0] + 1; while (x < 9) x *= 1.5; A[i][0] = x; }"
    assert {loop.turns for loop in whiles(nest_of_c(text, "-Os", n=20))} == {None}


def test_what_data_decides_not_to_store_is_written_back():
    nest = nest_of_c("for (int i = 0; i < n; i++) if (B[i][0] > 0) A[i][0] = 7;", "-Os", n=20)
    effects = [effect for statement, _ in statements(nest.body) for effect in statement.effects]
    (store,) = [effect for effect in effects if isinstance(effect, Store)]
    assert store.value.opcode == "select"
    old = [operand for operand in store.value.operands if isinstance(operand, Load)]
    assert [(load.pointer, load.offset) for load in old] == [(store.pointer, store.offset)]


def test_a_store_in_a_loop_that_data_ends_declines():
    with pytest.raises(Declined) as declined:
        nest_of_c("for (int i = 0; i < n; i++) { int k = 0; while (B[i][k] > 0) A[i][k++] = 1; }", "-O2", n=20)
    assert declined.value.reason is DeclineReason.DATA_DEPENDENT


def test_a_float_that_counts_is_an_index():
    text = "double x = 5; for (int i = 0; i < n; i++) { A[0][i] = x; x += 3; }"
    (statement, _) = next(statements(nest_of_c(text, "-O2", n=20).body))
    values = [effect.value for effect in statement.effects if isinstance(effect, Store)]
    assert all(value.opcode == "f64.convert_i64_s" for value in values)


@pytest.mark.parametrize(
    ("start", "by"), [("-0.0", "1"), ("0.5", "1"), ("0", "0.5"), ("9007199254740990", "1"), ("0", "1e15")]
)
def test_a_float_that_may_be_rounded_is_handed_on(start, by):
    text = f"double x = {start}; for (int i = 0; i < n; i++) {{ A[0][i] = x; x += {by}; }}"
    nest = nest_of_c(text, "-Os", n=60)
    effects = [effect for statement, _ in statements(nest.body) for effect in statement.effects]
    assert any(isinstance(effect, SetCell) for effect in effects)


def test_paths_that_cannot_be_united_are_few():
    fork = []
    for bit in range(6):
        fork += [("block", None), ("local.get", 3), ("i32.const", 1 << bit), ("i32.and",), ("br_if", 0)]
        fork += [*step(4, 8 << bit), ("drop",), ("end",)]
    store = (("local.get", 4), ("local.get", 2), ("f64.store", (3, 0, 0)))
    end = (*step(3), ("i32.const", 64), ("i32.ne",), ("br_if", 0), ("end",))
    code = (("loop", None), ("i32.const", 0), ("local.set", 4), *fork, *store, *end)
    assert reason(code, {3: 0}) is DeclineReason.TOO_LARGE


@settings(max_examples=100, deadline=None)
@given(modules())
def test_regions_of_any_module_are_built_or_decline(module):
    module = decode(encode(module))
    for region in find_regions(module):
        if isinstance(region, LoopRegion):
            with suppress(Declined):
                nest = build_nest(
                    read_region(module, region),
                    {local: 0 for local, _ in region.inputs},
                    {each: 0 for each, _ in region.globals},
                )
                assert faults(nest) == []
