"""Loops of vector instructions, as nests of their lanes and in machine code, write what wasmtime writes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.nest import faults, run_nest
from oracles.offload import run_on_host
from strategies.vectors import CARRIED, SUPPORTED, VECTORS, all_of, run_vectors, vector_loops
from tensorwasm.offload.analysis.build import build_nest, read_region
from tensorwasm.offload.analysis.regions import find_regions
from tensorwasm.offload.codegen.sizes import with_sizes
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.lanes import crossing_lane
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
    _nest_of(data.draw(vector_loops(_names(group), 12)))


@settings(max_examples=12)
@given(loop=vector_loops(tuple(SUPPORTED), 5))
def test_vectors_in_machine_code_do_what_they_do_in_wasmtime(loop):
    region, nest, inputs, has_nan = _nest_of(loop)
    memory = bytearray(loop.memory)
    try:
        program = with_sizes(plan(nest, len(memory)))
    except Declined as declined:
        assert declined.reason is DeclineReason.SEQUENTIAL
        return
    found = run_on_host(program, inputs, memory)
    if found is None:
        assert has_nan
    else:
        assert _with_results(region, found, memory) == run_vectors(loop)
