"""Runs a batch of lanes through a program until all of them have exited."""

from __future__ import annotations

from tensorwasm.errors import KernelFault
from tensorwasm.gpu.emulator.barriers import Barriers
from tensorwasm.gpu.emulator.machine import CHECK_STEPS, Machine
from tensorwasm.gpu.emulator.program import Block
from tensorwasm.gpu.emulator.scheduler import Scheduler


def run(machine: Machine, blocks: list[Block], pc: int) -> None:
    """Run all lanes of a machine from block ``pc`` on.

    Raises:
        KernelFault: a lane breaks a rule, or lanes wait for each other for ever.
        InvokeTimeout: the deadline passes.
    """
    scheduler = machine.scheduler = Scheduler(machine)
    barriers = machine.barriers = Barriers(machine)
    try:
        _run(machine, blocks, pc, scheduler)
        if machine.live_lanes:
            raise KernelFault(_describe(machine, scheduler, barriers))
    finally:
        # They refer to the machine: without the cycle its memory is released at once.
        machine.scheduler = machine.barriers = None


def _run(machine: Machine, blocks: list[Block], pc: int, scheduler: Scheduler) -> None:
    while True:
        while pc >= 0:
            block = blocks[pc]
            for step in block.steps:
                step(machine)
            machine.steps += block.cost
            pc = block.end(machine)
            if machine.steps >= machine.next_check:
                machine.next_check = machine.steps + CHECK_STEPS
                machine.check()
                machine.memory.settle()
                scheduler.tick()
            if pc >= 0 and scheduler.interrupts(pc):
                scheduler.park(pc, machine.depth, machine.who)
                break
        pc = scheduler.next()
        if pc < 0:
            return


def _describe(machine: Machine, scheduler: Scheduler, barriers: Barriers) -> str:
    text = barriers.describe()
    if not text:
        for _, lane in scheduler.waiting():
            text = f"{machine.geometry.describe(lane)} waits for lanes of its warp that never come"
    return f"deadlock: {text}"
