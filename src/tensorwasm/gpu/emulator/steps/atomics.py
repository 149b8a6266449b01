"""Steps that update memory atomically: ``atom`` and ``red``.

Source: PTX ISA 9.7.13.5 (atom), 9.7.13.6 (red).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.execution.machine import SimtMachine, Step
from tensorwasm.gpu.emulator.lanes import Array, Indices
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.gpu.emulator.program.builder import Builder
from tensorwasm.gpu.emulator.program.operands import RAW, Reader, Writer
from tensorwasm.gpu.emulator.steps import updates
from tensorwasm.gpu.emulator.steps.access import Access, locate, memory_operand, parse_access, synchronize
from tensorwasm.ptx.model import Instruction

_WORDS: Final = frozenset({"add", "inc", "dec", "min", "max", "and", "or", "xor", "exch", "cas", "noftz"})
_INTEGERS: Final = ("u32", "s32", "u64", "s64")
_HALVES: Final = ("f16", "f16x2", "bf16", "bf16x2")
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "add": (*_INTEGERS, "f32", "f64", *_HALVES),
    "inc": ("u32",),
    "dec": ("u32",),
    "min": (*_INTEGERS, *_HALVES),
    "max": (*_INTEGERS, *_HALVES),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64", *_INTEGERS, "f32", "f64"),
    "cas": ("b16", "b32", "b64", *_INTEGERS),
}
_UFUNCS: Final[dict[str, Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_HALF_UFUNCS: Final[dict[str, Any]] = {"add": np.add, "min": np.fmin, "max": np.fmax}


def compile_atomic(builder: Builder, instruction: Instruction) -> None:
    """Add the steps of an ``atom`` or ``red``, one an element, in every operation, type and space."""
    access = parse_access(instruction, _WORDS)
    operation = next((word for word in access.words if word != "noftz"), "")
    if access.type not in _TYPES.get(operation, ()) or access.space not in ("global", "shared", "generic"):
        raise UnsupportedPtx(f"the emulator lacks this form of {instruction.opcode}")
    if access.type in _HALVES and operation != "cas" and "noftz" not in access.words:
        raise UnsupportedPtx("the emulator has no half-precision atomic operation without .noftz")
    if access.count > 1 and (access.space != "global" or access.type not in ("f32", *_HALVES)):
        raise UnsupportedPtx(f"the emulator has no atomic operation on vectors of .{access.type} here")
    names, returns = builder.names, instruction.opcode == "atom"
    operands, wanted = list(instruction.operands), 1 + (operation == "cas")
    expected = returns + 1 + wanted + ("L2::cache_hint" in instruction.modifiers)
    if len(operands) != expected:
        raise MalformedPtx(f"{len(operands)} operands where {expected} are expected")
    targets = list(names.elements(operands.pop(0))) if returns else []
    address = memory_operand(builder, operands.pop(0))
    space, read_address = locate(builder, access, address)
    sources = [list(names.elements(operand)) for operand in operands[:wanted]]
    if any(len(each) != access.count for each in sources) or (returns and len(targets) != access.count):
        raise MalformedPtx(f"operands of {access.count} elements are expected")
    for element in range(access.count):
        reads = [names.reader(each[element], access.type) for each in sources]
        write = names.writer(targets[element], access.type) if returns else None
        if returns and names.unused(targets[element]):
            write = None
        read_element = _shifted(read_address, element * access.dtype.itemsize)
        kind, apply = _find_update(operation, access.type, flushes=space == "global", wanted=write is not None)
        builder.step(_step(instruction, access, space, read_element, reads, write, kind, apply))


def _shifted(read: Reader, offset: int) -> Reader:
    if offset == 0:
        return read
    return lambda machine: read(machine) + np.uint64(offset)


Apply = Callable[[Array, Indices, list[Array], Callable[[], None]], Array]
"""Updates memory, given as elements, at indices with operands, checking the deadline; returns the previous values."""


def _step(
    site: Instruction,
    access: Access,
    space: str,
    read_address: Reader,
    reads: list[Reader],
    write: Writer | None,
    kind: np.dtype[Any],
    apply: Apply,
) -> Step:
    dtype, raw, ordering = access.dtype, RAW[access.dtype.itemsize * 8], access.ordering

    def step(machine: SimtMachine) -> None:
        machine.spins += 1
        if ordering:
            synchronize(machine)
        operands, check = [read(machine) for read in reads], machine.launch.check
        if kind is not dtype:
            operands = [operand.view(kind) for operand in operands]

        def update(view: Array, index: Indices, part: Indices | None) -> Array:
            return apply(view, index, operands if part is None else [one[part] for one in operands], check)

        before = machine.memory.update(space, site, machine.active, read_address(machine), kind, update)
        if write is not None:
            write(machine, before.view(raw).view(dtype))
        if ordering:
            synchronize(machine)

    return step


def _find_update(operation: str, ptx_type: str, *, flushes: bool, wanted: bool) -> tuple[np.dtype[Any], Apply]:
    """Return the type in which memory is updated, and the update.

    ``flushes`` is whether subnormal numbers count as zeros in sums, ``wanted`` whether the previous value is used.
    """
    dtype = DTYPES[ptx_type]
    raw = RAW[dtype.itemsize * 8]
    if operation == "exch":
        return raw, lambda view, index, operands, _check: updates.exchange(view, index, operands[0])
    if operation == "cas":
        return raw, updates.compare_and_swap
    if operation in ("inc", "dec"):
        return dtype, partial(_count, 1 if operation == "inc" else -1)
    if ptx_type in _HALVES:
        return raw, partial(updates.in_rounds, partial(_combine_halves, _HALF_UFUNCS[operation], ptx_type))
    apply = partial(updates.accumulate if wanted else updates.apply_only, _UFUNCS[operation])
    return dtype, partial(_add_single, apply) if ptx_type == "f32" and flushes else apply


def _combine_halves(combine: np.ufunc, ptx_type: str, found: Array, operand: Array) -> Array:
    """Combine numbers of 16 bits, one or two in each element of unsigned bits."""
    half = DTYPES[ptx_type.removesuffix("x2")]
    left, right = np.ascontiguousarray(found).view(half), np.ascontiguousarray(operand).view(half)
    joint: Array = combine(left, right).astype(half).view(found.dtype)
    return joint


def _add_single(apply: Apply, view: Array, index: Indices, operands: list[Array], check: Callable[[], None]) -> Array:
    """Add, with subnormal numbers as zeros; quickly if there can be none: no operand is nearer to 0 than 2**-100."""
    if all(bool(((one == 0) | (np.abs(one) >= 2.0**-100)).all()) for one in (operands[0], view[index])):
        return apply(view, index, operands, check)
    return updates.in_rounds(_add_flushed, view, index, operands, check)


def _add_flushed(left: Array, right: Array) -> Array:
    return updates.flush(updates.flush(left) + updates.flush(right))


def _count(direction: int, view: Array, index: Indices, operands: list[Array], check: Callable[[], None]) -> Array:
    (bound,) = operands
    if (bound == bound[0]).all():
        return updates.count_cyclic(direction, view, index, int(bound[0]))
    return updates.in_rounds(updates.increment if direction > 0 else updates.decrement, view, index, operands, check)
