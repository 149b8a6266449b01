"""Whether there are compiled host functions here, found out when a guest is first granted a GPU."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

from tensorwasm.guest.native.environment import NO_ENTRIES, Entries, Passage
from tensorwasm.guest.suspension import WaitingCode

_log = logging.getLogger(__name__)
_lock = threading.Lock()


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
    """Return what lets guests run as fibers, None where Numba is missing or fails. Imports Numba.

    Blocks, the first time, likewise.
    """
    with _lock:
        return _load_waiting()


def load_visit() -> Callable[[int], int] | None:
    """Return compiled code that does what a `tensorwasm.guest.native.order.Order` says, given its address.

    It drops the GIL, and raises what Python raised where nobody could catch it. None where Numba is missing, fails, or
    was not needed by anything before: a sandbox without a GPU is not worth the half second that importing it takes.
    """
    return _load_visit() if "numba" in sys.modules else None


@cache
def _load_visit() -> Callable[[int], int] | None:
    with _lock:
        if not _load():
            return None
        from tensorwasm.guest.native import visits  # noqa: PLC0415 - Numba is imported by those who need it

        return ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(visits.make_visit())


@cache
def load_voyage() -> tuple[Callable[[int], int], Callable[[int], int]] | None:
    """Return compiled code that does on a fiber what an order says, given its address: the GIL dropped, and kept.

    None where Numba is missing or fails. Imports Numba, and blocks like `load_code`.
    """
    with _lock:
        if _load_waiting() is None:
            return None
        from tensorwasm.guest.native import voyages  # noqa: PLC0415 - Numba is imported by those who need it

        address = voyages.make_voyage()
    dropping, keeping = (
        ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64),
        ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64),
    )
    return dropping(address), keeping(address)


def load_passage() -> Passage | None:
    """Return compiled code that calls Python, None where Numba is missing or fails. Imports Numba."""
    with _lock:
        return _load_passage() if _load() else None


@cache
def _load_passage() -> Passage:
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
