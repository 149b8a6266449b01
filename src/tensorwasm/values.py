"""Immutable values that several packages share."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

MAX_WEIGHT: Final = 1000
"""Greatest share of a tenant while tenants wait for one another; the least is 1."""

MIB: Final = 1 << 20
OLDEST_PTX: Final = (6, 0)
NEWEST_PTX: Final = (9, 5)
"""Accepted versions of the PTX ISA: those of the CUDA releases 9.0 to 13.5."""
WASM_PAGE_BYTES: Final = 1 << 16

Dim3 = tuple[int, int, int]
DeviceKind = Literal["emulator", "cuda"]
MemoryKind = Literal["auto", "staged", "pinned", "managed", "vmm"]
"""How a guest's linear memory is reached by kernels; ``auto`` chooses between staged and pinned, launch by launch."""

Isolation = Literal["guarded", "process", "stream"]
"""What keeps kernels of different tenants apart on a GPU. ``guarded``: each is rewritten so that it reaches nothing but
its guest's memory and stops at its deadline, and verified. ``process``: the processes, one a tenant at least.
``stream``: nothing, as for kernels that are trusted; the emulator confines every kernel itself."""

OffloadMath = Literal["exact", "relaxed"]
"""Whether offloaded loops add and multiply floats in WebAssembly's order, or in any order in sums and products."""

OffloadMode = Literal["off", "auto", "cpu", "gpu"]
"""Where loops run that can run in parallel: in the guest (``off``), on all cores of the host (``cpu``), on the
runtime's device (``gpu``), or on that if it is a GPU and else the cores (``auto``)."""

OFFLOAD_MATHS: Final[tuple[OffloadMath, ...]] = ("exact", "relaxed")

OFFLOAD_MODES: Final[tuple[OffloadMode, ...]] = ("off", "auto", "cpu", "gpu")
ISOLATIONS: Final[tuple[Isolation, ...]] = ("guarded", "process", "stream")
MEMORY_KINDS: Final[tuple[MemoryKind, ...]] = ("auto", "staged", "pinned", "managed", "vmm")


MOST_MISMATCHES: Final = 8
"""Most pieces of evidence in `OffloadUse`."""
MOST_EVIDENCE: Final = 8192
"""Most characters of each."""


class OffloadUse(NamedTuple):
    """What became of the loops of one call that can run elsewhere."""

    taken: int = 0  # runs elsewhere
    compared: int = 0  # runs that were made in the guest too, which went on with that
    seconds: float = 0.0  # of the runs that were taken
    moved_bytes: int = 0  # copied to and from the device
    declined: tuple[tuple[str, int], ...] = ()  # runs in the guest, by the name of the reason
    mismatches: tuple[str, ...] = ()  # evidence of each compared run that differed


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock, in nanoseconds, by which work must have stopped; None for no deadline."""

    at_ns: int | None = None

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Return the deadline ``seconds`` from now.

        None, or infinity in nanoseconds, is no deadline; NaN or less than 0 is now.
        """
        if seconds is None or seconds * 1e9 == math.inf:
            return cls()
        if not seconds >= 0:  # NaN too
            seconds = 0.0
        return cls(time.monotonic_ns() + round(seconds * 1e9))

    def earlier(self, other: Deadline | None) -> Deadline:
        """Return the earlier of two deadlines; None is no deadline."""
        if other is None or other.at_ns is None:
            return self
        known = [each.at_ns for each in (self, other) if each is not None and each.at_ns is not None]
        return Deadline(min(known, default=None))

    def remaining_s(self) -> float:
        """Return the seconds left: 0.0 when passed, infinity without a deadline."""
        if self.at_ns is None:
            return math.inf
        return max(0.0, (self.at_ns - time.monotonic_ns()) / 1e9)

    def expired(self) -> bool:
        """Return whether the deadline has passed."""
        return self.at_ns is not None and time.monotonic_ns() >= self.at_ns


NEVER: Final = Deadline()
"""No deadline."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use.

    Attributes:
        memory_bytes: linear memory, all memories together; growing past it returns -1.
        table_elements: elements of each table.
        module_bytes: size of the module's binary.
        wall_s: wall-clock seconds for the start function and for every call.
        output_bytes: standard output, and likewise standard error, captured or passed on; more fails in the guest.
        stdin_bytes: standard input that is given as a value; more is refused.
    """

    memory_bytes: int = 256 * MIB
    table_elements: int = 1 << 20
    module_bytes: int = 64 * MIB
    stack_bytes: int = 512 << 10
    wall_s: float = 30.0
    output_bytes: int = 16 * MIB
    stdin_bytes: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Geometry of a launch.

    Attributes:
        grid: blocks along x, y, z, each 1 to 2**31 - 1 (y and z: 65,535 on hardware).
        block: threads along x, y, z, each 1 to 1024, at most 1024 together.
        shared_bytes: dynamic shared memory of a block.
    """

    grid: Dim3
    block: Dim3
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """A range of device addresses that a kernel may access, at least 1 byte.

    Attributes:
        host: True for registered host memory, whose device and host addresses are the same.
    """

    address: int
    size_bytes: int
    host: bool

    @property
    def end(self) -> int:
        """First address after it."""
        return self.address + self.size_bytes


@dataclass(frozen=True, slots=True)
class KernelParam:
    """One parameter of a kernel.

    Attributes:
        size_bytes: of the whole array, if it is one.
        align_bytes: alignment in the parameter buffer.
        scalar: False for an array parameter (a C structure passed by value).
        pointer: True when the kernel uses the value as an address of global memory.
        access_align_bytes: alignment that the widest access through the pointer needs, 1 if none.
    """

    name: str
    size_bytes: int
    align_bytes: int
    scalar: bool = True
    pointer: bool = False
    access_align_bytes: int = 1


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """What a caller needs to know of a kernel to launch it.

    Attributes:
        entry: name of the ``.entry``.
        static_shared_bytes: shared memory declared by the module and reachable from the entry.
        max_threads: most threads of a block (``.maxntid``, ``.reqntid``), 1024 if unstated.
        required_block: ``.reqntid``, or None.
    """

    entry: str
    params: tuple[KernelParam, ...]
    static_shared_bytes: int = 0
    max_threads: int = 1024
    required_block: Dim3 | None = None


@dataclass(frozen=True, slots=True)
class SmPlacement:
    """Position of a process's share of a GPU's multiprocessors, so that shares of several processes do not overlap.

    Each process divides the GPU in the same way into groups, and skips the groups of the shares before its own.

    Attributes:
        unit: least multiprocessors of one group, 1 or more; the driver rounds up.
        before: the shares before it, in order, each in multiprocessors, 1 or more.
    """

    unit: int
    before: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device's description, for people and for capability checks.

    Attributes:
        ordinal: index among devices of its kind.
        ptx_version: newest PTX ISA (major, minor) it accepts.
        max_shared_bytes: largest shared memory of a block, opt-in included.
        concurrent_managed_access: whether CPU and GPU may access managed memory at once.
        driver: the driver's version, empty for the emulator.
        max_streams: streams that all sessions share, 0 if the device makes any number at any time.
    """

    kind: DeviceKind
    ordinal: int
    name: str
    compute_capability: tuple[int, int]
    ptx_version: tuple[int, int]
    memory_bytes: int
    multiprocessors: int
    max_shared_bytes: int
    concurrent_managed_access: bool = False
    driver: str = ""
    max_streams: int = 0
