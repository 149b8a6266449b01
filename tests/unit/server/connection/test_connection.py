"""Requests are the same however their bytes arrive; what is none, or too much, or too slow, ends its own connection."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.transport import FakeClient
from tensorwasm.errors import InternalError, InvalidRequest, RequestTimeout
from tensorwasm.server.connection import fields as module_of_fields
from tensorwasm.server.connection.connection import MOST_QUEUED, MOST_QUEUED_BYTES
from tensorwasm.server.connection.fields import RequestFields
from tensorwasm.server.connection.listener import HEAD_S, LINGER_S, MOST_GATHERED, STALL_S
from tensorwasm.server.connection.parser import BODY_PIECE_BYTES, MAX_FIELDS, PIECE_BYTES, SHORT_BYTES
from tensorwasm.server.connection.request import MOST_UNREAD_BYTES

HOST = b"Host: localhost\r\n"


def run(story):
    return asyncio.run(story())


async def whole(wire):
    """Return a request's body, read ahead or now."""
    if not wire.long:
        return wire.whole()
    body = b""
    while (chunk := await wire.read()) is not None:
        body += chunk
    return body


def echo(wire):
    """Answer with what the request is; one with a long body once that has been read."""

    def answer(body):
        told = {
            "method": wire.head.method,
            "path": wire.head.path,
            "query": wire.head.query,
            "body": body.decode("latin-1"),
        }
        wire.answer(200, [("content-type", "application/json")], json.dumps(told).encode())

    async def read():
        answer(await whole(wire))

    if wire.long:
        asyncio.get_running_loop().create_task(read())
    else:
        answer(wire.whole())


class Held:
    """Keeps requests, to be answered later."""

    def __init__(self):
        self.requests = []

    def __call__(self, wire):
        self.requests.append(wire)

    async def has(self, at):
        """Let everything run until there are more than so many."""
        for _ in range(200):
            if len(self.requests) > at:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"there is no request {at}")


async def settled(client):
    """Let everything run that does not wait for the client."""
    for _ in range(200):
        await asyncio.sleep(0)
    assert client.transport.reading  # or the transport would hold the rest back


def encode(method, path, body, framing, chunk):
    head = b"%b %b HTTP/1.1\r\n%b" % (method.encode(), path.encode(), HOST)
    if framing == "none":
        return head + b"\r\n"
    if framing == "length":
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    pieces = [body[at : at + chunk] for at in range(0, len(body), chunk)]
    return (
        head
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        + b"0\r\nX-Trailer: 1\r\n\r\n"
    )


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["GET", "POST", "PUT", "DELETE"]),
        st.sampled_from(["/", "/a/b", "/a?b=c&d", "/%41"]),
        st.one_of(st.binary(max_size=50), st.sampled_from([b"x" * (SHORT_BYTES + 1), b"y" * 70_000])),
        st.sampled_from(["none", "length", "chunked"]),
        st.integers(1, 20_000),
    ),
    min_size=1,
    max_size=6,
)


@given(REQUESTS, st.lists(st.integers(1, 100_000), max_size=12))
def test_requests_are_the_same_however_their_bytes_arrive(requests, cuts):
    async def story():
        client = FakeClient(echo)
        said, at = b"".join(encode(*each) for each in requests), 0
        for cut in [*cuts, len(said)]:
            client.send(said[at : at + cut])
            at += cut
            await settled(client)
        await settled(client)
        answers = client.answers(*[method for method, *_ in requests])
        for (method, path, body, framing, _), (status, _, found, _) in zip(requests, answers, strict=True):
            plain, _, query = path.partition("?")
            expected = body if framing != "none" else b""
            assert status == 200
            assert json.loads(found) == {
                "method": method,
                "path": plain.replace("%41", "A"),
                "query": query,
                "body": expected.decode("latin-1"),
            }
        assert not client.transport.closed

    run(story)


