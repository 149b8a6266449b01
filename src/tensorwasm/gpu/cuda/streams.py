"""Streams of a GPU: order, zeros in new memory, and waits that end at a deadline.

Source: CUDA Driver API, "Stream Management", "Event Management"; "Stream synchronization behavior" (a non-blocking
stream is not held up by the work of other libraries on the default stream).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.context import PrimaryContext
from tensorwasm.gpu.cuda.results import NOT_READY, SUCCESS, DriverFailure
from tensorwasm.gpu.cuda.waiting import Waiters
from tensorwasm.values import Deadline

_SPIN_NS: Final = 200_000
"""How long a wait asks the driver again and again before it sleeps: most kernels end sooner than a sleep costs."""


@dataclass(eq=False, slots=True)
class CudaStream:
    """A stream of ours.

    Attributes:
        handle: the driver's stream.
        event: marks the end of the work that is waited for.
        deadline: when the work launched last must have stopped.
        cleared: how many clearings of new memory the stream is ordered behind.
    """

    handle: Any
    event: Any
    deadline: Deadline = field(default=Deadline())
    cleared: int = 0


class Streams:
    """Makes streams and waits for them. The context must be bound, except for `close`. Safe from any thread."""

    def __init__(self, driver: Driver, context: PrimaryContext) -> None:
        """Make nothing yet."""
        self._driver = driver
        self._context = context
        self._waiters = Waiters()
        self._lock = threading.Lock()
        self._clearing: CudaStream | None = None

    def make(self) -> CudaStream:
        """Return a new stream.

        Raises:
            DriverFailure: the driver has none; nothing was made.
        """
        api = self._driver.api
        handle = self._driver.call("cuStreamCreate", api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        flags = api.CUevent_flags.CU_EVENT_BLOCKING_SYNC | api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        try:
            return CudaStream(handle, self._driver.call("cuEventCreate", flags))
        except DriverFailure:
            self._driver.attempt("cuStreamDestroy", handle)
            raise

    def destroy(self, stream: CudaStream) -> None:
        """Release a stream.

        Raises:
            DriverFailure: it still exists.
        """
        self._driver.call("cuStreamDestroy", stream.handle)
        self._driver.attempt("cuEventDestroy", stream.event)  # its failure would leave nothing that could be retried

    def clear(self, pointer: Any, size_bytes: int) -> None:
        """Start filling new memory with zeros, on a stream of its own that no kernel is in front of.

        Raises:
            DriverFailure: the driver does not take the work.
        """
        with self._lock:
            if self._clearing is None:
                self._clearing = self.make()
            self._driver.call("cuMemsetD8Async", pointer, 0, size_bytes, self._clearing.handle)
            self._driver.call("cuEventRecord", self._clearing.event, self._clearing.handle)
            self._clearing.cleared += 1

    def order(self, stream: CudaStream) -> None:
        """Put what is given to a stream next behind every clearing that was started so far.

        Raises:
            DriverFailure: the driver does not take the order.
        """
        with self._lock:
            if self._clearing is not None and stream.cleared != self._clearing.cleared:
                self._driver.call("cuStreamWaitEvent", stream.handle, self._clearing.event, 0)
                stream.cleared = self._clearing.cleared

    def wait(self, stream: CudaStream, deadline: Deadline) -> bool:
        """Return whether the stream's work ended before the deadline.

        Raises:
            DriverFailure: the work failed.
        """
        if self._ends_soon(stream, deadline):
            return True
        self._driver.call("cuEventRecord", stream.event, stream.handle)
        code = self._waiters.wait(partial(self._block, stream.event), deadline.remaining_s())
        if code:
            raise DriverFailure("cuEventSynchronize", code)
        return code == SUCCESS

    def wait_for_clearing(self, deadline: Deadline) -> bool:
        """Return whether every clearing ended before the deadline.

        Raises:
            DriverFailure: the work failed.
        """
        return self._clearing is None or self.wait(self._clearing, deadline)

    def forget(self) -> None:
        """Forget what an earlier context took with it."""
        with self._lock:
            self._clearing = None

    def release(self) -> None:
        """Release the clearing's own stream.

        Raises:
            DriverFailure: it still exists.
        """
        if self._clearing is not None:
            self.destroy(self._clearing)
            self._clearing = None

    def close(self) -> None:
        """End the threads that wait."""
        self._waiters.close()

    def _ends_soon(self, stream: CudaStream, deadline: Deadline) -> bool:
        until = time.monotonic_ns() + _SPIN_NS
        while True:
            code, _ = self._driver.attempt("cuStreamQuery", stream.handle)
            if code == SUCCESS:
                return True
            if code != NOT_READY:
                raise DriverFailure("cuStreamQuery", code)
            if time.monotonic_ns() >= until or deadline.expired():
                return False

    def _block(self, event: Any) -> int:
        """Wait in the driver, on a thread of `Waiters`."""
        with self._context.bound():
            return self._driver.attempt("cuEventSynchronize", event)[0]
