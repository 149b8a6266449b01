"""Whether there are compiled host functions here, found out when a guest is first granted a GPU."""

from __future__ import annotations

import ctypes
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from typing import Final

from tensorwasm.guest.imports.suspension import WaitingCode
from tensorwasm.guest.native.environment import NO_ENTRIES, Entries, PythonCallbacks

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_early = threading.Event()
"""Set while `begin_loading` has all of it loaded: what has a fallback in Python takes that meanwhile."""
_FULL: Final = "full"
"""Name of an empty file in the cache's folder, there once all parts have been compiled."""
_PR_SET_PDEATHSIG: Final = 1
PARTS: Final = 2
"""Processes that fill an empty cache side by side."""


def load_entries() -> Entries:
    """Return the compiled host functions of this process; none where Numba is missing or fails. Imports Numba.

    Blocks, the first time: about half a second if they have been compiled before, up to ten if not.
    """
    with _lock:
        return _load()


def may_have_fibers() -> bool:
    """Return whether guests may run as fibers here, as far as one knows without importing Numba."""
    return sys.platform == "linux" and find_spec("numba") is not None


def load_code() -> WaitingCode | None:
    """Return what lets guests run as fibers; None where Numba is missing or fails, and while `is_early`. Imports Numba.

    Blocks, the first time, likewise.
    """
    if _early.is_set():
        return None
    with _lock:
        return _load_waiting()


def is_early() -> bool:
    """Return whether compiled code is being loaded for all: then nothing is kept that was made without it."""
    return _early.is_set()


def load_visit() -> Callable[[int], int] | None:
    """Return compiled code that runs a `CallDescriptor`, given its address.

    It drops the GIL, and raises what Python raised where nobody could catch it. None where Numba is missing, fails, or
    was not needed by anything before: a sandbox without a GPU is not worth the half second that importing it takes.
    None while `is_early`, too.
    """
    return _load_visit() if "numba" in sys.modules and not _early.is_set() else None


@cache
def _load_visit() -> Callable[[int], int] | None:
    with _lock:
        if not _load():
            return None
        from tensorwasm.guest.native import oneshot  # noqa: PLC0415 - Numba is imported by those who need it

        return ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(oneshot.make_visit())


@cache
def load_voyage() -> tuple[Callable[[int], int], Callable[[int], int]] | None:
    """Return compiled code that does on a fiber what an order says, given its address: the GIL dropped, and kept.

    None where Numba is missing or fails. Imports Numba, and blocks like `load_code`.
    """
    with _lock:
        if _load_waiting() is None:
            return None
        from tensorwasm.guest.native import oneshot_fiber  # noqa: PLC0415 - Numba is imported by those who need it

        address = oneshot_fiber.make_voyage()
    dropping, keeping = (
        ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64),
        ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64),
    )
    return dropping(address), keeping(address)


def begin_loading() -> Callable[[], None]:
    """Have nothing wait for compiled code from now on, until the function that is returned has loaded all of it.

    That is compiled in other processes first, where it never was: compiling here would hold the GIL. The function
    blocks for a second, or up to a dozen where nothing was compiled before.
    """
    if not may_have_fibers():
        return lambda: None
    _early.set()
    return _load_all


def _load_all() -> None:
    try:
        with _lock:
            _fill_cache()
            _load_waiting()
            _load()
        load_passage()
        load_voyage()
        _load_visit()
    finally:
        _early.clear()


def _fill_cache() -> None:
    """Have other processes compile everything, unless some have."""
    try:
        from tensorwasm.guest.native import compiled  # noqa: PLC0415 - Numba is imported by those who need it

        folder = compiled.open_cache()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a compiler, what needs it says so itself
        _log.debug("nothing is compiled in advance: %s", error)
        return
    if folder is None or (folder / _FULL).exists():
        return
    with ExitStack() as children:
        made = [children.enter_context(_start_part(part)) for part in range(PARTS)]
    if not any(child.returncode for child in made):
        (folder / _FULL).touch(mode=0o600)


def _start_part(part: int) -> subprocess.Popen[bytes]:
    """Start a process that compiles a part, and ends with this thread."""
    command = f"from {__name__} import compile_part; compile_part({part})"
    return subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.DEVNULL)  # noqa: S603 - this package's own


def compile_part(part: int) -> None:
    """Compile one of `PARTS` of all that is compiled in this package, or find that the cache has it. Imports Numba."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    from tensorwasm.guest.native import compiled, oneshot, oneshot_fiber, waiting  # noqa: PLC0415 - as above

    fields, half = tuple(compiled.SOURCES), 4  # the longest four take as long as all others
    if part:
        compiled.compile_sources(fields[:half])
        return
    compiled.compile_sources(fields[half:])
    waiting.make_code()
    compiled.make_passage()
    oneshot_fiber.make_voyage()
    oneshot.make_visit()


def load_passage() -> PythonCallbacks | None:
    """Return compiled code that calls Python, None where Numba is missing or fails. Imports Numba."""
    with _lock:
        return _load_passage() if _load() else None


@cache
def _load_passage() -> PythonCallbacks:
    from tensorwasm.guest.native import compiled  # noqa: PLC0415 - Numba is imported by those who need it

    return compiled.make_passage()


@cache
def _load_waiting() -> WaitingCode | None:
    if not may_have_fibers():
        _log.warning("no fibers without Numba: guests that are submitted hold threads")
        return None
    try:
        from tensorwasm.guest.native import waiting  # noqa: PLC0415 - Numba is imported by those who need it

        return waiting.make_code()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a compiler, threads do the same work
        _log.warning("no fibers, guests that are submitted hold threads: %s: %s", type(error).__name__, error)
        return None


@cache
def _load() -> Entries:
    if sys.platform != "linux":
        return NO_ENTRIES
    try:
        from tensorwasm.guest.native import compiled  # noqa: PLC0415 - Numba is imported by those who need it

        return compiled.make_entries()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a compiler, Python does the same work
        _log.warning("no compiled host functions, Python does their work: %s: %s", type(error).__name__, error)
        return NO_ENTRIES