@given(REQUESTS, st.randoms(use_true_random=False))
def test_requests_that_come_again_are_what_they_were(requests, rng):
    async def story():
        client, again = FakeClient(echo), [each for each in requests for _ in range(3)]
        rng.shuffle(again)
        for each in again:
            client.send(encode(*each))
            await settled(client)
        answers = client.answers(*[method for method, *_ in again])
        for (method, path, body, framing, _), (_, _, found, _) in zip(again, answers, strict=True):
            told = json.loads(found)
            assert (told["method"], told["path"]) == (method, path.partition("?")[0].replace("%41", "A"))
            assert told["body"] == (body.decode("latin-1") if framing != "none" else "")

    run(story)


def test_a_head_is_parsed_once_if_its_requests_come_alone():
    async def story():
        seen = []

        def keep(wire):
            seen.append(wire.head)
            wire.answer(200 if wire.head.path == "/" else 404, [])

        client = FakeClient(keep)
        post = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\n"
        for said in (post + b"abc", post + b"def", post + b"ghi" + post + b"jkl", post, b"mno", post + b"pqr"):
            client.send(said)
        assert [head is seen[0] for head in seen] == [True, True, False, False, False, True]
        for _ in range(2):
            client.send(b"GET /not HTTP/1.1\r\n" + HOST + b"\r\n")
        assert seen[-1] is not seen[-2], "it was refused"

    run(story)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * MAX_FIELDS + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 100_000, 431),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 200_000, 431),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused_and_begins_nothing(said, status):
    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(said)
        assert client.answers("GET")[0][0] == status
        assert client.transport.ended
        assert not held.requests

    run(story)


def test_what_came_before_is_answered_first():
    async def story():
        client = FakeClient(echo)
        client.send(b"GET /a HTTP/1.1\r\n" + HOST + b"\r\nGET /b HTTP/1.1\r\n" + HOST + b"\r\nno\r\n\r\n")
        assert [each[0] for each in client.answers("GET", "GET", "GET")] == [200, 200, 400]

    run(story)


@pytest.mark.parametrize(
    "rest",
    [
        b"zz\r\n",
        b"1;" + b"a" * 500_000,
        b"0\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"0\r\nX: " + b"y" * 500_000,
        b"1\r\nx\r\n" * 20_000 + b"1;" + b"a" * 2_000_000,
    ],
)
def test_a_body_that_is_none_ends_its_request_and_its_connection(rest):
    async def story():
        failures = []

        def begin(wire):
            async def read():
                try:
                    await whole(wire)
                except InvalidRequest as error:
                    failures.append(error)
                    wire.answer(400, [])

            asyncio.get_running_loop().create_task(read())

        client = FakeClient(begin)
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + rest)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(failures) == 1
        assert client.answers("POST")[0][1][b"connection"] == b"close"
        assert client.transport.ended

    run(story)


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"GET / HTTP/1.1\r\n" + HOST, True),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n", False),
        (b"GET / HTTP/1.0\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n", True),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Upgrade: h2c\r\nConnection: Upgrade\r\n", True),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Upgrade: h2c\r\nConnection: Upgrade, close\r\n", False),
        (b"CONNECT x:1 HTTP/1.1\r\n" + HOST, False),
    ],
)
def test_a_connection_stays_as_the_client_asked(head, kept):
    async def story():
        client = FakeClient(echo)
        client.send(head + b"\r\n")
        assert client.transport.sent.startswith(b"HTTP/1.1 200 OK\r\n")
        assert (client.transport.closed or client.transport.ended) is not kept
        assert (b"connection: close" in client.transport.sent) is not kept

    run(story)


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"


@given(REQUESTS, st.lists(st.integers(1, 100_000), max_size=12))
def test_requests_that_would_rather_speak_http_2_are_served(requests, cuts):
    async def story():
        client = FakeClient(echo)
        said, at = b"".join(encode(*each).replace(HOST, HOST + H2C, 1) for each in requests), 0
        for cut in [*cuts, len(said)]:
            client.send(said[at : at + cut])
            at += cut
            await settled(client)
        await settled(client)
        answers = client.answers(*[method for method, *_ in requests])
        for (_, _, body, framing, _), (status, _, found, _) in zip(requests, answers, strict=True):
            assert status == 200
            assert json.loads(found)["body"] == (body.decode("latin-1") if framing != "none" else "")
        assert not client.transport.closed

    run(story)


