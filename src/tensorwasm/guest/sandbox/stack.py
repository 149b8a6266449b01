"""Checks whether the calling thread has native stack enough for a guest, whose calls use it too."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import reduce
from typing import Final

from tensorwasm.errors import CapacityExhausted, InternalError

_HOST_MARGIN_BYTES: Final = 256 << 10  # Python frames below the guest, host functions above it
_CALLBACK_FRAMES: Final = 12  # a callback, the handling of its error, and a signal handler on top
_ATTRIBUTE_BYTES: Final = 64  # pthread_attr_t is 56 bytes on 64-bit Linux, glibc and musl

ON_FIBER: Final = "a host function of a guest that runs as a fiber tried to run a guest itself"
"""Message of InternalError where `THREAD` is on a fiber's stack, which is large enough for its own guest only."""


class _Thread(threading.local):
    """The calling thread: whether it is on a fiber's stack, and the largest guest's stack that its own was checked for.

    `require_native` raises nothing where `fiber` is false and `bytes` is enough: callers on hot paths check that first.
    """

    fiber = False
    bytes = 0


THREAD: Final = _Thread()


def require(stack_bytes: int) -> None:
    """Refuse to run a guest that may use ``stack_bytes`` on a thread with less: an overflow would end the process.

    The stack is checked once per thread, on Linux only. Python frames are checked each time: a callback that cannot
    begin because of Python's recursion limit cannot report that to C.

    Raises:
        CapacityExhausted: the thread's stack is too small.
        InternalError: the thread is on a fiber's stack: a host function that a fiber called runs another guest.
        RecursionError: too few Python frames are left for callbacks.
    """
    _descend()
    require_native(stack_bytes)


def require_native(stack_bytes: int) -> None:
    """Do the same without the check of Python frames, for callbacks that can report that they could not begin."""
    if THREAD.fiber:
        raise InternalError(ON_FIBER)
    if THREAD.bytes >= stack_bytes:
        return
    size = _thread_stack_bytes()
    if 0 < size < stack_bytes + _HOST_MARGIN_BYTES:
        raise CapacityExhausted(
            f"this thread has a stack of {size >> 10} KiB and the guest may use {stack_bytes >> 10} KiB; run it on a "
            "thread with a larger stack (threading.stack_size) or lower the sandbox's stack limit"
        )
    THREAD.bytes = stack_bytes


def _calling(inner: Callable[[], None]) -> Callable[[], None]:
    return lambda: inner()  # noqa: PLW0108 - the frame is what it is for


def _nested(frames: int) -> Callable[[], None]:
    """Return a function that needs so many Python frames, for a third less than counting down."""
    return reduce(lambda inner, _: _calling(inner), range(frames), lambda: None)


_descend: Final = _nested(_CALLBACK_FRAMES)


def _thread_stack_bytes() -> int:
    """Return the size of this thread's native stack, 0 where it is unknown."""
    if _pthread is None:
        return 0
    attributes = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    if _pthread.pthread_getattr_np(_pthread.pthread_self(), attributes):
        return 0
    lowest, size = ctypes.c_void_p(), ctypes.c_size_t()
    failed = _pthread.pthread_attr_getstack(attributes, ctypes.byref(lowest), ctypes.byref(size))
    _pthread.pthread_attr_destroy(attributes)
    return 0 if failed else size.value


def _load_pthread() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.PyDLL(None)
        library.pthread_self.restype = ctypes.c_void_p
        library.pthread_getattr_np.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.pthread_attr_getstack.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        library.pthread_attr_destroy.argtypes = [ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return library


_pthread: Final = _load_pthread()
