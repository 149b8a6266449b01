"""Steps in which the lanes of a warp see each other: shuffles, votes, matches, reductions, elections.

The ``.sync`` forms wait until every living lane that the member mask names has arrived with the same mask.

Source: PTX ISA 9.7.9.5 and .6 (shfl), 9.7.13.7 and .8 (vote), .9 (match.sync), .10 (activemask), .11 (redux.sync),
.16 (elect.sync).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.barriers import check_membership, met
from tensorwasm.gpu.emulator.builder import Builder, Resolve
from tensorwasm.gpu.emulator.faults import Site
from tensorwasm.gpu.emulator.geometry import WARP_LANES
from tensorwasm.gpu.emulator.lanes import Array, narrow
from tensorwasm.gpu.emulator.machine import Machine
from tensorwasm.gpu.emulator.operands import Reader, Writer
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.gpu.emulator.program import End
from tensorwasm.ptx.model import Instruction, Operand, Pair

Act = Callable[[Machine, Array], None]
"""What the lanes do once they are together: takes their member masks."""
FULL_MASK: Final = np.uint32(0xFFFFFFFF)


def compile_gathering(builder: Builder, instruction: Instruction, read_masks: Reader, act: Act) -> None:
    """Add an instruction that runs when the lanes of its member mask are together."""
    site = builder.site(instruction)

    def make(own: int, following: int, _resolve: Resolve) -> End:
        def end(machine: Machine) -> int:
            masks = _assemble(machine, site, own, read_masks)
            if masks is None:
                return -1
            act(machine, masks)
            return following

        return end

    builder.finish(make, alone=True)


def _assemble(machine: Machine, site: Site, pc: int, read_masks: Reader) -> Array | None:
    """Make the lanes active that are together and return their masks; the others wait. None if all must wait."""
    scheduler = machine.scheduler
    waiting = scheduler.gathered(pc, machine.depth)
    if waiting is not False:
        scheduler.park(pc, machine.depth, waiting)
        scheduler.park(pc, machine.depth, machine.who)
        scheduler.take(pc, machine.depth)
    masks = read_masks(machine)
    if machine.count == machine.live_lanes and bool((masks == FULL_MASK).all()):
        return masks
    lanes = machine.indices()
    check_membership(machine, site, lanes, masks)
    together = met(machine, lanes, masks)
    if together.all():
        return masks
    if not together.any():
        scheduler.gather(pc, machine.depth, machine.who)
        return None
    who = machine.who
    scheduler.gather(pc, machine.depth, narrow(who, ~together, machine.lanes))
    machine.activate(narrow(who, together, machine.lanes))
    return masks[together]


def _everyone(machine: Machine) -> Array:
    """Member masks of the forms without ``.sync``: whoever is active."""
    lanes = machine.indices()
    return machine.bits(lanes)[machine.geometry.warp[lanes]]


def _emit(builder: Builder, instruction: Instruction, mask: Operand | None, act: Act) -> None:
    if mask is None:
        builder.step(lambda machine: act(machine, _everyone(machine)))
    else:
        compile_gathering(builder, instruction, builder.names.reader(mask, "u32"), act)


def _split(instruction: Instruction, count: int, *, sync: bool) -> tuple[list[Operand], Operand | None]:
    """Return the operands without the member mask, and the mask."""
    operands = list(instruction.operands)
    if len(operands) != count + sync:
        raise MalformedPtx(f"{len(operands)} operands where {count + sync} are expected")
    return operands[:count], operands[count] if sync else None


def _targets(builder: Builder, operand: Operand, first: str, second: str) -> tuple[Writer, Writer | None]:
    if isinstance(operand, Pair):
        return builder.names.writer(operand.first, first), builder.names.writer(operand.second, second)
    return builder.names.writer(operand, first), None


# ------------------------------------------------------------------------------------------------ shuffles


def _up(place: Array, low: Array, high: Array, lane: Array, _mask: Array) -> tuple[Array, Array]:
    source = place - lane
    del low
    return source, source >= high


def _down(place: Array, low: Array, high: Array, lane: Array, _mask: Array) -> tuple[Array, Array]:
    del low
    source = place + lane
    return source, source <= high


def _butterfly(place: Array, low: Array, high: Array, lane: Array, _mask: Array) -> tuple[Array, Array]:
    del low
    source = place ^ lane
    return source, source <= high


def _index(_place: Array, low: Array, high: Array, lane: Array, mask: Array) -> tuple[Array, Array]:
    source = low | (lane & ~mask)
    return source, source <= high


_MODES: Final = {"up": _up, "down": _down, "bfly": _butterfly, "idx": _index}


def compile_shuffle(builder: Builder, instruction: Instruction) -> None:
    """Add a ``shfl``: every lane reads another lane's register."""
    sync = "sync" in instruction.modifiers
    words = [word for word in instruction.modifiers if word != "sync"]
    if len(words) != 2 or words[0] not in _MODES or words[1] not in ("b32", "u32", "s32", "f32"):
        raise UnsupportedPtx("the emulator lacks this form of shfl")
    (target, source, lane, limits), mask = _split(instruction, 4, sync=sync)
    mode = _MODES[words[0]]
    write, write_valid = _targets(builder, target, "b32", "pred")
    read, read_lane, read_limits = (
        builder.names.reader(source, "b32"),
        builder.names.reader(lane, "u32"),
        builder.names.reader(limits, "u32"),
    )

    def act(machine: Machine, _masks: Array) -> None:
        lanes = machine.indices()
        geometry = machine.geometry
        place = geometry.place[lanes]
        limit = read_limits(machine).astype(np.int64)
        segment = limit >> 8 & 31
        low = place & segment
        high = low | (limit & 31 & ~segment)
        found, valid = mode(place, low, high, read_lane(machine).astype(np.int64) & 31, segment)
        found = np.where(valid, found, place)
        origin = geometry.table[geometry.warp[lanes], found]
        whole = np.zeros(machine.lanes, np.uint32)
        values = read(machine)
        whole[lanes] = values
        # A lane that is not there, or not taking part, has no defined value: this lane keeps its own.
        present = np.zeros(machine.lanes, np.bool_)
        present[lanes] = True
        absent = (origin < 0) | ~present[origin]
        write(machine, np.where(absent, values, whole[origin]))
        if write_valid is not None:
            write_valid(machine, valid.copy())

    _emit(builder, instruction, mask, act)