@pytest.mark.parametrize(
    "framing",
    [
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n",
        b"Content-Length: +3\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
    ],
)
@pytest.mark.parametrize("asks", [b"", H2C])
def test_a_body_whose_length_is_not_certain_ends_the_connection(framing, asks):
    async def story():
        paths = []

        def begin(wire):
            paths.append(wire.head.path)
            wire.answer(400, [])

        client = FakeClient(begin)
        hidden = b"GET /hidden HTTP/1.1\r\n" + HOST + b"\r\n"
        client.send(b"POST / HTTP/1.1\r\n" + HOST + framing + asks + b"\r\n" + b"3\r\nabc\r\n0\r\n\r\n" + hidden)
        client.send(hidden)
        assert client.transport.ended or client.transport.closed
        assert client.answers("POST")[0][0] in {400, 501}
        assert "/hidden" not in paths

    run(story)


def test_what_follows_a_handshake_goes_to_who_takes_the_connection_over():
    async def story():
        held, got = Held(), []
        client = FakeClient(held)
        asks = b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
        client.send(b"GET / HTTP/1.1\r\n" + HOST + asks + b"\r\n" + b"a" * 100_000)
        assert not client.transport.reading
        held.requests[0].take_over().pass_on(got.append)
        assert client.transport.reading
        client.send(b"b")
        client.transport.close()
        assert b"".join(got) == b"a" * 100_000 + b"b"
        assert got[-1] == b""

    run(story)


def test_a_handshake_with_a_body_is_an_ordinary_request():
    async def story():
        held = Held()
        client = FakeClient(held)
        asks = b"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 3\r\n"
        client.send(b"GET / HTTP/1.1\r\n" + HOST + asks + b"\r\nabc")
        assert not held.requests[0].head.websocket
        assert held.requests[0].whole() == b"abc"

    run(story)


def test_requests_that_wait_for_their_turn_are_bounded():
    async def story():
        held = Held()
        client = FakeClient(held)
        said = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
        client.send(said * (MOST_QUEUED + 2))
        assert len(held.requests) == 1
        assert not client.transport.reading
        for at in range(MOST_QUEUED + 2):
            for _ in range(3):
                await asyncio.sleep(0)
            held.requests[at].answer(200, [])
        assert client.transport.reading
        assert len(client.answers(*["GET"] * (MOST_QUEUED + 2))) == MOST_QUEUED + 2

    run(story)


def test_a_body_is_read_no_faster_than_its_reader():
    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n")
        client.send(b"x" * MOST_UNREAD_BYTES)
        assert client.transport.reading
        client.send(b"x")
        assert not client.transport.reading
        while not client.transport.reading:
            assert await held.requests[0].read()

    run(story)


def test_a_client_is_told_to_send_its_body_when_it_is_wanted():
    async def story():
        held = Held()
        client = FakeClient(held)
        head = b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        client.send(head % 3)
        assert client.transport.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"abc")
        held.requests[0].answer(200, [])
        client.transport.sent = b""
        client.send(head % 100_000)
        assert client.transport.sent == b""
        reading = asyncio.ensure_future(held.requests[1].read())
        await asyncio.sleep(0)
        assert client.transport.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
        reading.cancel()

    run(story)


def test_a_client_that_leaves_is_noticed_once():
    async def story():
        held, told = Held(), []
        client = FakeClient(held)
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        wire = held.requests[0]
        wire.on_leaving(lambda: told.append(1))
        client.leave()
        assert (told, wire.left) == ([1], True)
        wire.on_leaving(lambda: told.append(2))
        wire.answer(200, [])  # which a client that has only ended its own side still gets
        assert client.transport.sent.startswith(b"HTTP/1.1 200 ")
        assert client.transport.closed
        assert told == [1, 2]

    run(story)


@pytest.mark.parametrize("length", [10, 100_000])
def test_a_body_that_breaks_off_is_no_whole_one(length):
    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\nabc" % length)
        client.leave()
        (wire,) = held.requests
        if wire.long:
            assert await wire.read() == b"abc"
            with pytest.raises(RequestTimeout):
                await wire.read()
        else:
            assert isinstance(wire.broken, RequestTimeout)
        wire.answer(408, [])
        assert client.answers("POST")[0][0] == 408

    run(story)


