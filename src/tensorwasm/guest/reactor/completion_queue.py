"""Where notifications of ended work arrive, from any thread, and how they wake the reactor's thread.

A device calls the compiled `complete` with the address of a session layout's `Wait`: it puts that on a lock-free list,
and writes to an eventfd if the list was empty, so that one wake serves many.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Callable, Iterator
from typing import Final

from tensorwasm.errors import InternalError
from tensorwasm.gpu.native.layout import Wait
from tensorwasm.guest.imports.suspension import CompletionList, SuspensionCode

_libc: Final = ctypes.CDLL(None)
_idle: Final[list[CompletionQueue]] = []
"""Unused queues. Descriptors are never closed: a notifier may write after its entry was taken."""
_LONGEST_S: Final = 86_400.0
"""epoll counts milliseconds in an int, 24 days of them."""
_owed: Final[list[CompletionQueue]] = []
"""Closed queues to which notifications are still to come."""


class CompletionQueue:
    """A `CompletionList` at ``address``, and the thread that waits at it; `wake` is for any thread."""

    def __init__(self, code: SuspensionCode) -> None:
        """Open the descriptors; raise `InternalError` if the system has none left."""
        try:
            self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._epoll = select.epoll()
        except OSError as error:
            raise InternalError(f"no completion queue: {error.strerror}") from error
        self._epoll.register(self._descriptor, select.EPOLLIN)
        self._list = CompletionList(
            write=ctypes.cast(_libc.write, ctypes.c_void_p).value or 0, descriptor=self._descriptor, one=1
        )
        self._take: Callable[[int], int] = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(code.take)
        self.address = ctypes.addressof(self._list)
        self.wakes = 0

    @classmethod
    def open(cls, code: SuspensionCode) -> CompletionQueue:
        """Return a new or unused queue; a wake that was meant for the previous owner may still come."""
        try:
            queue = _idle.pop()
        except IndexError:
            return cls(code)
        queue.wakes = 0
        return queue

    def wake(self) -> None:
        """Make `wait` return, now or when it is called next."""
        os.eventfd_write(self._descriptor, 1)

    def wait(self, seconds: float | None) -> None:
        """Wait until something arrives: at most so long and at most a day, without a limit if None."""
        if self._epoll.poll(seconds if seconds is None else min(seconds, _LONGEST_S)):
            os.eventfd_read(self._descriptor)
            self.wakes += 1

    def take(self) -> Iterator[int]:
        """Return the addresses that arrived since the last call, in order."""
        found = []
        address = self._take(self.address)
        while address:
            found.append(address)
            address = Wait.from_address(address).next
        return reversed(found)

    def close(self, outstanding: int) -> None:
        """Keep the queue for reuse, unless so many notifications are still to come."""
        (_owed if outstanding else _idle).append(self)
