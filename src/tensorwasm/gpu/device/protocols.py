"""What a device can do beyond the core of its port, one small protocol a subject.

What holds for all methods is stated in `tensorwasm.gpu.device`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tensorwasm.gpu.device.address_windows import WINDOW_BYTES
from tensorwasm.values import Deadline, Region


class LoadedModule(Protocol):
    """A module on a device. Opaque; lives until `Device.unload`."""


class Stream(Protocol):
    """An order of work on a device. Opaque; lives until `Device.close_stream`."""


class Event(Protocol):
    """A point in a stream. Opaque; lives until `Events.close_event`."""


class Graph(Protocol):
    """A recorded sequence of work. Opaque; lives until `Graphs.close_graph`."""


class Pool(Protocol):
    """A reserve of device memory with a cap. Opaque; lives until `Pools.close_pool`."""


class Events(Protocol):
    """Order between streams. Source: CUDA Driver API, "Event Management"."""

    def open_event(self) -> Event:
        """Return a new event, which counts as reached until it is recorded."""

    def close_event(self, event: Event) -> None:
        """Release an event. Streams that wait for it go on waiting for what was recorded."""

    def record(self, event: Event, stream: Stream) -> None:
        """Set the event behind the work given to the stream so far."""

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Put what is given to the stream next behind the event."""

    def event_reached(self, event: Event) -> bool:
        """Return whether the work before the event has ended."""

    def patience(self, event: Event) -> Deadline:
        """Return until when the work before the event may take before the device itself is given up for it.

        No deadline if there is no such moment, or no work before the event.
        """

    def synchronize_event(self, event: Event, deadline: Deadline) -> None:
        """Wait for the work before the event."""


class Graphs(Protocol):
    """Launches and copies recorded once and replayed. Source: CUDA Driver API, "Graph Management", stream capture."""

    def begin_capture(self, stream: Stream) -> None:
        """Record what is given to the stream from now on, by compiled code too, instead of running it."""

    def end_capture(self, stream: Stream) -> Graph:
        """Stop recording and return what was recorded, ready to replay.

        Raises:
            LaunchRefused: the stream did not record, or what was recorded cannot be replayed.
        """

    def replay(self, graph: Graph, stream: Stream, regions: Sequence[Region], deadline: Deadline) -> None:
        """Start all of it behind the work already in the stream.

        The stream is any that is not recording; the regions are as in `Device.launch`.
        """

    def graph_handle(self, graph: Graph) -> int:
        """Return what `NativeTable.graph_launch` takes."""

    def close_graph(self, graph: Graph) -> None:
        """Release a graph that no stream is replaying."""


class Pools(Protocol):
    """Device memory under a cap that the device itself enforces.

    Source: CUDA Driver API, "Stream Ordered Memory Allocator", ``CUmemPoolProps.maxSize``.
    """

    def open_pool(self, max_bytes: int) -> Pool:
        """Return a pool that holds at most that many bytes, rounded up to the device's granularity.

        A device whose driver knows no cap takes the number as a hint; `Pools.capped` says which it is.
        """

    @property
    def capped(self) -> bool:
        """Whether the device enforces the cap."""

    def pool_allocate(self, pool: Pool, size_bytes: int) -> int:
        """Return the address of device memory of the pool, at least 256-byte aligned. What is in it is undefined.

        Usable by every stream at once: the call returns after the memory is there.

        Raises:
            QuotaExceeded: over the pool's cap, or the device has no memory left.
        """

    def pool_free(self, pool: Pool, address: int) -> None:
        """Return memory to the pool. No stream may still use it. Never waits for other streams' kernels."""

    def close_pool(self, pool: Pool) -> None:
        """Release a pool from which nothing is allocated."""


class Advice(Enum):
    """How managed memory will be used. Each hint has one that revokes it."""

    READ_MOSTLY = "read_mostly"
    UNSET_READ_MOSTLY = "unset_read_mostly"
    PREFERRED_LOCATION = "preferred_location"
    UNSET_PREFERRED_LOCATION = "unset_preferred_location"
    ACCESSED_BY = "accessed_by"
    UNSET_ACCESSED_BY = "unset_accessed_by"