class Clock:
    def __init__(self, listener):
        self.now_s = 0.0
        for each in (listener.heads, listener.bodies, listener.stalled, listener.lingering, listener.closing):
            each._clock = lambda: self.now_s

    def advance(self, listener, seconds):
        self.now_s += seconds
        for each in (listener.heads, listener.bodies, listener.stalled, listener.lingering, listener.closing):
            each.sweep()


def test_each_wait_has_an_end():
    async def story():
        held = Held()
        client = FakeClient(held, body_timeout_s=3.0)
        client.transport.close()
        clock, listener = Clock(client.listener), client.listener
        idle = client.connect()
        clock.advance(listener, HEAD_S - 1)
        assert not idle.closed
        client.send(b"GET / HTTP/1.1\r\n")  # from now on its head has that time
        clock.advance(listener, HEAD_S - 1)
        assert not idle.closed
        clock.advance(listener, 1)
        assert idle.closed

        client.connect()
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\n")
        clock.advance(listener, 2)
        client.send(b"a")  # a byte now and then gains no time
        clock.advance(listener, 1)
        assert isinstance(held.requests[-1].broken, RequestTimeout)
        held.requests[-1].answer(408, [])
        assert client.transport.ended
        clock.advance(listener, LINGER_S)
        assert client.transport.closed

        client.connect()
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        writer = held.requests[-1].begin_body(200, [])
        client.connection.pause_writing()
        sending = asyncio.ensure_future(writer.send(b"x"))
        clock.advance(listener, HEAD_S * 2)
        await asyncio.sleep(0)
        assert not sending.done()
        clock.advance(listener, STALL_S)
        assert await sending is False
        assert client.transport.aborted

    run(story)


def test_one_connection_too_many_takes_the_place_of_the_one_that_is_idle_for_longest():
    async def story():
        held = Held()
        client = FakeClient(held, most=3)
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        busy = client.transport
        idle = [client.connect(), client.connect()]
        last = client.connect()
        assert [busy.closed, idle[0].closed, idle[1].closed, last.closed] == [False, True, False, False]

    run(story)


def streamed(version, method="GET", length=None, trailers=(), end="end"):
    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(b"%b / HTTP/%b\r\n%b\r\n" % (method.encode(), version.encode(), HOST))
        writer = held.requests[0].begin_body(200, [("x", "y")], length)
        for piece in (b"", b"one", b"", b"two"):
            assert await writer.send(piece)
        if end == "end":
            writer.end(trailers)
        writer.abort()
        return client

    return run(story)


def test_a_body_in_pieces_has_an_end_and_trailers():
    client = streamed("1.1", trailers=[("x-outcome", "done")])
    ((status, headers, body, trailers),) = client.answers("GET")
    assert (status, body, trailers) == (200, b"onetwo", [(b"x-outcome", b"done")])
    assert headers[b"transfer-encoding"] == b"chunked"
    assert not client.transport.closed


def test_a_body_of_known_length_is_not_chunked():
    client = streamed("1.1", length=6)
    ((_, headers, body, _),) = client.answers("GET")
    assert (body, headers[b"content-length"], client.transport.closed) == (b"onetwo", b"6", False)


def test_over_http_1_0_the_connection_ends_the_body():
    client = streamed("1.0", trailers=[("x", "y")])
    assert client.transport.sent.endswith(b"\r\n\r\nonetwo")
    assert client.transport.closed


def test_a_head_gets_no_body_in_pieces():
    client = streamed("1.1", method="HEAD")
    assert client.transport.sent.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(("version", "aborted"), [("1.1", False), ("1.0", True)])
def test_a_body_that_was_not_ended_is_not_taken_for_whole(version, aborted):
    client = streamed(version, end="")
    assert client.transport.closed
    assert b"0\r\n\r\n" not in client.transport.sent
    assert client.transport.aborted is aborted


@pytest.mark.parametrize("field", [("x", "a\r\nSet-Cookie: b"), ("x", "a\nb"), ("x\r", "a"), ("x", "é")])
def test_a_field_cannot_break_out_of_the_head(field):
    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        wire = held.requests[0]
        with pytest.raises(InternalError):
            wire.answer(200, [field])
        wire.answer(500, [])
        assert [each[0] for each in client.answers("GET")] == [500]

    run(story)


