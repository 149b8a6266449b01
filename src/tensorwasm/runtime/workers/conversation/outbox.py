"""Frames on their way: in parts, in order, and encoded as they are sent."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable, Iterator

from tensorwasm.runtime.workers.frames import PART_BYTES, BlobFrame, BlobPartFrame, WorkerFrame
from tensorwasm.runtime.workers.wire import encode


class Outbox:
    """Frames on their way to a process. Large ones are encoded as they are sent, so that nothing is held twice."""

    def __init__(self) -> None:
        self._frames: deque[Iterator[WorkerFrame]] = deque()
        self._encoded = bytearray()

    @property
    def empty(self) -> bool:
        """Whether all was sent."""
        return not self._encoded and not self._frames

    @property
    def lazy(self) -> bool:
        """Whether frames wait that were not made yet."""
        return bool(self._frames)

    def put(self, frames: Iterable[WorkerFrame]) -> None:
        """Have frames sent, after those before; an iterator makes its own as they are sent."""
        self._frames.append(iter(frames))

    def add(self, frame: WorkerFrame) -> None:
        """Have a small frame sent, after those before."""
        if self._frames:
            self._frames.append(iter((frame,)))
        else:
            self._encoded += encode(frame)

    def flush(self, link: socket.socket) -> None:
        """Send what the socket takes now.

        Raises:
            OSError: the other side has gone.
        """
        while self._encoded or self._refill():
            try:
                sent = link.send(self._encoded)
            except BlockingIOError:
                return
            del self._encoded[:sent]

    def _refill(self) -> bool:
        while self._frames:
            frame = next(self._frames[0], None)
            if frame is not None:
                self._encoded += encode(frame)
                return True
            self._frames.popleft()
        return False


def send_blob(number: int, data: bytes) -> Iterator[WorkerFrame]:
    """Yield the frames of a blob."""
    yield BlobFrame(number, len(data))
    for part in split(data):
        yield BlobPartFrame(number, part)


def split(data: bytes) -> Iterator[bytes]:
    """Yield bytes in parts; nothing for no bytes."""
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]
