"""Steps in which the lanes of a warp exchange values: shuffles, votes, matches, reductions, elections.

The ``.sync`` forms wait until every living lane that the member mask names has arrived with the same mask.

Source: PTX ISA 9.7.9.5 and .6 (shfl), 9.7.13.8 and .9 (vote), .10 (match.sync), .11 (activemask), .12 (redux.sync),
.14 (elect.sync).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.execution.barriers import are_together, check_membership
from tensorwasm.gpu.emulator.execution.machine import SimtMachine
from tensorwasm.gpu.emulator.lanes import WARP_LANES, Array, narrow
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.gpu.emulator.program.builder import Builder
from tensorwasm.gpu.emulator.program.program import Reader, Writer, write_nothing
from tensorwasm.ptx.model import Instruction, Operand, Pair

Act = Callable[[SimtMachine, Array], None]
"""What the lanes do once they are together: takes their member masks."""
FULL_MASK: Final = np.uint32(0xFFFFFFFF)


def compile_gathering(builder: Builder, instruction: Instruction, read_masks: Reader, act: Act) -> None:
    """Add an instruction that runs when the lanes of its member mask are together."""

    def end(machine: SimtMachine, pc: int) -> int:
        masks = _gather(machine, instruction, pc, read_masks)
        if masks is None:
            return -1
        act(machine, masks)
        return pc + 1

    builder.finish(end, alone=True)


def _gather(machine: SimtMachine, site: Instruction, pc: int, read_masks: Reader) -> Array | None:
    """Make the lanes active that are together and return their masks; the others wait. None if all must wait."""
    scheduler = machine.scheduler
    waiting = scheduler.gathered(pc, machine.depth)
    if waiting is not False:
        scheduler.park(pc, machine.depth, waiting)
        scheduler.park(pc, machine.depth, machine.active)
        scheduler.take(pc, machine.depth)
    masks = read_masks(machine)
    if machine.count == machine.live_lanes and bool((masks == FULL_MASK).all()):
        return masks
    lanes = machine.indices()
    check_membership(machine, site, lanes, masks)
    together = are_together(machine, lanes, masks)
    if together.all():
        return masks
    if not together.any():
        scheduler.gather(pc, machine.depth, machine.active)
        return None
    active = machine.active
    scheduler.gather(pc, machine.depth, narrow(active, ~together, machine.lanes))
    machine.activate(narrow(active, together, machine.lanes))
    return masks[together]


def _active_masks(machine: SimtMachine) -> Array:
    """Return the active lanes of each active lane's warp: the member mask of the forms without ``.sync``."""
    lanes = machine.indices()
    return machine.lane_bits(lanes)[machine.geometry.warp[lanes]]


def _emit(builder: Builder, instruction: Instruction, mask: Operand | None, act: Act) -> None:
    if mask is None:
        builder.step(lambda machine: act(machine, _active_masks(machine)))
    else:
        compile_gathering(builder, instruction, builder.names.reader(mask, "u32"), act)


def _words(instruction: Instruction) -> list[str]:
    """Return the modifiers without ``sync``."""
    return [word for word in instruction.modifiers if word != "sync"]


def _split(instruction: Instruction, count: int) -> tuple[list[Operand], Operand | None]:
    """Return the operands without the member mask, and the mask."""
    sync = "sync" in instruction.modifiers
    operands = list(instruction.operands)
    if len(operands) != count + sync:
        raise MalformedPtx(f"{len(operands)} operands where {count + sync} are expected")
    return operands[:count], operands[count] if sync else None


def _targets(builder: Builder, operand: Operand, first: str) -> tuple[Writer, Writer]:
    """Return writers of a destination and of the predicate that may follow it, which else is dropped."""
    if isinstance(operand, Pair):
        return builder.names.writer(operand.first, first), builder.names.writer(operand.second, "pred")
    return builder.names.writer(operand, first), write_nothing


# ------------------------------------------------------------------------------------------------ shuffles

