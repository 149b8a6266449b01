"""`GuestStream`: what a guest sends while it runs, and then what came of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from tensorwasm.errors import DeviceLost, GuestError, GuestTrap, InternalError
from tensorwasm.runtime.invoke.invocation import Invocation, await_outcome
from tensorwasm.service.invocations.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwasm.runtime.invoke.invocation import Listener, OutputName, PendingInvocation


class Gathered:
    """Standard output and error of a guest that a listener takes, kept for its outcome.

    Args:
        most_bytes: of each; what a guest writes beyond that is dropped.
    """

    def __init__(self, most_bytes: int) -> None:
        """Begin with nothing."""
        self._most_bytes = most_bytes
        self._written = {"stdout": bytearray(), "stderr": bytearray()}

    def listener(self, channel: Channel) -> Listener:
        """Return what takes a guest's output: its chunks go into a channel, and wait there for room."""

        def listen(name: OutputName, data: bytes) -> bool:
            if name == "chunk":
                return channel.put(data)
            kept = self._written[name]
            kept += data[: self._most_bytes - len(kept)]
            return True

        return listen

    def complete(self, outcome: Invocation) -> Invocation:
        """Return an outcome with what was written put in."""
        out, err = (bytes(self._written[name]) for name in ("stdout", "stderr"))
        return outcome._replace(stdout=outcome.stdout or out, stderr=outcome.stderr or err)

    def add_to(self, error: GuestError | DeviceLost) -> None:
        """Put what was written into the error that ended the guest, which has it only where nobody listened."""
        error.stdout = error.stdout or bytes(self._written["stdout"])
        error.stderr = error.stderr or bytes(self._written["stderr"])


class GuestStream:
    """An asynchronous iterator of chunks, and the outcome after the last. For one coroutine."""

    def __init__(
        self, channel: Channel, ticket: PendingInvocation, gathered: Gathered, count: Callable[[], None]
    ) -> None:
        """Listen to a guest that runs.

        Args:
            channel: that the guest sends to.
            ticket: of the guest.
            gathered: what it wrote besides.
            count: called for each chunk that is taken.
        """
        self._channel = channel
        self._ticket = ticket
        self._gathered = gathered
        self._count = count
        self.sent_bytes = 0
        ticket.add_done_callback(lambda _: channel.end())

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk, exactly as the guest sent it; waits for it."""
        chunk = await self._channel.take()
        if chunk is None:
            raise StopAsyncIteration
        self.sent_bytes += len(chunk)
        self._count()
        return chunk

    @property
    def outcome(self) -> Invocation:
        """What came of the guest, once all chunks were taken.

        Raises:
            InternalError: it still runs.
            TensorWasmError: how it ended, if not well.
        """
        if not self._ticket.done():
            raise InternalError("the guest has not ended")
        if self._ticket.cancelled():
            raise GuestTrap("the guest was ended because nobody listened", "cancelled")
        try:
            return self._gathered.complete(self._ticket.result())
        except (GuestError, DeviceLost) as error:
            self._gathered.add_to(error)
            raise

    @property
    def result(self) -> Invocation | None:
        """What came of the guest; None if it failed or has not ended."""
        if not self._ticket.done() or self._ticket.cancelled() or self._ticket.exception() is not None:
            return None
        return self._ticket.result()

    async def leave(self) -> None:
        """Listen no more: end the guest, and wait until it has ended."""
        self._channel.close()
        if not self._ticket.done():
            self._ticket.stop()
            await asyncio.shield(asyncio.gather(await_outcome(self._ticket), return_exceptions=True))
