"""Steps that update memory atomically, ``atom`` and ``red``, in lane order where lanes meet at one address.

Source: PTX ISA 9.7.13.5 (atom), 9.7.13.6 (red).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.execution.machine import SimtMachine, Step
from tensorwasm.gpu.emulator.lanes import Indices
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.gpu.emulator.program.builder import Builder
from tensorwasm.gpu.emulator.program.program import RAW, Reader, Writer
from tensorwasm.gpu.emulator.steps.access import Access, locate, memory_operand, parse_access, synchronize
from tensorwasm.ptx.model import Instruction

_WORDS: Final = frozenset({"add", "inc", "dec", "min", "max", "and", "or", "xor", "exch", "cas", "noftz"})
_INTEGERS: Final = ("u32", "s32", "u64", "s64")
_HALVES: Final = ("f16", "f16x2", "bf16", "bf16x2")
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "add": (*_INTEGERS, "f32", "f64", *_HALVES),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("min", "max"), (*_INTEGERS, *_HALVES)),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
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
    targets = names.elements(operands.pop(0)) if returns else []
    space, read_address = locate(builder, access, memory_operand(builder, operands.pop(0)))
    sources = [names.elements(operand) for operand in operands[:wanted]]
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
        return raw, lambda view, index, operands, _check: exchange(view, index, operands[0])
    if operation == "cas":
        return raw, compare_and_swap
    if operation in ("inc", "dec"):
        return dtype, partial(_count, 1 if operation == "inc" else -1)
    if ptx_type in _HALVES:
        return raw, partial(in_rounds, partial(_combine_halves, _HALF_UFUNCS[operation], ptx_type))
    apply = partial(accumulate if wanted else apply_only, _UFUNCS[operation])
    return dtype, partial(_add_single, apply) if ptx_type == "f32" and flushes else apply


def _combine_halves(combine: np.ufunc, ptx_type: str, found: Array, operand: Array) -> Array:
    """Combine numbers of 16 bits, one or two in each element of unsigned bits."""
    half = DTYPES[ptx_type.removesuffix("x2")]
    left, right = np.ascontiguousarray(found).view(half), np.ascontiguousarray(operand).view(half)
    return combine(left, right).astype(half).view(found.dtype)


def _add_single(apply: Apply, view: Array, index: Indices, operands: list[Array], check: Callable[[], None]) -> Array:
    """Add, with subnormal numbers as zeros; quickly if there can be none: no operand is nearer to 0 than 2**-100."""
    if all(bool(((one == 0) | (np.abs(one) >= 2.0**-100)).all()) for one in (operands[0], view[index])):
        return apply(view, index, operands, check)
    return in_rounds(_add_flushed, view, index, operands, check)


def _add_flushed(left: Array, right: Array) -> Array:
    return flush(flush(left) + flush(right))


def _count(direction: int, view: Array, index: Indices, operands: list[Array], check: Callable[[], None]) -> Array:
    (bound,) = operands
    if (bound == bound[0]).all():
        return count_cyclic(direction, view, index, int(bound[0]))
    return in_rounds(increment if direction > 0 else decrement, view, index, operands, check)


# -------------------------------------------------------------------------------------------------------------- updates

# Each update takes the memory as elements, one element index and one operand (or two) per access, writes the outcome
# and returns what each access found. ``check`` raises an error when the kernel has to stop.

Check = Callable[[], None]
_ROUNDS_PER_CHECK: Final = 256


class Segments:
    """Accesses sorted by address, stably: a segment is all accesses to one element, in lane order.

    ``order`` has the position of each sorted access; the others are of each segment: its first sorted access, its
    number of accesses and its element.
    """

    def __init__(self, index: Indices) -> None:
        self.order = np.argsort(_sort_keys(index), kind="stable")
        ranked = index[self.order]
        self.starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
        self.sizes = np.diff(np.append(self.starts, index.size))
        self.elements = ranked[self.starts]

    def rounds(self, check: Check) -> Iterator[tuple[Indices, Indices]]:
        """Yield, for the first, second, ... access of every segment, positions of the accesses and their elements."""
        for rank in range(int(self.sizes.max())):
            if rank % _ROUNDS_PER_CHECK == 0:
                check()
            alive = self.sizes > rank
            yield self.order[self.starts[alive] + rank], self.elements[alive]

    def unsort(self, ranked: Array) -> Array:
        """Return values of sorted accesses in the order of the accesses."""
        values = np.empty_like(ranked)
        values[self.order] = ranked
        return values


def are_distinct(index: Indices) -> bool:
    """Return whether no two accesses meet."""
    if index.size == 1:
        return True
    if int((index[1:] - index[:-1]).min()) > 0:
        return True
    ranked = np.sort(_sort_keys(index), kind="stable")
    return not bool((ranked[1:] == ranked[:-1]).any())


def _sort_keys(index: Indices) -> Array:
    """Return keys in the same order, of 16 bits where that is enough: NumPy sorts those by radix."""
    low = int(index.min())
    return (index - low).astype(np.uint16) if int(index.max()) - low < 1 << 16 else index


def apply_only(function: np.ufunc, view: Array, index: Indices, operands: Sequence[Array], _check: Check) -> Array:
    """Update with a binary function where the previous values are not wanted; what it returns has no meaning."""
    function.at(view, index, operands[0])
    return operands[0]


def in_rounds(
    combine: Callable[..., Array], view: Array, index: Indices, operands: Sequence[Array], check: Check
) -> Array:
    """Update in as many rounds as there are accesses to the element with the most."""
    if are_distinct(index):
        before = view[index]
        view[index] = combine(before, *operands)
        return before
    before = np.empty(index.size, view.dtype)
    for positions, elements in Segments(index).rounds(check):
        found = view[elements]
        before[positions] = found
        view[elements] = combine(found, *(operand[positions] for operand in operands))
    return before


def accumulate(function: np.ufunc, view: Array, index: Indices, operands: Sequence[Array], check: Check) -> Array:
    """Update with a binary function; elements with many accesses are updated by running totals."""
    (operand,) = operands
    if are_distinct(index):
        before = view[index]
        view[index] = function(before, operand)
        return before
    segments = Segments(index)
    if segments.sizes.size >= int(segments.sizes.max()):
        return in_rounds(function, view, index, operands, check)
    before = np.empty(index.size, view.dtype)
    for turn, (start, size, element) in enumerate(zip(segments.starts, segments.sizes, segments.elements, strict=True)):
        if turn % _ROUNDS_PER_CHECK == 0:
            check()
        positions = segments.order[start : start + size]
        totals = function.accumulate(
            np.concatenate((view[element : element + 1], operand[positions])), dtype=view.dtype
        )
        before[positions] = totals[:-1]
        view[element] = totals[-1]
    return before


def exchange(view: Array, index: Indices, operand: Array) -> Array:
    """Exchange: every access finds what the one before it left."""
    segments = Segments(index)
    ranked = operand[segments.order]
    found = np.empty_like(ranked)
    found[1:] = ranked[:-1]
    found[segments.starts] = view[segments.elements]
    view[segments.elements] = ranked[segments.starts + segments.sizes - 1]
    return segments.unsort(found)


def compare_and_swap(view: Array, index: Indices, operands: Sequence[Array], check: Check) -> Array:
    """Compare and swap, given expected and wanted values; a round is a swap of each element that succeeds."""
    segments = Segments(index)
    expected, wanted = (operand[segments.order] for operand in operands)
    owner = np.repeat(np.arange(segments.starts.size), segments.sizes)
    rank = np.arange(index.size)
    current = view[segments.elements]
    done = segments.starts.copy()
    found = np.empty_like(expected)
    turn = 0
    while True:
        if turn % _ROUNDS_PER_CHECK == 0:
            check()
        turn += 1
        waiting = rank >= done[owner]
        found[waiting] = current[owner[waiting]]
        swaps = np.flatnonzero(waiting & (expected == current[owner]) & (wanted != current[owner]))
        if not swaps.size:
            break
        winners, first = np.unique(owner[swaps], return_index=True)
        at = swaps[first]
        current[winners] = wanted[at]
        done[winners] = at + 1
        others = np.ones(done.size, np.bool_)
        others[winners] = False
        done[others] = (segments.starts + segments.sizes)[others]
    view[segments.elements] = current
    return segments.unsort(found)


def flush(values: Array) -> Array:
    """Return single-precision values with subnormal ones replaced by zeros of their sign."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)


