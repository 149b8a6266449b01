"""What stands between one instance and a device: every safety check, once, for every device alike.

A session hands out buffers and kernels, keeps the table of addresses its kernels may touch, charges quotas, and lets
nothing reach the device that the device would have to be trusted to refuse. After a fault, a timeout or a lost device
it is poisoned: whatever the device holds may be wrong, so all that is left to do is `Session.close`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

from tensorwasm.errors import CallerError, DeviceLost, DeviceUnavailable, InvokeTimeout, KernelFault, LimitError
from tensorwasm.gpu.device import Device, Stream
from tensorwasm.gpu.holdings import Holdings, Kernel, attempt
from tensorwasm.gpu.launch import Argument, HostWindow, bind, check_fit, check_geometry
from tensorwasm.gpu.limits import SessionLimits
from tensorwasm.gpu.quota import PROCESS_GATE, PROCESS_LEDGER, Gate, Ledger
from tensorwasm.values import Deadline, LaunchConfig, Region

CLOSE_GRACE_S: Final = 1.0
"""How long `Session.close` waits for work that is still running."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """A snapshot of a session.

    Attributes:
        allocations: live device buffers.
        device_bytes: bytes charged for them and for the variables of loaded modules.
        kernels: loaded kernels.
        ptx_bytes: PTX text charged for them.
        pinned_bytes: guest memory registered with the device.
        kernels_launched: launches the device accepted.
        back_pressure_rejections: launches refused for want of a place on the GPU.
        release_failures: things the device failed to release at close.
        abandoned: close found work still running, or a device that does not answer or keeps the guest's pages. What
            that work could reach, the guest's pages included, must not be used again in this process.
    """

    allocations: int = 0
    device_bytes: int = 0
    kernels: int = 0
    ptx_bytes: int = 0
    pinned_bytes: int = 0
    kernels_launched: int = 0
    back_pressure_rejections: int = 0
    release_failures: int = 0
    abandoned: bool = False


class Session:
    """One instance's share of a device.

    Methods take turns, so any thread may call. A refusal (CallerError, LimitError) has changed nothing, nor has a
    `load` that ran out of time; any other error poisons the session. A poisoned or closed session answers every method
    but `close`, `failure` and `statistics` with DeviceLost. The stream, the registration of guest memory and the place
    at the gate are taken when first needed.

    Args:
        device: outlives the session.
        limits: what this session may hold.
        ledger: charged for device memory; the process's own unless a test brings one.
        gate: entered while work is on the device; likewise.
        architecture: compute capability that PTX is chosen for, None for the device's own.
    """

    def __init__(
        self,
        device: Device,
        limits: SessionLimits | None = None,
        ledger: Ledger = PROCESS_LEDGER,
        gate: Gate = PROCESS_GATE,
        architecture: tuple[int, int] | None = None,
    ) -> None:
        self._device = device
        self._holdings = Holdings(device, limits or SessionLimits(), ledger, architecture)
        self._gate = gate
        self._turn = threading.RLock()
        self._stream: Stream | None = None
        self._in_flight = False
        self._placed = False
        self._failure: BaseException | None = None
        self._closed = False
        self._launched = 0
        self._rejected = 0
        self._release_failures = 0
        self._abandoned = False

    def allocate(self, size_bytes: int) -> int:
        """Return the handle of new zeroed device memory. Handles start at 1 and are never used twice.

        Raises:
            InvalidArgs: the size is 0.
            QuotaExceeded: over a limit of the session or the process, or the device has no memory left.
            DeviceLost: the session is over, or the device does not answer.
        """
        with self._usable():
            return self._holdings.allocate(size_bytes)

    def free(self, handle: int, deadline: Deadline) -> None:
        """Release a buffer, once the work that could reach it has ended.

        Raises:
            InvalidHandle: no such buffer.
            KernelFault: that work broke a rule.
            InvokeTimeout: that work did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        with self._usable():
            self._holdings.buffer(handle)
            self._drain(deadline)
            self._holdings.free(handle)

    def write(self, handle: int, data: bytes | memoryview, deadline: Deadline) -> None:
        """Copy host bytes to the start of a buffer, after the work in flight. Blocks until done.

        Raises:
            InvalidHandle: no such buffer.
            InvalidArgs: more bytes than the buffer has.
            KernelFault: the work in flight broke a rule.
            InvokeTimeout: the work in flight did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        with self._usable():
            region = self._holdings.buffer(handle, len(data))
            self._drain(deadline)
            if data:
                self._device.write(region.address, data, self._open_stream())

    def read(self, handle: int, into: memoryview, deadline: Deadline) -> None:
        """Fill a writable buffer of bytes from a device buffer's start, after the work in flight. Blocks until done.

        Raises:
            InvalidHandle: no such buffer.
            InvalidArgs: more bytes than the buffer has.
            KernelFault: the work in flight broke a rule.
            InvokeTimeout: the work in flight did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        with self._usable():
            region = self._holdings.buffer(handle, len(into))
            self._drain(deadline)
            if into:
                self._device.read(region.address, into, self._open_stream())

    def load(self, text: bytes, entry: str, deadline: Deadline) -> int:
        """Return the id of a kernel of a PTX text. Ids are positive and below 2**63.

        The text may hold several modules, one after the other: the one for the highest architecture that the device
        and its driver take is loaded.

        A deadline that passes leaves the session as it was: a load starts no work, and is undone where it stopped.

        Raises:
            QuotaExceeded: over a limit.
            MalformedPtx: the text does not parse, or the device's compiler refuses it.
            UnsupportedPtx: it asks for what the device lacks.
            InvalidKernel: it has no such entry.
            InvokeTimeout: the deadline passed before it was loaded.
            DeviceUnavailable: this machine cannot assemble it now; like a deadline, that changes nothing.
            DeviceLost: the session is over, or the device does not answer.
        """
        with self._usable(InvokeTimeout, DeviceUnavailable):
            return self._holdings.load(text, entry, deadline)

    def launch(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Callable[[], Sequence[Argument]],
        memory: Region | None,
        deadline: Deadline,
    ) -> None:
        """Run a kernel and wait for it: `submit`, then `synchronize`, which document arguments and errors.

        Raises:
            TensorWasmError: what those two raise.
        """
        with self._turn:
            self.submit(kernel_id, config, arguments, memory, deadline)
            self.synchronize(deadline)

    def submit(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Callable[[], Sequence[Argument]],
        memory: Region | None,
        deadline: Deadline,
    ) -> None:
        """Start a kernel.

        Args:
            kernel_id: from `load`.
            config: geometry.
            arguments: called once there is a place on the GPU, because what it resolves may change during the wait.
            memory: the guest's linear memory as it is now, whole pages; None if it has none. It is registered when a
                launch first has a window on it, and anew when it has grown.
            deadline: when the kernel must have stopped.

        Raises:
            InvalidDimensions: the geometry is outside the limits, or not for this kernel or device.
            CapacityExhausted: no place on the GPU in time.
            InvalidKernel: no such kernel.
            InvalidKernelArgs: the arguments do not fit the kernel's parameters.
            KernelArgsUnsupported: the kernel has a parameter that no argument can fill.
            InvalidHandle: an argument names no buffer.
            LaunchRefused: an argument is an address that is not the session's, or the device refused.
            KernelFault: the kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        with self._usable():
            check_geometry(config)
            with self._admitted(deadline):
                bound = arguments()
                kernel = self._holdings.kernel(kernel_id)
                check_fit(config, kernel.signature, self._device.info)
                if memory is not None and any(isinstance(argument, HostWindow) for argument in bound):
                    self._map(memory, deadline)
                values = bind(kernel.signature, bound, self._holdings.buffers, self._holdings.regions)
                self._start(kernel, config, values, deadline)

    def synchronize(self, deadline: Deadline) -> None:
        """Wait for the work in flight.

        Raises:
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        with self._usable():
            self._drain(deadline)

    @property
    def failure(self) -> BaseException | None:
        """What poisoned the session, or None."""
        return self._failure

    def statistics(self) -> SessionStatistics:
        """Return a snapshot."""
        holdings = self._holdings
        return SessionStatistics(
            allocations=len(holdings.buffers),
            device_bytes=holdings.device_bytes,
            kernels=len(holdings.kernels),
            ptx_bytes=holdings.ptx_bytes,
            pinned_bytes=holdings.guest.size_bytes if holdings.guest else 0,
            kernels_launched=self._launched,
            back_pressure_rejections=self._rejected,
            release_failures=self._release_failures,
            abandoned=self._abandoned,
        )

    def close(self) -> None:
        """Release everything. Idempotent; raises nothing; waits at most a second for work still running.

        Call it before the guest's pages go, and look at `SessionStatistics.abandoned` before they are used again: what
        running work can reach stays allocated, registered and charged, for no moment is safe to release it.
        """
        with self._turn:
            if self._closed:
                return
            self._closed = True
            if self._work_has_ended():
                self._release()

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session."""
        self.close()

    @contextmanager
    def _usable(self, *harmless: type[BaseException]) -> Iterator[None]:
        """Take a turn; tell refusals, after which all is as before, from failures, after which nothing is certain.

        Args:
            harmless: errors that are as good as refusals here.
        """
        with self._turn:
            if self._failure is not None:
                raise DeviceLost(f"this GPU session ended with an earlier failure: {self._failure}")
            if self._closed:
                raise DeviceLost("this GPU session is closed")
            try:
                yield
            except BaseException as error:
                if not isinstance(error, (CallerError, LimitError, *harmless)):
                    self._failure = error
                raise

    @contextmanager
    def _admitted(self, deadline: Deadline) -> Iterator[None]:
        """Hold a place at the gate from before the arguments are read until the stream has drained."""
        if not self._placed:
            try:
                self._gate.enter(deadline)
            except LimitError:
                self._rejected += 1
                raise
            self._placed = True
        try:
            yield
        finally:
            if not self._in_flight:
                self._leave()

    def _leave(self) -> None:
        if self._placed:
            self._placed = False
            self._gate.leave()

    def _open_stream(self) -> Stream:
        if self._stream is None:
            self._stream = self._device.open_stream()
        return self._stream

    def _map(self, memory: Region, deadline: Deadline) -> None:
        if memory.size_bytes and memory != self._holdings.guest:
            self._wait(deadline)
            self._holdings.register(memory)

    def _start(self, kernel: Kernel, config: LaunchConfig, values: tuple[bytes, ...], deadline: Deadline) -> None:
        stream = self._open_stream()
        regions = self._holdings.regions.snapshot()
        was_in_flight, self._in_flight = self._in_flight, True
        try:
            self._device.launch(kernel.loaded, kernel.signature.entry, config, values, regions, stream, deadline)
        except (CallerError, LimitError, KernelFault):  # nothing of it runs: refused, or ended by its fault
            self._in_flight = was_in_flight
            raise
        self._launched += 1

    def _wait(self, deadline: Deadline) -> None:
        if self._in_flight and self._stream is not None:
            self._device.synchronize(self._stream, deadline)
            self._in_flight = False

    def _drain(self, deadline: Deadline) -> None:
        self._wait(deadline)
        self._leave()

    def _work_has_ended(self) -> bool:
        try:
            self._drain(Deadline.after(CLOSE_GRACE_S))
        except KernelFault:
            self._leave()
        except DeviceLost:
            # Nothing left to wait for, and no word to be trusted on what still runs.
            self._abandoned = True
            self._leave()
        except Exception:  # noqa: BLE001 - close raises nothing, even if the device breaks its promises
            _log.exception("work on the GPU outlived its session: what it can reach is abandoned")
            self._abandoned = True
            return False
        return True

    def _release(self) -> None:
        failures = self._holdings.release()
        if self._stream is not None:
            failures += attempt(self._device.close_stream, self._stream)
            self._stream = None
        self._release_failures = len(failures)
        self._abandoned = self._abandoned or self._holdings.guest is not None
        if failures:
            _log.error("a device failed to release %d things at the end of a session: %s", len(failures), failures[0])
