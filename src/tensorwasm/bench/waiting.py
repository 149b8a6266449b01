"""How many guests can wait for the device at once in one process, and what each of them takes.

Every guest is submitted as users submit it, loads a kernel, launches it and waits for its stream. All streams have been
put behind one event, and the event behind a call into this process that returns when told. So all guests wait until
then, whatever device it is: as many as may have work on the GPU at a time for their kernels, the others for their turn.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from tensorwasm.bench.examples import read_guest
from tensorwasm.bench.figures import Figure, Report
from tensorwasm.bench.process import resident_bytes
from tensorwasm.gpu.device.port import Device, Stream
from tensorwasm.gpu.device.protocols import Event
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.guest.engine.module import CompiledModule
from tensorwasm.guest.sandbox.linker import Prepared
from tensorwasm.runtime import Function, Runtime
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.runtime.invoke.fiber_runner import FiberRunner
from tensorwasm.runtime.warm.pool import WarmPool
from tensorwasm.values import Deadline, Limits

GUESTS: Final = 10_000
RESIDENT_BAR_KIB: Final = 40.0
PATIENCE_S: Final = 60.0

_CALLED: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_KIB: Final = 1024
_WORK_BYTES: Final = 256


class Gate:
    """A mark on a device that is reached when `open` is called."""

    def __init__(self, device: Device) -> None:
        self._opened = threading.Event()
        self._call = _CALLED(lambda _: self._opened.wait() and None)
        self._device = device
        self._stream: Stream = device.open_stream()
        self._work = device.allocate(_WORK_BYTES)
        self.event: Event = device.events.open_event()
        device.fill(self._work, _WORK_BYTES, self._stream)  # or the call would be made at once, by this thread
        device.native.notify(self._stream, ctypes.cast(self._call, ctypes.c_void_p).value or 0, 0)
        device.events.record(self.event, self._stream)

    def hold(self, stream: Stream) -> None:
        """Put what a stream is given next behind the mark."""
        self._device.events.wait_event(stream, self.event)

    def open(self) -> None:
        """Let everything behind the mark go on."""
        self._opened.set()

    def close(self) -> None:
        """Open it, and release what it holds on the device."""
        self.open()
        self._device.synchronize(self._stream, Deadline.after(PATIENCE_S))
        self._device.events.close_event(self.event)
        self._device.close_stream(self._stream)
        self._device.free(self._work)


class GatedDevice:
    """A device whose streams are behind a gate, once there is one."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._gate: Gate | None = None
        self._before: list[Stream] = []

    def close_gate(self) -> Gate:
        """Put all streams that there are, and all that come, behind a gate; return it."""
        self._gate = Gate(self._device)
        for stream in self._before:
            self._gate.hold(stream)
        return self._gate

    def open_stream(self) -> Stream:
        """See `Device.open_stream`."""
        stream = self._device.open_stream()
        if self._gate is None:
            self._before.append(stream)
        else:
            self._gate.hold(stream)
        return stream

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the device."""
        return getattr(self._device, name)


class GatedHost:
    """A runtime whose device is behind a gate."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.limits: Limits = runtime.limits
        gated: Any = GatedDevice(runtime.open_device())
        self._shared = SharedDevice(gated)
        self.close_gate: Callable[[], Gate] = gated.close_gate

    @property
    def device_reason(self) -> str:
        """See `tensorwasm.runtime.invoke.loaded_module.Host`."""
        return self._runtime.device_reason

    @property
    def fibers(self) -> FiberRunner:
        """See `tensorwasm.runtime.invoke.loaded_module.Host`."""
        return self._runtime.fibers

    @property
    def warm(self) -> WarmPool:
        """See `tensorwasm.runtime.invoke.loaded_module.Host`."""
        return self._runtime.warm

    def share(self) -> SharedDevice:
        """See `tensorwasm.runtime.invoke.loaded_module.Host`."""
        return self._shared

    def prepare(self, wasm: bytes, module: CompiledModule, form: Form) -> Prepared | None:
        """See `tensorwasm.runtime.invoke.loaded_module.Host`."""
        return self._runtime.prepare(wasm, module, form)


def measure_waiting(choice: str, guests: int = GUESTS, patience_s: float = PATIENCE_S) -> Report:
    """Have guests wait for the device all at once.

    Args:
        choice: of the device, as in `Runtime`.
        guests: how many.
        patience_s: longest that all may take to come to their wait; then those that have are counted, and let go. And
            longest that each of them may then take to end.

    Raises:
        InternalError: there are no fibers here.
    """
    limits = Limits(wall_s=4 * patience_s)
    with Runtime(choice, limits=limits, slots=guests) as runtime:
        host = GatedHost(runtime)
        figures = _measure(runtime, host, guests, patience_s)
        host.share().close()
        return Report("waiting", runtime.device.name, figures)


def _measure(runtime: Runtime, host: GatedHost, guests: int, patience_s: float) -> tuple[Figure, ...]:
    wasm = read_guest("waiting")
    plain = runtime.load(wasm, "waiting")
    function = Function(host, "waiting", wasm, plain.prepared)
    # What is made once is made before: code, threads, and the memory of the device that all buffers are cut from.
    plain.submit("wait", (0,), grants=("cuda",)).result(patience_s)
    function.submit("wait", (0,), grants=("cuda",)).result(patience_s)
    # Opened whatever happens: behind a closed gate nothing ends, and a driver lets nobody load, pin or free memory.
    with closing(host.close_gate()) as gate:
        gc.collect()
        before = resident_bytes()
        started = time.perf_counter()
        futures = [function.submit("wait", (number,), grants=("cuda",)) for number in range(guests)]
        waiting = _await(lambda: _waiting(runtime.fibers), guests, patience_s)
        suspended_s = time.perf_counter() - started
        each = (resident_bytes() - before) / max(1, waiting)
        opened = time.perf_counter()
        gate.open()
        right = sum(future.result(patience_s).values == (number + 1,) for number, future in enumerate(futures))
        resumed_s = time.perf_counter() - opened
    return (
        Figure("guests that wait for the device at once", "", waiting, 0.0, 1, bar=guests, sense="at least"),
        Figure("resident memory of each", "KiB", each / _KIB, 0.0, 1, bar=RESIDENT_BAR_KIB),
        Figure("guests with the right result", "", right, 0.0, 1, bar=guests, sense="at least"),
        Figure("from the first submitted to the last waiting", "s", suspended_s, 0.0, 1),
        Figure("from the work's end to the last result", "s", resumed_s, 0.0, 1),
    )


def _waiting(background: FiberRunner) -> int:
    """Return how many wait for the device or for their turn on it, and for nothing else."""
    seen = background.statistics()
    return seen.on_device + seen.in_line


def _await(count: Callable[[], int], wanted: int, patience_s: float) -> int:
    """Wait until a count is reached, or that took too long; return it."""
    ends = time.monotonic() + patience_s
    while (seen := count()) < wanted and time.monotonic() < ends:
        threading.Event().wait(0.01)
    return seen
