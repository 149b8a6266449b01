"""Peers that launch on a GPU: a loop in C, NVIDIA's bindings for Python, and CuPy.

The loop in C is compiled when it is needed and called in this process, on the device's primary context like the others.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from tensorwasm.bench.figures import MissingPeer
from tensorwasm.bench.harness import scratch_folder

RAW: Final = "raw C loop"
ELEMENTS: Final = 65536
"""Elements that the peers in Python launch over."""

_ENTRIES: Final = ("cuLaunchKernel", "cuStreamSynchronize", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2")
"""The fields of ``Driver`` in raw.c, in their order."""

_LOOPS: Final = ("raw_submit", "raw_complete", "raw_launch_sync", "raw_copy_in", "raw_copy_out")
_NON_BLOCKING: Final = 1
_DEVICE_MAPPED: Final = 2
_BLOCKS: Final = ELEMENTS // 256


class _Launch(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint),
        ("block", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
    )


class RawPeer:
    """A C program's view of one GPU. Close it; it holds driver memory.

    The entry is a kernel ``(float *a, float *b, float *c, uint32_t n)``.
    """

    def __init__(self, ordinal: int, ptx: bytes, entry: str) -> None:
        self._loops = _compile()
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise MissingPeer(f"{RAW}: no libcuda.so.1 ({error})") from None
        self._kept: list[object] = []
        self._open = ExitStack()
        self._device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._module, self._function, self._stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(self._device), ordinal)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._open.callback(self._cuda.cuDevicePrimaryCtxRelease_v2, self._device)
        self._call("cuCtxPushCurrent_v2", self._context)
        self._open.callback(self._cuda.cuCtxPopCurrent_v2, ctypes.byref(ctypes.c_void_p()))
        self._call("cuModuleLoadData", ctypes.byref(self._module), ptx + b"\0")
        self._open.callback(self._cuda.cuModuleUnload, self._module)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, entry.encode())
        self._call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
        self._open.callback(self._cuda.cuStreamDestroy_v2, self._stream)
        self._driver = (ctypes.c_void_p * 4)(*(ctypes.cast(self._cuda[name], ctypes.c_void_p) for name in _ENTRIES))

    def device_memory(self, size_bytes: int) -> int:
        """Return the address of device memory (``cuMemAlloc``)."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        self._open.callback(self._cuda.cuMemFree_v2, address)
        return address.value

    def host_memory(self, size_bytes: int) -> int:
        """Return the address of touched host memory that kernels reach (``cuMemHostAlloc``)."""
        address = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size_bytes), _DEVICE_MAPPED)
        ctypes.memset(address, 1, size_bytes)
        self._open.callback(self._cuda.cuMemFreeHost, address)
        return address.value or 0

    def launch(self, pointers: Sequence[int], elements: int) -> ctypes.Structure:
        """Return a launch over three arrays, 256 threads a block, for `launches_ns`."""
        values = [*(ctypes.c_uint64(pointer) for pointer in pointers), ctypes.c_uint32(elements)]
        table = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._kept += [values, table]
        return _Launch(self._function, -(-elements // 256), 256, self._stream, ctypes.addressof(table))

    def launches_ns(self, loop: str, launch: ctypes.Structure, count: int) -> float:
        """Return nanoseconds per launch of ``raw_submit``, ``raw_complete`` or ``raw_launch_sync``."""
        return _checked(loop, self._loops[loop](ctypes.byref(self._driver), ctypes.byref(launch), count)) / count

    def copies_ns(self, loop: str, host: int, device: int, size_bytes: int, count: int) -> float:
        """Return nanoseconds per copy of ``raw_copy_in`` or ``raw_copy_out``."""
        h, d = ctypes.c_void_p(host), ctypes.c_uint64(device)
        ends = (d, h) if loop == "raw_copy_in" else (h, d)
        taken = self._loops[loop](ctypes.byref(self._driver), *ends, ctypes.c_size_t(size_bytes), self._stream, count)
        return _checked(loop, taken) / count

    def close(self) -> None:
        """Release memory, stream, module and context."""
        self._open.close()

    def _call(self, name: str, *args: Any) -> None:
        _checked(name, -int(self._cuda[name](*args)))


def used_bytes(ordinal: int) -> int:
    """Return how much memory of a GPU is in use, by all processes (``cuMemGetInfo``)."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, old = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for name, *args in (
        ("cuInit", 0),
        ("cuDeviceGet", ctypes.byref(device), ordinal),
        ("cuDevicePrimaryCtxRetain", ctypes.byref(context), device),
        ("cuCtxPushCurrent_v2", context),
        ("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)),
        ("cuCtxPopCurrent_v2", ctypes.byref(old)),
        ("cuDevicePrimaryCtxRelease_v2", device),
    ):
        _checked(name, -int(cuda[name](*args)))
    return total.value - free.value


def _checked(name: str, answer: int) -> int:
    if answer < 0:
        raise MissingPeer(f"{RAW}: {name} failed with CUDA error {-answer}")
    return answer


def _compile() -> dict[str, Any]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise MissingPeer(f"{RAW}: no gcc")
    with scratch_folder() as folder:
        library = folder / "raw.so"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("raw.c"))]
        built = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the machine's own compiler
        if built.returncode:
            raise MissingPeer(f"{RAW}: {built.stderr.strip()[:200]}")
        loaded = ctypes.CDLL(str(library))
    loops = {name: loaded[name] for name in _LOOPS}
    for loop in loops.values():
        loop.restype = ctypes.c_int64
    return loops


Loops = tuple[Callable[[int], float], Callable[[int], float]]
"""Loops of so many launches that return nanoseconds per launch: submitted only, and each waited for."""


@contextmanager
def cuda_bindings(ordinal: int, ptx: bytes, entry: str) -> Iterator[Loops]:
    """Launch through ``cuda.bindings.driver``, arguments packed once."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - an optional peer
    except ImportError as error:
        raise MissingPeer(f"cuda-bindings: {error}") from None

    def call(name: str, *args: Any) -> Any:
        code, *values = getattr(driver, name)(*args)
        if int(code):
            raise MissingPeer(f"cuda-bindings: {name} failed with {code!r}")
        return values[0] if values else None

    call("cuInit", 0)
    device = call("cuDeviceGet", ordinal)
    call("cuCtxPushCurrent", call("cuDevicePrimaryCtxRetain", device))
    module = call("cuModuleLoadData", ptx + b"\0")
    function, stream = call("cuModuleGetFunction", module, entry.encode()), call("cuStreamCreate", _NON_BLOCKING)
    arrays = [call("cuMemAlloc", ELEMENTS * 4) for _ in range(3)]
    values = [*(ctypes.c_uint64(int(array)) for array in arrays), ctypes.c_uint32(ELEMENTS)]
    packed = (ctypes.c_void_p * 4)(*map(ctypes.addressof, values))

    launch = partial(driver.cuLaunchKernel, function, _BLOCKS, 1, 1, 256, 1, 1, 0, stream, ctypes.addressof(packed), 0)
    try:
        yield _loops(launch, lambda: call("cuStreamSynchronize", stream))
    finally:
        for array in arrays:
            call("cuMemFree", array)
        call("cuStreamDestroy", stream)
        call("cuModuleUnload", module)
        call("cuCtxPopCurrent")
        call("cuDevicePrimaryCtxRelease", device)


@contextmanager
def cupy(ordinal: int, ptx: bytes, entry: str) -> Iterator[Loops]:
    """Launch through CuPy's ``RawModule``."""
    try:
        import cupy as library  # noqa: PLC0415 - a peer
    except ImportError as error:
        raise MissingPeer(f"CuPy: {error}") from None
    function = library.cuda.function.Module()
    with library.cuda.Device(ordinal), library.cuda.Stream(non_blocking=True) as stream:
        function.load(ptx)
        kernel = function.get_function(entry)
        arguments = (*(library.zeros(ELEMENTS, dtype=library.float32) for _ in range(3)), library.uint32(ELEMENTS))
        yield _loops(lambda: kernel((_BLOCKS,), (256,), arguments), stream.synchronize)


PEERS: Final[Mapping[str, Callable[..., Any]]] = {"cuda-bindings": cuda_bindings, "CuPy": cupy}


def _loops(launch: Callable[[], object], synchronize: Callable[[], object]) -> Loops:
    def submit(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            launch()
        taken = time.perf_counter_ns() - start
        synchronize()
        return taken / count

    def launch_sync(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            launch()
            synchronize()
        return (time.perf_counter_ns() - start) / count

    return submit, launch_sync
