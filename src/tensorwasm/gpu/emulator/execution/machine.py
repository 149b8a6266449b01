"""The state of a running batch of lanes: registers, special ones too, active and live lanes, what the launch fixes.

Source: PTX ISA 10 (Special Registers).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from tensorwasm.errors import DeviceLost, InvokeTimeout, UnsupportedPtx
from tensorwasm.gpu.device.port import KernelOutput
from tensorwasm.gpu.emulator.lanes import (
    WARP_LANES,
    Array,
    BatchGeometry,
    Indices,
    Selection,
    coordinates,
    indices,
    narrow,
    pick,
)
from tensorwasm.gpu.emulator.memory.spaces import BatchMemory
from tensorwasm.ptx.model import Instruction
from tensorwasm.values import Deadline, DeviceInfo, LaunchConfig

CHECK_STEPS: Final = 64
"""Steps between two checks of the deadline."""
MAX_CONSTANTS: Final = 256
"""Immediates that a launch keeps as arrays."""


@dataclass(slots=True, eq=False)
class Launch:
    """What all batches of a launch share.

    Attributes:
        params: the parameter buffer.
        shared, frame: as in `KernelPlan`.
        shared_bytes: shared memory of a block.
        closing: set when the launch must stop at once.
        number: of the launch, for ``%gridid``.
        constants: arrays of immediates as long as the widest batch, by bits and type.
    """

    kernel: str
    config: LaunchConfig
    info: DeviceInfo
    params: bytes
    shared: dict[int, int]
    frame: dict[int, tuple[int, int]]
    shared_bytes: int
    deadline: Deadline
    closing: threading.Event
    number: int
    output: KernelOutput
    constants: dict[tuple[int, str], Array] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `InvokeTimeout` if the deadline has passed, and `DeviceLost` if the device is closed."""
        if self.deadline.expired():
            raise InvokeTimeout(f"kernel {self.kernel} was still running at the deadline")
        if self.closing.is_set():
            raise DeviceLost(f"kernel {self.kernel} was still running when the device was closed")


class SimtMachine:
    """One batch. Steps read and write it; the scheduler changes its active lanes.

    Attributes:
        regs: one array per register slot, raw unsigned bits or bool; a read-only one is shared and must be copied
            before lanes of it are written.
        active, count, depth: the active lanes, never none; how many they are; the call depth of all of them.
        live, live_lanes: which lanes have not exited; how many they are.
        steps, spins: instructions run so far; those of them that can be part of waiting for another lane.
        next_check: value of ``steps`` at which the deadline is checked next.
        queue: state of asynchronous operations.
        return_pcs: block that each lane returns to, by call depth.
        saved: registers of callers that may be active twice in a thread, by call depth and slot.
    """

    __slots__ = (
        "_live_bits", "active", "barriers", "count", "depth", "geometry", "lanes", "launch", "live", "live_lanes",
        "memory", "next_check", "queue", "regs", "return_pcs", "saved", "scheduler", "special", "spins", "steps",
    )  # fmt: skip

    def __init__(self, launch: Launch, geometry: BatchGeometry, memory: BatchMemory, regs: list[Array]) -> None:
        self.launch, self.geometry, self.memory, self.regs = launch, geometry, memory, regs
        self.lanes = self.count = self.live_lanes = geometry.lanes
        self.active: Selection = None
        self.live = np.ones(self.lanes, np.bool_)
        self.depth = self.steps = self.spins = 0
        self.next_check = CHECK_STEPS
        self.queue: dict[str, Any] = {}
        self.special: dict[str, Array] = {}
        self.return_pcs: list[Indices] = []
        self.saved: dict[tuple[int, int], Array] = {}
        self.scheduler: Any = None
        self.barriers: Any = None
        self._live_bits: NDArray[np.uint32] | None = None

    # ------------------------------------------------------------------------------------- active lanes

    def indices(self) -> Indices:
        """Return the active lanes as indices."""
        return indices(self.active, self.lanes)

    def activate(self, selection: Selection) -> None:
        """Make a selection the active lanes."""
        self.active = selection
        if selection is None:
            self.count = self.lanes
        elif isinstance(selection, slice):
            self.count = selection.stop - selection.start
        else:
            self.count = selection.size

    def run_masked(self, mask: NDArray[np.bool_], step: Step) -> None:
        """Run a step for the active lanes whose mask is set."""
        chosen = np.count_nonzero(mask)
        if chosen == self.count:
            step(self)
        elif chosen:
            before = self.active
            self.activate(narrow(before, mask, self.lanes))
            step(self)
            self.activate(before)

    def fault(self, site: Instruction, position: int, reason: str) -> NoReturn:
        """Raise `KernelFault` for the active lane at a position among the active lanes."""
        self.geometry.fault(site, int(self.indices()[position]), reason)

    def fault_where(self, site: Instruction, wrong: Array, reason: str, values: Array | None = None) -> None:
        """Raise `KernelFault` for the first active lane that is wrong, if any; ``{}`` in the reason is its value."""
        if wrong.any():
            at = int(wrong.argmax())
            self.fault(site, at, reason if values is None else reason.format(int(values[at])))

    # ---------------------------------------------------------------------------------------- registers

    def write(self, slot: int, values: Array) -> None:
        """Write a register of the active lanes. The machine takes ``values`` over: no caller may write it later."""
        if self.active is None:
            self.regs[slot] = values
            return
        register = self.regs[slot]
        if not register.flags.writeable:
            register = self.regs[slot] = register.copy()
        register[self.active] = values

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

    # --------------------------------------------------------------------------------------- live lanes

    def kill(self, lanes: Indices) -> None:
        """Let lanes exit."""
        self.live[lanes] = False
        self.live_lanes -= lanes.size
        self._live_bits = None

    def live_bits(self) -> NDArray[np.uint32]:
        """Return the live lanes of each warp as bits, ``(warps,)``."""
        if self._live_bits is None:
            self._live_bits = self.lane_bits(np.flatnonzero(self.live))
        return self._live_bits

    def lane_bits(self, lanes: Indices) -> NDArray[np.uint32]:
        """Return a set of lanes as bits of each warp, ``(warps,)``."""
        geometry = self.geometry
        flags = np.zeros((geometry.warps.shape[0], WARP_LANES), np.bool_)
        flags[geometry.warp[lanes], geometry.laneid[lanes]] = True
        return np.packbits(flags, axis=1, bitorder="little").view("<u4").reshape(-1)


