"""Compiled code, loaded when first needed.

Each function that loads imports Numba, blocks the first time (half a second if all was compiled before, up to ten
seconds if not), and returns nothing where Numba is missing or fails.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tensorwasm.guest.engine.compiler_process import confine
from tensorwasm.guest.imports.suspension import SuspensionCode
from tensorwasm.guest.native.structures import NO_ENTRIES, Entries, PythonCallbacks
from tensorwasm.values import MIB

PARTS: Final = 2
"""Processes that fill an empty cache side by side."""

if sys.platform != "win32":
    import fcntl

_log = logging.getLogger(__name__)
_lock = threading.RLock()
_loading = threading.Event()
"""Set while `begin_loading` loads everything: callers that have a fallback in Python use that meanwhile."""
_lock_of_works: Final = threading.Lock()
_works: Final[set[Callable[[], object]]] = set()
"""What is done once that has ended."""
_loaded: Final = threading.Event()
"""Set once `load_kept` has loaded everything: in processes forked from this one nothing is to be loaded."""
_FULL: Final = "full"
"""Name of an empty file in the cache's folder, there once all parts have been compiled."""
_FILLING: Final = "filling"
"""Name of a file there that is locked by the process that compiles: others would only slow it down."""
_THREADS: Final = "OPENBLAS_NUM_THREADS"
NICE: Final = 3
"""How far they step back from calls that are made meanwhile: their weight is half of others'. Calls with a GPU wait for
them, and at a tenth, beside other work of the machine, for longer than their deadlines."""
_PART_BYTES: Final = 4096 * MIB
"""Address space of a process that compiles a part, which takes a tenth of it."""
_PART_CPU_S: Final = 600
_FILE_BYTES: Final = 64 * MIB
_LONGEST_FIELDS: Final = 4
"""Host functions whose compilation takes as long as all the rest."""
_ADDRESS = (ctypes.c_uint64, ctypes.c_uint64)


def is_loading() -> bool:
    """Return whether compiled code is being loaded for all: what is made without it now is to be made anew later."""
    return _loading.is_set()


def once_loaded(work: Callable[[], object]) -> None:
    """Have something done when `is_loading` has become false: now, or on the thread that loads. It must not raise."""
    with _lock_of_works:
        if _loading.is_set():
            _works.add(work)
            return
    work()


def may_have_fibers() -> bool:
    """Return whether guests may run as fibers here, as far as can be known without importing Numba."""
    return sys.platform == "linux" and find_spec("numba") is not None


def load_entries() -> Entries:
    """Return the compiled host functions of this process."""
    with _lock:
        return _entries() or NO_ENTRIES


def load_callbacks() -> PythonCallbacks | None:
    """Return compiled code that calls Python."""
    with _lock:
        return _make("make_callbacks") if _entries() else None


def load_suspension_code() -> SuspensionCode | None:
    """Return the code that lets guests run as fibers; None also while `is_loading`."""
    if _loading.is_set():
        return None
    with _lock:
        return _suspension_code()


def load_oneshot() -> Callable[[int], int] | None:
    """Return compiled code that runs a `CallDescriptor`, given its address; it releases the GIL and may raise.

    None also while `is_loading`, and before Numba was imported for anything else: that would cost more than it saves.
    """
    return _oneshot() if "numba" in sys.modules and not _loading.is_set() else None


@cache
def load_oneshot_fiber() -> tuple[Callable[[int], int], Callable[[int], int]] | None:
    """Return compiled code that starts a `CallDescriptor` on a fiber, given its address: without and with the GIL."""
    with _lock:
        if _suspension_code() is None:
            return None
        address = _make("make_oneshot_fiber")
    return ctypes.CFUNCTYPE(*_ADDRESS)(address), ctypes.PYFUNCTYPE(*_ADDRESS)(address)


@cache
def _oneshot() -> Callable[[int], int] | None:
    with _lock:
        return ctypes.PYFUNCTYPE(*_ADDRESS)(_make("make_oneshot")) if _entries() else None


@cache
def _suspension_code() -> SuspensionCode | None:
    if not may_have_fibers():
        _log.warning("no fibers without Numba: submitted guests hold threads")
        return None
    return _make("make_suspension_code", "no fibers, submitted guests hold threads")


def _entries() -> Entries | None:
    if sys.platform != "linux":
        return None
    return _make("make_entries", "no compiled host functions, Python does their work")


