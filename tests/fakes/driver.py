"""A driver module without a GPU: the entry points that gpu/cuda calls, with memory, contexts and failures to order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, NOT_FOUND, NOT_READY = 0, 1, 2, 201, 500, 600
CONTEXT_IS_DESTROYED = 709
INVALID_HANDLE, ALREADY_REGISTERED, NOT_REGISTERED, INVALID_DEVICE = 400, 712, 713, 101

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "COMPUTE_MODE": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "CONCURRENT_MANAGED_ACCESS": 1,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64,
}


class Names:
    """An enumeration whose every member is its own name."""

    def __getattr__(self, name: str) -> str:
        return name


class Flags:
    """An enumeration of bit flags that are all 1."""

    def __getattr__(self, name: str) -> int:
        return 1


_ENTRY_POINTS: dict[str, Callable[..., tuple[Any, ...]]] = {}


def entry_point(name: str):
    """Enter a method into the table under the driver's own name."""

    def enter(method):
        _ENTRY_POINTS[name] = method
        return method

    return enter


@dataclass(eq=False)
class Handle:
    """What the driver hands out: a stream, an event, a module, a function, a context."""

    kind: str
    number: int
    entry: str = ""
    alive: bool = True
    shared_limit: int = 48 << 10
    waits: list[Handle] = field(default_factory=list)