class UnifiedMemory(Protocol):
    """Memory that host and device reach under one address: managed, and virtual ranges that grow in place.

    Source: CUDA Driver API, "Unified Addressing", "Memory Management", "Virtual Memory Management".
    """

    @property
    def managed(self) -> bool:
        """Whether the device has managed memory."""

    @property
    def growable(self) -> bool:
        """Whether the device has virtual ranges that the host reaches too."""

    @property
    def granularity_bytes(self) -> int:
        """Bytes that `map` maps at a time; its offsets and sizes are multiples. 0 without `growable`."""

    def free_bytes(self) -> int:
        """Return device memory that is free now: managed allocations beyond it are refused."""

    def allocate_managed(self, size_bytes: int, zero_bytes: int | None = None) -> int:
        """Return the address of managed memory, page-aligned.

        Args:
            size_bytes: at least 1.
            zero_bytes: how much of it, from the first byte on, is zero; None for all. The rest is undefined, and may
                hold another tenant's data: `clear_managed` it before use. It is not touched, so it takes no memory yet.

        Raises:
            QuotaExceeded: more than the device has free.
            LaunchRefused: the device has no managed memory.
        """

    def clear_managed(self, address: int, size_bytes: int) -> None:
        """Fill a part of managed memory, which no stream uses, with zeros. Blocks until they are there."""

    def free_managed(self, address: int) -> None:
        """Release managed memory. No stream may still use it."""

    def advise(self, address: int, size_bytes: int, advice: Advice) -> bool:
        """Give a hint on a managed range, the location being this device. Returns False where it has no effect."""

    def prefetch(self, address: int, size_bytes: int, stream: Stream, *, to_host: bool) -> bool:
        """Start moving a managed range, behind the work in the stream. Returns False where it has no effect."""

    def reserve(self, size_bytes: int) -> int:
        """Return the address of a reserved range in which nothing is mapped: every access faults.

        Raises:
            LaunchRefused: the device has no such ranges, or no room for this one.
        """

    def map(self, address: int, size_bytes: int) -> None:
        """Put zeroed host-located memory, which device and host reach, behind a part of a reserved range.

        Raises:
            QuotaExceeded: there is no memory for it; nothing is mapped.
        """

    def unmap(self, address: int, size_bytes: int) -> None:
        """Undo exactly one `map`. No stream may still use the memory."""

    def unreserve(self, address: int, size_bytes: int) -> None:
        """Release a range. Nothing may be mapped in it."""


class AddressWindow(Protocol):
    """A window of device addresses. Opaque apart from where it is; lives until `AddressWindows.close_window`."""

    @property
    def address(self) -> int:
        """The first byte, a multiple of the size."""

    @property
    def size_bytes(self) -> int:
        """A power of two, from 4 GiB to 128 GiB."""


class AddressWindows(Protocol):
    """Windows of addresses in which every access of a kernel finds memory, and never memory of another window.

    A window has 64 MiB of slack before and behind, and no page of all that is unmapped: memory of its own where some
    was mapped, everywhere else aliases of scratch memory that no other window has. Which aliases show the same bytes is
    the device's choice. A launch names a window or a part of it by a `Region` of host memory.

    While `map_device`, `map_host`, `unmap` and `close_window` run, and once they have raised `InternalError`, nothing
    that can reach the window may be in flight: pages are missing meanwhile, and an access to one ends the context.

    Each method but `open_window` raises `InvalidHandle` for a window that is not open here, and `InternalError` if the
    driver did not put back what an earlier failure had removed: such a window has a hole, and may only be closed.

    Source: CUDA Driver API, "Virtual Memory Management".
    """

    @property
    def available(self) -> bool:
        """Whether the device has windows, with memory of the device and of the host."""

    def open_window(self, scratch_bytes: int, size_bytes: int = WINDOW_BYTES) -> AddressWindow:
        """Return a window that is nothing but aliases of zeroed scratch memory.

        Args:
            scratch_bytes: of the scratch chunk, rounded to a power of two from 2 MiB to 64 MiB; larger ones take
                fewer mappings. A device may take more, and windows of more than 4 GiB have 64 MiB.
            size_bytes: a power of two, from 4 GiB to 128 GiB.

        Raises:
            QuotaExceeded: there is no memory for it.
            LaunchRefused: the device has no windows, or no addresses left.
            InvalidArgs: another size.
        """

    def close_window(self, window: AddressWindow) -> None:
        """Release a window with all that is mapped in it and its views. Ranges that callers reserved stay reserved."""

    def map_device(self, window: AddressWindow, offset: int, size_bytes: int) -> None:
        """Put zeroed device memory in place of aliases. Offset and size are multiples of 2 MiB.

        Raises:
            QuotaExceeded: there is no memory for it.
            InvalidPointer: not whole granules of the window, or some of them are mapped already.
        """

    def map_host(self, window: AddressWindow, offset: int, size_bytes: int, view: int | None = None) -> int:
        """Put zeroed host memory in place of aliases, and return the address at which the host reaches it.

        Args:
            window: where kernels reach it.
            offset: in the window, a multiple of 2 MiB.
            size_bytes: a multiple of 2 MiB.
            view: that address, in a range of `UnifiedMemory.reserve` in which nothing is mapped there; the memory is
                mapped there until `unmap` as by `UnifiedMemory.map`. None takes addresses of its own.

        Raises:
            QuotaExceeded: there is no memory for it.
            InvalidPointer: as `map_device`; or, as from `UnifiedMemory.map`, the view is not where it may be.
        """

    def map_slot(self, window: AddressWindow, offset: int) -> int:
        """Put a granule of zeroed host memory in place of aliases for good, and return where the host reaches it.

        It is cleared with the scratch memory. A window has one slot, and `unmap` does not take it.

        Raises:
            QuotaExceeded: there is no memory for it.
            InvalidPointer: it is no granule of the window, it is mapped already, or there is a slot.
        """

    def unmap(self, window: AddressWindow, offset: int) -> None:
        """Undo the `map_device` or `map_host` of that offset: aliases return, and the memory is freed.

        Raises:
            InvalidPointer: none has that offset, or it is the slot.
            CapacityExhausted: the driver did not come to the clearing of new memory in time; nothing has changed.
        """

    def clear_scratch(self, window: AddressWindow, stream: Stream, parts: Sequence[tuple[int, int]] = ()) -> None:
        """Start filling all scratch memory of a window and its slot with zeros, behind the work in the stream.

        Args:
            window: as everywhere.
            stream: likewise.
            parts: offsets and sizes of what else is to be cleared, each as for `clear`.
        """

    def scratch_ranges(self, window: AddressWindow) -> Sequence[tuple[int, int]]:
        """Return addresses and sizes of what `clear_scratch` fills; the same once there is a slot.

        Nothing where compiled code cannot fill it.
        """

    def clear(self, window: AddressWindow, offset: int, size_bytes: int, stream: Stream) -> None:
        """Start filling memory that was mapped by one call with zeros, behind the work already in the stream.

        Raises:
            InvalidPointer: the range does not lie in such memory.
        """


