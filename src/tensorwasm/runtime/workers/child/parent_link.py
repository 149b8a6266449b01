"""The worker's end of the socket: frames to and from the parent, and how much output may be under way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tensorwasm.errors import InvokeTimeout
from tensorwasm.runtime.workers.frames import TO_WORKER, WINDOW, Splitter, WorkerFrame, encode
from tensorwasm.values import Deadline

_READ_BYTES: Final = 256 << 10


class ParentLink:
    """The worker's end of the socket. Any thread may send; one reads."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()

    def send(self, frame: WorkerFrame) -> None:
        """Send a frame, blocking until the parent takes it. Raises `OSError` if it has gone, or takes nothing."""
        data = encode(frame)
        with self._lock:
            try:
                self._link.sendall(data)
            except OSError:
                self._shut()  # a part may have been sent, so nothing can follow it
                raise

    def close(self) -> None:
        """End the connection; `send` fails from now on."""
        self._shut()  # a blocked sender fails now, and releases the lock
        with self._lock:
            self._link.close()

    def _shut(self) -> None:
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def receive(self) -> Iterator[WorkerFrame]:
        """Yield the parent's frames, until it has gone. Raises `BrokenFrame` if it is no parent of this release."""
        splitter = Splitter(TO_WORKER)
        while data := self._link.recv(_READ_BYTES):
            yield from splitter.feed(data)


class OutputWindow:
    """Parts of a call's output that may be sent before the parent has taken any, until a deadline. Thread-safe."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._room = threading.Semaphore(WINDOW)
        self._closed = False

    def take(self) -> bool:
        """Wait until a part may be sent; return whether it is still wanted, or raise `InvokeTimeout`."""
        left_s = min(self._deadline.remaining_s(), threading.TIMEOUT_MAX / 2)  # an acquire adds it to the time
        if not self._room.acquire(timeout=left_s) and not self._closed:
            raise InvokeTimeout("the deadline passed while the guest's output was not read")
        if self._closed:
            self._room.release()  # nor does the next one wait
        return not self._closed

    def add(self, parts: int) -> None:
        """Let so many more parts be sent."""
        self._room.release(parts)

    def close(self) -> None:
        """Note that no more parts are wanted."""
        self._closed = True
        self._room.release()
