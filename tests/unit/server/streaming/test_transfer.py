"""Streamed replies reach the client whole or are aborted, and end with it."""

from __future__ import annotations

import asyncio

import pytest

from fakes.wire import FakeWire
from tensorwasm.errors import InternalError, InvalidRequest
from tensorwasm.server.http.routing import StreamedReply, StreamEnd
from tensorwasm.server.streaming.transfer import send_streamed

HEADERS = [("x-request-id", "1")]


def streamed(pieces, ending=None, **more):
    async def send_all(send):
        for piece in pieces:
            if not await send(piece):
                return StreamEnd(whole=False)
        return ending or StreamEnd()

    return StreamedReply(send_all, "application/octet-stream", **more)


def test_pieces_headers_and_trailers_are_sent():
    async def story():
        wire = FakeWire()
        ending = StreamEnd((("X-Outcome", "done"),))
        await send_streamed(wire, 200, HEADERS, streamed([b"one", b"two"], ending, headers=(("a", "b"),)))
        assert (wire.status, wire.body, wire.trailers) == (200, b"onetwo", (("X-Outcome", "done"),))
        assert wire.headers.pairs == [*HEADERS, ("content-type", "application/octet-stream"), ("a", "b")]
        assert wire.ended

    asyncio.run(story())


def test_a_body_that_is_not_whole_is_aborted():
    async def story():
        wire = FakeWire()
        await send_streamed(wire, 200, HEADERS, streamed([b"some"], StreamEnd(whole=False)))
        assert not wire.ended
        assert wire.answered.is_set()

    asyncio.run(story())


def test_a_disconnect_ends_a_reply_that_waits_for_a_guest():
    async def story():
        wire, ended = FakeWire(), []

        async def send_all(send):
            try:
                await send(b"x")
                wire.leave()
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        await send_streamed(wire, 200, HEADERS, StreamedReply(send_all, "text/plain"))
        assert (ended, wire.ended) == ([True], False)
        await asyncio.sleep(0)  # nothing is left to cancel this

    asyncio.run(story())


def test_a_stop_of_the_server_ends_a_reply_too():
    async def story():
        wire, started = FakeWire(), asyncio.Event()

        async def send_all(send):
            await send(b"x")
            started.set()
            await asyncio.Event().wait()

        answering = asyncio.ensure_future(send_streamed(wire, 200, HEADERS, StreamedReply(send_all, "text/plain")))
        await started.wait()
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert not wire.ended

    asyncio.run(story())


@pytest.mark.parametrize("exact", [False, True])
def test_an_earlier_disconnect_is_no_error(exact):
    async def story():
        wire, took = FakeWire(), []
        wire.left = True

        async def send_all(send):
            took.append(await send(b"x"))
            return StreamEnd(whole=False)

        task = asyncio.ensure_future(send_streamed(wire, 200, HEADERS, StreamedReply(send_all, "a/b", exact=exact)))
        await task
        assert (took, wire.status) == ([False], None)

    asyncio.run(story())


def test_an_exact_ending_is_refused_where_it_cannot_be_expressed():
    async def story():
        wire, took = FakeWire(version="1.0"), []

        async def send_all(send):
            took.append(await send(b"x"))
            return StreamEnd(whole=False)

        with pytest.raises(InvalidRequest):
            await send_streamed(wire, 200, HEADERS, StreamedReply(send_all, "a/b", exact=True))
        assert took == [False]  # the guest was told that nobody listens
        assert wire.status is None

    asyncio.run(story())


def test_a_reply_that_cannot_be_sent_is_ended():
    """A guest waits for the end of whoever takes its chunks, and holds its tenant's place meanwhile."""
    ended = []

    async def send_all(send):
        ended.append(await send(b"x"))
        return StreamEnd(whole=False)

    def refuse(*_):
        raise InternalError("no such field")

    async def story():
        wire = FakeWire()
        wire.begin_body = refuse
        with pytest.raises(InternalError):
            await send_streamed(wire, 200, HEADERS, StreamedReply(send_all, "text/plain"))

    asyncio.run(story())
    assert ended == [False]
