"""The emulator for compiled code: C functions with the signatures of the CUDA Driver API.

They return the driver's result codes and raise nothing. A kernel's fault stays with its stream, and the next call on
that stream returns its code.

Source: CUDA Driver API, "Execution Control", "Stream Management", "Memory Management", "Graph Management",
``CUresult``.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from tensorwasm.errors import (
    InvalidHandle,
    InvalidKernel,
    InvokeTimeout,
    KernelFault,
    QuotaExceeded,
    TensorWasmError,
)
from tensorwasm.gpu.device.protocols import LoadedModule, NativeKernel, NativeTable, Stream
from tensorwasm.gpu.emulator.handles import Handles, T
from tensorwasm.gpu.emulator.kernels import MAX_BLOCK, MAX_GRID, EmulatedModule, KernelRunner
from tensorwasm.gpu.emulator.memory.allocations import AllocationTable
from tensorwasm.gpu.emulator.memory.planes import NOTHING, AccessRanges
from tensorwasm.gpu.emulator.streams.copies import Copies, EmulatedGraph, EmulatedGraphs
from tensorwasm.gpu.emulator.streams.queues import BackgroundThreads, EmulatedStream, QueuedWork, Queues
from tensorwasm.ptx.flow import thread_limit
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.values import NEVER, Deadline, DeviceInfo, LaunchConfig, Region

SUCCESS: Final = 0
INVALID_VALUE: Final = 1
INVALID_HANDLE: Final = 400
NOT_READY: Final = 600
STREAM_CAPTURE_UNSUPPORTED: Final = 900
UNKNOWN: Final = 999
CONTEXT: Final = 1
"""The context that is always current."""

_CODES: Final[tuple[tuple[type[TensorWasmError], int], ...]] = (
    (InvalidHandle, INVALID_HANDLE),
    (InvalidKernel, INVALID_HANDLE),
    (KernelFault, 719),  # CUDA_ERROR_LAUNCH_FAILED
    (InvokeTimeout, 702),  # CUDA_ERROR_LAUNCH_TIMEOUT
    (QuotaExceeded, 2),  # CUDA_ERROR_OUT_OF_MEMORY
    (TensorWasmError, INVALID_VALUE),
)

_int, _uint, _u64, _size, _at = ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "launch_kernel": (_at, *[_uint] * 7, _at, _at, _at),
    "stream_query": (_at,),
    "memcpy_htod_async": (_u64, _at, _size, _at),
    "memcpy_dtoh_async": (_at, _u64, _size, _at),
    "graph_launch": (_at, _at),
    "launch_host_func": (_at, _at, _at),
    "context_current": (_at,),
}
_HOST_FUNCTION: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_MAX_PARAMS: Final = 4096

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """A kernel as a handle names it."""

    module: EmulatedModule
    entry: str


class EmulatedNative:
    """What compiled code needs of a device: no context has to be bound, and a stream has its deadline before work."""

    usable: Final = True
    confines: Final = True

    def __init__(
        self,
        info: DeviceInfo,
        allocations: AllocationTable,
        kernels: KernelRunner,
        queues: Queues,
        copies: Copies,
        graphs: EmulatedGraphs,
        background: BackgroundThreads,
        handles: Handles,
    ) -> None:
        """Make the functions of a device, given its parts."""
        self._info, self._allocations, self._kernels, self._queues = info, allocations, kernels, queues
        self._copies, self._graphs, self._background, self._handles = copies, graphs, background, handles
        self._functions = {
            name: ctypes.CFUNCTYPE(_int, *kinds)(_guarded(getattr(self, f"_{name}")))
            for name, kinds in _SIGNATURES.items()
        }
        addresses = {name: ctypes.cast(one, _at).value or 0 for name, one in self._functions.items()}
        self.table: Final = NativeTable(**addresses, context=CONTEXT)

    # ------------------------------------------------------------------------------------------ for Python

    def bound(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: every thread may use the emulator."""
        return nullcontext()

    def kernel(self, loaded: LoadedModule, entry: str, deadline: Deadline) -> NativeKernel:
        """Return a kernel of a loaded module."""
        del deadline
        module = self._kernels.modules.require(loaded)
        plan = self._kernels.plan(module, entry)
        return NativeKernel(
            handle=self._handles.of(KernelEntry(module, entry)),
            max_threads=thread_limit(plan.code.function),
            max_dynamic_shared_bytes=max(0, self._info.max_shared_bytes - plan.static_shared_bytes),
            max_grid=MAX_GRID,
            max_block=MAX_BLOCK,
            registers=0,  # it has as many as a kernel needs
        )

    def forget(self, loaded: LoadedModule) -> None:
        """Drop the handles of a module that is being unloaded."""
        if isinstance(loaded, EmulatedModule):
            for entry in loaded.plans:
                self._handles.drop(KernelEntry(loaded, entry))

    def stream(self, stream: Stream) -> int:
        """Return what the functions take as ``CUstream``; raises `InvalidHandle` if the stream is not open."""
        return self._handles.of(self._queues.streams.require(stream))

    def confine(self, stream: Stream, regions: Sequence[Region], deadline: Deadline) -> None:
        """Set what kernels of compiled code may touch: those regions that are present when a kernel is launched."""
        own = self._queues.streams.require(stream)
        own.regions, own.deadline = tuple(regions), deadline

    def started(self, stream: Stream, deadline: Deadline) -> None:
        """Do nothing: the functions have counted the work already."""

    def notify(self, stream: Stream, function: int, argument: int) -> None:
        """Call a C function ``void function(void *argument)`` once, when the work so far has ended or failed."""
        own = self._queues.streams.require(stream)
        self._queues.mark(own)

        def call(_ranges: AccessRanges = NOTHING, _deadline: Deadline = NEVER) -> None:
            _HOST_FUNCTION(function)(argument)

        if own.idle or own.failure is not None:
            call()
        else:
            self._background.request(self._queues.give(own, QueuedWork(call, always=True)))

    # ---------------------------------------------------------------------------------- for compiled code

    def _find(self, handle: int | None, kind: type[T]) -> T:
        found = self._handles.find(handle or 0, kind)
        if found is None:
            raise InvalidHandle("no object of this kind has the handle")
        return found

    def _stream(self, handle: int | None) -> EmulatedStream:
        return self._find(handle, EmulatedStream)

    def _launch_kernel(
        self,
        function: int | None,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared_bytes: int,
        stream_handle: int | None,
        params: int | None,
        extra: int | None,
    ) -> int | None:
        entry, stream = self._find(function, KernelEntry), self._stream(stream_handle)
        plan = self._kernels.plan(entry.module, entry.entry)
        sizes = [variable_bytes(param) for param in plan.code.function.params]
        if extra or (sizes and not params) or len(sizes) > _MAX_PARAMS:
            return INVALID_VALUE
        places = (ctypes.c_void_p * len(sizes)).from_address(params) if params and sizes else ()
        if not all(places):
            return INVALID_VALUE
        args = [ctypes.string_at(at, size) for at, size in zip(places, sizes, strict=True)]
        config = LaunchConfig((grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared_bytes)
        call = self._kernels.prepare(entry.module, entry.entry, config, args)
        ranges = self._allocations.present_ranges(stream.regions)
        self._queues.give(stream, QueuedWork(call, ranges, stream.deadline))
        return None

    def _stream_query(self, handle: int | None) -> int:
        stream = self._stream(handle)
        if stream.recording is not None:
            return STREAM_CAPTURE_UNSUPPORTED
        mark = self._queues.mark(stream)
        if self._queues.reached(mark):
            return SUCCESS
        if stream.running or stream.requested > stream.done:
            return NOT_READY
        self._queues.run_to(mark, NEVER)
        return SUCCESS

    def _memcpy_htod_async(self, target: int, source: int | None, size_bytes: int, handle: int | None) -> None:
        self._copies.copy_in(target, source or 0, size_bytes, self._stream(handle))

    def _memcpy_dtoh_async(self, target: int | None, source: int, size_bytes: int, handle: int | None) -> None:
        self._copies.copy_out(target or 0, source, size_bytes, self._stream(handle))

    def _graph_launch(self, graph_handle: int | None, stream_handle: int | None) -> None:
        graph, stream = self._find(graph_handle, EmulatedGraph), self._stream(stream_handle)
        self._graphs.start(graph, stream, self._allocations.present_ranges(stream.regions), stream.deadline)

    def _launch_host_func(self, handle: int | None, function: int | None, argument: int | None) -> int:
        if not function:
            return INVALID_VALUE
        self.notify(self._stream(handle), function, argument or 0)
        return SUCCESS

    def _context_current(self, context: int | None) -> int:
        if not context:
            return INVALID_VALUE
        ctypes.c_uint64.from_address(context).value = CONTEXT
        return SUCCESS


def _guarded(function: Callable[..., int | None]) -> Callable[..., int]:
    """Return a function that raises nothing: compiled code would read an exception as success. None is success."""

    def call(*arguments: int | None) -> int:
        try:
            return function(*arguments) or SUCCESS
        except TensorWasmError as error:
            return next(code for kind, code in _CODES if isinstance(error, kind))
        except BaseException:  # noqa: BLE001 - compiled code cannot catch it, and would read it as success
            _log.exception("a function for compiled code broke off")
            return UNKNOWN

    return call
