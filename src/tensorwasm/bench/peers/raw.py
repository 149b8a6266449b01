"""The loop in C: compiled on the spot, called in this process, on the device's primary context like everything else."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from tensorwasm.bench.peers.missing import MissingPeer

NAME: Final = "raw C loop"
_SOURCE: Final = Path(__file__).with_name("raw.c")
_ENTRIES: Final = ("cuLaunchKernel", "cuStreamSynchronize", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2")
_LOOPS: Final = ("raw_submit", "raw_complete", "raw_launch_sync", "raw_copy_in", "raw_copy_out")
_NON_BLOCKING: Final = 1
_DEVICE_MAPPED: Final = 2


class _Driver(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("launch", "synchronize", "host_to_device", "device_to_host"))


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

    Args:
        ordinal: of the GPU.
        ptx: a module with the entry.
        entry: a kernel ``(float *a, float *b, float *c, uint32_t n)``.

    Raises:
        MissingPeer: no gcc, no driver, or it refuses something.
    """

    def __init__(self, ordinal: int, ptx: bytes, entry: str) -> None:
        self._loops = _compile()
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise MissingPeer(f"{NAME}: no libcuda.so.1 ({error})") from None
        self._kept: list[object] = []
        self._device_memory: list[ctypes.c_uint64] = []
        self._host_memory: list[ctypes.c_void_p] = []
        self._open(ordinal, ptx, entry)
        self._driver = _Driver(*(ctypes.cast(self._cuda[name], ctypes.c_void_p).value for name in _ENTRIES))

    def _open(self, ordinal: int, ptx: bytes, entry: str) -> None:
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._module, self._function, self._stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._device = device
        self._call("cuCtxPushCurrent_v2", self._context)
        self._call("cuModuleLoadData", ctypes.byref(self._module), ptx + b"\0")
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, entry.encode())
        self._call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)

    def device_memory(self, size_bytes: int) -> int:
        """Return the address of device memory (``cuMemAlloc``)."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        self._device_memory.append(address)
        return address.value

    def host_memory(self, size_bytes: int) -> int:
        """Return the address of touched host memory that kernels reach (``cuMemHostAlloc``)."""
        address = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size_bytes), _DEVICE_MAPPED)
        ctypes.memset(address, 1, size_bytes)
        self._host_memory.append(address)
        return address.value or 0

    def launch(self, pointers: Sequence[int], elements: int) -> ctypes.Structure:
        """Return a launch over three arrays, 256 threads a block, for the loops below."""
        values = [*(ctypes.c_uint64(pointer) for pointer in pointers), ctypes.c_uint32(elements)]
        table = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._kept += [values, table]
        return _Launch(self._function, -(-elements // 256), 256, self._stream, ctypes.addressof(table))

    def launches_ns(self, loop: str, launch: ctypes.Structure, count: int) -> float:
        """Return nanoseconds per launch of ``raw_submit``, ``raw_complete`` or ``raw_launch_sync``."""
        return self._checked(loop, self._loops[loop](ctypes.byref(self._driver), ctypes.byref(launch), count)) / count

    def copies_ns(self, loop: str, host: int, device: int, size_bytes: int, count: int) -> float:
        """Return nanoseconds per copy of ``raw_copy_in`` or ``raw_copy_out``."""
        h, d = ctypes.c_void_p(host), ctypes.c_uint64(device)
        ends = (d, h) if loop == "raw_copy_in" else (h, d)
        taken = self._loops[loop](ctypes.byref(self._driver), *ends, ctypes.c_size_t(size_bytes), self._stream, count)
        return self._checked(loop, taken) / count

    def close(self) -> None:
        """Give everything back."""
        for address in self._device_memory:
            self._cuda.cuMemFree_v2(address)
        for pointer in self._host_memory:
            self._cuda.cuMemFreeHost(pointer)
        self._cuda.cuStreamDestroy_v2(self._stream)
        self._cuda.cuModuleUnload(self._module)
        self._cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        self._cuda.cuDevicePrimaryCtxRelease_v2(self._device)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _call(self, name: str, *args: Any) -> None:
        self._checked(name, -int(self._cuda[name](*args)))

    def _checked(self, name: str, answer: int) -> int:
        if answer < 0:
            raise MissingPeer(f"{NAME}: {name} failed with CUDA error {-answer}")
        return answer


def _compile() -> dict[str, Any]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise MissingPeer(f"{NAME}: no gcc")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "raw.so")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the machine's own compiler
        if built.returncode:
            raise MissingPeer(f"{NAME}: {built.stderr.strip()[:200]}")
        loaded = ctypes.CDLL(str(library))
    loops = {name: loaded[name] for name in _LOOPS}
    for loop in loops.values():
        loop.restype = ctypes.c_int64
    return loops
