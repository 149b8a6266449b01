"""Loops of vector instructions, as nests of their lanes and in machine code, write what wasmtime writes."""

from __future__ import annotations

import pytest
from hypothesis import event, given, reject, settings
from hypothesis import strategies as st

from oracles.nest import faults, run_nest
from oracles.offload import run_on_host
from strategies.vectors import CARRIED, SUPPORTED, VECTORS, VectorLoop, all_of, run_vectors, stored, vector_loops
from tensorwasm.offload.analysis.build import build_nest, read_region
from tensorwasm.offload.analysis.finish import leaves
from tensorwasm.offload.analysis.regions import DeclinedLoop, find_regions
from tensorwasm.offload.codegen.sizes import with_sizes
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.lanes import crossing_lane, crossing_number
from tensorwasm.offload.nest import Operation, values_of
from tensorwasm.offload.scheduling.plan import plan

GROUPS = {
    "f64": ("f64x2.",),
    "f32": ("f32x4.",),
    "i64": ("i64x2.",),
    "i32": ("i32x4.",),
    "i16": ("i16x8.",),
    "i8": ("i8x16.",),
    "bits": ("v128.and", "v128.or", "v128.xor", "v128.not", "v128.bitselect", "v128.any", "v128.const"),
    "memory": ("v128.load", "v128.store"),
    "masks": ("f64x2.lt", "f32x4.ge", "i32x4.eq", "i64x2.lt", "v128.and", "v128.or", "v128.not", "v128.bitselect"),
    "all": ("",),
}


def _held(number, kind, memory):
    """Return what an input of a region holds: a lane of what is carried; all others are 0."""
    found = crossing_lane(number)
    if found is None or found[0] != VECTORS[-1]:
        return 0
    at = CARRIED + found[1] * int(kind[1:]) // 8
    return int.from_bytes(memory[at : at + int(kind[1:]) // 8], "little")


def _with_results(region, results, memory):
    """Return memory with what is carried behind the loop, as the function stores it."""
    for number, kind in region.outputs:
        lane, size = crossing_lane(number)[1], int(kind[1:]) // 8
        memory[CARRIED + lane * size : CARRIED + (lane + 1) * size] = results[number].to_bytes(size, "little")
    return bytes(memory)


def _nest_of(loop):
    """See that a loop as a nest does what it does in wasmtime; return it, its inputs, and whether there is a NaN."""
    (region,) = find_regions(loop.module)
    inputs = {number: _held(number, kind, loop.memory) for number, kind in region.inputs}
    nest = build_nest(read_region(loop.module, region), inputs)
    assert faults(nest) == []
    memory = bytearray(loop.memory)
    results, trace = run_nest(nest, inputs, memory)
    assert _with_results(region, results, memory) == run_vectors(loop)
    return region, nest, inputs, trace.has_nan


def _names(group):
    return tuple(name for name in SUPPORTED if name.startswith(GROUPS[group]))


@pytest.mark.parametrize("group", GROUPS)
@settings(max_examples=6)
@given(data=st.data())
def test_each_vector_instruction_does_what_it_does_in_wasmtime(group, data):
    _nest_of(data.draw(all_of(_names(group))))


@pytest.mark.parametrize("group", GROUPS)
@settings(max_examples=12)
@given(data=st.data())
def test_vectors_that_flow_from_instruction_to_instruction_do_what_they_do_in_wasmtime(group, data):
    loop = data.draw(vector_loops(_names(group), 12))
    try:
        _nest_of(loop)
    except Declined as declined:
        event(declined.reason.name)  # as loops of scalars do


@settings(max_examples=12)
@given(loop=vector_loops(tuple(SUPPORTED), 5))
def test_vectors_in_machine_code_do_what_they_do_in_wasmtime(loop):
    memory = bytearray(loop.memory)
    try:
        region, nest, inputs, has_nan = _nest_of(loop)
        program = with_sizes(plan(nest, len(memory)))
    except Declined:
        reject()  # what is carried may make it sequential
    found = run_on_host(program, inputs, memory)
    if found is None:
        assert has_nan
    else:
        assert _with_results(region, found, memory) == run_vectors(loop)


def _declined(*code):
    loop = VectorLoop((("local.get", VECTORS[0]), *code, ("local.set", VECTORS[1])), (bytes(16),))
    found = find_regions(loop.module)
    assert all(isinstance(each, DeclinedLoop) for each in found)
    return [(each.reason, each.detail) for each in found]


@pytest.mark.parametrize(
    "code",
    [
        (("local.get", VECTORS[1]), ("i8x16.swizzle",)),
        (("local.get", VECTORS[1]), ("i8x16.relaxed_swizzle",)),
        (("local.get", VECTORS[1]), ("local.get", VECTORS[2]), ("f64x2.relaxed_madd",)),
        (("i32x4.relaxed_trunc_f32x4_s",),),
    ],
    ids=lambda code: code[-1][0],
)
def test_an_instruction_whose_lanes_data_chooses_or_that_is_relaxed_declines(code):
    assert _declined(*code) == [(DeclineReason.INSTRUCTION, code[-1][0])]


def test_a_block_that_gives_a_vector_declines():
    code = (("drop",), ("block", "v128"), ("local.get", VECTORS[2]), ("end",))
    assert _declined(*code) == [(DeclineReason.INSTRUCTION, "a block with vectors")]


def test_lanes_of_what_is_carried_are_inputs_and_outputs_in_the_shape_that_instructions_see():
    carried = VECTORS[-1]
    code = (("local.get", carried), ("local.get", VECTORS[0]), ("f32x4.add",), ("local.set", carried))
    (region,) = find_regions(VectorLoop(code, (bytes(16),)).module)
    lanes = tuple((crossing_number(carried, lane), "f32") for lane in range(4))
    assert (region.inputs, region.outputs) == (((0, "i32"), *lanes), lanes)


def test_a_mask_in_a_local_that_held_floats_shows_no_bits():
    zero, mask = VECTORS[0], VECTORS[0]
    code = (
        *(("local.get", VECTORS[1]), ("local.get", VECTORS[2]), ("f64x2.add",), ("local.tee", zero)),
        *(("local.get", zero), ("local.get", VECTORS[1]), ("local.get", zero), ("f64x2.lt",), ("local.tee", mask)),
        *(("v128.bitselect",), ("local.set", VECTORS[3]), *stored(VECTORS[3], 0)),
    )
    loop = VectorLoop(code, (bytes(16),))
    (region,) = find_regions(loop.module)
    (nest,) = build_nest(read_region(loop.module, region), {0: 0}).body
    opcodes = {each.opcode for each in leaves(values_of(nest.body[0].effects)) if isinstance(each, Operation)}
    assert opcodes == {"f64.add", "f64.lt", "select"}
