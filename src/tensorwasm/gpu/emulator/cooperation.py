"""Steps that run a `WarpOp` or a `LaneMemoryOp`, and memory as those see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.arithmetic import bind_operands
from tensorwasm.gpu.emulator.builder import Builder, Resolve
from tensorwasm.gpu.emulator.faults import Site, fault
from tensorwasm.gpu.emulator.geometry import WARP_LANES
from tensorwasm.gpu.emulator.lanes import Array, narrow
from tensorwasm.gpu.emulator.machine import Machine
from tensorwasm.gpu.emulator.operands import own
from tensorwasm.gpu.emulator.ops import LaneMemoryOp, WarpOp
from tensorwasm.gpu.emulator.program import End, Step
from tensorwasm.gpu.emulator.warp import FULL_MASK, compile_gathering
from tensorwasm.ptx.model import Instruction

NARROW_BYTES = 2


class WarpView:
    """Memory of a machine for the warps that run a `WarpOp`."""

    def __init__(self, machine: Machine, site: Site, lanes: NDArray[np.int64]) -> None:
        """Begin a view; ``lanes`` is ``(warps, 32)``."""
        self._machine, self._site, self._lanes = machine, site, lanes

    def load(self, space: str, addresses: NDArray[np.uint64], dtype: np.dtype[Any]) -> Array:
        """Read one element per address."""
        who = self._who(addresses)
        flat = np.ascontiguousarray(addresses, np.uint64).reshape(-1)
        return self._machine.memory.load(space, self._site, who, flat, dtype).reshape(addresses.shape)

    def store(self, space: str, addresses: NDArray[np.uint64], values: Array) -> None:
        """Write one element per address."""
        who = self._who(addresses)
        flat = np.ascontiguousarray(addresses, np.uint64).reshape(-1)
        self._machine.memory.store(space, self._site, who, flat, np.ascontiguousarray(values).reshape(-1))

    def fault(self, warp: int, lane: int, reason: str) -> NoReturn:
        """Stop the kernel for one lane."""
        fault(self._machine.geometry, self._site, int(self._lanes[warp, lane]), reason)

    def _who(self, addresses: NDArray[np.uint64]) -> NDArray[np.int64]:
        lanes = self._lanes[:, : addresses.shape[1]]
        lanes = lanes.reshape(lanes.shape + (1,) * (addresses.ndim - 2))
        return np.broadcast_to(lanes, addresses.shape).reshape(-1)


def compile_warp_step(builder: Builder, instruction: Instruction, op: WarpOp) -> None:
    """Add an instruction that whole warps execute together.

    Raises:
        MalformedPtx: the operands do not fit.
    """
    writers, readers = bind_operands(builder, instruction, op.results, op.sources)
    builder.code.narrowest_bytes = min(builder.code.narrowest_bytes, NARROW_BYTES)
    if any(word in ("s8", "u8", "b8") for word in instruction.modifiers):
        builder.code.narrowest_bytes = 1
    site = builder.site(instruction)

    def act(machine: Machine, _masks: Array) -> None:
        lanes = machine.indices().reshape(-1, WARP_LANES)
        sources = [read(machine).reshape(-1, WARP_LANES) for read in readers]
        results = op.run(WarpView(machine, site, lanes), *sources)
        flat = [own(np.ascontiguousarray(result).reshape(-1), ()) for result in results]
        for write, values in zip(writers, flat, strict=True):
            write(machine, values)

    def read_masks(machine: Machine) -> Array:
        if machine.geometry.threads % WARP_LANES or machine.live_lanes != machine.lanes:
            _require_whole_warps(machine, site)
        return np.full(machine.count, FULL_MASK)

    compile_gathering(builder, instruction, read_masks, act)


def _require_whole_warps(machine: Machine, site: Site) -> None:
    lanes = machine.indices()
    short = machine.live_bits()[machine.geometry.warp[lanes]] != FULL_MASK
    if short.any():
        fault(
            machine.geometry, site, int(lanes[short.argmax()]), "needs all 32 lanes of its warp, and some are missing"
        )


class LaneView:
    """Memory of a machine for the lanes that run a `LaneMemoryOp`."""

    def __init__(self, machine: Machine, site: Site) -> None:
        self._machine, self._site = machine, site

    @property
    def queue(self) -> dict[str, Any]:
        """What the ops keep between two runs."""
        return self._machine.queue

    def load(
        self,
        space: str,
        lanes: NDArray[np.int64],
        addresses: NDArray[np.uint64],
        dtype: np.dtype[Any],
        count: int = 1,
        *,
        atomic: bool = False,
    ) -> Array:
        """Read ``count`` consecutive elements per lane, ``(lanes, count)``."""
        if not lanes.size:
            return np.empty((0, count), dtype)
        found = self._machine.memory.load(space, self._site, lanes, addresses, dtype, count, atomic=atomic)
        return found.reshape(-1, count)

    def store(
        self,
        space: str,
        lanes: NDArray[np.int64],
        addresses: NDArray[np.uint64],
        values: Array,
        *,
        atomic: bool = False,
    ) -> None:
        """Write ``(lanes, count)`` values."""
        if lanes.size:
            single = values.ndim == 2 and values.shape[1] == 1
            self._machine.memory.store(
                space, self._site, lanes, addresses, values.reshape(-1) if single else values, atomic=atomic
            )

    def unset(self, space: str, lanes: NDArray[np.int64], addresses: NDArray[np.uint64], size_bytes: int) -> None:
        """Make shared memory uninitialised."""
        if lanes.size:
            self._machine.memory.unset(space, self._site, lanes, addresses, size_bytes)

    def blocks(self, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block of each lane."""
        return self._machine.geometry.block[lanes]

    def synchronize(self, lanes: NDArray[np.int64]) -> None:
        """Order every access so far in the blocks of these lanes before every later one."""
        if lanes.size:
            self._machine.memory.shadow.synchronize_blocks(np.unique(self._machine.geometry.block[lanes]))

    def fault(self, lane: int, reason: str) -> NoReturn:
        """Stop the kernel for one lane."""
        fault(self._machine.geometry, self._site, lane, reason)


def compile_lane_memory(builder: Builder, instruction: Instruction, op: LaneMemoryOp) -> None:
    """Add an instruction that lanes execute for themselves, on memory that keeps state.

    Raises:
        MalformedPtx: the operands do not fit.
    """
    writers, readers = bind_operands(builder, instruction, op.results, op.sources)
    builder.code.narrowest_bytes = min(builder.code.narrowest_bytes, NARROW_BYTES * 2)
    site = builder.site(instruction)

    def step(machine: Machine) -> tuple[Array, ...]:
        sources = [read(machine) for read in readers]
        results = op.run(LaneView(machine, site), machine.indices(), *sources)
        for write, values in zip(writers, results, strict=True):
            write(machine, own(values, tuple(sources)).copy())
        return results

    if not op.waits:
        builder.step(_silent(step))
        return

    def make(_own: int, following: int, _resolve: Resolve) -> End:
        def end(machine: Machine) -> int:
            machine.spins += 1
            (passed,) = step(machine)
            if passed.all():
                return following
            waiting = machine.who if not passed.any() else narrow(machine.who, ~passed, machine.lanes)
            machine.scheduler.pass_turn(following, machine.depth, waiting)
            if not passed.any():
                return -1
            machine.activate(narrow(machine.who, passed, machine.lanes))
            return following

        return end

    builder.finish(make)


def _silent(run: Callable[[Machine], object]) -> Step:
    def step(machine: Machine) -> None:
        run(machine)

    return step