# --------------------------------------------------------------------------------- votes, matches, elections


def _ballot(machine: Machine, flags: Array) -> Array:
    lanes = machine.indices()
    return machine.bits(lanes[flags])[machine.geometry.warp[lanes]]


def _members(machine: Machine, masks: Array) -> Array:
    lanes = machine.indices()
    return masks & machine.live_bits()[machine.geometry.warp[lanes]]


_VOTES: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "all": lambda votes, members: votes == members,
    "any": lambda votes, _: votes != 0,
    "uni": lambda votes, members: (votes == members) | (votes == 0),
    "ballot": lambda votes, _: votes,
}


def compile_vote(builder: Builder, instruction: Instruction) -> None:
    """Add a ``vote``: what the predicates of a warp's lanes say together."""
    sync = "sync" in instruction.modifiers
    words = [word for word in instruction.modifiers if word != "sync"]
    result = {"ballot": "b32"}.get(words[0], "pred") if words else ""
    if words[1:] != [result] or words[0] not in _VOTES:
        raise UnsupportedPtx("the emulator lacks this form of vote")
    (target, source), mask = _split(instruction, 2, sync=sync)
    judge, read, write = _VOTES[words[0]], builder.names.reader(source, "pred"), builder.names.writer(target, result)

    def act(machine: Machine, masks: Array) -> None:
        members = _members(machine, masks)
        write(machine, judge(_ballot(machine, read(machine)) & members, members).copy())

    _emit(builder, instruction, mask, act)


