"""What all parts of a CUDA device share: its context, its live resources, how a call is made and what a failure means.

Every call binds the context on the calling thread and restores what was current before. A failure that destroys the
context, or a kernel that long outlives its deadline, marks the GPU lost for this process: from then on every call
raises `DeviceLost`, and nothing is freed any more, because work that cannot be stopped may still use it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tensorwasm.errors import (
    CapacityExhausted,
    DeviceLost,
    DeviceUnavailable,
    InvokeTimeout,
    LaunchRefused,
    TensorWasmError,
)
from tensorwasm.gpu.cuda import delays
from tensorwasm.gpu.cuda.driver.calls import SUCCESS, Driver, DriverFailure, FailureScope, describe, meaning, translate
from tensorwasm.gpu.cuda.driver.contexts import Context, ContextBinding
from tensorwasm.gpu.cuda.handles import CudaStream, LiveHandles, LiveRanges, LiveResources
from tensorwasm.gpu.cuda.streams.device_streams import DeviceStreams
from tensorwasm.gpu.device.protocols import Stream
from tensorwasm.values import Deadline

_log: Final = logging.getLogger(__name__)

POOL_LIMIT_S: Final = 5.0
"""How long memory of a pool is waited for. Nothing runs in front of it, but kernels may hold up what feeds the GPU."""


class Core:
    """The common ground of a device's parts. Safe from any thread.

    A method that waits or releases raises `DeviceLost` when the device does not answer.

    Attributes:
        driver: the driver API.
        context: where everything of this device happens.
        gpu: the GPU's primary context, which knows whether the GPU was lost or reset.
        live: what the device holds.
        streams: makes streams and waits for them.
        calling: a ``with`` around driver calls.
        waiting: the same where work is waited for: a kernel's fault is raised as `KernelFault` there.
        closed: whether the device takes no calls any more.
        on_reset: called when another library's reset is survived, to forget what it took, none of it a caller's.
    """

    def __init__(self, driver: Driver, context: Context) -> None:
        self.driver = driver
        self.context = context
        self.gpu = context.primary
        self.live = LiveResources()
        self.streams = DeviceStreams(driver, context)
        self._delays = delays.Delays(self.streams, lambda: list(self.live.streams))
        self.calling = ContextBinding(context, self._require_usable, self.judge)
        self.waiting = ContextBinding(context, self._require_usable, self._judge_wait)
        self.closed = False
        self.on_reset: list[Callable[[], None]] = [self.streams.forget]
        self._generation = self.gpu.generation

    # ---------------------------------------------------------------------------------- work and waiting

    def require_running(self, stream: Stream) -> CudaStream:
        """Return a stream of this device that does not record.

        Raises:
            InvalidHandle: it is not open here.
            LaunchRefused: it records: what was asked for would spoil the recording, or become a part of it.
        """
        own = self.live.streams.require(stream)
        if own.recording:
            raise LaunchRefused("the stream is recording a graph, and takes launches and copies alone")
        return own

    def submit(self, own: CudaStream, deadline: Deadline, function: str, *args: Any) -> None:
        """Give kernels to a stream, and count them. The context must be bound."""
        dues = own.dues
        if dues.outlast(deadline):  # that work may have ended unseen: its deadline must not be taken for this work's
            self.streams.drained(own)
        number = dues.begin(deadline)
        try:
            self.driver.call(function, *args)
        finally:
            dues.given(number)
        with self.live.counting:
            self.live.launches += 1

    def drain(self, own: CudaStream, deadline: Deadline) -> None:
        """Wait for the work in a stream.

        Raises:
            KernelFault: a kernel faulted; the device is lost.
            InvokeTimeout: the deadline passed and work is still running; see `overrun`.
        """
        with self.waiting:
            ended = self.streams.wait(own, deadline)
        if not ended:
            due = own.dues.latest
            if due is not None:
                self.overrun(own, due)
            raise InvokeTimeout("the deadline passed and the kernel is still running")

    def drain_pools(self) -> None:
        """Wait for the stream on which pools allocate and free. The context must be bound.

        Raises:
            CapacityExhausted: the driver did not come to it in time; a later attempt may succeed.
        """
        if not self.streams.wait(self.streams.own("pooling"), Deadline.after(POOL_LIMIT_S)):
            raise CapacityExhausted("the GPU is too busy for a change of memory: its driver does not come to it")

    def overrun(self, own: CudaStream, deadline: Deadline) -> None:
        """Count the device as lost if work that is still running should have ended long ago: nothing can stop it.

        The caller whose deadline was missed learns that at once. The device is given up later, because most kernels do
        end, and because the delay may come from others' work, which stands before it or fills the GPU.

        Args:
            own: the stream.
            deadline: the latest of the work; with `NEVER` the device is given up at once.
        """
        if deadline.at_ns is None or (
            time.monotonic_ns() >= deadline.at_ns + delays.OVERRUN_GRACE_NS and not self.excuses(own)
        ):
            self.gpu.lose("a kernel ran past its deadline and cannot be stopped")

    def excuses(self, own: CudaStream) -> bool:
        """Return whether a stream with overdue work may be waiting for others' work."""
        with self.waiting:
            return self._delays.excuse(own)

    # ----------------------------------------------------------------------------------------- releasing

    def release(self, function: str, *args: Any) -> None:
        """Give something back to the driver; a failure is logged and counted."""
        code, _ = self.driver.attempt(function, *args)
        if code != SUCCESS:
            failure = DriverFailure(function, code)
            self.note_kept(failure)
            raise failure

    def note_kept(self, failure: DriverFailure) -> None:
        """Log and count that something could not be given back."""
        with self.live.counting:
            self.live.release_failures += 1
        _log.warning("a release failed and what it was for stays: %s", describe(failure))

    def undo(self, function: str, *args: Any) -> None:
        """Give something back; a failure is logged and counted, and judged, but not raised."""
        try:
            self.release(function, *args)
        except DriverFailure as failure:
            self.judge(failure)

    @contextmanager
    def undoing(self, function: str, *args: Any) -> Iterator[None]:
        """Give something back if the ``with`` fails, whose error is raised."""
        try:
            yield
        except Exception:
            self.undo(function, *args)
            raise

    def retire(self, live: LiveRanges | LiveHandles[Any], key: Any, release: Callable[..., object]) -> None:
        """Remove something live and release it, once if several threads ask; if the driver fails it is live again.

        Args:
            live: the table.
            key: the handle, or the range's address.
            release: called with the handle, or with the range's address and size.

        Raises:
            InvalidHandle: it is not live.
        """
        taken = live.take(key)
        try:
            with self.calling:
                release(*taken)
        except TensorWasmError:
            live.enter(*taken)
            raise

    def destroy_stream(self, stream: CudaStream) -> None:
        """Release a stream and the event that waits use."""
        self.release("cuStreamDestroy", stream.handle)
        try:
            self.destroy_event(stream.event)
        except DriverFailure as failure:
            self.judge(failure)  # the stream is gone: there is nothing to try again

    def destroy_event(self, event: Any) -> None:
        """Release an event of the driver, as soon as no thread waits for it there."""
        if not self.streams.destroy_later(event):
            self.release("cuEventDestroy", event)

    # ------------------------------------------------------------------------------------------- failure

    def judge(self, failure: DriverFailure) -> TensorWasmError:
        """Return the error for a failed call, and count the device as lost if that is what it means."""
        if meaning(failure).scope is not FailureScope.CALL:
            self.gpu.lose(describe(failure))
        return translate(failure)

    def _judge_wait(self, failure: DriverFailure) -> TensorWasmError:
        self.judge(failure)
        return translate(failure, waiting=True)

    def require_alive(self) -> None:
        """Check that the device takes calls.

        Raises:
            DeviceLost: this process has lost it.
            DeviceUnavailable: it is closed.
        """
        if self.gpu.lost:
            raise DeviceLost(f"this process has lost the GPU: {self.gpu.lost}")
        if self.closed:
            raise DeviceUnavailable("the device is closed")

    @property
    def intact(self) -> bool:
        """Whether the device takes calls and was not reset, as far as is known without a call of the driver."""
        return not self.gpu.lost and not self.closed and self._generation == self.gpu.generation

    def _require_usable(self) -> None:
        self.require_alive()
        if self._generation == self.gpu.generation:
            return
        # Another library has reset the GPU: go on if it took nothing of ours.
        if not self.live.empty():
            self.gpu.lose("another library has reset the GPU, and with it went what this process held there")
            self.require_alive()
        for forget in self.on_reset:
            forget()
        self._generation = self.gpu.generation