def increment(value: Array, bound: Array) -> Array:
    """Count up, from the bound (or above it) to 0."""
    return np.where(value >= bound, value.dtype.type(0), value + value.dtype.type(1))


def decrement(value: Array, bound: Array) -> Array:
    """Count down, from 0 (or from above the bound) to the bound."""
    return np.where((value == 0) | (value > bound), bound, value - value.dtype.type(1))


def count_cyclic(direction: int, view: Array, index: Indices, bound: int) -> Array:
    """Count up or down with one bound for all accesses, however many meet."""
    segments = Segments(index)
    start = np.repeat(view[segments.elements], segments.sizes).astype(np.uint64)
    rank = (np.arange(index.size) - np.repeat(segments.starts, segments.sizes)).astype(np.uint64)
    total = _after(direction, start, np.repeat(segments.sizes, segments.sizes).astype(np.uint64), bound)
    view[segments.elements] = total[segments.starts].astype(view.dtype)
    return segments.unsort(_after(direction, start, rank, bound).astype(view.dtype))


def _after(direction: int, start: Array, times: Array, bound: int) -> Array:
    """Return what counting ``times`` times makes of ``start``."""
    cycle = np.uint64(bound + 1)
    outside = start > np.uint64(bound)
    if direction > 0:
        inside = (start + times) % cycle
        entered = (times - np.uint64(1)) % cycle
    else:
        inside = (start + times * np.uint64(bound)) % cycle
        entered = np.uint64(bound) - (times - np.uint64(1)) % cycle
    return np.where(outside & (times > 0), entered, np.where(outside, start, inside))
