from __future__ import annotations

import pytest
from hypothesis import given, settings

from loops import compile_c
from strategies.wasm import modules
from tensorwasm.offload.analysis.fusion import MOST_FUSED
from tensorwasm.offload.analysis.regions import DeclinedLoop, LoopRegion, find_regions
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.wasm.definitions import CodeEntry, Global
from tensorwasm.wasm.module import Module, decode, encode
from tensorwasm.wasm.types import FuncType, GlobalType, MemoryType

STORE = (("local.get", 0), ("local.get", 1), ("f64.store", (3, 0, 0)))
STEP = (("local.get", 0), ("i32.const", 8), ("i32.add",), ("local.tee", 0))
LOOP = (("loop", None), *STORE, *STEP, ("br_if", 0), ("end",))


ONE_MEMORY = (MemoryType(1, None),)


def found(code, memories=ONE_MEMORY, results=()):
    module = Module(
        types=(FuncType(("i32", "f64"), results),),
        functions=(0,),
        memories=memories,
        globals=(Global(GlobalType("i32", mutable=True), (("i32.const", 0),)),),
        bodies=(CodeEntry.build([(3, "i32")], code),),
    )
    return find_regions(module)


def test_a_loop_without_escapes_is_a_region_of_its_own():
    assert found((("block", None), *LOOP, ("end",))) == [
        LoopRegion(0, 1, 10, inputs=((0, "i32"), (1, "f64")), outputs=(), globals=(), depth=1)
    ]


def test_a_region_reaches_as_far_as_the_branches_of_its_loop():
    code = (
        ("block", None),
        ("block", None),
        ("loop", None),
        *STORE,
        *STEP,
        ("br_if", 0),
        ("br", 1),
        ("end",),
        ("end",),
        ("end",),
    )
    assert [(region.start, region.end) for region in found(code)] == [(1, 13)]


def test_a_local_that_is_read_afterwards_is_an_output_and_an_input():
    region = found((*LOOP, ("local.get", 0)), results=("i32",))[0]
    assert region.outputs == ((0, "i32"),)


def test_a_local_that_an_outer_loop_reads_first_is_an_output():
    outer = (
        ("loop", None),
        ("local.get", 2),
        ("drop",),
        ("call", 0),
        *LOOP,
        ("i32.const", 1),
        ("local.set", 2),
        ("local.get", 2),
        ("br_if", 0),
        ("end",),
    )
    declined, region = found(outer)
    assert declined.reason is DeclineReason.CALL
    assert region.outputs == ((0, "i32"),)


def test_a_temporary_is_neither_input_nor_output():
    loop = (("loop", None), ("i32.const", 4), ("local.set", 2), ("local.get", 2), ("drop",), *LOOP[1:])
    region = found(loop)[0]
    assert (2, "i32") not in region.inputs + region.outputs


def test_a_global_that_is_read_is_an_input():
    region = found((("loop", None), ("global.get", 0), ("drop",), *LOOP[1:]))[0]
    assert region.globals == ((0, "i32"),)


@pytest.mark.parametrize(
    ("instructions", "reason"),
    [
        ((("call", 0),), DeclineReason.CALL),
        ((("return",),), DeclineReason.INSTRUCTION),
        ((("i32.const", 1), ("memory.grow", 0), ("drop",)), DeclineReason.INSTRUCTION),
        ((("i32.const", 1), ("global.set", 0)), DeclineReason.INSTRUCTION),
        ((("local.get", 1), ("i32.trunc_f64_s",), ("drop",)), DeclineReason.INSTRUCTION),
        ((("i32.const", 1), ("br_if", 1)), DeclineReason.CONTROL_FLOW),
    ],
)
def test_a_loop_with_such_code_declines_and_leaves_its_inner_loop(instructions, reason):
    code = (("loop", None), *LOOP, *instructions, ("local.get", 2), ("br_if", 0), ("end",))
    loops = found(code)
    assert [(loop.start, loop.reason) for loop in loops if isinstance(loop, DeclinedLoop)] == [(0, reason)]
    assert [(loop.start, loop.end) for loop in loops if isinstance(loop, LoopRegion)] == [(1, 10)]


def test_a_loop_is_left_by_a_table_of_labels():
    code = (("block", None), ("loop", None), *STORE, ("local.get", 2), ("br_table", (0, 1)), ("end",), ("end",))
    assert [(region.start, region.end) for region in found(code)] == [(0, 8)]


LOADED = (("local.get", 2), ("i32.load", (2, 0, 0)))
SCATTER = (*LOADED, ("local.tee", 3), ("local.get", 1), ("f64.store", (3, 0, 0)))


def loops(code):
    declined = [(each.start, each.reason) for each in found(code) if isinstance(each, DeclinedLoop)]
    return declined, [(each.start, each.end) for each in found(code) if isinstance(each, LoopRegion)]


def test_a_loop_whose_address_is_data_declines_and_leaves_those_beside_it():
    scattered = (("loop", None), *SCATTER, *STEP, ("br_if", 0), ("end",))
    code = (("loop", None), *LOOP, *scattered, ("local.get", 2), ("br_if", 0), ("end",))
    reason = DeclineReason.DATA_DEPENDENT
    assert loops(code) == ([(11, reason), (0, reason)], [(1, 10)])


