"""Other ways to launch from Python: NVIDIA's bindings, and CuPy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tensorwasm.bench.peers.missing import MissingPeer

Loops = tuple[Callable[[int], float], Callable[[int], float]]
"""Nanoseconds per launch of a count of launches: submitted only, and each waited for."""

ELEMENTS: Final = 65536
_BLOCKS: Final = ELEMENTS // 256


@contextmanager
def cuda_bindings(ordinal: int, ptx: bytes, entry: str) -> Iterator[Loops]:
    """Launch through ``cuda.bindings.driver``, arguments packed once.

    Raises:
        MissingPeer: not installed.
    """
    try:
        import ctypes  # noqa: PLC0415 - with what it packs

        from cuda.bindings import driver  # noqa: PLC0415 - a peer that need not be there
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
    function, stream = call("cuModuleGetFunction", module, entry.encode()), call("cuStreamCreate", 1)
    arrays = [call("cuMemAlloc", ELEMENTS * 4) for _ in range(3)]
    values = [*(ctypes.c_uint64(int(array)) for array in arrays), ctypes.c_uint32(ELEMENTS)]
    packed = (ctypes.c_void_p * 4)(*map(ctypes.addressof, values))
    where = ctypes.addressof(packed)

    def launch() -> None:
        driver.cuLaunchKernel(function, _BLOCKS, 1, 1, 256, 1, 1, 0, stream, where, 0)

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
    """Launch through CuPy's ``RawModule``.

    Raises:
        MissingPeer: not installed, or it finds no CUDA.
    """
    try:
        import cupy as library  # type: ignore[import-not-found]  # noqa: PLC0415 - a peer that need not be there
    except ImportError as error:
        raise MissingPeer(f"CuPy: {error}") from None
    function = library.cuda.function.Module()
    with library.cuda.Device(ordinal), library.cuda.Stream(non_blocking=True) as stream:
        function.load(ptx)
        kernel = function.get_function(entry)
        arrays = [library.zeros(ELEMENTS, dtype=library.float32) for _ in range(3)]
        arguments = (*arrays, library.uint32(ELEMENTS))
        yield _loops(lambda: kernel((_BLOCKS,), (256,), arguments), stream.synchronize)


PEERS: Final[Sequence[tuple[str, Callable[..., Any]]]] = (("cuda-bindings", cuda_bindings), ("CuPy", cupy))
"""Each by its name."""


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
