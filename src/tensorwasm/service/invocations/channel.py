"""`Channel`: chunks on their way from a guest's thread to an event loop, a bounded number of them."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from contextlib import suppress
from typing import Final

from tensorwasm.errors import InvokeTimeout
from tensorwasm.values import Deadline

DEPTH: Final = 32
"""Chunks that wait to be taken; with so many the guest waits."""


class Channel:
    """Chunks from one thread to one coroutine.

    `put` is the guest's thread's, `close` anybody's, and the rest the event loop's.

    Args:
        deadline: when a guest that waits is ended.
        depth: most chunks that wait.
    """

    def __init__(self, deadline: Deadline, depth: int = DEPTH) -> None:
        """Begin empty and open, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._chunks: deque[bytes] = deque()
        self._room = threading.Semaphore(depth)
        self._bell: asyncio.Future[None] | None = None
        self._closed = False
        self._ended = False

    def put(self, chunk: bytes) -> bool:
        """Hand a chunk over; waits while there is no room. Returns whether anybody still takes it.

        Raises:
            InvokeTimeout: the deadline passed meanwhile.
        """
        left_s = self._deadline.remaining_s()
        if not self._room.acquire(timeout=None if math.isinf(left_s) else left_s) and not self._closed:
            raise InvokeTimeout("the deadline passed while nobody took what the guest had sent")
        if self._closed:
            self._room.release()  # nor does the next one wait
            return False
        self._chunks.append(chunk)
        if self._bell is not None:
            self._call(self._ring)
        return True

    def close(self) -> None:
        """Take no more: the guest's next chunk finds nobody, and one that waits to be taken does not wait any more."""
        self._closed = True
        self._room.release()

    def end(self) -> None:
        """Say that nothing more comes. For any thread, after the last `put`."""
        self._call(self._end)

    async def take(self) -> bytes | None:
        """Return the next chunk, None once all were taken and nothing more comes."""
        while not self._chunks:
            if self._ended:
                return None
            bell = self._bell = self._loop.create_future()
            if self._chunks:  # it came before the bell was there
                self._bell = None
                break
            try:
                await bell
            finally:
                self._bell = None
        chunk = self._chunks.popleft()
        self._room.release()
        return chunk

    def _end(self) -> None:
        self._ended = True
        self._ring()

    def _ring(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    def _call(self, function: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function)  # type: ignore[arg-type]
