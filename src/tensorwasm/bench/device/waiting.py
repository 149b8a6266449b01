"""The benchmark ``waiting``: how many guests can wait for the device at once in one process, and the memory of each.

Every guest is submitted as users submit it, loads a kernel, launches it and waits for its stream. All streams have been
put behind one event, and the event behind a call into this process, which returns when `StreamGate.open` is called. So
all guests wait until then, on any device: as many as may have work on the GPU at a time for their kernels, the others
for their turn.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from contextlib import closing
from typing import Any, Final

from tensorwasm.bench.figures import Figure, Report
from tensorwasm.bench.harness import read_guest, resident_bytes
from tensorwasm.gpu.device.port import Device, Stream
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.runtime import Function, Runtime
from tensorwasm.values import Deadline, Limits

PATIENCE_S: Final = 60.0
_WORK_BYTES: Final = 256


class StreamGate:
    """A mark on a device that is reached when `open` is called."""

    def __init__(self, device: Device) -> None:
        self._device, self._opened = device, threading.Event()
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: self._opened.wait() and None)
        self._stream, self._work = device.open_stream(), device.allocate(_WORK_BYTES)
        self.event = device.events.open_event()
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
    """A device whose streams are behind a gate, once there is one; everything else is the device's."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._gate: StreamGate | None = None
        self._before: list[Stream] = []

    def close_gate(self) -> StreamGate:
        """Put all present and future streams behind a gate; return it."""
        self._gate = StreamGate(self._device)
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
        """Delegate to the device."""
        return getattr(self._device, name)


class GatedHost:
    """A runtime whose device is behind a gate, as a `tensorwasm.runtime.invoke.deployed_module.Host`."""

    def __init__(self, runtime: Runtime) -> None:
        gated: Any = GatedDevice(runtime.open_device())
        self._runtime, self._shared = runtime, SharedDevice(gated)
        self.close_gate = gated.close_gate

    def share(self) -> SharedDevice:
        """Return the gated device as sessions share it."""
        return self._shared

    def __getattr__(self, name: str) -> Any:
        """Delegate to the runtime."""
        return getattr(self._runtime, name)


def measure_waiting(choice: str, guests: int = 10_000, patience_s: float = PATIENCE_S) -> Report:
    """Have guests wait for the device all at once.

    Args:
        choice: of the device, as in `Runtime`.
        guests: how many.
        patience_s: longest that all may take to begin waiting; then those that have are counted, and released. Also the
            longest that each of them may then take to end.
    """
    with Runtime(choice, limits=Limits(wall_s=4 * patience_s), slots=guests) as runtime:
        host = GatedHost(runtime)
        figures = _measure(runtime, host, guests, patience_s)
        host.share().close()
        return Report("waiting", runtime.device.name, figures)


def _measure(runtime: Runtime, host: Any, guests: int, patience_s: float) -> tuple[Figure, ...]:
    wasm = read_guest("waiting")
    plain = runtime.load(wasm, "waiting")
    function = Function(host, "waiting", wasm, plain.prepared)
    for each in (plain, function):  # makes what is made once: code, threads, device memory that buffers are cut from
        each.submit("wait", (0,), grants=("cuda",)).result(patience_s)
    # Opened whatever happens: behind a closed gate nothing ends, and a driver refuses to load, pin or free memory.
    with closing(host.close_gate()) as gate:
        gc.collect()
        before, started = resident_bytes(), time.perf_counter()
        futures = [function.submit("wait", (number,), grants=("cuda",)) for number in range(guests)]
        ends = time.monotonic() + patience_s
        while (waiting := _waiting(runtime)) < guests and time.monotonic() < ends:
            time.sleep(0.01)
        suspended_s = time.perf_counter() - started
        each_kib = (resident_bytes() - before) / max(1, waiting) / 1024
        opened = time.perf_counter()
        gate.open()
        right = sum(future.result(patience_s).values == (number + 1,) for number, future in enumerate(futures))
        resumed_s = time.perf_counter() - opened
    return (
        Figure("guests that wait for the device at once", "", waiting, 0.0, 1, bar=guests, sense="at least"),
        Figure("resident memory of each", "KiB", each_kib, 0.0, 1, bar=40.0),
        Figure("guests with the right result", "", right, 0.0, 1, bar=guests, sense="at least"),
        Figure("from the first submitted to the last waiting", "s", suspended_s, 0.0, 1),
        Figure("from the work's end to the last result", "s", resumed_s, 0.0, 1),
    )


def _waiting(runtime: Runtime) -> int:
    """Return how many guests wait for the device or for their turn on it, and for nothing else."""
    seen = runtime.fibers.statistics()
    return seen.on_device + seen.in_line
