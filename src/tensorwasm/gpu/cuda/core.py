"""What all parts of a CUDA device share: its context, its books, how a call is made and what its failure means.

Every call binds the context on the calling thread and restores what was current before. A failure that takes the
context with it, or a kernel that long outlives its deadline, marks the GPU lost for this process: from then on every
call answers `DeviceLost`, and nothing is freed any more, because work that cannot be stopped may still use it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tensorwasm.errors import (
    CapacityExhausted,
    DeviceLost,
    DeviceUnavailable,
    InvalidHandle,
    InvokeTimeout,
    LaunchRefused,
    TensorWasmError,
)
from tensorwasm.gpu.cuda import delays
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.context import Call, Context
from tensorwasm.gpu.cuda.functions import LoadedKernels
from tensorwasm.gpu.cuda.handles import CudaStream
from tensorwasm.gpu.cuda.ledger import Ledger, Ranges
from tensorwasm.gpu.cuda.results import SUCCESS, DriverFailure, Scope, describe, meaning, translate
from tensorwasm.gpu.cuda.streams import Streams
from tensorwasm.gpu.device.protocols import LoadedModule, Stream
from tensorwasm.values import Deadline

_Item = TypeVar("_Item")
_log: Final = logging.getLogger(__name__)

POOL_LIMIT_S: Final = 5.0
"""How long memory of a pool is waited for. Nothing runs in front of it, but kernels may hold up what feeds the GPU."""


class Core:
    """The common ground of a device's parts. Safe from any thread.

    Attributes:
        driver: the driver API.
        context: where everything of this device happens.
        ledger: what is live.
        streams: makes streams and waits for them.
        calling: a ``with`` around driver calls.
        waiting: the same where work is waited for: there a kernel's fault is named as such.
        closed: whether the device takes no calls any more.
        on_reset: called when another library's reset is survived, to forget what it took.
    """

    def __init__(self, driver: Driver, context: Context) -> None:
        """Hold nothing yet."""
        self.driver = driver
        self.context = context
        self.ledger = Ledger()
        self.streams = Streams(driver, context)
        self._delays = delays.Delays(self.streams, lambda: list(self.ledger.streams))
        self.calling = Call(context, self._require_usable, self.judge)
        self.waiting = Call(context, self._require_usable, self._judge_wait)
        self.closed = False
        self.on_reset: Callable[[], None] = self.streams.forget
        self._generation = context.generation

    # ----------------------------------------------------------------------------------------- arguments

    def stream(self, stream: Stream) -> CudaStream:
        """Return a stream of this device as what it is.

        Raises:
            InvalidHandle: it is not open here.
        """
        if not isinstance(stream, CudaStream) or stream not in self.ledger.streams:
            raise InvalidHandle("the stream is not open on this device")
        return stream

    def running(self, stream: Stream) -> CudaStream:
        """Return a stream of this device that does not record.

        Raises:
            InvalidHandle: it is not open here.
            LaunchRefused: it records: what was asked for would spoil the recording, or become a part of it.
        """
        own = self.stream(stream)
        if own.recording:
            raise LaunchRefused("the stream is recording a graph, and takes launches and copies alone")
        return own

    def module(self, loaded: LoadedModule) -> LoadedKernels:
        """Return a module of this device as what it is.

        Raises:
            InvalidHandle: it is not loaded here.
        """
        if not isinstance(loaded, LoadedKernels) or loaded not in self.ledger.modules:
            raise InvalidHandle("the module is not loaded on this device")
        return loaded

    # -------------------------------------------------------------------------------------------- giving

    def give(self, own: CudaStream, deadline: Deadline, function: str, *args: Any) -> None:
        """Give kernels to a stream, and count them. The context must be bound.

        Raises:
            DriverFailure: the driver refuses them.
        """
        dues = own.dues
        if dues.outlast(deadline):  # a deadline of work that nobody saw end is not to be taken for this work's
            self.streams.drained(own)
        number = dues.begin(deadline)
        try:
            self.driver.call(function, *args)
        finally:
            dues.given(number)
        self.ledger.count_launch()

    # ------------------------------------------------------------------------------------------- waiting

    def drain(self, own: CudaStream, deadline: Deadline) -> None:
        """Wait for the work in a stream.

        Raises:
            KernelFault: a kernel faulted; the device is lost.
            InvokeTimeout: the deadline passed and work is still running; see `overrun`.
            DeviceLost: the device does not answer.
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
            DriverFailure: the work failed.
            CapacityExhausted: the driver does not come to it; it is to be tried again later.
        """
        if not self.streams.wait(self.streams.pooling(), Deadline.after(POOL_LIMIT_S)):
            raise CapacityExhausted("the GPU is too busy for a change of memory: its driver does not come to it")

    def overrun(self, own: CudaStream, deadline: Deadline) -> None:
        """Count the device as lost if work that is still running should have ended long ago: nothing can stop it.

        Whoever's deadline it missed is told at once. The device is given up later, because most kernels do end, and
        because it may be others' work, which stands before it or fills the GPU, and may take longer.

        Args:
            own: the stream.
            deadline: the latest of the work; without one there is nothing to wait for.

        Raises:
            DeviceLost: the device does not answer.
        """
        if deadline.at_ns is None or (
            time.monotonic_ns() >= deadline.at_ns + delays.OVERRUN_GRACE_NS and not self.excuses(own)
        ):
            self.context.lose("a kernel ran past its deadline and cannot be stopped")

    def excuses(self, own: CudaStream) -> bool:
        """Return whether others' work may be what a stream with overdue work waits for.

        Raises:
            DeviceLost: the device does not answer.
        """
        with self.waiting:
            return self._delays.excuse(own)

    # ----------------------------------------------------------------------------------------- releasing

    def release(self, function: str, *args: Any) -> None:
        """Give something back to the driver.

        Raises:
            DriverFailure: it still exists; that was logged and counted.
        """
        code, _ = self.driver.attempt(function, *args)
        if code != SUCCESS:
            failure = DriverFailure(function, code)
            self.note_kept(failure)
            raise failure

    def note_kept(self, failure: DriverFailure) -> None:
        """Log and count that something could not be given back."""
        self.ledger.count_release_failure()
        _log.warning("a release failed and what it was for stays: %s", describe(failure))

    def undo(self, function: str, *args: Any) -> None:
        """Give something back after another failure, which is the one to be raised; its own is logged and counted."""
        try:
            self.release(function, *args)
        except DriverFailure as failure:
            self.judge(failure)

    def give_back(self, ranges: Ranges, address: int, release: Callable[[int], object]) -> None:
        """Strike a range and give it back, once if several threads ask; if the driver fails it is live again.

        Raises:
            InvalidHandle: nothing live begins there.
            DeviceLost: the device does not answer.
            DeviceUnavailable: the driver has no such function.
        """
        size_bytes = ranges.take(address)
        try:
            with self.calling:
                release(address)
        except TensorWasmError:
            ranges.add(address, size_bytes)
            raise

    def retire(self, live: set[_Item], item: _Item, destroy: Callable[[_Item], object]) -> None:
        """Strike an item and destroy it, once if several threads ask; if the driver fails it is live again.

        Raises:
            InvalidHandle: it is not live.
            DeviceLost: the device does not answer.
        """
        try:
            live.remove(item)
        except KeyError:
            raise InvalidHandle("released already") from None
        try:
            with self.calling:
                destroy(item)
        except TensorWasmError:
            live.add(item)
            raise

    def destroy_stream(self, stream: CudaStream) -> None:
        """Release a stream and the event that waits use.

        Raises:
            DriverFailure: it still exists.
        """
        self.release("cuStreamDestroy", stream.handle)
        try:
            self.destroy_event(stream.event)
        except DriverFailure as failure:
            self.judge(failure)  # the stream is gone: there is nothing to be tried again

    def destroy_event(self, event: Any) -> None:
        """Release an event of the driver, as soon as no thread waits for it there.

        Raises:
            DriverFailure: it still exists.
        """
        if not self.streams.condemn(event):
            self.release("cuEventDestroy", event)

    # ------------------------------------------------------------------------------------------- failure

    def judge(self, failure: DriverFailure) -> TensorWasmError:
        """Return the error for a failed call, and count the device as lost if that is what it means."""
        if meaning(failure).scope is not Scope.CALL:
            self.context.lose(describe(failure))
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
        if self.context.lost:
            raise DeviceLost(f"this process has lost the GPU: {self.context.lost}")
        if self.closed:
            raise DeviceUnavailable("the device is closed")

    def stale(self) -> bool:
        """Return whether a reset has taken the context in which everything was made."""
        return self._generation != self.context.generation

    @property
    def intact(self) -> bool:
        """Whether the device takes calls and all that was made on it is there, as far as is known without asking it."""
        return not self.context.lost and not self.closed and not self.stale()

    def _require_usable(self) -> None:
        self.require_alive()
        if self.stale():
            self._adopt_generation()

    def _adopt_generation(self) -> None:
        """Go on after another library's reset if it took nothing of ours, else count the device as lost."""
        if not self.ledger.empty():
            self.context.lose("another library has reset the GPU, and with it went what this process held there")
            self.require_alive()
        self.on_reset()
        self._generation = self.context.generation