Step = Callable[[SimtMachine], object]
End = Callable[[SimtMachine, int], int]
"""Ends the block of a number: returns the block at which the active lanes run on, or -1 if none are active any more."""


@dataclass(frozen=True, slots=True)
class BasicBlock:
    """Steps that run one after the other, and what they add to the machine's count of steps."""

    steps: tuple[Step, ...]
    end: End
    cost: int


# ---------------------------------------------------------------------------------------------------- special registers

WARPS_PER_MULTIPROCESSOR: Final = 64
CLOCKS_PER_STEP: Final = 16

Compute = Callable[[SimtMachine], Array]
"""Computes a special register of every lane of the batch."""


def _thread(axis: int) -> Compute:
    return lambda machine: coordinates(machine.geometry.thread, machine.launch.config.block)[axis]


def _block(axis: int) -> Compute:
    def compute(machine: SimtMachine) -> Array:
        geometry = machine.geometry
        block = geometry.first_block + np.arange(geometry.blocks)  # a grid has less than 2**63 blocks
        return pick(coordinates(block, machine.launch.config.grid)[axis], geometry.block)

    return compute


def _same(read: Callable[[SimtMachine], int]) -> Compute:
    """Return one value for all lanes."""
    return lambda machine: np.full(machine.lanes, read(machine), np.uint64)


def _block_extent(axis: int) -> Compute:
    return _same(lambda machine: machine.launch.config.block[axis])


def _grid_extent(axis: int) -> Compute:
    return _same(lambda machine: machine.launch.config.grid[axis])


def _mask(compute: Callable[[Array], Array]) -> Compute:
    return lambda machine: compute(machine.geometry.laneid.astype(np.uint64)) & np.uint64(0xFFFFFFFF)


