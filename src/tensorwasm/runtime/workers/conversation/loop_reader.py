"""`LoopReader`: has an event loop read the connections to worker processes.

Another thread would have to be woken for each answer, and to wake the loop in turn: two changes of thread, each of
which waits for the GIL while the loop is busy.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable


class LoopReader:
    """Reads connections on the thread of the running event loop, on which it is made and closed.

    Attributes:
        closed: nothing is read any more.
    """

    def __init__(self) -> None:
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._links: set[socket.socket] = set()
        self._due: list[Callable[[], object]] = []

    @property
    def here(self) -> bool:
        """Whether the calling thread is the loop's, and it reads."""
        return threading.get_ident() == self._thread and not self.closed

    def watch(self, link: socket.socket, read: Callable[[], bool]) -> bool:
        """Have a function called whenever a connection can be read, until it returns False. From any thread.

        The connection may be closed meanwhile: the loop has a descriptor of its own.

        Returns:
            Whether that will be done: not once this or its loop is closed.
        """
        own = link.dup()
        try:
            self._loop.call_soon_threadsafe(self._add, own, read)
        except RuntimeError:  # the loop is closed
            own.close()
            return False
        return True

    def soon(self, work: Callable[[], object]) -> None:
        """Have a function called at the loop's next turn, once for however many calls of this. On the loop's thread."""
        if work not in self._due:
            if not self._due:
                self._loop.call_soon(self._run_due)
            self._due.append(work)

    def _run_due(self) -> None:
        due, self._due = self._due, []
        for work in due:
            work()

    def _add(self, own: socket.socket, read: Callable[[], bool]) -> None:
        if self.closed:
            own.close()
            return
        self._links.add(own)
        self._loop.add_reader(own, self._read, own, read)

    def _read(self, own: socket.socket, read: Callable[[], bool]) -> None:
        if own in self._links and not read():
            self._drop(own)

    def _drop(self, own: socket.socket) -> None:
        self._links.discard(own)
        self._loop.remove_reader(own)
        own.close()

    def close(self) -> None:
        """Read nothing more; what is still said is read by the threads that hold the conversations."""
        self.closed = True
        for own in tuple(self._links):
            self._drop(own)
