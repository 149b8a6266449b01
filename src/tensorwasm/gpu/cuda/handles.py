"""What a CUDA device hands out, opaque outside and with the driver's handle inside, and the tables of what is live."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tensorwasm.errors import InvalidHandle, InvalidPointer
from tensorwasm.gpu.cuda.dues import Dues
from tensorwasm.gpu.cuda.modules import CudaModule
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES, SLACK_BYTES, WindowParts
from tensorwasm.gpu.device.port import DeviceStatistics
from tensorwasm.values import Deadline

_Item = TypeVar("_Item")


@dataclass(eq=False, slots=True)
class CudaStream:
    """A stream.

    Attributes:
        handle: the driver's stream.
        event: marks the end of the work that is waited for.
        dues: when its work must have stopped.
        cleared: number of clearings of new memory that the stream is ordered behind.
        recording: whether what is given to it is recorded instead of run.
        overdue: what is known of its work that has missed its deadline, if any has.
    """

    handle: Any
    event: Any
    dues: Dues = field(default_factory=Dues)
    cleared: int = 0
    recording: bool = False
    overdue: Overdue | None = None


@dataclass(slots=True)
class Rival:
    """Work of another stream, which may hold up what is overdue.

    Attributes:
        stream: the other.
        mark: the last of that work, as `Dues.mark` counts; None if only the stream itself can tell.
        until_ns: when it is no excuse any more.
    """

    stream: CudaStream
    mark: int | None
    until_ns: int


@dataclass(slots=True)
class Overdue:
    """Work that has missed its deadline.

    Attributes:
        ended: `Dues.ended` when the work was found overdue: another value means other work.
        rivals: what may hold it up, of the work that other streams had when it was first found overdue.
        excused_until_ns: how long it is excused.
    """

    ended: int
    rivals: list[Rival]
    excused_until_ns: int = 0


@dataclass(eq=False, slots=True)
class CudaEvent:
    """An event.

    Attributes:
        handle: the driver's event.
        deadline: when the work before the mark must have stopped; None without work that has a deadline.
        source: the stream that the mark is in.
        number: of the mark among that stream's work, as `Dues.mark` counts.
    """

    handle: Any
    deadline: Deadline | None = None
    source: CudaStream | None = None
    number: int = 0


@dataclass(eq=False, slots=True)
class CudaGraph:
    """A graph; the handle is the driver's executable graph."""

    handle: Any


@dataclass(eq=False, slots=True)
class CudaPool:
    """A pool; the addresses are those of its live allocations."""

    handle: Any
    addresses: set[int] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class CudaWindow:
    """A window; what is in it changes with the lock held.

    Attributes:
        address: the first byte behind the slack.
        reserved, reserved_bytes: the range that the window and its slack lie in.
        chunk_bytes: of the scratch chunk.
        handles: the driver's scratch memory: the chunk, and a granule for pieces that are no whole chunk, since the
            driver maps no part of a handle.
        mapped: size and handle of each mapping, by address.
        parts: what is mapped in place of aliases; the backing is the driver's handle.
        damaged: whether there may be a hole.
        slot: offset of the part that is cleared with the scratch memory; None without.
    """

    address: int
    reserved: int
    reserved_bytes: int
    chunk_bytes: int
    size_bytes: int
    handles: list[Any] = field(default_factory=list)
    mapped: dict[int, tuple[int, Any]] = field(default_factory=dict)
    damaged: bool = False
    slot: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    parts: WindowParts = field(init=False)

    def __post_init__(self) -> None:
        """Begin with aliases alone."""
        self.parts = WindowParts(self.size_bytes)

    @property
    def tail(self) -> int:
        """The address behind the slack."""
        return self.address + self.size_bytes + SLACK_BYTES

    @property
    def scratch(self) -> tuple[int, int]:
        """Address and size of one alias of each piece of scratch memory, and of the slot, which are never replaced."""
        return self.tail, GRANULE_BYTES + self.chunk_bytes + (0 if self.slot is None else GRANULE_BYTES)

    @property
    def memory_bytes(self) -> int:
        """Memory that it takes."""
        return self.chunk_bytes + GRANULE_BYTES + self.parts.total_bytes


class LiveHandles(set[_Item]):
    """Live handles of one kind. Safe from any thread.

    Args:
        refusal: what is wrong with any other.
    """

    def __init__(self, refusal: str) -> None:
        super().__init__()
        self._refusal = refusal

    def enter(self, item: _Item) -> _Item:
        """Add a handle and return it."""
        self.add(item)
        return item

    def take(self, item: _Item) -> tuple[_Item]:
        """Remove a handle and return what `enter` takes: of two calls, one succeeds.

        Raises:
            InvalidHandle: it is not live.
        """
        try:
            self.remove(item)
        except KeyError:
            raise InvalidHandle("released already") from None
        return (item,)

    def entries(self) -> list[tuple[_Item]]:
        """Return what was entered."""
        return [(item,) for item in list(self)]

    def require(self, item: Any) -> _Item:
        """Return a handle that a caller has passed in.

        Raises:
            InvalidHandle: it is not live here.
        """
        if item not in self:
            raise InvalidHandle(self._refusal)
        own: _Item = item
        return own


