"""Everything that is compiled in this package: compiled on first use, and taken from a folder of our own afterwards.

Importing this module imports Numba. Where that is missing or fails there is no compiled code, and Python does its work.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from numba import uint64
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator
from numba.core.ccallback import CFunc

from tensorwasm.guest.engine import folders
from tensorwasm.guest.imports import interfaces
from tensorwasm.guest.imports.abi import CUDA_MODULE_0_1
from tensorwasm.guest.imports.cuda.kernels import finish_started
from tensorwasm.guest.imports.host_function import ValType
from tensorwasm.guest.imports.suspension import SuspensionCode
from tensorwasm.guest.native import callbacks, kernels, layout, oneshot, streams, system, waiting
from tensorwasm.guest.native.structures import Entries, Entry, PythonCallbacks

_log = logging.getLogger(__name__)

_kept: Final[list[Any]] = []
"""Numba's objects: others hold only addresses of their code."""

not_kept: Final[list[OSError]] = []
"""Why code that was compiled is not in the cache, such as a full disk. It runs all the same."""

_LAUNCH: Final[tuple[ValType, ...]] = ("i64", *("i32",) * 9)


@dataclass(frozen=True, slots=True)
class HostSource:
    """A host function to compile; ``starts`` if it may have to wait for work that it has started."""

    function: Callable[..., int]
    params: tuple[ValType, ...]
    starts: bool = False


SOURCES: Final[dict[str, HostSource]] = {
    "wasi_cuda_load_ptx": HostSource(kernels.load_ptx, ("i32",) * 4),
    "wasi_cuda_launch": HostSource(kernels.launch, _LAUNCH, starts=True),
    "wasi_cuda_launch_async": HostSource(kernels.launch_async, (*_LAUNCH, "i64")),
    "wasi_cuda_graph_launch": HostSource(kernels.graph_launch, ("i64", "i64")),
    "wasi_cuda_sync": HostSource(streams.sync, ()),
    "wasi_cuda_stream_sync": HostSource(streams.stream_sync, ("i64",)),
    "wasi_cuda_memcpy_h2d": HostSource(streams.memcpy_h2d, ("i32",) * 4, starts=True),
    "wasi_cuda_memcpy_d2h": HostSource(streams.memcpy_d2h, ("i32",) * 4, starts=True),
    "yield": HostSource(system.yield_, ()),
    "deadline-remaining-ms": HostSource(system.deadline_remaining_ms, ()),
    "fd_write": HostSource(system.fd_write, ("i32",) * 4),
}
"""Compiled host functions by import field."""

WASI: Final = (("wasi_snapshot_preview1", "fd_write"),)
"""Imports beside those of our own interfaces."""

EXCEPT: Final = frozenset({(CUDA_MODULE_0_1, "wasi_cuda_launch")})
"""Imports of such a name with another meaning: that launch takes no arguments."""

CALLBACKS: Final = (callbacks.fallback_in_python, callbacks.finish_in_python, callbacks.on_epoch)
"""Compiled code that calls Python, in the order of `PythonCallbacks`."""

ONE_ADDRESS: Final = ((uint64,), uint64)
"""The signature of what runs a `CallDescriptor`."""


def make_entries() -> Entries:
    """Compile the host functions, or take them from the cache; return them for every import that means them."""
    folder = open_cache()
    made = {
        name: Entry(_address(source.function, folder), source.params, finish_started if source.starts else None)
        for name, source in SOURCES.items()
    }
    imports = [
        (module, function.core_name)
        for interface in interfaces.INTERFACES
        for module in interface.modules
        for function in interface.functions
    ]
    return {key: made[key[1]] for key in (*imports, *WASI) if key[1] in made and key not in EXCEPT}


def make_callbacks() -> PythonCallbacks:
    """Compile the code that calls Python, or take it from the cache."""
    folder = open_cache()
    return PythonCallbacks(*(_address(function, folder) for function in CALLBACKS))


def make_suspension_code() -> SuspensionCode:
    """Compile the code of asynchronous host functions, or take it from the cache."""
    folder = open_cache()
    return SuspensionCode(
        **{name: _address(function, folder, signature) for name, (function, signature) in waiting.SIGNATURES.items()}
    )


def make_oneshot() -> int:
    """Compile what runs a one-shot call, or take it from the cache; return its address."""
    return _address(oneshot.run_oneshot, open_cache(), ONE_ADDRESS)


def make_oneshot_fiber() -> int:
    """Compile what starts a one-shot call on a fiber, or take it from the cache; return its address."""
    return _address(oneshot.run_oneshot_fiber, open_cache(), ONE_ADDRESS)


def compile_sources(fields: Iterable[str]) -> None:
    """Compile some of the host functions into the cache, given their import fields."""
    folder = open_cache()
    for field in fields:
        compile_function(SOURCES[field].function, folder)


def compile_function(
    function: Callable[..., int | None], folder: Path | None, signature: tuple[Any, Any] = waiting.HOST_SIGNATURE
) -> Any:
    """Compile a C function, or take it from the cache ``folder``; return Numba's object, which is kept for ever."""
    made: Any = CFunc(function, signature, locals={}, options={"error_model": "numpy"})
    if folder is not None:
        made._cache = _cache_in(folder, function)  # noqa: SLF001 - Numba's own way is a setting of the whole process
    made.compile()
    _kept.append(made)
    return made


def _address(
    function: Callable[..., int | None], folder: Path | None, signature: tuple[Any, Any] = waiting.HOST_SIGNATURE
) -> int:
    return compile_function(function, folder, signature).address


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

        def save_overload(self, sig: Any, data: Any) -> None:
            try:
                super().save_overload(sig, data)
            except OSError as error:
                not_kept.append(error)

    return Cache(function)


def open_cache() -> Path | None:
    """Return the folder for this package's compiled code, None if there is no safe one."""
    numbers = sorted((name, value) for name, value in vars(layout).items() if name.isupper())
    try:
        return open_folder(numbers)
    except OSError as error:
        _log.warning("compiled host functions are not kept: %s", error)
        return None


def open_folder(contents: Iterable[object]) -> Path:
    """Return the folder for functions compiled from this package, these numbers and tools, made if missing.

    Numba's index is a pickle, and the code runs as it is: anyone who can write there runs code as this user. Raises
    what `folders.open_own` raises.
    """
    digest = hashlib.sha256(sys.version.encode())
    for distribution in ("numba", "llvmlite"):
        digest.update(metadata.version(distribution).encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    for item in contents:
        digest.update(repr(item).encode())
    return folders.open_own("native", digest.hexdigest()[:32])