_MODES: Final[dict[str, Callable[[Array, Array, Array, Array], tuple[Array, bool]]]] = {
    "up": lambda laneid, _low, offset, _segment: (laneid - offset, True),
    "down": lambda laneid, _low, offset, _segment: (laneid + offset, False),
    "bfly": lambda laneid, _low, offset, _segment: (laneid ^ offset, False),
    "idx": lambda _laneid, low, offset, segment: (low | (offset & ~segment), False),
}
"""The lane that each lane reads, and whether the limit is the lowest such lane instead of the highest."""


def compile_shuffle(builder: Builder, instruction: Instruction) -> None:
    """Add a ``shfl``: every lane reads another lane's register."""
    words = _words(instruction)
    if len(words) != 2 or words[0] not in _MODES or words[1] not in ("b32", "u32", "s32", "f32"):
        raise UnsupportedPtx("the emulator lacks this form of shfl")
    (target, source, lane, limits), mask = _split(instruction, 4)
    mode = _MODES[words[0]]
    write, write_valid = _targets(builder, target, "b32")
    read, read_lane = builder.names.reader(source, "b32"), builder.names.reader(lane, "u32")
    read_limits = builder.names.reader(limits, "u32")

    def act(machine: SimtMachine, _masks: Array) -> None:
        lanes, geometry = machine.indices(), machine.geometry
        laneid = geometry.laneid[lanes]
        limit = read_limits(machine).astype(np.int64)
        segment = limit >> 8 & 31
        low = laneid & segment
        high = low | (limit & 31 & ~segment)
        found, is_lowest = mode(laneid, low, read_lane(machine).astype(np.int64) & 31, segment)
        valid = found >= high if is_lowest else found <= high
        origin = geometry.warps[geometry.warp[lanes], np.where(valid, found, laneid)]
        whole = np.zeros(machine.lanes, np.uint32)
        values = read(machine)
        whole[lanes] = values
        # A lane that is not there, or not taking part, has no defined value: this lane keeps its own.
        present = np.zeros(machine.lanes, np.bool_)
        present[lanes] = True
        write(machine, np.where((origin < 0) | ~present[origin], values, whole[origin]))
        write_valid(machine, valid)

    _emit(builder, instruction, mask, act)


# --------------------------------------------------------------------------------- votes, matches, elections


def _members(machine: SimtMachine, masks: Array) -> Array:
    """Return the living lanes of member masks."""
    return masks & machine.live_bits()[machine.geometry.warp[machine.indices()]]


_VOTES: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "all": lambda votes, members: votes == members,
    "any": lambda votes, _: votes != 0,
    "uni": lambda votes, members: (votes == members) | (votes == 0),
    "ballot": lambda votes, _: votes,
}


def compile_vote(builder: Builder, instruction: Instruction) -> None:
    """Add a ``vote``: a function of the predicates of a warp's lanes."""
    words = _words(instruction)
    result = "b32" if words[:1] == ["ballot"] else "pred"
    if words[1:] != [result] or words[0] not in _VOTES:
        raise UnsupportedPtx("the emulator lacks this form of vote")
    (target, source), mask = _split(instruction, 2)
    judge, read, write = _VOTES[words[0]], builder.names.reader(source, "pred"), builder.names.writer(target, result)

    def act(machine: SimtMachine, masks: Array) -> None:
        members, lanes = _members(machine, masks), machine.indices()
        votes = machine.lane_bits(lanes[read(machine)])[machine.geometry.warp[lanes]]
        write(machine, judge(votes & members, members).copy())

    _emit(builder, instruction, mask, act)


def _by_laneid(machine: SimtMachine, values: Array) -> Array:
    """Return the values of the active lanes as ``(warps, 32)``."""
    lanes, geometry = machine.indices(), machine.geometry
    matrix = np.zeros(geometry.warps.shape, values.dtype)
    matrix[geometry.warp[lanes], geometry.laneid[lanes]] = values
    return matrix