def _by_place(machine: Machine, values: Array) -> Array:
    """Return the values of the active lanes as ``(warps, 32)``."""
    lanes, geometry = machine.indices(), machine.geometry
    matrix = np.zeros(geometry.table.shape, values.dtype)
    matrix[geometry.warp[lanes], geometry.place[lanes]] = values
    return matrix


def _equals(machine: Machine, values: Array, members: Array) -> Array:
    matrix = _by_place(machine, values)
    warp = machine.geometry.warp[machine.indices()]
    equal = np.zeros(values.size, np.uint32)
    for place in range(WARP_LANES):
        equal |= (matrix[warp, place] == values).astype(np.uint32) << np.uint32(place)
    return equal & members


def compile_match(builder: Builder, instruction: Instruction) -> None:
    """Add a ``match.sync``: which lanes hold the same value."""
    words = instruction.modifiers
    if len(words) != 3 or words[0] not in ("any", "all") or words[1] != "sync" or words[2] not in ("b32", "b64"):
        raise UnsupportedPtx("the emulator lacks this form of match")
    (target, source), mask = _split(instruction, 2, sync=True)
    write, write_same = _targets(builder, target, "b32", "pred")
    read, unanimous = builder.names.reader(source, words[2]), words[0] == "all"

    def act(machine: Machine, masks: Array) -> None:
        members = _members(machine, masks)
        equal = _equals(machine, read(machine), members)
        same = equal == members
        write(machine, np.where(same, members, np.uint32(0)) if unanimous else equal)
        if write_same is not None:
            write_same(machine, same)

    _emit(builder, instruction, mask, act)


def compile_active_mask(builder: Builder, instruction: Instruction) -> None:
    """Add an ``activemask``."""
    if instruction.modifiers != ("b32",) or len(instruction.operands) != 1:
        raise UnsupportedPtx("the emulator lacks this form of activemask")
    write = builder.names.writer(instruction.operands[0], "b32")
    builder.step(lambda machine: write(machine, _everyone(machine)))


def compile_election(builder: Builder, instruction: Instruction) -> None:
    """Add an ``elect.sync``: the lowest member leads."""
    (target,), mask = _split(instruction, 1, sync=True)
    if instruction.modifiers != ("sync",) or not isinstance(target, Pair):
        raise UnsupportedPtx("the emulator lacks this form of elect")
    write, write_leads = _targets(builder, target, "b32", "pred")

    def act(machine: Machine, masks: Array) -> None:
        members = _members(machine, masks)
        lowest = members & (~members + np.uint32(1))
        leader = np.log2(lowest.astype(np.float64)).astype(np.uint32)
        leads = machine.geometry.place[machine.indices()] == leader
        write(machine, leader)
        if write_leads is not None:
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
    words = list(instruction.modifiers)
    if not words or words.pop(0) != "sync" or not words:
        raise UnsupportedPtx("the emulator lacks this form of redux")
    ptx_type = words.pop()
    absolute = "abs" in words
    name = ".".join(sorted((word for word in words if word != "abs"), key=lambda word: word != "NaN"))
    combine = _REDUCTIONS.get((name, ptx_type))
    if combine is None or (absolute and ptx_type != "f32"):
        raise UnsupportedPtx("the emulator lacks this form of redux")
    (target, source), mask = _split(instruction, 2, sync=True)
    read, write, dtype = (
        builder.names.reader(source, ptx_type),
        builder.names.writer(target, ptx_type),
        DTYPES[ptx_type],
    )

    def act(machine: Machine, masks: Array) -> None:
        members = _members(machine, masks)
        values = np.abs(read(machine)) if absolute else read(machine)
        matrix = _by_place(machine, values)
        warp = machine.geometry.warp[machine.indices()]
        total, begun = np.zeros(values.size, dtype), np.zeros(values.size, np.bool_)
        for place in range(WARP_LANES):
            member = (members >> np.uint32(place) & np.uint32(1)).astype(np.bool_)
            value = matrix[warp, place]
            total = np.where(member, np.where(begun, combine(total, value), value), total)
            begun |= member
        write(machine, total.astype(dtype))

    _emit(builder, instruction, mask, act)
