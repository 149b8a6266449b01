"""Ends of blocks: branches, exits, barriers; and traps.

Source: PTX ISA 9.7.12 (Control Flow), 9.7.13.1 and .2 (barriers), 9.7.19 (trap, brkpt, nanosleep, pmevent).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.execution.machine import End, SimtMachine
from tensorwasm.gpu.emulator.lanes import Array, narrow
from tensorwasm.gpu.emulator.program.builder import Builder, Resolve, branch_end
from tensorwasm.ptx.model import Instruction, Name, TargetList


def compile_branch(builder: Builder, instruction: Instruction) -> None:
    """Add a ``bra``."""
    (target,) = instruction.operands
    if not isinstance(target, Name):
        raise UnsupportedPtx("the emulator lacks this form of bra")
    label, read = builder.label(target.name), builder.guard(instruction)

    def make(following: int, resolve: Resolve) -> End:
        place = resolve(label)
        return (lambda _machine, _pc: place) if read is None else branch_end(read, place, following)

    builder.branch(make)


def compile_indexed_branch(builder: Builder, instruction: Instruction) -> None:
    """Add a ``brx.idx``: a branch through a table."""
    index, targets = instruction.operands
    table = builder.names.find(targets.name) if isinstance(targets, Name) else None
    if not isinstance(table, TargetList) or table.kind != "branchtargets":
        raise MalformedPtx("a list of branch targets is expected")
    builder.targets.spend(len(table.targets))
    labels = [builder.label(name) for name in table.targets]
    read, guard = builder.names.reader(index, "u32"), builder.guard(instruction)

    def make(following: int, resolve: Resolve) -> End:
        places = np.array([resolve(label) for label in labels], np.int64)

        def end(machine: SimtMachine, _pc: int) -> int:
            if guard is not None:
                mask = guard(machine)
                if not mask.any():
                    return following
                if not mask.all():
                    machine.scheduler.park(following, machine.depth, narrow(machine.active, ~mask, machine.lanes))
                    machine.activate(narrow(machine.active, mask, machine.lanes))
            values = read(machine)
            machine.fault_where(instruction, values >= places.size, f"takes branch {{}} of {places.size}", values)
            return jump(machine, places[values])

        return end

    builder.branch(make)


def jump(machine: SimtMachine, places: Array) -> int:
    """Send each active lane to a block of its own; return where those that stay active run, or -1."""
    first = int(places[0])
    if (places == first).all():
        return first
    lanes = machine.indices()
    machine.scheduler.park_each(places, np.full(lanes.size, machine.depth), lanes)
    return -1


def compile_exit(builder: Builder, _instruction: Instruction) -> None:
    """Add an ``exit``."""
    builder.finish(exit_lanes)


def exit_lanes(machine: SimtMachine, _pc: int) -> int:
    """End the active lanes."""
    lanes = machine.indices()
    machine.kill(lanes)
    if machine.live_lanes:
        machine.scheduler.release_gathering()
        machine.barriers.retire(lanes)
    return -1


def compile_trap(builder: Builder, instruction: Instruction) -> None:
    """Add a ``trap`` or ``brkpt``: the kernel ends in a fault."""
    reason = "traps" if instruction.opcode == "trap" else "stops at a breakpoint, and no debugger is attached"
    builder.step(lambda machine: machine.fault(instruction, 0, reason))


def compile_sleep(builder: Builder, instruction: Instruction) -> None:
    """Add a ``nanosleep``: other lanes run first."""
    builder.names.reader(instruction.operands[0], "u32")

    def end(machine: SimtMachine, pc: int) -> int:
        machine.spins += 1
        machine.scheduler.yield_turn(pc + 1, machine.depth, machine.active)
        return -1

    builder.finish(end)


def compile_nothing(_builder: Builder, _instruction: Instruction) -> None:
    """Accept an instruction that a program cannot observe, such as ``pmevent``."""


# ------------------------------------------------------------------------------------------------ barriers

_REDUCTION_ROWS: Final = {"popc": 0, "and": 1, "or": 2}


def compile_barrier(builder: Builder, instruction: Instruction) -> None:
    """Add a ``bar`` or ``barrier`` in any form."""
    words = [word for word in instruction.modifiers if word not in ("cta", "aligned")]
    if instruction.modifiers == ("warp", "sync") and len(instruction.operands) == 1:
        _compile_warp_barrier(builder, instruction)
    elif words in (["sync"], ["arrive"]):
        _compile_block_barrier(builder, instruction, None, wait=words == ["sync"])
    elif words in (["red", "popc", "u32"], ["red", "and", "pred"], ["red", "or", "pred"]):
        _compile_block_barrier(builder, instruction, words[1], wait=True)
    else:
        lacks = "has no clusters" if "cluster" in words else f"lacks this form of {instruction.opcode}"
        raise UnsupportedPtx(f"the emulator {lacks}")


def _compile_warp_barrier(builder: Builder, instruction: Instruction) -> None:
    read = builder.names.reader(instruction.operands[0], "u32")
    builder.finish(lambda machine, pc: machine.barriers.arrive_warp(instruction, pc + 1, read(machine)))


def _compile_block_barrier(builder: Builder, instruction: Instruction, reduction: str | None, *, wait: bool) -> None:
    operands = list(instruction.operands)
    write = read_vote = None
    if reduction is not None:
        if len(operands) not in (3, 4):
            raise MalformedPtx(f"{len(operands)} operands")
        write = builder.names.writer(operands.pop(0), "u32" if reduction == "popc" else "pred")
        read_vote = builder.names.reader(operands.pop(), "pred")
    if not 1 <= len(operands) <= 2 or (not wait and len(operands) != 2):
        raise MalformedPtx(f"{len(instruction.operands)} operands")
    read_id, *rest = [builder.names.reader(operand, "u32") for operand in operands]
    read_threads = rest[0] if rest else None

    def end(machine: SimtMachine, pc: int) -> int:
        threads = read_threads(machine) if read_threads else None
        votes = read_vote(machine) if read_vote else None
        after: int = machine.barriers.arrive(instruction, pc + 1, read_id(machine), threads, votes, wait=wait)
        return after

    builder.finish(end)
    if write is not None and reduction is not None:
        store, row = write, _REDUCTION_ROWS[reduction]

        def collect(machine: SimtMachine) -> None:
            found = machine.barriers.results[row][machine.indices()]
            store(machine, found if row == 0 else found.astype(np.bool_))

        builder.step(collect)