def compile_match(builder: Builder, instruction: Instruction) -> None:
    """Add a ``match.sync``: which lanes hold the same value."""
    mode, _, ptx_type = instruction.modifiers
    (target, source), mask = _split(instruction, 2)
    write, write_same = _targets(builder, target, "b32")
    read = builder.names.reader(source, ptx_type)

    def act(machine: SimtMachine, masks: Array) -> None:
        members, values = _members(machine, masks), read(machine)
        matrix, warp = _by_laneid(machine, values), machine.geometry.warp[machine.indices()]
        equal = np.zeros(values.size, np.uint32)
        for laneid in range(WARP_LANES):
            equal |= (matrix[warp, laneid] == values).astype(np.uint32) << np.uint32(laneid)
        equal &= members
        same = equal == members
        write(machine, np.where(same, members, np.uint32(0)) if mode == "all" else equal)
        write_same(machine, same)

    _emit(builder, instruction, mask, act)


def compile_active_mask(builder: Builder, instruction: Instruction) -> None:
    """Add an ``activemask``."""
    if instruction.modifiers != ("b32",) or len(instruction.operands) != 1:
        raise UnsupportedPtx("the emulator lacks this form of activemask")
    write = builder.names.writer(instruction.operands[0], "b32")
    builder.step(lambda machine: write(machine, _active_masks(machine)))


def compile_election(builder: Builder, instruction: Instruction) -> None:
    """Add an ``elect.sync``: the lowest member leads."""
    (target,), mask = _split(instruction, 1)
    if not isinstance(target, Pair):
        raise UnsupportedPtx("the emulator lacks this form of elect")
    write, write_leads = _targets(builder, target, "b32")

    def act(machine: SimtMachine, masks: Array) -> None:
        members = _members(machine, masks)
        lowest = members & (~members + np.uint32(1))
        leader = np.log2(lowest.astype(np.float64)).astype(np.uint32)
        leads = machine.geometry.laneid[machine.indices()] == leader
        write(machine, leader)
        write_leads(machine, leads)

    _emit(builder, instruction, mask, act)


# ---------------------------------------------------------------------------------------------- reductions

_REDUCTIONS: Final[dict[tuple[str, str], Any]] = {
    **{("add", kind): np.add for kind in ("u32", "s32")},
    **{("min", kind): np.minimum for kind in ("u32", "s32")},
    **{("max", kind): np.maximum for kind in ("u32", "s32")},
    ("and", "b32"): np.bitwise_and,
    ("or", "b32"): np.bitwise_or,
    ("xor", "b32"): np.bitwise_xor,
    ("min", "f32"): np.fmin,
    ("max", "f32"): np.fmax,
    ("NaN.min", "f32"): np.minimum,
    ("NaN.max", "f32"): np.maximum,
}


def compile_reduction(builder: Builder, instruction: Instruction) -> None:
    """Add a ``redux.sync``: one value from those of all members."""
    first, *words, ptx_type = instruction.modifiers if len(instruction.modifiers) > 1 else ("", "")
    absolute = "abs" in words
    name = ".".join(sorted((word for word in words if word != "abs"), key=lambda word: word != "NaN"))
    combine = _REDUCTIONS.get((name, ptx_type))
    if first != "sync" or combine is None or (absolute and ptx_type != "f32"):
        raise UnsupportedPtx("the emulator lacks this form of redux")
    (target, source), mask = _split(instruction, 2)
    read, write = builder.names.reader(source, ptx_type), builder.names.writer(target, ptx_type)
    dtype = DTYPES[ptx_type]

    def act(machine: SimtMachine, masks: Array) -> None:
        members = _members(machine, masks)
        values = np.abs(read(machine)) if absolute else read(machine)
        matrix = _by_laneid(machine, values)
        warp = machine.geometry.warp[machine.indices()]
        total, begun = np.zeros(values.size, dtype), np.zeros(values.size, np.bool_)
        for laneid in range(WARP_LANES):
            member = (members >> np.uint32(laneid) & np.uint32(1)).astype(np.bool_)
            value = matrix[warp, laneid]
            total = np.where(member, np.where(begun, combine(total, value), value), total)
            begun |= member
        write(machine, total.astype(dtype))

    _emit(builder, instruction, mask, act)
