"""Streamed replies reach the client whole or are aborted, at the client's pace."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import contextmanager
from types import SimpleNamespace

import h11
import pytest

from tensorwasm.errors import CapacityExhausted, InternalError, InvalidRequest
from tensorwasm.server.http.routing import StreamedReply, StreamEnd
from tensorwasm.server.streaming import transfer
from tensorwasm.server.streaming.transfer import MAX_WAITING_BYTES, SendPacer, render_head, send_streamed

HEADERS = [("x-request-id", "1")]
WHOLE = StreamEnd()


class Protocol:
    """RSGI's, on one end of a connection: notices what the server would do."""

    def __init__(self, accepted):
        self.accepted = accepted
        self.leaving = asyncio.get_running_loop().create_future()
        self.headers = None
        self.pieces = []

    def client_disconnect(self):
        return self.leaving

    def response_empty(self, status, headers):
        self.accepted.close()

    def response_stream(self, status, headers):
        self.headers = headers
        return self

    async def send_bytes(self, data):
        if self.leaving.done():
            raise RuntimeError("closed")
        self.pieces.append(data)


@contextmanager
def connection(version="1.1"):
    """Both ends of a connection, with what RSGI says of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=10)
        accepted, _ = listener.accept()
    accepted.setblocking(False)
    host, port = accepted.getpeername()
    own = f"127.0.0.1:{accepted.getsockname()[1]}"
    scope = SimpleNamespace(http_version=version, scheme="http", client=f"{host}:{port}", server=own)
    with client, accepted:
        yield client, accepted, scope


def streamed(pieces, ending=WHOLE, **more):
    async def send_all(send):
        for piece in pieces:
            if not await send(piece):
                return StreamEnd(whole=False)
        return ending

    return StreamedReply(send_all, "application/octet-stream", **more)


def answered(body, version="1.1"):
    """Return all that a client of HTTP/1.1 gets, until the server closes."""

    async def story():
        with connection(version) as (client, accepted, scope):
            await send_streamed(scope, Protocol(accepted), 200, HEADERS, body)
            came = b""
            while data := await asyncio.to_thread(client.recv, 65536):
                came += data
            return came

    return asyncio.run(story())


def read(came):
    """Return head, data and trailers as an HTTP library reads them."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(came)
    reader.receive_data(b"")
    head, data = reader.next_event(), b""
    while type(event := reader.next_event()) is h11.Data:
        data += event.data
    return head, data, list(event.headers)


def test_chunks_are_sent_and_trailers_have_the_ending():
    came = answered(streamed([b"one", b"", b"\r\n0\r\n\r\n", bytes(100_000)], StreamEnd((("X-Outcome", "done"),))))
    head, data, trailers = read(came)
    assert head.status_code == 200
    assert data == b"one\r\n0\r\n\r\n" + bytes(100_000)
    assert trailers == [(b"x-outcome", b"done")]
    assert (b"connection", b"close") in head.headers
    assert (b"x-request-id", b"1") in head.headers


@pytest.mark.parametrize("pieces", [[], [b"some"]])
def test_an_incomplete_body_is_aborted(pieces):
    came = answered(streamed(pieces, StreamEnd(whole=False)))
    with pytest.raises(h11.RemoteProtocolError, match="without sending complete message body"):
        read(came)


def test_an_empty_first_chunk_sends_the_head():
    async def story():
        with connection() as (client, accepted, scope):
            go_on = asyncio.Event()

            async def send_all(send):
                assert await send(b"")
                await go_on.wait()
                return StreamEnd()

            answering = asyncio.ensure_future(
                send_streamed(scope, Protocol(accepted), 200, HEADERS, StreamedReply(send_all, "text/plain"))
            )
            head = await asyncio.to_thread(client.recv, 65536)
            assert head.endswith(b"\r\n\r\n")
            go_on.set()
            await answering
            assert await asyncio.to_thread(client.recv, 65536) == b"0\r\n\r\n"

    asyncio.run(story())


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_disconnect_ends_a_reply_that_waits_for_a_guest(version):
    async def story():
        with connection(version) as (_, accepted, scope):
            protocol, ended = Protocol(accepted), []

            async def send_all(send):
                try:
                    await send(b"x")
                    protocol.leaving.set_result(None)
                    await asyncio.Event().wait()
                finally:
                    ended.append(True)

            await send_streamed(scope, protocol, 200, HEADERS, StreamedReply(send_all, "text/plain"))
            assert ended == [True]
            await asyncio.sleep(0)  # nothing is left to cancel this

    asyncio.run(story())


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_stop_of_the_server_ends_a_reply_too(version):
    async def story():
        with connection(version) as (_, accepted, scope):
            started = asyncio.Event()

            async def send_all(send):
                await send(b"x")
                started.set()
                await asyncio.Event().wait()

            answering = asyncio.ensure_future(
                send_streamed(scope, Protocol(accepted), 200, HEADERS, StreamedReply(send_all, "text/plain"))
            )
            await started.wait()
            answering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answering

    asyncio.run(story())


