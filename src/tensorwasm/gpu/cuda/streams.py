"""Streams of a GPU: order, zeros in new memory, and waits that end at a deadline.

Three streams are the device's own: one on which new memory is cleared and given back, one on which pools of tenants
allocate and free, one for copies that their callers wait for. None ever has a kernel of a guest in front of what it is
given. They are made when the device is opened, for a driver may make none while a kernel runs.

Source: CUDA Driver API, "Stream Management", "Event Management"; "Stream synchronization behavior" (a non-blocking
stream is not held up by the work of other libraries on the default stream).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.context import Context, bound
from tensorwasm.gpu.cuda.handles import CudaStream
from tensorwasm.gpu.cuda.results import NOT_READY, SUCCESS, DriverFailure
from tensorwasm.gpu.cuda.waiting import Waiters
from tensorwasm.values import Deadline

_SPIN_NS: Final = 200_000
"""How long a wait asks the driver again and again before it sleeps: most kernels end sooner than a sleep costs."""


@dataclass(slots=True)
class _Blocked:
    """An event that threads of ours wait for in the driver, kept alive; ``condemned`` once it was released."""

    event: Any
    threads: int = 0
    condemned: bool = False


class Streams:
    """Makes streams and waits for them. The context must be bound, except for `close`. Safe from any thread."""

    def __init__(self, driver: Driver, context: Context) -> None:
        """Make nothing yet."""
        self._driver = driver
        self._context = context
        self._waiters = Waiters()
        self._blocked: dict[int, _Blocked] = {}
        self._lock = threading.RLock()
        self._came_back = threading.Condition(self._lock)
        self._clearing: CudaStream | None = None
        self._pooling: CudaStream | None = None
        self._copying: CudaStream | None = None

    def make(self) -> CudaStream:
        """Return a new stream.

        Raises:
            DriverFailure: the driver has none; nothing was made.
        """
        handle = self._context.make_stream()
        try:
            return CudaStream(handle, self.make_event())
        except Exception:
            self._driver.attempt("cuStreamDestroy", handle)
            raise

    def make_event(self) -> Any:
        """Return a new event of the driver, which can be waited for without a busy loop.

        Raises:
            DriverFailure: the driver has none.
        """
        known = self._driver.api.CUevent_flags
        return self._driver.call("cuEventCreate", known.CU_EVENT_BLOCKING_SYNC | known.CU_EVENT_DISABLE_TIMING)

    def clearing(self) -> CudaStream:
        """Return the stream on which new memory is cleared.

        Raises:
            DriverFailure: the driver has none.
        """
        with self._lock:
            if self._clearing is None:
                self._clearing = self.make()
            return self._clearing

    def pooling(self) -> CudaStream:
        """Return the stream on which pools allocate and free: nothing else is on it, so it is always drained soon.

        Raises:
            DriverFailure: the driver has none.
        """
        with self._lock:
            if self._pooling is None:
                self._pooling = self.make()
            return self._pooling

    def copying(self) -> CudaStream:
        """Return the stream for copies that their callers wait for, which no kernel is in front of either.

        Raises:
            DriverFailure: the driver has none.
        """
        with self._lock:
            if self._copying is None:
                self._copying = self.make()
            return self._copying

    def open(self) -> None:
        """Make the device's own streams, before any kernel runs: the driver may make none while one does.

        Raises:
            DriverFailure: the driver has none.
        """
        try:
            for make in (self.clearing, self.pooling, self.copying):
                make()
        except DriverFailure:
            for stream in self.own():
                self._driver.attempt("cuStreamDestroy", stream.handle)
                self._driver.attempt("cuEventDestroy", stream.event)
            self.forget()
            raise

    def clear(self, pointer: Any, size_bytes: int) -> None:
        """Start filling new memory with zeros, on the stream that no kernel is in front of.

        Raises:
            DriverFailure: the driver does not take the work.
        """
        with self._lock:
            stream = self.clearing()
            self._driver.call("cuMemsetD8Async", pointer, 0, size_bytes, stream.handle)
            self._driver.call("cuEventRecord", stream.event, stream.handle)
            stream.cleared += 1

    def order(self, stream: CudaStream) -> None:
        """Put what is given to a stream next behind every clearing that was started so far.

        A stream that records is left alone: an order against work outside would spoil the recording, and a replay is
        ordered when it starts.

        Raises:
            DriverFailure: the driver does not take the order.
        """
        if stream.recording:
            return
        with self._lock:
            if self._clearing is not None and stream.cleared != self._clearing.cleared:
                self._driver.call("cuStreamWaitEvent", stream.handle, self._clearing.event, 0)
                stream.cleared = self._clearing.cleared

    def wait(self, stream: CudaStream, deadline: Deadline) -> bool:
        """Return whether the stream's work ended before the deadline.

        Raises:
            DriverFailure: the work failed.
        """
        mark = stream.dues.mark()
        if not self._ends_soon("cuStreamQuery", stream.handle, deadline):
            mark = stream.dues.mark()
            self._driver.call("cuEventRecord", stream.event, stream.handle)
            if not self._wait_long(stream.event, deadline):
                return False
        stream.dues.end(mark)
        return True

    def wait_turn(self, stream: CudaStream, deadline: Deadline) -> bool:
        """Return whether the stream came to its next piece of work before the deadline.

        An empty stream need not come to it at once: streams share what feeds the GPU, and one whose kernel runs holds
        up the others there.

        Raises:
            DriverFailure: the work failed.
        """
        self._driver.call("cuEventRecord", stream.event, stream.handle)
        return self.wait_event(stream.event, deadline)

    def drained(self, stream: CudaStream) -> bool:
        """Return whether the stream has nothing to do now.

        Raises:
            DriverFailure: the work failed.
        """
        mark = stream.dues.mark()
        if not self.ended("cuStreamQuery", stream.handle):
            return False
        stream.dues.end(mark)
        return True

    def wait_event(self, event: Any, deadline: Deadline) -> bool:
        """Return whether the work before an event's mark ended before the deadline.

        Raises:
            DriverFailure: the work failed.
        """
        return self._ends_soon("cuEventQuery", event, deadline) or self._wait_long(event, deadline)

    def wait_for_own(self, deadline: Deadline) -> bool:
        """Return whether the work in the device's own streams ended before the deadline.

        Raises:
            DriverFailure: the work failed.
        """
        return all(self.wait(stream, deadline) for stream in self.own())

    def ended(self, function: str, handle: Any) -> bool:
        """Return what ``cuStreamQuery`` or ``cuEventQuery`` says now.

        Raises:
            DriverFailure: the work failed.
        """
        code, _ = self._driver.attempt(function, handle)
        if code not in {SUCCESS, NOT_READY}:
            raise DriverFailure(function, code)
        return code == SUCCESS

    def forget(self) -> None:
        """Forget the device's own streams: they are released, or an earlier context took them with it."""
        with self._lock:
            self._clearing = self._pooling = self._copying = None

    def own(self) -> list[CudaStream]:
        """Return the device's own streams that were made so far."""
        return [stream for stream in (self._clearing, self._pooling, self._copying) if stream is not None]

    def close(self) -> None:
        """End the threads that wait."""
        self._waiters.close()

    def _ends_soon(self, function: str, handle: Any, deadline: Deadline) -> bool:
        until = time.monotonic_ns() + _SPIN_NS
        while not self.ended(function, handle):
            if time.monotonic_ns() >= until or deadline.expired():
                return False
        return True

    def wait_for_threads(self, deadline: Deadline) -> bool:
        """Return whether all threads came back from the driver before the deadline: those of waits that were given up.

        They come back soon after the work that they wait for has ended.
        """
        left_s = min(deadline.remaining_s(), threading.TIMEOUT_MAX)
        with self._came_back:
            return self._came_back.wait_for(lambda: not self._blocked, left_s)

    def condemn(self, event: Any) -> bool:
        """Return whether threads wait for an event in the driver; the last of them to come back destroys it then.

        A wait that was given up leaves its thread there, and the driver does not survive an event that vanishes
        meanwhile: the thread that comes back reads it (a segmentation fault on driver 580).
        """
        with self._lock:
            blocked = self._blocked.get(id(event))
            if blocked is not None:
                blocked.condemned = True
            return blocked is not None

    def _wait_long(self, event: Any, deadline: Deadline) -> bool:
        with self._lock:
            self._blocked.setdefault(id(event), _Blocked(event)).threads += 1
        code = self._waiters.wait(partial(self._block, event), deadline.remaining_s())
        if code:
            raise DriverFailure("cuEventSynchronize", code)
        return code == SUCCESS

    def _block(self, event: Any) -> int:
        """Wait in the driver, on a thread of `Waiters`."""
        try:
            with bound(self._context):
                return self._driver.attempt("cuEventSynchronize", event)[0]
        finally:
            self._unblock(event)

    def _unblock(self, event: Any) -> None:
        with self._lock:
            blocked = self._blocked[id(event)]
            blocked.threads -= 1
            if blocked.threads:
                return
            try:
                if blocked.condemned:
                    with bound(self._context):
                        self._driver.attempt("cuEventDestroy", event)  # what released it has gone: nothing would retry
            finally:
                del self._blocked[id(event)]
                self._came_back.notify_all()