@dataclass(frozen=True, slots=True)
class NativeTable:
    """Addresses of C functions with the signatures of the CUDA Driver API, for compiled code; 0 where there is none.

    Other devices have functions of their own with the same signatures. The handles that they take come from `Native`
    and `Graphs`.

    Attributes:
        launch_kernel: ``cuLaunchKernel``; the other functions are named like theirs in the same way.
        context_current: ``cuCtxGetCurrent``.
        context: the ``CUcontext`` that has to be current on the calling thread, as `Native.bound` makes it.
        context_id: ``cuCtxGetId``.
        context_number: what ``cuCtxGetId`` returns for the context while it is the one that was made.
    """

    launch_kernel: int
    stream_query: int
    memcpy_htod_async: int
    memcpy_dtoh_async: int
    graph_launch: int
    launch_host_func: int
    context_current: int
    context: int
    context_id: int = 0
    context_push: int = 0
    context_pop: int = 0
    context_number: int = 0
    memset_d8_async: int = 0


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """A kernel as compiled code launches it, with the most that device and kernel take; axes are x, y, z.

    Attributes:
        handle: the ``CUfunction``.
        max_dynamic_shared_bytes: the kernel has been admitted to all of it.
        registers: of a thread.
    """

    handle: int
    max_threads: int
    max_dynamic_shared_bytes: int
    max_grid: tuple[int, int, int]
    max_block: tuple[int, int, int]
    registers: int


class Native(Protocol):
    """What compiled code needs to drive the device without Python."""

    @property
    def table(self) -> NativeTable:
        """The functions, valid until the device is closed."""

    @property
    def usable(self) -> bool:
        """Whether compiled code may do what `bound` does, by the context of the table."""

    @property
    def confines(self) -> bool:
        """Whether `confine` has to be called for each deadline before compiled code starts anything."""

    def bound(self) -> AbstractContextManager[None]:
        """Make the device usable on this thread for the length of a ``with``."""

    def kernel(self, loaded: LoadedModule, entry: str, deadline: Deadline) -> NativeKernel:
        """Return a kernel of a loaded module."""

    def stream(self, stream: Stream) -> int:
        """Return what the functions take as ``CUstream``."""

    def confine(self, stream: Stream, regions: Sequence[Region], deadline: Deadline) -> None:
        """Set what kernels that compiled code gives to the stream may touch, and when they must have stopped.

        Valid until the next call. Hardware ignores it.
        """

    def started(self, stream: Stream, deadline: Deadline) -> None:
        """Inform the device that compiled code has given work to the stream."""

    def notify(self, stream: Stream, function: int, argument: int) -> None:
        """Have the C function ``void function(void *argument)`` called once when the work so far has ended.

        It is called on any thread, possibly before this returns, and must not call the device.
        """