def test_targets_are_paths_urls_and_what_is_neither():
    async def story():
        held = Held()
        for target, path, query, host in (
            (b"/a?b#c", "/a", "b", "localhost"),
            (b"http://other:81/a?b", "/a", "b", "other:81"),
            (b"http://other", "/", "", "other"),
            (b"*", "*", "", "localhost"),
            (b"/%ff%00", "/\ufffd\0", "", "localhost"),
        ):
            client = FakeClient(held)
            client.send(b"GET %b HTTP/1.1\r\n" % target + HOST + b"\r\n")
            wire = held.requests[-1]
            assert (wire.head.path, wire.head.query, wire.head.host) == (path, query, host)

    run(story)


def test_a_listener_that_closes_waits_for_what_runs_and_ends_the_rest():
    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        busy, idle = client.transport, client.connect()
        closing = asyncio.ensure_future(client.listener.close(30))
        await asyncio.sleep(0)
        assert (busy.closed, idle.closed) == (False, True)
        held.requests[0].answer(200, [])
        await closing
        assert b"connection: close" in busy.sent
        assert busy.closed

    run(story)


def test_a_listener_that_leaves_answers_each_connection_once_more():
    async def story():
        client = FakeClient(echo)
        silent, asks = client.transport, client.connect()
        client.listener.leave()
        await client.listener.wait_closed(0.01)
        assert (silent.closed, asks.closed) == (False, False), "a request may be on its way"
        client.send(b"GET /last HTTP/1.1\r\n" + HOST + b"\r\n")
        assert b"connection: close" in asks.sent
        assert b"/last" in asks.sent
        assert asks.closed
        silent.close()
        await asyncio.wait_for(client.listener.wait_closed(1000), 30)

    run(story)


def test_fields_are_found_by_names_in_any_case():
    fields = RequestFields()
    for name, value in ((b"X-Key", b"1"), (b"x-KEY", b"2")):
        fields.add(name, value)
    for name in ("x-key", "X-Key", "X-KEY"):
        assert (fields.get(name), fields.get_all(name), name in fields) == ("1", ["1", "2"], True)
    assert (fields.get("X-None"), fields.get_all("X-None"), "X-None" in fields) == (None, [], False)


GET = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"


def test_a_client_that_has_gone_is_answered_in_vain_and_holds_no_place():
    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\nabc")
        client.transport.close()
        held.requests[0].answer(408, [])
        assert client.listener.lingering.first() is None
        assert client.listener.closing.first() is None

    run(story)


@pytest.mark.parametrize("more", [GET, b"GET / HT"])
def test_what_comes_behind_a_request_that_runs_takes_no_time_from_it(more):
    async def story():
        held = Held()
        client = FakeClient(held)
        clock, listener = Clock(client.listener), client.listener
        client.send(GET)
        client.send(more)
        clock.advance(listener, HEAD_S * 3)
        assert not client.transport.closed
        held.requests[0].answer(200, [])
        if more == GET:
            held.requests[1].answer(200, [])
        clock.advance(listener, HEAD_S)
        assert client.transport.closed

    run(story)


def test_a_short_body_has_its_own_time_and_not_that_of_a_head():
    async def story():
        held = Held()
        client = FakeClient(held, body_timeout_s=HEAD_S * 2)
        clock, listener = Clock(client.listener), client.listener
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nab")
        clock.advance(listener, HEAD_S * 2 - 1)
        assert not client.transport.closed
        clock.advance(listener, 1)
        assert isinstance(held.requests[0].broken, RequestTimeout)

    run(story)


def test_a_client_that_does_not_take_the_last_answer_is_left_after_a_while():
    async def story():
        client = FakeClient(echo)
        clock, listener = Clock(client.listener), client.listener
        client.send(GET)
        client.transport.unsent = 1000
        clock.advance(listener, HEAD_S)
        assert not client.transport.closed
        clock.advance(listener, STALL_S)
        assert client.transport.aborted

    run(story)


def test_clients_that_do_not_take_the_last_answer_make_room_for_others():
    async def story():
        client = FakeClient(echo, most=3)
        slow = [client.transport, client.connect(), client.connect()]
        for each in slow:
            each.unsent = 1000
        Clock(client.listener).advance(client.listener, HEAD_S)
        fresh = [client.connect() for _ in range(3)]
        assert [each.aborted for each in slow] == [True] * 3
        assert not any(each.closed for each in fresh)

    run(story)


