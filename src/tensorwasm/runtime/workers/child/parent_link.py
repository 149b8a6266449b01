"""The worker's end of the socket: frames to and from the parent, and how much output may be under way."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tensorwasm.errors import InvokeTimeout
from tensorwasm.runtime.workers.frames import WINDOW, WorkerFrame
from tensorwasm.runtime.workers.wire import TO_WORKER, Splitter, encode
from tensorwasm.values import Deadline

_READ_BYTES: Final = 64 << 10  # more would be a mapping of its own for each read


class ParentLink:
    """The worker's end of a socket. Any thread may send; one at a time reads.

    Attributes:
        socket: the socket itself, which blocks.
        stalled: what was posted is not sent before `drain`, because the other side does not take it.
    """

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self.stalled = False
        self._lock = threading.Lock()
        self._posted: deque[bytes] = deque()
        self._splitter = Splitter(TO_WORKER)

    def send(self, frame: WorkerFrame) -> None:
        """Send a frame, blocking until the parent takes it. Raises `OSError` if it has gone, or takes nothing."""
        self.send_encoded(encode(frame))

    def send_encoded(self, data: bytes) -> None:
        """Do the same with encoded frames, after all that was posted before."""
        with self._lock:
            try:
                self.socket.sendall(self._take_posted() + data)
            except OSError:
                self._shut()  # a part may have been sent, so nothing can follow it
                raise
        self._flush()

    def post(self, data: bytes) -> bool:
        """Send encoded frames without waiting; return whether the other side takes them: if not, call `drain`."""
        self._posted.append(data)
        return self._flush()

    def drain(self) -> None:
        """Send what was posted, blocking until the parent takes it, unless it has gone."""
        with self._lock:
            try:
                self.socket.sendall(self._take_posted())
            except OSError:
                self._shut()
            self.stalled = False
        self._flush()

    def _flush(self) -> bool:
        """Send what was posted as far as that needs no waiting. Who holds the lock does so after releasing it."""
        while self._posted and not self.stalled and self._lock.acquire(blocking=False):
            try:
                data = self._take_posted()
                sent = self._try_send(data)
                if sent < len(data):
                    self._posted.appendleft(data[sent:])
                    self.stalled = True
            finally:
                self._lock.release()
        return not self.stalled

    def _try_send(self, data: bytes) -> int:
        try:
            return self.socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self._shut()
            return len(data)  # nobody will take it

    def _take_posted(self) -> bytes:
        taken = []
        while self._posted:
            taken.append(self._posted.popleft())
        return b"".join(taken)

    def close(self) -> None:
        """End the connection; `send` fails from now on."""
        self._shut()  # a blocked sender fails now, and releases the lock
        with self._lock:
            self.socket.close()

    def _shut(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def read(self, *, wait: bool = False) -> Iterator[WorkerFrame] | None:
        """Return the frames that have come, none or more; None if the other side has gone.

        Taking them raises `BrokenFrame` where it is no parent of this release.
        """
        try:
            data = self.socket.recv(_READ_BYTES, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return iter(())
        return self._splitter.feed(data) if data else None


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