@cache
def _make(name: str, consequence: str | None = None) -> Any:
    """Return the result of a function of `compiled`; with a consequence to log, None if the compiler fails."""
    try:
        from tensorwasm.guest.native import compiled  # noqa: PLC0415 - it imports Numba

        return getattr(compiled, name)()
    except Exception as error:  # Python does the same work, whatever is wrong with the compiler
        if consequence is None:
            raise
        _log.warning("%s: %s: %s", consequence, type(error).__name__, error)
        return None


# ------------------------------------------------------------------------------------------------- in advance


def begin_loading() -> Callable[[], None]:
    """Let callers use Python from now on, until the returned function has loaded all compiled code.

    That blocks for a second, or up to a dozen to fill an empty cache, in other processes: compiling here would hold the
    GIL.
    """
    if _loaded.is_set() or not may_have_fibers():
        return lambda: None
    _loading.set()
    return _load_all


def load_kept() -> None:
    """Load all compiled code for processes that are forked from this one; nothing if some of it has to be made first.

    No thread is left.
    """
    if _loaded.is_set() or not may_have_fibers():
        return
    with numpy_without_threads():
        folder = _open_cache()
    if folder is not None and (folder / _FULL).exists():
        _load_all()
        _loaded.set()


@contextmanager
def numpy_without_threads() -> Iterator[None]:
    """Within the context, let NumPy, which Numba imports, start no threads when it is imported first."""
    threads = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        if threads is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = threads


def _load_all() -> None:
    try:
        with _lock:
            _fill_cache()
            _suspension_code()
            _entries()
        load_callbacks()
        load_oneshot_fiber()
        _oneshot()
    finally:
        with _lock_of_works:
            _loading.clear()
            works = [*_works]
            _works.clear()
        for work in works:
            work()


def _open_cache() -> Path | None:
    """Return the folder of what was compiled, None where nothing can be kept."""
    try:
        from tensorwasm.guest.native import compiled  # noqa: PLC0415 - it imports Numba

        return compiled.open_cache()
    except Exception as error:  # noqa: BLE001 - each caller reports what is wrong with the compiler
        _log.debug("nothing is compiled in advance: %s", error)
        return None


def _fill_cache() -> None:
    """Have other processes compile everything, unless that was done before, or another process of this user does it.

    What they leave undone is compiled in this process.
    """
    folder = _open_cache()
    if folder is None or (folder / _FULL).exists():
        return
    try:
        with (folder / _FILLING).open("wb") as filling:
            fcntl.flock(filling, fcntl.LOCK_EX)
            if (folder / _FULL).exists():
                return
            with ExitStack() as children:
                made = [children.enter_context(_start_part(part)) for part in range(PARTS)]
            if not any(child.returncode for child in made):
                (folder / _FULL).touch(mode=0o600)
                return
        why = ", ".join(f"exit code {child.returncode}" for child in made if child.returncode)
    except OSError as error:  # such as a folder that cannot be written
        why = str(error)
    _log.warning("host functions are compiled in this process, which slows its calls: no other could: %s", why)


def _start_part(part: int) -> subprocess.Popen[bytes]:
    """Start a process that compiles a part, and ends with this thread."""
    command = f"from {__name__} import compile_part; compile_part({part}, {os.getpid()})"
    return subprocess.Popen(  # noqa: S603 - this package's own
        [sys.executable, "-c", command], stdin=subprocess.DEVNULL, env={**os.environ, _THREADS: "1"}
    )


def compile_part(part: int, parent: int) -> None:
    """Compile one of `PARTS` of this package's code into the cache, where the process ``parent`` waits for that."""
    os.nice(NICE)
    confine(parent, _PART_BYTES, _PART_CPU_S, _FILE_BYTES)
    from tensorwasm.guest.native import compiled  # noqa: PLC0415 - it imports Numba

    fields = tuple(compiled.SOURCES)
    compiled.compile_sources(fields[_LONGEST_FIELDS:] if part == 0 else fields[:_LONGEST_FIELDS])
    if part == 0:
        for make in (
            compiled.make_suspension_code,
            compiled.make_callbacks,
            compiled.make_oneshot_fiber,
            compiled.make_oneshot,
        ):
            make()
    if compiled.not_kept:
        raise compiled.not_kept[0]
