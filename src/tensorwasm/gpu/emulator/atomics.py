"""Steps that update memory atomically: ``atom`` and ``red``.

Source: PTX ISA 9.7.13.5 (atom), 9.7.13.6 (red).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator import updates
from tensorwasm.gpu.emulator.access import locate, memory_operand, note_width, parse_access, synchronize
from tensorwasm.gpu.emulator.builder import Builder
from tensorwasm.gpu.emulator.lanes import Array
from tensorwasm.gpu.emulator.machine import Machine
from tensorwasm.gpu.emulator.memory import Update
from tensorwasm.gpu.emulator.operands import RAW, Reader, Writer
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.ptx.model import Instruction

_WORDS: Final = frozenset({"add", "inc", "dec", "min", "max", "and", "or", "xor", "exch", "cas", "noftz"})
_INTEGERS: Final = ("u32", "s32", "u64", "s64")
_HALVES: Final = ("f16", "f16x2", "bf16", "bf16x2")
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "add": ("u32", "s32", "u64", "s64", "f32", "f64", *_HALVES),
    "inc": ("u32",),
    "dec": ("u32",),
    "min": (*_INTEGERS, *_HALVES),
    "max": (*_INTEGERS, *_HALVES),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64", "u32", "s32", "u64", "s64", "f32", "f64"),
    "cas": ("b16", "b32", "b64", "u32", "s32", "u64", "s64"),
}
_PACKED: Final = {"f16x2": np.dtype(np.float16), "bf16x2": updates.BFLOAT16}


_UFUNCS: Final[dict[str, Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def compile_atomic(builder: Builder, instruction: Instruction) -> None:
    """Add the step of an ``atom`` or ``red``, in every operation, type and space."""
    access = parse_access(instruction, _WORDS)
    operation = next((word for word in access.words if word != "noftz"), "")
    if access.type not in _TYPES.get(operation, ()) or access.space not in ("global", "shared", "generic"):
        raise UnsupportedPtx(f"the emulator lacks this form of {instruction.opcode}")
    if access.type in _HALVES and operation != "cas" and "noftz" not in access.words:
        raise UnsupportedPtx("the emulator has no half-precision atomic operation without .noftz")
    if access.count > 1 and (access.space != "global" or access.type not in ("f32", *_HALVES)):
        raise UnsupportedPtx(f"the emulator has no atomic operation on vectors of .{access.type} here")
    returns = instruction.opcode == "atom"
    operands = list(instruction.operands)
    expected = returns + 2 + (operation == "cas") + ("L2::cache_hint" in instruction.modifiers)
    if len(operands) != expected:
        raise MalformedPtx(f"{len(operands)} operands where {expected} are expected")
    targets = list(builder.names.elements(operands.pop(0))) if returns else []
    address = memory_operand(builder, operands.pop(0))
    note_width(builder, access)
    space, read_address = locate(builder, access, address)
    dtype = DTYPES[access.type]
    sources = [list(builder.names.elements(operand)) for operand in operands[: 1 + (operation == "cas")]]
    if any(len(each) != access.count for each in sources) or (returns and len(targets) != access.count):
        raise MalformedPtx(f"operands of {access.count} elements are expected")
    site = builder.site(instruction)
    for element in range(access.count):
        reads = [builder.names.reader(each[element], access.type) for each in sources]
        write = builder.names.writer(targets[element], access.type) if returns else None
        if returns and builder.names.unused(targets[element]):
            write = None
        prepare = (
            _PREPARE.get((operation, access.type)) or _PREPARE.get((operation, "")) or _binary(operation, access.type)
        )
        builder.step(
            _step(
                space,
                site,
                _shifted(read_address, element * dtype.itemsize),
                reads,
                write,
                dtype,
                prepare,
                access.ordering,
            )
        )


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What an update may depend on besides its operands.

    Attributes:
        flushes: whether subnormal numbers count as zeros.
        wanted: whether the program uses what was there before.
    """

    flushes: bool
    wanted: bool


Prepare = Callable[[Machine, list[Array], Circumstances], tuple[np.dtype[Any], Update]]


def _shifted(read: Reader, offset: int) -> Reader:
    if offset == 0:
        return read
    return lambda machine: read(machine) + np.uint64(offset)


