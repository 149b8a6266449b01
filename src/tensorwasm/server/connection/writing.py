"""`GatheringWriter`: what is sent to one client; answers of one turn of the event loop leave together."""

from __future__ import annotations

import asyncio
from typing import Any


class GatheringWriter(asyncio.Protocol):
    """The writing half of a connection.

    Attributes:
        closed: whether nothing can be sent any more.
        stalled: whether the client does not take what was written.
    """

    __slots__ = ("_output", "_transport", "_waiters", "closed", "stalled")

    def __init__(self) -> None:
        """Have nothing to send."""
        self._transport: Any = None
        self._output: list[bytes] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.closed = self.stalled = False

    def write(self, data: bytes) -> None:
        """Send data, without waiting for the client."""
        if self._output is not None:
            self._output.append(data)
        elif not self.closed:
            self._transport.write(data)

    async def drain(self) -> bool:
        """Wait until the client has taken most of what was written; return False if it has left."""
        self.flush()
        while self.stalled and not self.closed:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return not self.closed

    def release(self) -> None:
        """Send what was gathered, and gather no more."""
        output, self._output = self._output, None
        if output and not self.closed:
            self._transport.write(output[0] if len(output) == 1 else b"".join(output))

    def flush(self) -> None:
        """Send what was gathered so far."""
        if self._output:
            output, self._output = self._output, []
            if not self.closed:
                self._transport.write(b"".join(output))

    def wake(self) -> None:
        """Let those go on that wait in `drain`."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
