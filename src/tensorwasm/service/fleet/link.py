"""`Link`: a connection between two processes that serve together; either asks, and the other answers.

A frame is four bytes of length, in network order, and a number and a message as MessagePack. An answer has the number
of what it answers, negated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final

import msgspec

from tensorwasm.errors import NotReady
from tensorwasm.service.fleet.messages import AnyMessage, Failed

READ_BYTES: Final = 1 << 20
_LENGTH_BYTES: Final = 4

Answer = Callable[[AnyMessage], Awaitable[AnyMessage]]
"""Does what a message says, and returns the answer; what it raises is logged, and told to the other side."""

_log = logging.getLogger(__name__)


class _Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    message: AnyMessage


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Frame).decode


class Link:
    """One end of a connection. For one event loop; `run` must be running for `ask` to be answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        self._reader, self._writer, self._answer = reader, writer, answer
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[AnyMessage]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self.closed = self._finishing = False

    async def ask(self, message: AnyMessage) -> Any:
        """Return the answer to a message; raise NotReady if the link ends before it comes, or it is `Failed`."""
        if self.closed:
            raise NotReady("the other process has ended")
        number = next(self._numbers)
        self._asked[number] = asked = asyncio.get_running_loop().create_future()
        try:
            self._send(number, message)
            found = await asked
        finally:
            del self._asked[number]
        if isinstance(found, Failed):
            raise NotReady(f"the other process failed: {found.reason}")
        return found

    async def run(self) -> None:
        """Take what the other side sends, until it or `close` ends the link."""
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES))
                self._take(_decode(await self._reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            _log.debug("the process at the other end has ended")
        except msgspec.MsgspecError as error:
            _log.error("a process that serves together with this one is not understood: %s", error)
        finally:
            self.close()

    async def finish(self) -> None:
        """Answer what was asked so far, and nothing more, and end the link."""
        self._finishing = True
        await asyncio.gather(*self._answering, return_exceptions=True)
        self.close()

    def close(self) -> None:
        """End the link; whoever waits for an answer is told. Idempotent."""
        if self.closed:
            return
        self.closed = True
        with suppress(RuntimeError):  # the event loop is closed already
            self._writer.close()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(NotReady("the other process has ended"))

    def _take(self, frame: _Frame) -> None:
        if frame.number < 0:
            asked = self._asked.get(-frame.number)
            if asked is not None and not asked.done():
                asked.set_result(frame.message)
            return
        if self._finishing:
            return
        task = asyncio.get_running_loop().create_task(self._reply(frame))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _reply(self, frame: _Frame) -> None:
        try:
            answer = await self._answer(frame.message)
        except Exception as error:  # noqa: BLE001 - the other side waits for an answer
            _log.exception("a message of another process was not handled")
            answer = Failed(type(error).__name__)
        if not self.closed:
            self._send(-frame.number, answer)

    def _send(self, number: int, message: AnyMessage) -> None:
        body = _encode(_Frame(number, message))
        self._writer.write(len(body).to_bytes(_LENGTH_BYTES) + body)