class FakeDriver:
    """Behaves like ``cuda.bindings.driver``: every call returns a tuple that begins with a result code.

    Attributes:
        fail: result code by entry point; it stays until it is taken out.
        missing: entry points this driver lacks.
        calls: how often each entry point was called.
        memory: live device memory by address.
        registered: live host registrations by address.
        handles: live streams, events and modules.
        busy: while it is set, work on streams has not ended; `finish` ends it.
        jit_log: what the compiler writes when it refuses a module.
        on_launch: called with the address of the arguments' pointers.
        on_block: called when a wait begins that only the end of the work ends.
        shift: what host memory's address on the device is off by.
    """

    CUdevice_attribute = Names()
    CUfunction_attribute = Names()
    CUjit_option = Names()
    CUstream_flags = Flags()
    CUevent_flags = Flags()
    CU_MEMHOSTREGISTER_PORTABLE = 1
    CU_MEMHOSTREGISTER_DEVICEMAP = 2

    def __init__(self, *, cuda: int = 13000, devices: int = 1, capacity_bytes: int = 1 << 30) -> None:
        self.fail: dict[str, int] = {}
        self.missing: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.memory: dict[int, bytearray] = {}
        self.registered: dict[int, int] = {}
        self.handles: set[Handle] = set()
        self.launches: list[tuple[str, tuple[int, ...]]] = []
        self.attributes = dict(ATTRIBUTES)
        self.jit_log = b""
        self.shift = 0
        self.on_launch: Callable[[int], object] = lambda params: None
        self.on_block: Callable[[], object] = lambda: None
        self.images: list[bytes] = []
        self._cuda, self._devices, self._capacity = cuda, devices, capacity_bytes
        self._numbers = count(1)
        self._address = 0x7F00_0000_0000
        self._primary = Handle("context", 0)
        self._stacks = threading.local()
        self._ended = threading.Event()
        self._ended.set()
        self._lock = threading.Lock()

    # ----------------------------------------------------------------------------------- what tests turn

    def begin(self) -> None:
        """From now on work does not end by itself."""
        self._ended.clear()

    def finish(self) -> None:
        """End all work."""
        self._ended.set()

    def reset(self) -> None:
        """What another library's device reset does: the context and all in it are gone; its handle stays."""
        self._primary.alive = False
        self.memory.clear()
        self.registered.clear()
        self.handles.clear()

    def stack(self) -> list[Handle]:
        """The contexts current on this thread, the top last."""
        if not hasattr(self._stacks, "contexts"):
            self._stacks.contexts = []
        return self._stacks.contexts

    def leftovers(self) -> list[object]:
        """Everything the driver still holds for this process."""
        return [*self.memory, *self.registered, *self.handles]

    @contextmanager
    def failing(self, function: str, code: int):
        """Let an entry point fail for the length of a ``with``."""
        self.fail[function] = code
        try:
            yield
        finally:
            del self.fail[function]

    # -------------------------------------------------------------------------------------- entry points

    def __getattr__(self, name: str) -> Any:
        if name in self.missing:
            raise RuntimeError(f'Function "{name}" not found')
        if name not in _ENTRY_POINTS:
            raise AttributeError(name)

        def call(*args: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            if name in self.fail and name != "cuModuleLoadDataEx":
                return (self.fail[name],)
            if name not in _WITHOUT_CONTEXT and (not self.stack() or not self.stack()[-1].alive):
                return (CONTEXT_IS_DESTROYED if self.stack() else INVALID_CONTEXT,)
            with self._lock if name != "cuEventSynchronize" else nullcontext():
                return _ENTRY_POINTS[name](self, *args)

        return call

    @entry_point("cuInit")
    def _init(self, flags):
        return (SUCCESS,)

    @entry_point("cuDriverGetVersion")
    def _driver_get_version(self):
        return SUCCESS, self._cuda

    @entry_point("cuDeviceGetCount")
    def _device_get_count(self):
        return SUCCESS, self._devices

    @entry_point("cuDeviceGet")
    def _device_get(self, ordinal):
        return (SUCCESS, ordinal) if ordinal < self._devices else (INVALID_DEVICE,)

    @entry_point("cuDeviceGetName")
    def _device_get_name(self, length, device):
        return SUCCESS, b"NVIDIA Fake\0\0\0"

    @entry_point("cuDeviceTotalMem")
    def _device_total_mem(self, device):
        return SUCCESS, self._capacity

    @entry_point("cuDeviceGetAttribute")
    def _device_get_attribute(self, attribute, device):
        return SUCCESS, self.attributes[attribute.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    @entry_point("cuDevicePrimaryCtxRetain")
    def _device_primary_ctx_retain(self, device):
        if not self._primary.alive:
            self._primary.alive = True
            self._primary.number = next(self._numbers)
        return SUCCESS, self._primary

    @entry_point("cuCtxGetId")
    def _ctx_get_id(self, context):
        return (SUCCESS, context.number) if context.alive else (CONTEXT_IS_DESTROYED,)

    @entry_point("cuCtxPushCurrent")
    def _ctx_push_current(self, context):
        self.stack().append(context)
        return (SUCCESS,)

    @entry_point("cuCtxPopCurrent")
    def _ctx_pop_current(self):
        return SUCCESS, self.stack().pop()

    @entry_point("cuMemAlloc")
    def _mem_alloc(self, size):
        if size < 1:
            return (INVALID_VALUE,)
        if size + sum(map(len, self.memory.values())) > self._capacity:
            return (OUT_OF_MEMORY,)
        address = self._address
        self._address += (size + 511) // 512 * 512
        self.memory[address] = bytearray(b"\xaa" * size)
        return SUCCESS, address

    @entry_point("cuMemFree")
    def _mem_free(self, address):
        return (SUCCESS,) if self.memory.pop(address, None) is not None else (INVALID_VALUE,)

    @entry_point("cuMemsetD8Async")
    def _memset_bytes_async(self, address, value, size, stream):
        self.memory[address][:size] = bytes([value]) * size
        return (SUCCESS,)

    @entry_point("cuMemHostRegister")
    def _mem_host_register(self, address, size, flags):
        if address in self.registered:
            return (ALREADY_REGISTERED,)
        self.registered[address] = size
        return (SUCCESS,)

    @entry_point("cuMemHostUnregister")
    def _mem_host_unregister(self, address):
        return (SUCCESS,) if self.registered.pop(address, None) else (NOT_REGISTERED,)

    @entry_point("cuMemHostGetDevicePointer")
    def _mem_host_get_device_pointer(self, address, flags):
        return SUCCESS, address + self.shift

    @entry_point("cuMemcpyHtoDAsync")
    def _memcpy_h2d_async(self, address, source, size, stream):
        block, at = self._find(address)
        block[at : at + size] = bytes(source)
        return (SUCCESS,)

    @entry_point("cuMemcpyDtoHAsync")
    def _memcpy_d2h_async(self, target, address, size, stream):
        block, at = self._find(address)
        target[:] = bytes(block[at : at + size])
        return (SUCCESS,)

    @entry_point("cuStreamCreate")
    def _stream_create(self, flags):
        return SUCCESS, self._make("stream")

    @entry_point("cuStreamDestroy")
    def _stream_destroy(self, stream):
        return self._drop(stream)

    @entry_point("cuStreamQuery")
    def _stream_query(self, stream):
        return (SUCCESS if self._ended.is_set() else NOT_READY,)

    @entry_point("cuStreamSynchronize")
    def _stream_synchronize(self, stream):
        return (SUCCESS,)

    @entry_point("cuStreamWaitEvent")
    def _stream_wait_event(self, stream, event, flags):
        stream.waits.append(event)
        return (SUCCESS,)

    @entry_point("cuEventCreate")
    def _event_create(self, flags):
        return SUCCESS, self._make("event")

    @entry_point("cuEventDestroy")
    def _event_destroy(self, event):
        return self._drop(event)

    @entry_point("cuEventRecord")
    def _event_record(self, event, stream):
        return (SUCCESS,)

    @entry_point("cuEventSynchronize")
    def _event_synchronize(self, event):
        self.on_block()
        self._ended.wait()
        return (SUCCESS,)

    @entry_point("cuModuleLoadDataEx")
    def _module_load_data_ex(self, image, options, keys, values):
        given = dict(zip(keys, values, strict=True))
        if "cuModuleLoadDataEx" in self.fail:
            given["CU_JIT_ERROR_LOG_BUFFER"][: len(self.jit_log)] = self.jit_log
            return (self.fail["cuModuleLoadDataEx"],)
        self.images.append(image)
        return SUCCESS, self._make("module")

    @entry_point("cuModuleUnload")
    def _module_unload(self, module):
        return self._drop(module)

    @entry_point("cuModuleGetFunction")
    def _module_get_function(self, module, name):
        if name.decode() == "absent":
            return (NOT_FOUND,)
        return SUCCESS, Handle("function", next(self._numbers), entry=name.decode())

    @entry_point("cuFuncGetAttribute")
    def _func_get_attribute(self, attribute, function):
        return SUCCESS, {
            "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": 512,
            "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 1024,
            "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": function.shared_limit,
        }[attribute]

    @entry_point("cuFuncSetAttribute")
    def _func_set_attribute(self, function, attribute, value):
        function.shared_limit = value
        return (SUCCESS,)

    @entry_point("cuLaunchKernel")
    def _launch_kernel(self, function, *rest):
        *shape, shared, _stream, params, _extra = rest
        if shared > function.shared_limit:
            return (INVALID_VALUE,)
        self.on_launch(params)
        self.launches.append((function.entry, (*shape, shared)))
        return (SUCCESS,)

    def _make(self, kind: str) -> Handle:
        handle = Handle(kind, next(self._numbers))
        self.handles.add(handle)
        return handle

    def _drop(self, handle: Handle) -> tuple[int]:
        if handle not in self.handles:
            return (INVALID_HANDLE,)
        self.handles.discard(handle)
        return (SUCCESS,)

    def _find(self, address: int) -> tuple[bytearray, int]:
        for start, block in self.memory.items():
            if start <= address < start + len(block):
                return block, address - start
        raise AssertionError(f"the driver was given a bad address: {address:#x}")


_WITHOUT_CONTEXT = frozenset(
    {
        "cuInit",
        "cuDriverGetVersion",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceTotalMem",
        "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain",
        "cuCtxGetId",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
    }
)