@dataclass(eq=False, slots=True)
class LiveRanges:
    """Live address ranges of one kind, none overlapping. Safe from any thread."""

    _sizes: dict[int, int] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, address: int, size_bytes: int) -> int:
        """Add a range and return its address."""
        with self._lock:
            self._sizes[address] = size_bytes
            insort(self._starts, address)
        return address

    def take(self, address: int) -> tuple[int, int]:
        """Remove the range that begins at an address and return what `enter` takes: of two calls, one succeeds.

        Raises:
            InvalidHandle: no live range begins there.
        """
        with self._lock:
            if address not in self._sizes:
                raise InvalidHandle(f"nothing live begins at {address:#x}")
            self._starts.remove(address)
            return address, self._sizes.pop(address)

    def entries(self) -> list[tuple[int, int]]:
        """Return address and size of each range, ascending."""
        with self._lock:
            return [(start, self._sizes[start]) for start in self._starts]

    def holds(self, address: int, size_bytes: int) -> bool:
        """Return whether a range of bytes lies inside one live range."""
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            start = self._starts[at] if at >= 0 else 0
            return at >= 0 and address + size_bytes <= start + self._sizes[start]

    def size(self, address: int) -> int:
        """Return the size of the range that begins at an address, 0 if none does."""
        with self._lock:
            return self._sizes.get(address, 0)

    def __len__(self) -> int:
        return len(self._sizes)

    def totals(self) -> tuple[int, int]:
        """Return the number of live ranges and their bytes."""
        with self._lock:
            return len(self._sizes), sum(self._sizes.values())


class LiveResources:
    """Everything that a device holds. Safe from any thread.

    Attributes:
        allocations: device memory from `Device.allocate`.
        pooled: device memory from tenants' pools.
        managed: managed memory.
        reserved: ranges in which memory may be mapped.
        mapped: memory that is mapped in them.
        registrations: host memory that kernels reach.
        in_windows: memory that is mapped in windows, apart from their scratch memory.
        launches: kernels and graphs that the driver has taken.
        release_failures: releases that the driver has refused.
        counting: held while one of the two changes.
    """

    def __init__(self) -> None:
        self.allocations, self.pooled, self.registrations = LiveRanges(), LiveRanges(), LiveRanges()
        self.managed, self.reserved, self.mapped = LiveRanges(), LiveRanges(), LiveRanges()
        self.in_windows = LiveRanges()
        self.modules = LiveHandles[CudaModule]("the module is not loaded on this device")
        self.streams = LiveHandles[CudaStream]("the stream is not open on this device")
        self.events = LiveHandles[CudaEvent]("the event is not open on this device")
        self.graphs = LiveHandles[CudaGraph]("the graph is not open on this device")
        self.pools = LiveHandles[CudaPool]("the pool is not open on this device")
        self.windows = LiveHandles[CudaWindow]("the window is not open on this device")
        self.launches = self.release_failures = 0
        self.counting = threading.Lock()

    def require(self, address: int, size_bytes: int) -> None:
        """Check that a range lies inside one piece of the device's live memory.

        Raises:
            InvalidPointer: it does not.
        """
        memory = (self.allocations, self.pooled, self.managed, self.mapped, self.in_windows)
        if not any(ranges.holds(address, size_bytes) for ranges in memory):
            raise InvalidPointer(f"{size_bytes} bytes at {address:#x} are not inside one live allocation")

    def empty(self) -> bool:
        """Return whether nothing is live."""
        handles = (self.modules, self.streams, self.events, self.graphs, self.pools, self.windows)
        memory = (self.allocations, self.pooled, self.managed, self.reserved, self.mapped, self.registrations)
        return not (any(handles) or any(memory))

    def statistics(self) -> DeviceStatistics:
        """Return the totals."""
        own, pooled, registered = (each.totals() for each in (self.allocations, self.pooled, self.registrations))
        windows = list(self.windows)
        return DeviceStatistics(
            allocations=own[0] + pooled[0],
            allocated_bytes=own[1] + pooled[1],
            registrations=registered[0],
            registered_bytes=registered[1],
            modules=len(self.modules),
            streams=len(self.streams),
            launches=self.launches,
            events=len(self.events),
            graphs=len(self.graphs),
            pools=len(self.pools),
            unified_bytes=self.managed.totals()[1] + self.mapped.totals()[1],
            windows=len(windows),
            window_bytes=sum(window.memory_bytes for window in windows),
            release_failures=self.release_failures,
        )
