"""Streams of guests: the chunks of one that runs (`Channel`, `GuestStream`), and how recent ones ended."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

from tensorwasm.errors import DeviceLost, GuestError, GuestTrap, InternalError, InvokeTimeout, NotFound
from tensorwasm.runtime.invoke.invocation import Invocation, await_outcome
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.runtime.invoke.invocation import Listener, OutputName, PendingInvocation

DEPTH: Final = 32
"""Most chunks that wait to be taken; the guest blocks while there are so many."""

KEPT_S: Final = 600.0
"""Seconds that an outcome is kept."""

KEPT: Final = 256
"""Outcomes kept of one tenant."""

TENANTS: Final = 4096
"""Tenants of which outcomes are kept; beyond that those of the tenants whose last stream is oldest are dropped."""

ALL: Final = 20_000
"""Outcomes kept of all tenants; beyond that they are dropped likewise."""

Status = Literal["running", "done", "error"]


class Channel:
    """A bounded queue of chunks from one thread to one coroutine, made on the running event loop.

    The guest's thread calls `put`, any thread `close` and `end`, and the event loop `take`. A guest that blocks is
    ended at the deadline.
    """

    def __init__(self, deadline: Deadline, depth: int = DEPTH) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._chunks: deque[bytes] = deque()
        self._free = threading.Semaphore(depth)
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._ended = False

    def put(self, chunk: bytes) -> bool:
        """Add a chunk; blocks while the channel is full, at most until the deadline. Return False once it is closed."""
        left_s = self._deadline.remaining_s()
        if not self._free.acquire(timeout=None if math.isinf(left_s) else left_s) and not self._closed:
            raise InvokeTimeout("the deadline passed while the guest's output was not read")
        if self._closed:
            self._free.release()  # the next put must not block either
            return False
        self._chunks.append(chunk)
        if self._waiter is not None:
            self._call(self._wake)
        return True

    def close(self) -> None:
        """Accept no more chunks, and unblock the guest."""
        self._closed = True
        self._free.release()

    def end(self) -> None:
        """Mark the end of the chunks. To be called after the last `put`."""
        self._call(self._end)

    async def take(self) -> bytes | None:
        """Return the next chunk, None after the last."""
        while not self._chunks:
            if self._ended:
                return None
            waiter = self._waiter = self._loop.create_future()
            if self._chunks:  # it was added before the waiter was visible
                self._waiter = None
                break
            try:
                await waiter
            finally:
                self._waiter = None
        chunk = self._chunks.popleft()
        self._free.release()
        return chunk

    def _end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _call(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nothing waits any more
            self._loop.call_soon_threadsafe(function)


class CapturedOutput:
    """Standard output and error of a streamed guest in a worker, `max_bytes` of each, for its outcome."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._written = {"stdout": bytearray(), "stderr": bytearray()}

    def listener(self, channel: Channel) -> Listener:
        """Return a listener that captures output and puts chunks into a channel."""

        def listen(name: OutputName, data: bytes) -> bool:
            if name == "chunk":
                return channel.put(data)
            kept = self._written[name]
            kept += data[: self._max_bytes - len(kept)]
            return True

        return listen

    def complete(self, outcome: Invocation) -> Invocation:
        """Return an outcome with the captured output."""
        out, err = (bytes(self._written[name]) for name in ("stdout", "stderr"))
        return outcome._replace(stdout=outcome.stdout or out, stderr=outcome.stderr or err)

    def add_to(self, error: GuestError | DeviceLost) -> None:
        """Add the captured output to the error that ended the guest."""
        error.stdout = error.stdout or bytes(self._written["stdout"])
        error.stderr = error.stderr or bytes(self._written["stderr"])


class GuestStream:
    """An asynchronous iterator of a running guest's chunks, and its outcome. For one coroutine.

    Args:
        channel: receives the guest's chunks.
        pending: the guest's invocation.
        output: what it wrote besides.
        count: called for each chunk that is taken.
    """

    def __init__(
        self, channel: Channel, pending: PendingInvocation, output: CapturedOutput, count: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._pending = pending
        self._output = output
        self._count = count
        self.sent_bytes = 0
        pending.add_done_callback(lambda _: channel.end())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Wait for the next chunk, and return it as the guest sent it."""
        chunk = await self._channel.take()
        if chunk is None:
            raise StopAsyncIteration
        self.sent_bytes += len(chunk)
        self._count()
        return chunk

    @property
    def outcome(self) -> Invocation:
        """The guest's result, after the last chunk; raises the guest's error, or InternalError while it still runs."""
        if not self._pending.done():
            raise InternalError("the guest has not ended")
        if self._pending.cancelled():
            raise GuestTrap("the guest was ended because its output was no longer read", "cancelled")
        try:
            return self._output.complete(self._pending.result())
        except (GuestError, DeviceLost) as error:
            self._output.add_to(error)
            raise

    @property
    def result(self) -> Invocation | BaseException | None:
        """The guest's result without its output, or its error; None if it was cancelled or has not ended."""
        if not self._pending.done() or self._pending.cancelled():
            return None
        return self._pending.exception() or self._pending.result()

    async def leave(self) -> None:
        """Stop reading, end the guest, and wait until it has ended."""
        self._channel.close()
        if not self._pending.done():
            self._pending.stop()
            await asyncio.shield(asyncio.gather(await_outcome(self._pending), return_exceptions=True))


@dataclass(frozen=True, slots=True)
class StreamEnding:
    """How the stream of a request (UUID) ended, or that it still runs; reason is the error's kind, or empty."""

    request_id: str
    reference: str
    status: Status
    reason: str = ""
    message: str = ""


class StreamEndings:
    """Recent outcomes, for clients that lost their connection before the end. For one event loop."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._tenants: OrderedDict[int, OrderedDict[str, tuple[float, StreamEnding]]] = OrderedDict()
        self._count = 0

    def put(self, tenant: int, outcome: StreamEnding) -> None:
        """Keep an outcome, instead of an earlier one of the same request."""
        kept = self._tenants.setdefault(tenant, OrderedDict())
        self._tenants.move_to_end(tenant)
        self._count += outcome.request_id not in kept
        kept.pop(outcome.request_id, None)
        kept[outcome.request_id] = self._clock_s() + KEPT_S, outcome
        if len(kept) > KEPT:
            kept.popitem(last=False)
            self._count -= 1
        while len(self._tenants) > TENANTS or self._count > ALL:
            self._count -= len(self._tenants.popitem(last=False)[1])

    def get(self, tenant: int, request_id: str) -> StreamEnding:
        """Return the outcome of a tenant's stream; raise NotFound if the tenant had no such stream lately."""
        kept = self._tenants.get(tenant)
        found = kept.get(request_id) if kept is not None else None
        if found is None or found[0] <= self._clock_s():
            raise NotFound("there was no such stream lately")
        return found[1]
