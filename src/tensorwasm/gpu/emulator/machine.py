"""The state of a running batch of lanes: registers, the active selection, who lives, and what the launch fixes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.errors import DeviceLost, InvokeTimeout
from tensorwasm.gpu.device.output import KernelOutput
from tensorwasm.gpu.emulator.geometry import WARP_LANES, Geometry
from tensorwasm.gpu.emulator.lanes import Array, Selection, indices, narrow
from tensorwasm.gpu.emulator.memory import Memory
from tensorwasm.values import Deadline, DeviceInfo, LaunchConfig

CHECK_STEPS: Final = 64
"""Steps between two looks at the clock."""
MAX_CONSTANTS: Final = 256
"""Immediates that a launch keeps as arrays."""


@dataclass(slots=True, eq=False)
class Launch:
    """What all batches of a launch share.

    Attributes:
        kernel: name of the entry.
        config: its geometry.
        info: the device.
        params: the parameter buffer, read-only.
        shared: offset of each shared variable, by its key.
        frame: offset of each local variable and what each call depth adds to it, by its key.
        mailbox: offset in local memory where a returning function leaves its results.
        shared_bytes: shared memory of a block.
        deadline: when everything must have stopped.
        closing: set when everything must stop at once.
        output: what its threads print.
        constants: arrays of immediates as long as the widest batch, by bits and type.
    """

    kernel: str
    config: LaunchConfig
    info: DeviceInfo
    params: bytes
    shared: dict[int, int]
    frame: dict[int, tuple[int, int]]
    mailbox: int
    shared_bytes: int
    deadline: Deadline
    closing: threading.Event
    number: int = 0
    output: KernelOutput = field(default_factory=KernelOutput)
    constants: dict[tuple[int, str], Array] = field(default_factory=dict)

    def check(self) -> None:
        """Look at the clock.

        Raises:
            InvokeTimeout: the deadline has passed.
            DeviceLost: the device is closed.
        """
        if self.deadline.expired():
            raise InvokeTimeout(f"kernel {self.kernel} was still running at the deadline")
        if self.closing.is_set():
            raise DeviceLost(f"kernel {self.kernel} was still running when the device was closed")


class Machine:
    """One batch. Steps read and write it; the scheduler moves its selection.

    Attributes:
        launch: what all batches share.
        geometry: who the lanes are.
        memory: their memory.
        regs: one array per register slot, raw unsigned bits or bool; a read-only one is shared and must be copied
            before lanes of it are written.
        who: the active lanes; never empty.
        count: how many they are.
        depth: call depth of all of them.
        live: which lanes have not exited.
        steps: instructions run so far.
        spins: instructions run so far that can be part of waiting for another lane.
        queue: what asynchronous operations keep.
    """

    __slots__ = (
        "_live_bits",
        "barriers",
        "count",
        "depth",
        "geometry",
        "lanes",
        "launch",
        "live",
        "live_lanes",
        "memory",
        "next_check",
        "queue",
        "regs",
        "return_pcs",
        "saved",
        "scheduler",
        "special",
        "spins",
        "steps",
        "who",
    )

    def __init__(self, launch: Launch, geometry: Geometry, memory: Memory, regs: list[Array]) -> None:
        self.launch, self.geometry, self.memory, self.regs = launch, geometry, memory, regs
        self.lanes = geometry.lanes
        self.who: Selection = None
        self.count = self.lanes
        self.depth = 0
        self.live = np.ones(self.lanes, np.bool_)
        self.live_lanes = self.lanes
        self.steps = self.spins = 0
        self.next_check = CHECK_STEPS
        self.queue: dict[str, Any] = {}
        self.special: dict[str, Array] = {}
        self.return_pcs: list[NDArray[np.int64]] = []
        self.saved: dict[tuple[int, int], Array] = {}
        self.scheduler: Any = None
        self.barriers: Any = None
        self._live_bits: NDArray[np.uint32] | None = None

    # ---------------------------------------------------------------------------------------- selection

    def indices(self) -> NDArray[np.int64]:
        """Return the active lanes as indices."""
        return indices(self.who, self.lanes)

    def activate(self, who: Selection) -> None:
        """Make a selection the active one."""
        self.who = who
        if who is None:
            self.count = self.lanes
        elif isinstance(who, slice):
            self.count = who.stop - who.start
        else:
            self.count = who.size

    def narrowed(self, mask: NDArray[np.bool_], step: Callable[[Machine], None]) -> None:
        """Run a step for the active lanes whose mask is set."""
        active = np.count_nonzero(mask)
        if active == self.count:
            step(self)
        elif active:
            saved = self.who
            self.activate(narrow(saved, mask, self.lanes))
            step(self)
            self.activate(saved)

    # ---------------------------------------------------------------------------------------- registers

    def write(self, slot: int, values: Array) -> None:
        """Write a register of the active lanes. ``values`` becomes the machine's own: nobody may write it later."""
        if self.who is None:
            self.regs[slot] = values
            return
        register = self.regs[slot]
        if not register.flags.writeable:
            register = self.regs[slot] = register.copy()
        register[self.who] = values

    def constant(self, bits: int, dtype: np.dtype[Any]) -> Array:
        """Return an immediate for the active lanes, read-only."""
        found = self.launch.constants.get((bits, dtype.str))
        if found is None or found.size < self.count:
            raw = np.dtype(f"uint{dtype.itemsize * 8}")
            found = np.full(self.lanes, bits & ((1 << dtype.itemsize * 8) - 1), raw).view(dtype)
            found.flags.writeable = False
            if len(self.launch.constants) >= MAX_CONSTANTS:
                self.launch.constants.clear()
            self.launch.constants[bits, dtype.str] = found
        return found if found.size == self.count else found[: self.count]

    # --------------------------------------------------------------------------------------------- life

    def kill(self, lanes: NDArray[np.int64]) -> None:
        """Let lanes exit."""
        self.live[lanes] = False
        self.live_lanes -= lanes.size
        self._live_bits = None

    def live_bits(self) -> NDArray[np.uint32]:
        """Return the live lanes of each warp as bits, ``(warps,)``."""
        if self._live_bits is None:
            self._live_bits = self.bits(np.flatnonzero(self.live))
        return self._live_bits

    def bits(self, lanes: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return a set of lanes as bits of each warp, ``(warps,)``."""
        geometry = self.geometry
        flags = np.zeros((geometry.table.shape[0], WARP_LANES), np.bool_)
        flags[geometry.warp[lanes], geometry.place[lanes]] = True
        packed = np.packbits(flags, axis=1, bitorder="little")
        return packed.view("<u4").reshape(-1)

    # --------------------------------------------------------------------------------------------- time

    def check(self) -> None:
        """Look at the clock.

        Raises:
            InvokeTimeout: the deadline has passed.
            DeviceLost: the device is closed.
        """
        self.launch.check()
