"""`ParentLink`: a worker's end of the socket to its parent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Final

from tensorwasm.runtime.workers.frames import TO_WORKER, Frame, Splitter, encode

_READ_BYTES: Final = 256 << 10


class ParentLink:
    """The worker's end of the socket. Any thread may send; one reads."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()

    def send(self, frame: Frame) -> None:
        """Send a frame, waiting for the parent to take it.

        Raises:
            OSError: the parent has gone.
            BrokenFrame: the frame is too long for its kind.
        """
        data = encode(frame)
        with self._lock:
            self._link.sendall(data)

    def receive(self) -> Iterator[Frame]:
        """Yield what the parent says, until it has gone.

        Raises:
            BrokenFrame: it is no parent of this release.
        """
        splitter = Splitter(TO_WORKER)
        while data := self._link.recv(_READ_BYTES):
            yield from splitter.feed(data)
