"""Streams of a GPU: order, zeros in new memory, and waits that end at a deadline.

Four streams are the device's own, see `Purpose`. No kernel of a guest is ever in front of what they are given. They
are made when the device is opened, for a driver may make none while a kernel runs.

The driver can wait without burning a core (an event with blocking synchronisation), but not with a limit. So its wait
runs on a thread of `WaitThreads`, without the GIL, and the caller waits for that thread with a limit. A wait that is
given up leaves its thread in the driver until the work ends.

Source: CUDA Driver API, "Stream Management", "Event Management"; "Stream synchronization behavior" (a non-blocking
stream is not held up by the work of other libraries on the default stream).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Literal, get_args

from tensorwasm.gpu.cuda.driver.calls import NOT_READY, SUCCESS, Driver, DriverFailure
from tensorwasm.gpu.cuda.driver.contexts import Context, bound
from tensorwasm.gpu.cuda.handles import CudaStream
from tensorwasm.values import Deadline

Purpose = Literal["clearing", "pooling", "copying", "timing"]
"""What a stream of the device's own is for: new memory is cleared and given back on one; pools of tenants allocate and
free on one, with nothing else, so that it is always drained soon; callers wait for copies on one; the kernel that reads
the GPU's clock runs on one."""

_SPIN_NS: Final = 200_000
"""How long a wait polls the driver before it sleeps: most kernels end sooner than a sleep costs."""

_LONGEST_S: Final = 3600.0 * 24
_JOIN_S: Final = 1.0

_WaitQueue = SimpleQueue[tuple[Callable[[], int], Future[int]] | None]


class WaitThreads:
    """Threads that block on behalf of callers, as many as there ever were waits at once.

    They are daemons, so that one that never comes back does not keep the process alive.
    """

    def __init__(self) -> None:
        self._idle: deque[tuple[_WaitQueue, threading.Thread]] = deque()

    def wait(self, work: Callable[[], int], limit_s: float) -> int | None:
        """Run ``work``, which blocks, elsewhere and return its result; None if that takes longer than ``limit_s``."""
        done: Future[int] = Future()
        try:
            queue, _ = self._idle.pop()
        except IndexError:
            queue = SimpleQueue()
            threading.Thread(target=self._serve, args=(queue,), name="tensorwasm-gpu-wait", daemon=True).start()
        queue.put((work, done))
        try:
            return done.result(min(limit_s, _LONGEST_S))
        except TimeoutError:
            return done.result() if done.done() else None

    def close(self) -> None:
        """End the idle threads. One that is still in the driver is left to the process's end."""
        while self._idle:
            queue, thread = self._idle.pop()
            queue.put(None)
            thread.join(_JOIN_S)

    def _serve(self, queue: _WaitQueue) -> None:
        while (item := queue.get()) is not None:
            work, done = item
            try:
                finish = partial(done.set_result, work())
            except Exception as error:  # noqa: BLE001 - raised on the caller's thread
                finish = partial(done.set_exception, error)
            self._idle.append((queue, threading.current_thread()))  # first: the caller must find this thread idle
            finish()


@dataclass(slots=True)
class _Blocked:
    """An event that threads wait for in the driver, kept alive; ``released`` once its owner has let go of it."""

    event: Any
    threads: int = 0
    released: bool = False


