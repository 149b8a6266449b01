"""The compiled host functions, ready to link: compiled on first use, and from the cache ever after.

Only this module brings Numba in, when it is imported. Where Numba is not installed, or fails, there are no compiled
functions, and Python does everything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numba import uint64
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator
from numba.core.ccallback import CFunc

from tensorwasm.guest.imports import interfaces
from tensorwasm.guest.imports.abi import CUDA_MODULE_0_1
from tensorwasm.guest.imports.cuda.finish import finish
from tensorwasm.guest.imports.host_function import ValType
from tensorwasm.guest.native import cache, clock, copies, fallback, launches, layout, loads
from tensorwasm.guest.native.environment import Entries, Entry, PythonCallbacks

_log = logging.getLogger(__name__)

_kept: Final[list[Any]] = []
"""What was compiled: linkers have nothing but its addresses."""

_SIGNATURE: Final = ((uint64, uint64, uint64, uint64), uint64)


@dataclass(frozen=True, slots=True)
class Source:
    """A host function to compile.

    Attributes:
        function: ``(env, caller, cells, count) -> trap``.
        params: Wasm types that it expects in its cells.
        starts: whether it may have to wait for what it has started.
    """

    function: Callable[..., int]
    params: tuple[ValType, ...]
    starts: bool = False


_LAUNCH: Final[tuple[ValType, ...]] = ("i64", *("i32",) * 9)
SOURCES: Final[dict[str, Source]] = {
    "wasi_cuda_load_ptx": Source(loads.load_ptx, ("i32",) * 4),
    "wasi_cuda_launch": Source(launches.launch, _LAUNCH, starts=True),
    "wasi_cuda_launch_async": Source(launches.launch_async, (*_LAUNCH, "i64")),
    "wasi_cuda_graph_launch": Source(launches.graph_launch, ("i64", "i64")),
    "wasi_cuda_sync": Source(copies.sync, ()),
    "wasi_cuda_stream_sync": Source(copies.stream_sync, ("i64",)),
    "wasi_cuda_memcpy_h2d": Source(copies.memcpy_h2d, ("i32",) * 4, starts=True),
    "wasi_cuda_memcpy_d2h": Source(copies.memcpy_d2h, ("i32",) * 4, starts=True),
    "yield": Source(clock.yield_, ()),
    "deadline-remaining-ms": Source(clock.deadline_remaining_ms, ()),
}
"""Compiled host functions by import field."""

EXCEPT: Final = frozenset({(CUDA_MODULE_0_1, "wasi_cuda_launch")})
"""Imports of such a name that mean something else: that launch takes no arguments."""


def make_entries() -> Entries:
    """Compile the host functions, or take them from the cache, for every import that means them."""
    folder = open_cache()
    made = {name: _make_entry(source, folder) for name, source in SOURCES.items()}
    return {
        (module, function.core_name): made[function.core_name]
        for interface in interfaces.INTERFACES
        for module in interface.modules
        for function in interface.functions
        if function.core_name in made and (module, function.core_name) not in EXCEPT
    }


def make_passage() -> PythonCallbacks:
    """Compile what calls Python, or take it from the cache."""
    functions, folder = (fallback.twin_in_python, fallback.finish_in_python, fallback.on_epoch), open_cache()
    return PythonCallbacks(*(compile_function(function, folder).address for function in functions))


def compile_sources(fields: Iterable[str]) -> None:
    """Compile some of the host functions into the cache, given their import fields."""
    folder = open_cache()
    for field in fields:
        compile_function(SOURCES[field].function, folder)


def _make_entry(source: Source, folder: Path | None) -> Entry:
    address = compile_function(source.function, folder).address
    return Entry(address, source.params, finish if source.starts else None)


def compile_function(
    function: Callable[..., int | None], folder: Path | None, signature: tuple[Any, Any] = _SIGNATURE
) -> Any:
    """Compile a C function, or take it from the cache; return Numba's object, which is kept for ever.

    Args:
        function: a host function, ``(env, caller, cells, count) -> trap``, all 64-bit, unless the signature says else.
        folder: of the cache, ours alone; None for no cache.
        signature: Numba's types of the arguments, and of the result.
    """
    made: Any = CFunc(function, signature, locals={}, options={"error_model": "numpy"})
    if folder is not None:
        made._cache = _cache_in(folder, function)  # noqa: SLF001 - Numba's own way is a setting of the whole process
    made.compile()
    _kept.append(made)
    return made


def _cache_in(folder: Path, function: Callable[..., int | None]) -> FunctionCache:
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


def open_cache() -> Path | None:
    """Return the folder for what is compiled in this package, None if there is none that is safe."""
    numbers = sorted((name, value) for name, value in vars(layout).items() if name.isupper())
    try:
        return cache.open_folder(numbers)
    except OSError as error:
        _log.warning("compiled host functions are not kept: %s", error)
        return None