def test_an_address_that_is_data_on_one_way_only_is_seen_when_it_is_known():
    other = (("block", None), ("local.get", 0), ("br_if", 0), *LOADED, ("local.set", 3), ("end",))
    store = (("local.get", 3), ("local.get", 1), ("f64.store", (3, 0, 0)))
    code = (("loop", None), *other, *store, *LOOP, ("local.get", 2), ("br_if", 0), ("end",))
    assert loops(code) == ([], [(0, len(code) - 1)])


def test_what_is_loaded_before_a_loop_is_no_data_in_it():
    inner = (("loop", None), ("local.get", 3), ("local.get", 1), ("f64.store", (3, 0, 0)), *LOOP, *STEP, ("br_if", 0))
    code = (("loop", None), *LOADED, ("local.set", 3), *inner, ("end",), ("local.get", 2), ("br_if", 0), ("end",))
    assert loops(code)[1] == [(4, len(code) - 4)]


def test_single_loops_in_one_that_scatters_are_left_alone():
    code = (("loop", None), *SCATTER, *LOOP, ("local.get", 2), ("br_if", 0), ("end",))
    assert loops(code)[1] == []


@pytest.mark.parametrize(
    "memories", [(), (MemoryType(1, 1, shared=True),), (MemoryType(1, 1, is_64=True),), (MemoryType(1, 1),) * 2]
)
def test_only_a_module_with_one_memory_of_its_own_of_32_bits_has_regions(memories):
    assert found(LOOP, memories) == []


@settings(max_examples=50)
@given(modules())
def test_regions_are_blocks_of_their_functions(module):
    module = decode(encode(module))
    for region in find_regions(module):
        code = module.bodies[region.function - len(module.imported("func"))].instructions()
        if isinstance(region, LoopRegion):
            assert code[region.start] in {("block", None), ("loop", None)}
            assert code[region.end] == ("end",)
            assert set(region.outputs) <= set(region.inputs)


def parts_of(*code, results=()):
    return [(each.start, each.end, each.parts) for each in found(code, results=results) if isinstance(each, LoopRegion)]


SECOND = len(LOOP)
APART = [(0, SECOND - 1, 1), (SECOND + 2, 2 * SECOND + 1, 1)]


def test_loops_in_a_row_are_a_region_around_those_of_each():
    between = (("i32.const", 7), ("local.set", 2))
    assert parts_of(*LOOP, *between, *LOOP) == [(0, 2 * SECOND + 1, 2), *APART]


def test_a_block_with_several_loops_that_branches_leave_alone_is_a_region():
    inner = (("local.get", 2), ("br_if", 0), *LOOP, ("block", None), *LOOP, ("local.get", 2), ("br_if", 1), ("end",))
    found_parts = parts_of(("block", None), *inner, ("end",))
    assert found_parts[0] == (0, len(inner) + 1, 2)
    assert [parts for _, _, parts in found_parts] == [2, 1, 1]


@pytest.mark.parametrize(
    "between",
    [
        (("i32.const", 1), ("call", 0)),
        (("i32.const", 1), ("global.set", 0)),
        (("local.get", 2), ("br_if", 0)),
        (("memory.size", 0), ("drop",)),
        (("local.get", 0), ("i32.const", 1)),
    ],
    ids=["call", "global", "branch", "memory", "stack"],
)
def test_loops_with_something_else_between_them_are_regions_by_themselves(between):
    assert parts_of(*LOOP, *between, *LOOP, ("return",)) == APART


def test_a_loop_that_needs_what_is_on_the_stack_is_in_no_region_with_another():
    code = (("i32.const", 5), *LOOP, ("local.set", 2), *LOOP)
    assert [parts for _, _, parts in parts_of(*code)] == [1, 1]


def test_a_declined_loop_between_leaves_regions_alone():
    declined = (("loop", None), *LOOP, ("i32.const", 1), ("call", 0), ("local.get", 2), ("br_if", 0), ("end",))
    assert [parts for _, _, parts in parts_of(*LOOP, *declined, *LOOP)] == [1, 1, 1]


def test_what_is_live_behind_the_last_loop_is_an_output_of_all():
    fused, *_ = found((*LOOP, ("i32.const", 3), ("local.set", 2), *LOOP, ("local.get", 2)), results=("i32",))
    assert (fused.parts, fused.outputs) == (2, ((2, "i32"),))


def test_very_many_loops_in_a_row_are_several_regions():
    found_parts = [parts for _, _, parts in parts_of(*(LOOP * (MOST_FUSED + 2))) if parts > 1]
    assert found_parts == [MOST_FUSED, 2]


def test_both_nests_of_a_function_are_regions():
    source = """
    double a[9], b[9];
    __attribute__((export_name("f"))) void f(int n) {
      for (int i = 0; i < n; i++) a[i] *= 2;
      for (int i = 0; i < n; i++) b[i] += a[i];
    }"""
    regions = find_regions(decode(compile_c(source, "-Os")))
    assert [region.parts for region in regions] == [2, 1, 1]