def test_an_idle_client_that_does_not_read_makes_room_at_once():
    async def story():
        client = FakeClient(echo, most=1)
        client.transport.unsent = 1000
        idle = client.transport
        fresh = client.connect()
        assert (idle.aborted, fresh.closed) == (True, False)

    run(story)


@pytest.mark.parametrize("head", [GET, b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 60_000 + b"\r\n\r\n"])
def test_many_requests_in_one_read_wait_unparsed(head):
    async def story():
        held = Held()
        client = FakeClient(held)
        count = 500_000 // len(head)
        client.send(head * count)
        assert client.connection._queued_bytes <= MOST_QUEUED_BYTES + 64 * 1024
        assert len(client.connection._requests) <= MOST_QUEUED + PIECE_BYTES // 16
        assert not client.transport.reading
        for at in range(count):
            await held.has(at)
            held.requests[at].answer(200, [])
        assert client.transport.reading
        assert client.transport.sent.count(b"HTTP/1.1 200 OK") == count

    run(story)


def test_a_long_body_behind_other_requests_is_read_no_faster_than_its_reader():
    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(GET * 30 + b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 10000000\r\n\r\n")
        sent = 0
        for at in range(30):
            while client.transport.reading and sent < 9_000_000:
                client.send(b"x" * 200_000)
                sent += 200_000
            await held.has(at)
            held.requests[at].answer(200, [])
        assert held.requests[30]._unread_bytes <= MOST_UNREAD_BYTES + BODY_PIECE_BYTES
        assert sent <= 400_000
        found = 0
        while found < sent:
            found += len(await held.requests[30].read())
        assert found == sent
        assert client.transport.reading

    run(story)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_client_that_ends_its_own_side_gets_the_answers_to_what_came_in_whole(count):
    async def story():
        client = FakeClient(echo)
        client.send(GET * count)
        client.leave()
        for _ in range(count):
            await asyncio.sleep(0)
        assert client.transport.sent.count(b"HTTP/1.1 200 OK") == count
        assert client.transport.closed
        held = Held()
        client = FakeClient(held)
        client.send(GET * count)
        client.leave()
        for at in range(count):
            assert not client.transport.closed
            await held.has(at)
            held.requests[at].answer(200, [])
        assert client.transport.sent.count(b"connection: close") == 1
        assert client.transport.closed

    run(story)


def test_long_names_of_fields_are_not_kept():
    fields = RequestFields()
    fields.add(b"X" * 60_000, b"1")
    assert fields.get("x" * 60_000) == "1"
    assert not any(len(name) > 1000 for name in module_of_fields._names)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    ],
)
def test_versions_and_codings_that_are_not_spoken_are_refused(said, status):
    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(said)
        assert client.answers("GET")[0][0] == status
        assert not held.requests

    run(story)


def test_chunks_of_http_1_0_end_the_connection():
    async def story():
        client = FakeClient(echo)
        head = b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.send(head + b"1\r\na\r\n0\r\n\r\n" + GET)
        for _ in range(20):
            await asyncio.sleep(0)
        assert client.transport.sent.count(b"HTTP/1.1 200 OK") == 1
        assert client.transport.closed or client.transport.ended

    run(story)


def test_a_body_that_nobody_reads_does_not_hold_up_the_next_request():
    """Found by review: reading was paused by a body whose end had come, and nothing resumed it."""

    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 70000\r\n\r\n")
        client.send(b"x" * 70_000)
        held.requests[0].answer(401, [])
        assert client.transport.reading
        client.send(GET)
        held.requests[1].answer(200, [])
        assert [each[0] for each in client.answers("POST", "GET")] == [401, 200]

    run(story)


@pytest.mark.parametrize("last", [b"no\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\n" + HOST + b"\r\n"])
def test_a_slow_client_has_time_for_the_last_answers(last):
    async def story():
        client = FakeClient(echo)
        clock, listener = Clock(client.listener), client.listener
        client.send(GET)
        client.transport.unsent = 1000
        client.send(last)
        clock.advance(listener, LINGER_S)
        clock.advance(listener, STALL_S / 2)
        assert not client.transport.aborted
        clock.advance(listener, STALL_S / 2)
        assert client.transport.aborted

    run(story)


