"""The compiled host functions, ready to link: compiled on first use, and from the cache ever after.

Only this module brings Numba in, when it is imported. Where Numba is not installed, or fails, there are no compiled
functions, and Python does everything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numba import uint64
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator
from numba.core.ccallback import CFunc

from tensorwasm.guest.imports import interfaces
from tensorwasm.guest.imports.abi import CUDA_MODULE_0_1
from tensorwasm.guest.native import cache, clock, copies, launches, layout
from tensorwasm.guest.native.environment import Entries, Entry

_log = logging.getLogger(__name__)

_SIGNATURE: Final = ((uint64, uint64, uint64, uint64), uint64)


@dataclass(frozen=True, slots=True)
class Source:
    """A host function to compile.

    Attributes:
        function: ``(env, caller, cells, count) -> trap``.
        modules: import modules under which it means this.
        starts: whether it may have to wait for what it has started.
    """

    function: Callable[..., int]
    modules: tuple[str, ...]
    starts: bool = False


_CUDA: Final = interfaces.CUDA.modules
_WITH_ARGUMENTS: Final = tuple(module for module in _CUDA if module != CUDA_MODULE_0_1)
SOURCES: Final[dict[str, Source]] = {
    "wasi_cuda_launch": Source(launches.launch, _WITH_ARGUMENTS, starts=True),
    "wasi_cuda_launch_async": Source(launches.launch_async, _WITH_ARGUMENTS),
    "wasi_cuda_graph_launch": Source(launches.graph_launch, _WITH_ARGUMENTS),
    "wasi_cuda_sync": Source(copies.sync, _CUDA),
    "wasi_cuda_stream_sync": Source(copies.stream_sync, _CUDA),
    "wasi_cuda_memcpy_h2d": Source(copies.memcpy_h2d, _CUDA, starts=True),
    "wasi_cuda_memcpy_d2h": Source(copies.memcpy_d2h, _CUDA, starts=True),
    "yield": Source(clock.yield_, interfaces.SCHEDULER.modules),
    "deadline-remaining-ms": Source(clock.deadline_remaining_ms, interfaces.SCHEDULER.modules),
}
"""Compiled host functions by import field."""


def make_entries(finish: Callable[..., int]) -> Entries:
    """Compile every host function that the interfaces know, or take it from the cache.

    Args:
        finish: body that waits for what a function has started.
    """
    folder = _open_cache()
    params = {
        function.core_name: tuple(param.type for param in function.params)
        for interface in interfaces.INTERFACES
        for function in interface.functions
    }
    entries = {}
    for name, source in SOURCES.items():
        if name in params:
            address = compile_function(source.function, folder).address
            entry = Entry(address, params[name], finish if source.starts else None)
            entries.update({(module, name): entry for module in source.modules})
    return entries


def compile_function(function: Callable[..., int], folder: Path | None) -> Any:
    """Compile a host function, or take it from the cache; return Numba's object, which never frees its code.

    Args:
        function: ``(env, caller, cells, count) -> trap``, all 64-bit.
        folder: of the cache, ours alone; None for no cache.
    """
    made: Any = CFunc(function, _SIGNATURE, locals={}, options={"error_model": "numpy"})
    if folder is not None:
        made._cache = _cache_in(folder, function)  # noqa: SLF001 - Numba's own way is a setting of the whole process
    made.compile()
    return made


def _cache_in(folder: Path, function: Callable[..., int]) -> FunctionCache:
    """Return Numba's cache of one function, in our folder and nowhere else."""

    class Locator(UserProvidedCacheLocator):  # type: ignore[misc]
        def __init__(self, py_func: Any, py_file: str) -> None:
            self._py_file = py_file
            self._lineno = py_func.__code__.co_firstlineno
            self._cache_path = str(folder)

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Locator:
            return cls(py_func, py_file)

    class Implementation(CompileResultCacheImpl):  # type: ignore[misc]
        _locator_classes = (Locator,)

    class Cache(FunctionCache):  # type: ignore[misc]
        _impl_class = Implementation

    return Cache(function)


def _open_cache() -> Path | None:
    numbers = sorted((name, value) for name, value in vars(layout).items() if name.isupper())
    try:
        return cache.open_folder(numbers)
    except OSError as error:
        _log.warning("compiled host functions are not kept: %s", error)
        return None