def _step(
    space: str,
    site: Any,
    read_address: Reader,
    reads: list[Reader],
    write: Writer | None,
    dtype: np.dtype[Any],
    prepare: Prepare,
    ordering: bool,  # noqa: FBT001 - one of many facts
) -> Callable[[Machine], None]:
    raw = RAW[dtype.itemsize * 8]
    around = Circumstances(flushes=space == "global", wanted=write is not None)

    def step(machine: Machine) -> None:
        machine.spins += 1
        if ordering:
            synchronize(machine)
        sources = [read(machine) for read in reads]
        element, update = prepare(machine, sources, around)
        before = machine.memory.update(space, site, machine.who, read_address(machine), element, update)
        if write is not None:
            write(machine, before.view(raw).view(dtype))
        if ordering:
            synchronize(machine)

    return step


def _part(values: Array, at: Array | None) -> Array:
    return values if at is None else values[at]


def _binary(operation: str, ptx_type: str) -> Prepare:
    function = _UFUNCS[operation]
    dtype = DTYPES[ptx_type]

    def prepare(machine: Machine, sources: list[Array], around: Circumstances) -> tuple[np.dtype[Any], Update]:
        (operand,) = sources

        def update(view: Array, index: Array, at: Array | None) -> Array:
            if not around.wanted:
                return updates.blindly(function, view, index, _part(operand, at))
            return updates.accumulated(function, view, index, _part(operand, at), machine.check)

        return dtype, update

    return prepare


def _half(operation: str, ptx_type: str) -> Prepare:
    element = _PACKED.get(ptx_type, DTYPES[ptx_type])
    packed = ptx_type in _PACKED
    whole = np.dtype(np.uint32) if packed else np.dtype(np.uint16)
    combine = {"add": np.add, "min": np.fmin, "max": np.fmax}[operation]

    def joined(found: Array, operand: Array) -> Array:
        left, right = np.ascontiguousarray(found).view(element), np.ascontiguousarray(operand).view(element)
        joint: Array = combine(left, right).astype(element).view(whole)
        return joint

    def prepare(machine: Machine, sources: list[Array], _around: Circumstances) -> tuple[np.dtype[Any], Update]:
        operand = sources[0].view(whole)

        def update(view: Array, index: Array, at: Array | None) -> Array:
            return updates.by_turns(joined, view, index, (_part(operand, at),), machine.check)

        return whole, update

    return prepare


def _add_single(machine: Machine, sources: list[Array], around: Circumstances) -> tuple[np.dtype[Any], Update]:
    (operand,) = sources

    def update(view: Array, index: Array, at: Array | None) -> Array:
        mine = _part(operand, at)
        if around.flushes and not (_coarse(mine) and _coarse(view[index])):
            return updates.by_turns(_add_flushed, view, index, (mine,), machine.check)
        if not around.wanted:
            return updates.blindly(np.add, view, index, mine)
        return updates.accumulated(np.add, view, index, mine, machine.check)

    return DTYPES["f32"], update


def _coarse(values: Array) -> bool:
    """Return whether no sum of such values can be subnormal: all are 0 or multiples of the ulp of 2**-100."""
    return bool(((values == 0) | (np.abs(values) >= 2.0**-100)).all())


def _add_flushed(left: Array, right: Array) -> Array:
    return updates.flushed(updates.flushed(left) + updates.flushed(right))


def _exchange(_machine: Machine, sources: list[Array], _around: Circumstances) -> tuple[np.dtype[Any], Update]:
    raw = RAW[sources[0].dtype.itemsize * 8]
    operand = sources[0].view(raw)
    return raw, lambda view, index, at: updates.exchanged(view, index, _part(operand, at))


def _compare(machine: Machine, sources: list[Array], _around: Circumstances) -> tuple[np.dtype[Any], Update]:
    raw = RAW[sources[0].dtype.itemsize * 8]
    expected, wanted = (source.view(raw) for source in sources)
    check = machine.check
    return raw, lambda view, index, at: updates.compared(view, index, _part(expected, at), _part(wanted, at), check)


def _count(direction: int) -> Prepare:
    combine = updates.increment if direction > 0 else updates.decrement

    def prepare(machine: Machine, sources: list[Array], _around: Circumstances) -> tuple[np.dtype[Any], Update]:
        bound = sources[0]

        def update(view: Array, index: Array, at: Array | None) -> Array:
            mine = _part(bound, at)
            if (mine == mine[0]).all():
                return updates.cycled(direction, view, index, int(mine[0]))
            return updates.by_turns(combine, view, index, (mine,), machine.check)

        return DTYPES["u32"], update

    return prepare


_PREPARE: Final[dict[tuple[str, str], Prepare]] = {
    ("add", "f32"): _add_single,
    ("exch", ""): _exchange,
    ("cas", ""): _compare,
    ("inc", ""): _count(1),
    ("dec", ""): _count(-1),
    **{
        (operation, ptx_type): _half(operation, ptx_type) for operation in ("add", "min", "max") for ptx_type in _HALVES
    },
}