_ZERO: Final = _same(lambda _: 0)
_UNIT: Final = _same(lambda _: 1)
_SHARED_BYTES: Final = _same(lambda machine: machine.launch.shared_bytes)
_ONE: Final = np.uint64(1)
_FIXED: Final[dict[str, Compute]] = {
    **{f"%tid.{name}": _thread(axis) for axis, name in enumerate("xyz")},
    **{f"%ctaid.{name}": _block(axis) for axis, name in enumerate("xyz")},
    **{f"%ntid.{name}": _block_extent(axis) for axis, name in enumerate("xyz")},
    **{f"%nctaid.{name}": _grid_extent(axis) for axis, name in enumerate("xyz")},
    **{f"%{name}.w": _ZERO for name in ("tid", "ntid", "ctaid", "nctaid")},
    # Every block is a cluster of its own.
    **{f"%clusterid.{name}": _block(axis) for axis, name in enumerate("xyz")},
    **{f"%nclusterid.{name}": _grid_extent(axis) for axis, name in enumerate("xyz")},
    **{f"%cluster_ctaid.{name}": _ZERO for name in "xyzw"},
    **{f"%cluster_nctaid.{name}": _UNIT for name in "xyz"},
    **{f"%{name}.w": _ZERO for name in ("clusterid", "nclusterid", "cluster_nctaid")},
    "%is_explicit_cluster": _ZERO,
    "%cluster_ctarank": _ZERO,
    "%cluster_nctarank": _UNIT,
    "%laneid": lambda machine: machine.geometry.laneid,
    "%warpid": lambda machine: machine.geometry.thread // WARP_LANES,
    "%nwarpid": _same(lambda _: WARPS_PER_MULTIPROCESSOR),
    "%smid": lambda machine: (
        (machine.geometry.block + machine.geometry.first_block % machine.launch.info.multiprocessors)
        % machine.launch.info.multiprocessors
    ),
    "%nsmid": _same(lambda machine: machine.launch.info.multiprocessors),
    "%gridid": _same(lambda machine: machine.launch.number),
    "%lanemask_eq": _mask(lambda laneid: _ONE << laneid),
    "%lanemask_lt": _mask(lambda laneid: (_ONE << laneid) - _ONE),
    "%lanemask_le": _mask(lambda laneid: (_ONE << laneid + _ONE) - _ONE),
    "%lanemask_gt": _mask(lambda laneid: ~((_ONE << laneid + _ONE) - _ONE)),
    "%lanemask_ge": _mask(lambda laneid: ~((_ONE << laneid) - _ONE)),
    "%dynamic_smem_size": _same(lambda machine: machine.launch.config.shared_bytes),
    "%total_smem_size": _SHARED_BYTES,
    "%aggr_smem_size": _SHARED_BYTES,
    **{f"%envreg{index}": _ZERO for index in range(32)},
    **{f"%reserved_smem_offset_{name}": _ZERO for name in ("begin", "end", "cap", "0", "1")},
    "%current_graph_exec": _ZERO,
}
"""Registers that keep their value; computed once per batch."""


def _clock(machine: SimtMachine) -> int:
    return machine.steps * CLOCKS_PER_STEP


_CHANGING: Final[dict[str, Callable[[SimtMachine], int]]] = {
    "%clock": _clock,
    "%clock64": _clock,
    "%clock_hi": lambda machine: _clock(machine) >> 32,
    "%globaltimer": lambda _: time.time_ns(),
    "%globaltimer_lo": lambda _: time.time_ns(),
    "%globaltimer_hi": lambda _: time.time_ns() >> 32,
}
PREDICATES: Final = frozenset({"%is_explicit_cluster"})
"""Special registers that are predicates; ptxas takes them for nothing else."""

_WIDE: Final = frozenset({"%clock64", "%globaltimer", "%gridid", "%current_graph_exec"})


def width_bits(name: str) -> int:
    """Return the width of a special register, 32 or 64."""
    if name not in _FIXED and name not in _CHANGING:
        raise UnsupportedPtx(f"the emulator has no special register {name}")
    return 64 if name in _WIDE else 32


def read_special(name: str, dtype: np.dtype[Any]) -> Compute:
    """Return a reader of a special register of the active lanes: its low bits, or extended by zeros.

    The name has its component, such as ``%tid.x``; the type is an integer type, or bool for one of `PREDICATES`.
    """
    bits = width_bits(name)
    low, raw = np.dtype(f"uint{bits}"), np.dtype(f"uint{dtype.itemsize * 8}")
    changing = _CHANGING.get(name)
    if changing is not None:
        return lambda machine: (
            np.full(machine.count, changing(machine) & ((1 << bits) - 1), np.uint64).astype(raw).view(dtype)
        )
    compute, key = _FIXED[name], f"{name}:{dtype.str}"

    def read(machine: SimtMachine) -> Array:
        values = machine.special.get(key)
        if values is None:
            values = compute(machine).astype(low).astype(raw).view(dtype)
            values.flags.writeable = False
            machine.special[key] = values
        return pick(values, machine.active)

    return read