class DeviceStreams:
    """Makes streams and waits for them. The context must be bound. Safe from any thread.

    Attributes:
        waits: the threads that wait in the driver; the device closes them.
    """

    def __init__(self, driver: Driver, context: Context) -> None:
        self._driver = driver
        self._context = context
        self.waits = WaitThreads()
        self._blocked: dict[int, _Blocked] = {}
        self._lock = threading.RLock()
        self._came_back = threading.Condition(self._lock)
        self._own: dict[Purpose, CudaStream] = {}
        self._cleared = 0  # clearings that the stream for them was given

    def make(self) -> CudaStream:
        """Return a new stream."""
        handle = self._context.make_stream()
        try:
            return CudaStream(handle, self.make_event())
        except Exception:
            self._driver.attempt("cuStreamDestroy", handle)
            raise

    def make_event(self) -> Any:
        """Return a new event of the driver, which can be waited for without a busy loop."""
        known = self._driver.api.CUevent_flags
        return self._driver.call("cuEventCreate", known.CU_EVENT_BLOCKING_SYNC | known.CU_EVENT_DISABLE_TIMING)

    def own(self, purpose: Purpose) -> CudaStream:
        """Return a stream of the device's own, which is made anew after a reset."""
        with self._lock:
            if purpose not in self._own:
                self._own[purpose] = self.make()
            return self._own[purpose]

    def open(self) -> None:
        """Make the device's own streams, before any kernel runs: the driver may make none while one does."""
        try:
            for purpose in get_args(Purpose):
                self.own(purpose)
        except DriverFailure:
            for stream in self._own.values():
                self._driver.attempt("cuStreamDestroy", stream.handle)
                self._driver.attempt("cuEventDestroy", stream.event)
            self.forget()
            raise

    def clear(self, pointer: Any, size_bytes: int) -> None:
        """Start filling new memory with zeros, on the stream for that."""
        with self._lock:
            stream = self.own("clearing")
            self._driver.call("cuMemsetD8Async", pointer, 0, size_bytes, stream.handle)
            self._driver.call("cuEventRecord", stream.event, stream.handle)
            self._cleared += 1

    def order(self, stream: CudaStream) -> None:
        """Put what is given to a stream next behind every clearing that was started so far.

        A stream that records is left alone: an order against work outside would spoil the recording, and a replay is
        ordered when it starts.
        """
        if stream.recording:
            return
        with self._lock:
            if stream.cleared < self._cleared:
                self._driver.call("cuStreamWaitEvent", stream.handle, self._own["clearing"].event, 0)
                stream.cleared = self._cleared

    def wait(self, stream: CudaStream, deadline: Deadline) -> bool:
        """Return whether the stream's work ended before the deadline."""
        mark = stream.dues.mark()
        if not self._ends_soon("cuStreamQuery", stream.handle, deadline):
            mark = stream.dues.mark()
            self._driver.call("cuEventRecord", stream.event, stream.handle)
            if not self._wait_long(stream.event, deadline):
                return False
        stream.dues.end(mark)
        return True

    def finish(self, stream: CudaStream, deadline: Deadline) -> bool:
        """Return whether the stream's work ended before the deadline, and let the driver take notice of it.

        A pool of the driver does not count what was freed in a stream as free while the stream was only asked.
        """
        if not self.wait(stream, deadline):
            return False
        self._driver.call("cuEventRecord", stream.event, stream.handle)
        return self._wait_long(stream.event, deadline)

    def drained(self, stream: CudaStream) -> bool:
        """Return whether the stream has nothing to do now."""
        mark = stream.dues.mark()
        if not self.ended("cuStreamQuery", stream.handle):
            return False
        stream.dues.end(mark)
        return True

    def wait_event(self, event: Any, deadline: Deadline) -> bool:
        """Return whether the work before an event's mark ended before the deadline."""
        return self._ends_soon("cuEventQuery", event, deadline) or self._wait_long(event, deadline)

    def wait_for_own(self, deadline: Deadline) -> bool:
        """Return whether the work in the device's own streams ended before the deadline."""
        return all(self.wait(stream, deadline) for stream in self.all_own())

    def ended(self, function: str, handle: Any) -> bool:
        """Return the answer of ``cuStreamQuery`` or ``cuEventQuery``."""
        code, _ = self._driver.attempt(function, handle)
        if code not in {SUCCESS, NOT_READY}:
            raise DriverFailure(function, code)
        return code == SUCCESS

    def forget(self) -> None:
        """Drop the device's own streams, which are released, or went with a context that was reset."""
        with self._lock:
            self._own.clear()
            self._cleared = 0

    def all_own(self) -> list[CudaStream]:
        """Return the device's own streams that exist now."""
        return list(self._own.values())

    def wait_for_threads(self, deadline: Deadline) -> bool:
        """Return whether the threads of all waits, given up or not, came back from the driver before the deadline.

        They come back soon after the work that they wait for has ended.
        """
        left_s = min(deadline.remaining_s(), threading.TIMEOUT_MAX)
        with self._came_back:
            return self._came_back.wait_for(lambda: not self._blocked, left_s)

    def destroy_later(self, event: Any) -> bool:
        """Return whether threads wait for an event in the driver: the last of them to come back destroys it then.

        A wait that was given up leaves its thread there, and the driver does not survive an event that is destroyed
        meanwhile: the thread reads it when it comes back (a segmentation fault on driver 580).
        """
        with self._lock:
            blocked = self._blocked.get(id(event))
            if blocked is not None:
                blocked.released = True
            return blocked is not None

    def _ends_soon(self, function: str, handle: Any, deadline: Deadline) -> bool:
        until = time.monotonic_ns() + _SPIN_NS
        while not self.ended(function, handle):
            if time.monotonic_ns() >= until or deadline.expired():
                return False
        return True

    def _wait_long(self, event: Any, deadline: Deadline) -> bool:
        with self._lock:
            self._blocked.setdefault(id(event), _Blocked(event)).threads += 1
        code = self.waits.wait(partial(self._block, event), deadline.remaining_s())
        if code:
            raise DriverFailure("cuEventSynchronize", code)
        return code == SUCCESS

    def _block(self, event: Any) -> int:
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
                if blocked.released:
                    with bound(self._context):
                        self._driver.attempt("cuEventDestroy", event)  # its owner has gone: nothing would retry
            finally:
                del self._blocked[id(event)]
                self._came_back.notify_all()