def test_over_http_2_the_server_sends_the_reply():
    async def story():
        with connection("2") as (_, accepted, scope):
            protocol = Protocol(accepted)
            body = streamed([b"a", b"b"], headers=(("trailer", "X"), ("cache-control", "no-store")))
            await send_streamed(scope, protocol, 200, HEADERS, body)
            assert protocol.pieces == [b"a", b"b"]
            assert sorted(protocol.headers) == [
                ("cache-control", "no-store"),
                ("content-type", "application/octet-stream"),
                ("x-request-id", "1"),
            ]

    asyncio.run(story())


@pytest.mark.parametrize("exact", [False, True])
def test_an_earlier_disconnect_is_no_error(exact):
    async def story():
        with connection() as (_, accepted, scope):
            protocol, took = Protocol(accepted), []
            scope.client = "127.0.0.1:1"

            async def send_all(send):
                took.append(await send(b"x"))
                return StreamEnd(whole=False)

            await send_streamed(scope, protocol, 200, HEADERS, StreamedReply(send_all, "a/b", exact=exact))
            assert took == [False]

    asyncio.run(story())


def test_an_exact_ending_is_refused_where_it_cannot_be_expressed():
    async def story():
        with connection("2") as (_, accepted, scope):
            protocol, took = Protocol(accepted), []

            async def send_all(send):
                took.append(await send(b"x"))
                return StreamEnd(whole=False)

            with pytest.raises(InvalidRequest):
                await send_streamed(scope, protocol, 200, HEADERS, StreamedReply(send_all, "a/b", exact=True))
            assert took == [False]  # the guest was told that nobody listens
            assert protocol.headers is None

    asyncio.run(story())


def test_a_field_cannot_break_out_of_the_head():
    with pytest.raises(InternalError):
        render_head(200, [("x", "a\r\nSet-Cookie: b")])


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_reply_that_cannot_be_sent_is_ended(monkeypatch, version):
    """A guest waits for whoever takes its chunks, and holds its tenant's place meanwhile."""

    def full(_):
        raise OSError(24, "too many open files")

    ended = []

    async def send_all(send):
        ended.append(await send(b"x"))
        return StreamEnd(whole=False)

    async def story():
        with connection(version) as (_, accepted, scope):
            monkeypatch.setattr(os, "listdir", full)
            with pytest.raises(CapacityExhausted):
                await send_streamed(scope, Protocol(accepted), 200, HEADERS, StreamedReply(send_all, "text/plain"))

    asyncio.run(story())
    assert ended == [False]


HALF = MAX_WAITING_BYTES // 2


class FakeConnection:
    def __init__(self):
        self.written = 1000
        self.closed = False

    def written_bytes(self):
        return self.written

    def close(self):
        self.closed = True


def test_a_fast_client_is_never_waited_for():
    async def story():
        connection = FakeConnection()
        with SendPacer("a", connection) as pace:
            for _ in range(10):
                assert await pace.keep(HALF)
                connection.written += HALF
        assert connection.closed
        assert not transfer._accounts

    asyncio.run(story())


def test_waiting_data_is_bounded_for_all_streams_of_a_connection(monkeypatch):
    monkeypatch.setattr(transfer, "LOOK_S", 0.0)

    async def story():
        connection = FakeConnection()
        with (
            SendPacer("a", connection) as one,
            SendPacer("a", connection) as two,
            SendPacer("b", FakeConnection()) as other,
        ):
            assert [await one.keep(HALF), await two.keep(HALF), await one.keep(HALF)] == [True] * 3
            waiting = asyncio.ensure_future(two.keep(HALF))
            assert await other.keep(HALF)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waiting.done()
            connection.written += HALF
            assert await waiting

    asyncio.run(story())


def test_a_client_that_takes_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(transfer, "LOOK_S", 0.001)

    async def story():
        with SendPacer("a", FakeConnection(), stall_s=0.003) as pace:
            assert [await pace.keep(HALF) for _ in range(3)] == [True] * 3
            assert not await pace.keep(1)

    asyncio.run(story())


def test_data_of_others_leaves_no_debt():
    async def story():
        connection = FakeConnection()
        with SendPacer("a", connection) as pace:
            connection.written += 100 * MAX_WAITING_BYTES
            for _ in range(3):
                assert await pace.keep(HALF)
            assert pace._account.given_bytes == connection.written + 3 * HALF

    asyncio.run(story())
