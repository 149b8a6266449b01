"""A buffer that a device's kernels reach, over memory of any kind.

A buffer checks sizes and ranges, charges an account, and gives everything back. It does not order the host's accesses
behind a device's: a caller waits for its work in flight on the buffer first.
"""

from __future__ import annotations

import ctypes
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from typing import Final, Self

from tensorwasm.errors import InternalError, InvalidArgs, NotSupported, TooLarge
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.device.protocols import Advice, Stream
from tensorwasm.gpu.limits.accounts import Account, Reservation
from tensorwasm.gpu.memory import pages
from tensorwasm.gpu.memory.backings import KINDS, BufferKind, Capabilities, check_request
from tensorwasm.values import NEVER, Region


@cache
def _secret() -> bytes:
    """Return what buffers of this process are marked with: made when first needed, which is after any fork."""
    return secrets.token_bytes(16)


class UnifiedBuffer:
    """Memory of one kind on one device, zero when it is made. Safe from any thread.

    Kinds: ``device``, the device's own, which the host reaches by copies; ``pinned``, pages of the host that are
    registered; ``managed``, which moves; ``vmm``, a reserved range that is mapped as it grows.

    A buffer belongs to its maker and lives until `close`: one that is merely forgotten keeps its memory and its charge.
    Every use of a closed buffer raises `InternalError`, a range that is not inside it `InvalidArgs`, and every use may
    raise `DeviceLost`.

    Attributes:
        kind: of memory.
        capacity: bytes up to where it may grow, 0 once it is closed.
    """

    def __init__(
        self,
        device: Device,
        kind: BufferKind,
        size_bytes: int,
        capacity_bytes: int,
        account: Account | None,
        drained: Callable[[], bool] | None,
    ) -> None:
        """Make a buffer of checked sizes; callers use `allocate`."""
        self.kind: Final = kind
        self.capacity = capacity_bytes
        self._device = device
        self._traits: Final = KINDS[kind]
        self._account = account
        self._drained = drained
        self._lock = threading.RLock()
        self._reservations: list[Reservation] = []
        self._stream: Stream | None = None
        self._views: list[weakref.ref[ctypes.Array[ctypes.c_ubyte]]] = []
        self._closing = self._closed = False
        with self._charged(self._held_bytes(size_bytes)):
            self._backing = self._traits.open(device, size_bytes, capacity_bytes)
        self._address = self._backing.address
        self._size_bytes = size_bytes

    @classmethod
    def allocate(
        cls,
        device: Device,
        size_bytes: int,
        kind: BufferKind,
        *,
        capacity_bytes: int | None = None,
        account: Account | None = None,
        drained: Callable[[], bool] | None = None,
    ) -> Self:
        """Return a new buffer of zeros, which the device outlives.

        Args:
            device: of the memory.
            size_bytes: at least 1.
            kind: of the memory.
            capacity_bytes: up to where it may grow in place, at least the size, which is the default. Only ``managed``
                memory takes all of it at once, as addresses: pages that were never touched take no room.
            account: charged for the size of ``device`` and the capacity of ``managed`` memory, as device memory; for
                whole pages or granules of ``pinned`` and ``vmm`` memory, as pinned memory.
            drained: called by `close`: whether no stream can reach the buffer any more. None leaves that to the caller.

        Raises:
            InvalidArgs, TooLarge, NotSupported: see `check_request`; the device was not asked.
            QuotaExceeded: over the account's cap, or there is not as much.
            LaunchRefused: the device cannot reach the pages.
        """
        capacity_bytes = size_bytes if capacity_bytes is None else capacity_bytes
        check_request(device, kind, size_bytes, capacity_bytes)
        return cls(device, kind, size_bytes, capacity_bytes, account, drained)

    # ---------------------------------------------------------------------------------------------- what it is

    def __len__(self) -> int:
        """Return the bytes that are usable now, 0 once it is closed."""
        return self._size_bytes

    @property
    def is_empty(self) -> bool:
        """Whether no byte is usable, which means that it is closed."""
        return self._size_bytes == 0

    @property
    def address(self) -> int:
        """First byte, for as long as the buffer lives; the host's address too except for kind ``device``."""
        self._require_open()
        return self._address

    @property
    def region(self) -> Region:
        """The usable bytes as one range."""
        return Region(self.address, self._size_bytes, host=self._traits.host)

    @property
    def regions(self) -> tuple[Region, ...]:
        """The usable bytes as launches take them: in parts where pinned memory was registered in parts."""
        with self._lock:
            whole = self.region
            edges = pairwise((whole.address, *self._backing.borders, whole.end))
            return tuple(Region(start, end - start, host=whole.host) for start, end in edges)

    @property
    def device_id(self) -> str:
        """Kind and ordinal of its device: ``cuda:0``, ``emulator:0``."""
        return f"{self._device.info.kind}:{self._device.info.ordinal}"

    @property
    def is_uvm_backed(self) -> bool:
        """Whether it is managed memory."""
        return self.kind == "managed"

    @property
    def supports_grow_in_place(self) -> bool:
        """Whether there is room to grow."""
        return self.capacity > self._size_bytes

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        traits = self._traits
        return Capabilities(traits.host, traits.grows, traits.hints and self._device.info.concurrent_managed_access)

    def __repr__(self) -> str:
        """Return kind, size and device, and a hash that tells buffers apart without their addresses."""
        mark = blake2b(self._address.to_bytes(8, "little"), key=_secret(), digest_size=4).hexdigest()
        state = "closed" if self._closing else f"{self._size_bytes} of {self.capacity} bytes"
        return f"<UnifiedBuffer {mark}: {self.kind}, {state}, on {self.device_id}>"

    # ------------------------------------------------------------------------------------------------ contents

    def as_memoryview(self) -> memoryview:
        """Return the bytes that are usable now, ``(len,) uint8``, to be read and written in place by the host.

        The buffer cannot be closed while the view, or anything made of it, exists.
        """
        with self._lock:
            self._require_open()
            if not self._traits.host:
                raise NotSupported(f"the host does not reach memory of kind {self.kind}; use read and write")
            array = pages.array_at(self._address, self._size_bytes)
            self._views = [view for view in self._views if view() is not None]
            self._views.append(weakref.ref(array))
            return memoryview(array).cast("B")

    def write(self, data: bytes | bytearray | memoryview, offset_bytes: int = 0) -> None:
        """Copy bytes into the buffer. Blocks until done."""
        source = memoryview(data).cast("B")
        with self._within(offset_bytes, len(source)) as address:
            if self._traits.host:
                memoryview(pages.array_at(address, len(source))).cast("B")[:] = source
            elif source:
                self._device.write(address, source, self._own_stream())

    def read(self, into: bytearray | memoryview, offset_bytes: int = 0) -> None:
        """Fill a writable buffer with bytes from an offset on. Blocks until done."""
        target = memoryview(into).cast("B")
        with self._within(offset_bytes, len(target)) as address:
            if self._traits.host:
                target[:] = memoryview(pages.array_at(address, len(target))).cast("B")
            elif target:
                self._device.read(address, target, self._own_stream())

    def clear(self, offset_bytes: int, size_bytes: int) -> None:
        """Fill a part with zeros. Blocks until done."""
        with self._within(offset_bytes, size_bytes) as address:
            if self._traits.host:
                pages.clear(address, size_bytes)
            elif size_bytes:
                stream = self._own_stream()
                self._device.fill(address, size_bytes, stream)
                self._device.synchronize(stream, NEVER)

    # ------------------------------------------------------------------------------------------- hints, growth

    def advise(self, advice: Advice) -> bool:
        """Give a hint on how the buffer will be used; return False where it has no effect.

        That is so without managed memory, without concurrent managed access, and where host and device share memory.
        """
        with self._within(0, self._size_bytes) as address:
            return self.capabilities.hints and self._device.unified.advise(address, self._size_bytes, advice)

    def prefetch_to_device(self, stream: Stream) -> bool:
        """Start moving the buffer to the device, behind the work in the stream. False as with `advise`."""
        return self._prefetch(stream, to_host=False)

    def prefetch_to_host(self, stream: Stream) -> bool:
        """Start moving the buffer to the host, behind the work in the stream. False as with `advise`."""
        return self._prefetch(stream, to_host=True)

    def try_grow_in_place(self, size_bytes: int) -> None:
        """Make the buffer longer: data and address stay, new bytes are zero. Work in flight is not disturbed.

        A call that raises has changed nothing.

        Raises:
            NotSupported: this kind does not grow.
            InvalidArgs: that would make it shorter.
            TooLarge: beyond the capacity.
            QuotaExceeded, LaunchRefused: as `allocate`.
        """
        with self._lock:
            self._require_open()
            if not self._traits.grows:
                raise NotSupported(f"memory of kind {self.kind} does not grow in place")
            if size_bytes < self._size_bytes:
                raise InvalidArgs(f"a buffer of {self._size_bytes} bytes does not shrink to {size_bytes}")
            if size_bytes > self.capacity:
                raise TooLarge(size_bytes, self.capacity)
            if size_bytes > self._size_bytes:
                with self._charged(self._held_bytes(size_bytes) - self._held_bytes(self._size_bytes)):
                    self._backing.grow(self._size_bytes, size_bytes)
                self._size_bytes = size_bytes

    # ----------------------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Give the memory back and refund it; host memory is zeroed first. Idempotent.

        If the device does not let go of something, that stays allocated and charged, and `close` may be called again.

        Raises:
            InternalError: a stream may still reach the buffer, or a view of it still exists; nothing has changed.
        """
        with self._lock:
            if self._closed:
                return
            if self._drained is not None and not self._drained():
                raise InternalError("a buffer that a stream may still reach was closed")
            if any(view() is not None for view in self._views):
                raise InternalError("a buffer of which there is still a view was closed")
            self._closing = True
            if self._stream is not None:
                self._device.close_stream(self._stream)
                self._stream = None
            self._backing.release()
            self._closed = True
            self._size_bytes = self.capacity = 0
            while self._reservations:
                self._reservations.pop().release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------------------------

    def _held_bytes(self, size_bytes: int) -> int:
        return self._traits.held_bytes(self._device, size_bytes, self.capacity)

    @contextmanager
    def _charged(self, held_bytes: int) -> Iterator[None]:
        """Charge the account before memory is taken; refund it if there is none."""
        if self._account is None or held_bytes == 0:
            yield
            return
        with self._traits.reserve(self._account, held_bytes) as reservation:
            yield
            reservation.commit()
            self._reservations.append(reservation)

    @contextmanager
    def _within(self, offset_bytes: int, size_bytes: int) -> Iterator[int]:
        """Hold the lock and yield the address of a range that is inside the buffer."""
        with self._lock:
            self._require_open()
            if offset_bytes < 0 or size_bytes < 0 or offset_bytes + size_bytes > self._size_bytes:
                raise InvalidArgs(f"{size_bytes} bytes at {offset_bytes} are not inside {self._size_bytes} bytes")
            yield self._address + offset_bytes

    def _require_open(self) -> None:
        if self._closing:
            raise InternalError("this buffer is closed")

    def _prefetch(self, stream: Stream, *, to_host: bool) -> bool:
        with self._within(0, self._size_bytes) as address:
            unified = self._device.unified
            return self.capabilities.hints and unified.prefetch(address, self._size_bytes, stream, to_host=to_host)

    def _own_stream(self) -> Stream:
        if self._stream is None:
            self._stream = self._device.open_stream()
        return self._stream