def test_bodies_of_requests_that_wait_for_their_turn_are_bounded():
    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(GET)
        post = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 60000\r\n\r\n" + b"x" * 60_000
        count = 0
        while client.transport.reading and count < 100:
            client.send(post)
            count += 1
        assert count <= 4
        held.requests[0].answer(200, [])
        for at in range(1, count + 1):
            await held.has(at)
            body = await whole(held.requests[at])
            assert len(body) == 60_000
            held.requests[at].answer(200, [])
        assert client.transport.reading
        assert client.connection._queued_bytes == 0

    run(story)


@pytest.mark.parametrize("asks", [b"", H2C])
@pytest.mark.parametrize("length", [b"000000", b"0" * 5000, b"0000003"])
def test_lengths_with_many_zeros_are_lengths(asks, length):
    async def story():
        held = Held()
        client = FakeClient(held)
        body = b"abc" if length.endswith(b"3") else b""
        client.send(b"POST / HTTP/1.1\r\n" + HOST + asks + b"Content-Length: " + length + b"\r\n\r\n" + body)
        assert held.requests[0].ended
        assert held.requests[0].whole() == body

    run(story)


def test_a_server_that_stops_does_not_reset_a_client_that_has_sent_more():
    async def story():
        held = Held()
        client = FakeClient(held)
        client.send(GET * 400)
        client.connection.rest_idle()
        held.requests[0].answer(200, [])
        assert b"connection: close" in client.transport.sent
        assert client.transport.ended
        assert not client.transport.closed
        assert client.transport.reading, "what was sent is read and dropped"

    run(story)


ASK = b"GET /known HTTP/1.1\r\n" + HOST + b"\r\n"


async def with_known_head(connections=1, most=100):
    """Return a client that has several connections, each of which has had an answer to `ASK`."""
    client = FakeClient(echo, most=most)
    made = [(client.connection, client.transport)]
    for _ in range(connections - 1):
        client.connect()
        made.append((client.connection, client.transport))
    for connection, transport in made:
        connection.data_received(ASK)
        await asyncio.sleep(0)
        assert transport.sent.count(b"HTTP/1.1 200") == 1
    return client, made


def test_answers_of_one_turn_of_the_event_loop_leave_behind_its_end_or_behind_a_few_others():
    async def story():
        _, made = await with_known_head(MOST_GATHERED + 3)

        def answers():
            return [transport.sent.count(b"HTTP/1.1 200") - 1 for _, transport in made]

        for connection, _ in made[: MOST_GATHERED - 1]:
            connection.data_received(ASK)
        assert answers() == [0] * len(made)
        made[MOST_GATHERED - 1][0].data_received(ASK)
        assert answers() == [1] * MOST_GATHERED + [0] * 3
        for connection, _ in made[MOST_GATHERED:]:
            connection.data_received(ASK)
        assert answers() == [1] * MOST_GATHERED + [0] * 3
        await asyncio.sleep(0)
        assert answers() == [1] * len(made)

    run(story)


@pytest.mark.parametrize(
    "then", ["ends", "asks again", "asks for something else", "makes room", "is closed", "is lost"]
)
def test_an_answer_that_waits_for_others_is_not_lost(then):
    async def story():
        client, ((connection, transport),) = await with_known_head(most=1)
        connection.data_received(ASK)
        assert transport.sent.count(b"HTTP/1.1 200") == 1
        if then == "ends":
            client.leave()
        elif then == "asks again":
            connection.data_received(ASK)
        elif then == "asks for something else":
            connection.data_received(ASK.replace(b"known", b"other"))
        elif then == "makes room":
            client.connect()
            assert transport.closed
        elif then == "is closed":
            connection.rest_idle()
        else:
            connection.connection_lost(None)
        await asyncio.sleep(0)
        expected = {"asks again": 3, "asks for something else": 3, "is lost": 1}.get(then, 2)
        assert transport.sent.count(b"HTTP/1.1 200") == expected

    run(story)
