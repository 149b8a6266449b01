"""Where notifications of ended work arrive, from any thread, and how they wake the thread that waits for them.

A device calls the compiled `complete` with the address of a pad's `Wait`: it puts that on a list without a lock, and
writes to an eventfd if the list was empty, so that one wake serves many. Nobody polls.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Callable, Iterator
from typing import Final

from tensorwasm.errors import InternalError
from tensorwasm.gpu.native.layout import Wait
from tensorwasm.guest.imports.suspension import Mailbox, WaitingCode

_libc: Final = ctypes.CDLL(None)
_idle: Final[list[CompletionQueue]] = []
"""Inboxes that nobody waits at. Descriptors are never closed: whoever has put something on a list, which may be found
there at once, has yet to write; and in the place of a closed descriptor there could be anything."""
_LONGEST_S: Final = 86_400.0
"""epoll counts milliseconds in an int, 24 days of them."""
_owed: Final[list[CompletionQueue]] = []
"""Inboxes to which notifications are still to come."""


class CompletionQueue:
    """A mailbox and the thread that waits at it. `wake` and `complete` are for any thread, the rest for that one.

    Attributes:
        wakes: how often the thread was woken.
    """

    def __init__(self, code: WaitingCode) -> None:
        """Open the descriptors.

        Args:
            code: the compiled functions.

        Raises:
            InternalError: the system has no descriptor left.
        """
        try:
            self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._epoll = select.epoll()
        except OSError as error:
            raise InternalError(f"nothing to wait at: {error.strerror}") from error
        self._epoll.register(self._descriptor, select.EPOLLIN)
        self._mailbox = Mailbox(
            write=ctypes.cast(_libc.write, ctypes.c_void_p).value or 0, descriptor=self._descriptor, one=1
        )
        self._take: Callable[[int], int] = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(code.take)
        self.address = ctypes.addressof(self._mailbox)
        self.wakes = 0

    @classmethod
    def open(cls, code: WaitingCode) -> CompletionQueue:
        """Return an inbox for one thread to wait at; a wake that was meant for the one before may still come.

        Raises:
            InternalError: the system has no descriptor left.
        """
        try:
            inbox = _idle.pop()
        except IndexError:
            return cls(code)
        inbox.wakes = 0
        return inbox

    def wake(self) -> None:
        """Have `wait` return, now or when it is called next."""
        os.eventfd_write(self._descriptor, 1)

    def wait(self, seconds: float | None) -> None:
        """Wait until something arrives.

        Args:
            seconds: at most, and never more than a day; None for ever, 0 only looks.
        """
        if self._epoll.poll(seconds if seconds is None else min(seconds, _LONGEST_S)):
            os.eventfd_read(self._descriptor)
            self.wakes += 1

    def take(self) -> Iterator[int]:
        """Return the addresses that arrived since the last time, in order."""
        found = []
        address = self._take(self.address)
        while address:
            found.append(address)
            address = Wait.from_address(address).next
        return reversed(found)

    def close(self, outstanding: int) -> None:
        """Leave it for another, unless notifications are still to come, so many."""
        (_owed if outstanding else _idle).append(self)
