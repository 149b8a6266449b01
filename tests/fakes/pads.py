"""A driver made of C callbacks, and a session layout written by a test: what compiled host functions act on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from tensorwasm.gpu.device.protocols import NativeKernel, NativeTable
from tensorwasm.gpu.native.layout import (
    BUFFER_ROWS,
    GRAPH_ROWS,
    KERNEL_ROWS,
    STREAM_ROWS,
    UNBOUNDED,
    BufferRow,
    DriverTable,
    GraphRow,
    KernelImage,
    KernelRow,
    SessionLayout,
    StreamRow,
    driver_table,
)
from tensorwasm.values import Dim3, KernelSignature

CONTEXT = 0xC0_FFEE
FUNCTION = 0xF00
OWN_STREAM = 0x51
NOT_READY = 600
WITHOUT_END = 1 << 62

_i32, _u32, _u64, _at = ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_void_p
_PROTOTYPES = {
    "launch_kernel": ctypes.CFUNCTYPE(_i32, _u64, *(_u32,) * 7, _u64, _at, _at),
    "stream_query": ctypes.CFUNCTYPE(_i32, _u64),
    "memcpy_htod_async": ctypes.CFUNCTYPE(_i32, _u64, _u64, _u64, _u64),
    "memcpy_dtoh_async": ctypes.CFUNCTYPE(_i32, _u64, _u64, _u64, _u64),
    "graph_launch": ctypes.CFUNCTYPE(_i32, _u64, _u64),
    "launch_host_func": ctypes.CFUNCTYPE(_i32, _u64, _u64, _u64),
    "context_current": ctypes.CFUNCTYPE(_i32, _at),
}


@dataclass(frozen=True)
class Started:
    """A launch as the driver got it; values are as many bytes as their parameters have."""

    function: int
    grid: Dim3
    block: Dim3
    shared_bytes: int
    stream: int
    values: tuple[bytes, ...]


@dataclass
class CallbackDriver:
    """Functions with the signatures of the CUDA driver.

    Attributes:
        sizes: of the parameters of the kernel that will be launched.
        calls: everything that was started, copies and graphs as tuples.
        results: what a function answers from now on, 0 by default.
        queries: what the next queries of a stream answer, then `results`.
        context: what is current.
        kernel: called with the values of each launch, to do what a kernel would.
    """

    sizes: tuple[int, ...] = ()
    calls: list[object] = field(default_factory=list)
    results: dict[str, int] = field(default_factory=dict)
    queries: list[int] = field(default_factory=list)
    context: int = CONTEXT
    kernel: Callable[[tuple[bytes, ...]], object] = lambda _values: None

    def __post_init__(self) -> None:
        self._kept = {name: kind(getattr(self, "_" + name)) for name, kind in _PROTOTYPES.items()}
        addresses = {name: ctypes.cast(callback, _at).value or 0 for name, callback in self._kept.items()}
        self.table = NativeTable(**addresses, context=CONTEXT)

    def _answer(self, name: str, call: object) -> int:
        self.calls.append(call)
        return self.results.get(name, 0)

    def _launch_kernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra) -> int:
        assert not extra
        pointers = (_u64 * len(self.sizes)).from_address(params)
        values = tuple(ctypes.string_at(at, size) for at, size in zip(pointers, self.sizes, strict=True))
        self.kernel(values)
        return self._answer("launch_kernel", Started(function, (gx, gy, gz), (bx, by, bz), shared, stream, values))

    def _stream_query(self, _stream: int) -> int:
        return self.queries.pop(0) if self.queries else self.results.get("stream_query", 0)

    def _memcpy_htod_async(self, target: int, source: int, size_bytes: int, stream: int) -> int:
        return self._answer("memcpy_htod_async", ("h2d", target, source, size_bytes, stream))

    def _memcpy_dtoh_async(self, target: int, source: int, size_bytes: int, stream: int) -> int:
        return self._answer("memcpy_dtoh_async", ("d2h", target, source, size_bytes, stream))

    def _graph_launch(self, graph: int, stream: int) -> int:
        return self._answer("graph_launch", ("graph", graph, stream))

    def _launch_host_func(self, _stream: int, _function: int, _argument: int) -> int:
        raise AssertionError("compiled host functions ask for no callback")

    def _context_current(self, into: int) -> int:
        _u64.from_address(into).value = self.context
        return self.results.get("context_current", 0)


class HandPad:
    """A session layout that a test writes: armed, with the guest's own stream, and rows that a session would write."""

    def __init__(self, layout: SessionLayout, driver: CallbackDriver) -> None:
        self.layout = layout
        self.driver = driver
        self._table = driver_table(driver.table)
        self._images: list[KernelImage] = []
        self.reset()

    def reset(self) -> None:
        """Forget every row and counter, but keep what the sandbox wrote."""
        layout = self.layout
        for rows in (layout.streams, layout.kernels, layout.graphs, layout.windows, layout.buffers):
            ctypes.memset(ctypes.addressof(rows), 0, ctypes.sizeof(rows))
        for name in ("pending", "launched", "replayed", "copied_bytes", "reach_at", "reach_bytes", "stage_at",
                     "stage_bytes", "stage_view", "stage_used", "staged"):  # fmt: skip
            setattr(layout, name, 0)
        layout.armed = layout.placed = 1
        layout.stage_left = WITHOUT_END
        layout.most_pending = UNBOUNDED
        layout.driver = ctypes.addressof(self._table)
        self.put_stream(0, OWN_STREAM)
        self.driver.calls.clear()
        self.driver.queries.clear()
        self.driver.results.clear()

    def put_stream(self, number: int, handle: int, pending: int = 0, recording: int = 0) -> StreamRow:
        """Write a row; return it."""
        self.layout.streams[number % STREAM_ROWS] = StreamRow(number, handle, pending, recording)
        self.layout.pending += pending
        return self.layout.streams[number % STREAM_ROWS]

    def put_kernel(self, kernel_id: int, signature: KernelSignature, native: NativeKernel) -> None:
        """Write a row for a kernel."""
        image = KernelImage(signature, native, None, 0)
        self._images[:] = [image]
        self.layout.kernels[kernel_id % KERNEL_ROWS] = KernelRow(kernel_id, image.address)
        self.driver.sizes = tuple(param.size_bytes for param in signature.params)

    def put_buffer(self, handle: int, address: int, size_bytes: int) -> None:
        """Write a row for a buffer."""
        self.layout.buffers[handle % BUFFER_ROWS] = BufferRow(handle, address, size_bytes)

    def put_graph(self, handle: int, graph: int, launches: int, steps: int = 1) -> None:
        """Write a row for a graph."""
        self.layout.graphs[handle % GRAPH_ROWS] = GraphRow(handle, graph, launches, steps)


def kernel_of(max_threads: int = 1024) -> NativeKernel:
    """Return a kernel that hardware would take at any geometry that it takes at all."""
    return NativeKernel(FUNCTION, max_threads, 227 << 10, ((1 << 31) - 1, 65535, 65535), (1024, 1024, 64), 32)


assert {name for name, _ in DriverTable._fields_} == {f.name for f in fields(NativeTable)}
