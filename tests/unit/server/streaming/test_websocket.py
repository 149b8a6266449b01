"""WebSockets: their token and subprotocol, and the calls of a function over one."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from fakes.services import until
from fakes.streaming import FUNCTION, FakeInvocations, FakeSocket, FakeStream, fake_call
from fakes.transport import FakeClient
from fakes.wire import FakeWire
from tensorwasm.errors import CapacityExhausted, GuestTrap, InvalidRequest, NotFound, RateLimited
from tensorwasm.server.http.bodies import BodyBudget
from tensorwasm.server.routes.invocations import read_message
from tensorwasm.server.streaming import socket_calls, websocket
from tensorwasm.server.streaming.socket_calls import SocketCalls
from tensorwasm.server.streaming.websocket import WebSocket, authorization, offered


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"authorization": "Bearer a"}, "Bearer a"),
        ({"sec-websocket-protocol": "tensorwasm.v1, bearer.a.b-c"}, "Bearer a.b-c"),
        ({"sec-websocket-protocol": "tensorwasm.v1"}, None),
        ({}, None),
    ],
)
def test_a_token_is_in_the_header_or_among_the_subprotocols(headers, expected):
    assert authorization(headers) == expected


@pytest.mark.parametrize("more", [{"authorization": "Bearer a"}, {}])
def test_two_tokens_are_refused(more):
    with pytest.raises(InvalidRequest):
        authorization({"sec-websocket-protocol": "bearer.b" if more else "bearer.a, bearer.b"} | more)


def test_subprotocols_are_separated_by_commas():
    assert offered({"sec-websocket-protocol": " a,b ,, c"}) == ["a", "b", "c"]


KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ASKED = (
    "GET /x HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
)


class SocketClient:
    """A client of a WebSocket, without a network."""

    def __init__(self, *fields, behind=b""):
        self.requests = []
        self.client = FakeClient(self.requests.append)
        lines = "".join(f"{field}\r\n" for field in fields)
        self.client.send(f"{ASKED}{lines}\r\n".encode() + behind)
        self.budget = BodyBudget()

    def accept(self):
        socket = WebSocket.accept(self.requests[0], self.budget)
        self.head, _, self.client.transport.sent = self.client.transport.sent.partition(b"\r\n\r\n")
        return socket

    def say(self, *messages, end=False):
        """Send messages, each masked as a client's are."""
        data = b""
        for message in messages:
            opcode = 1 if isinstance(message, str) else 2
            data += self._frame(opcode, message.encode() if isinstance(message, str) else message)
        if end:
            data += self._frame(8, b"\x03\xe8")
        self.client.send(data)

    def _frame(self, opcode, payload):
        return Frame(Opcode(opcode), payload).serialize(mask=True)


def test_messages_end_with_the_clients_last():
    async def story():
        client = SocketClient("Sec-WebSocket-Protocol: other, tensorwasm.v1")
        socket = client.accept()
        assert client.head.startswith(b"HTTP/1.1 101 ")
        assert b"Sec-WebSocket-Protocol: tensorwasm.v1" in client.head
        client.say(b"a", "b", end=True)
        assert [await socket.receive() for _ in range(4)] == [b"a", "b", None, None]
        assert not await socket.send("c")
        socket.close()
        assert client.client.transport.closed

    asyncio.run(story())


def test_what_came_with_the_handshake_is_received():
    async def story():
        first = Frame(Opcode.BINARY, b"early").serialize(mask=True)
        socket = SocketClient(behind=first).accept()
        assert await socket.receive() == b"early"

    asyncio.run(story())


def test_a_subprotocol_that_was_not_offered_is_not_chosen():
    async def story():
        client = SocketClient("Sec-WebSocket-Protocol: other")
        client.accept()
        assert b"Sec-WebSocket-Protocol" not in client.head

    asyncio.run(story())


def test_messages_are_read_no_faster_than_they_are_received():
    async def story():
        client = SocketClient()
        socket = client.accept()
        client.say(b"a")
        assert not client.client.transport.reading
        assert await socket.receive() == b"a"
        for _ in range(3):
            await asyncio.sleep(0)
        assert client.client.transport.reading

    asyncio.run(story())


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


def test_messages_that_nobody_receives_wait_unparsed():
    async def story():
        client = SocketClient()
        socket = client.accept()
        client.say(*["x" * 1000] * 200)
        await turns(50)
        assert not client.client.transport.reading
        assert len(socket._messages) <= websocket.PIECE_BYTES // 1000 + 1
        assert [await socket.receive() for _ in range(200)] == ["x" * 1000] * 200
        await turns(3)
        assert client.client.transport.reading

    asyncio.run(story())


def test_small_frames_are_parsed_a_piece_at_a_time():
    async def story():
        client = SocketClient()
        socket = client.accept()
        flood = Frame(Opcode.CONT, b"", fin=False).serialize(mask=True) * 40_000
        parsed = []
        receive_data = socket._protocol.receive_data
        socket._protocol.receive_data = lambda data: (parsed.append(len(data)), receive_data(data))
        client.client.send(Frame(Opcode.BINARY, b"a", fin=False).serialize(mask=True) + flood)
        assert len(parsed) == 1
        await turns(100)
        assert max(parsed) <= websocket.PIECE_BYTES
        assert sum(parsed) > len(flood)
        client.client.send(Frame(Opcode.CONT, b"b").serialize(mask=True))
        assert await socket.receive() == b"ab"

    asyncio.run(story())


def test_pings_of_a_client_that_takes_no_pongs_wait_unparsed():
    async def story():
        client = SocketClient()
        client.accept()
        client.client.connection.pause_writing()
        ping = Frame(Opcode.PING, b"x" * 100).serialize(mask=True)
        client.client.send(ping * 1000)
        await turns(50)
        assert client.client.transport.sent == b""
        assert not client.client.transport.reading
        client.client.connection.resume_writing()
        await turns(50)
        assert len(client.client.transport.sent) == 1000 * 102
        assert client.client.transport.reading

    asyncio.run(story())


def test_a_message_that_comes_counts_against_the_budget_of_all():
    async def story():
        client = SocketClient()
        client.budget = BodyBudget(100_000)
        socket = client.accept()
        half = Frame(Opcode.BINARY, b"x" * 40_000).serialize(mask=True)
        client.client.send(half[:-1])
        await turns(20)
        assert client.budget.free_bytes < 100_000 - 30_000
        client.client.send(half[-1:])
        await turns(20)
        assert client.budget.free_bytes == 100_000 - 40_000, "it counts while nobody has received it"
        assert len(await socket.receive()) == 40_000
        await turns(20)
        assert client.budget.free_bytes == 100_000 - 40_000, "and until its receiver gives it back"
        client.budget.give(40_000)
        client.client.send(Frame(Opcode.BINARY, b"x" * 200_000).serialize(mask=True))
        await turns(50)
        assert await socket.receive() is None
        assert client.client.transport.sent[2:4] == (1013).to_bytes(2, "big")
        assert client.client.transport.closed
        assert client.budget.free_bytes == 100_000

    asyncio.run(story())


def test_what_is_not_received_counts_until_the_socket_is_closed():
    async def story():
        client = SocketClient()
        socket = client.accept()
        client.say("é" * 1000, b"x" * 1000, b"")
        await turns(20)
        assert client.budget.free_bytes == BodyBudget().free_bytes - 3000
        socket.close()
        assert client.budget.free_bytes == BodyBudget().free_bytes

    asyncio.run(story())


def test_what_came_and_waits_to_be_parsed_counts():
    async def story():
        client = SocketClient()
        socket = client.accept()
        client.say(*[b"x" * 1000] * 50)
        assert client.budget.free_bytes <= BodyBudget().free_bytes - 50_000
        for _ in range(50):
            client.budget.give(len(await socket.receive()))
        assert client.budget.free_bytes == BodyBudget().free_bytes

    asyncio.run(story())


def test_control_frames_take_nothing_of_the_budget():
    async def story():
        client = SocketClient()
        client.budget = BodyBudget(100_000)
        socket = client.accept()
        client.client.send(Frame(Opcode.BINARY, b"x" * 1000, fin=False).serialize(mask=True))
        ping = Frame(Opcode.PING, b"x" * 100).serialize(mask=True)
        for _ in range(20):
            client.client.send(ping * 100)
            await turns(10)
        assert client.budget.free_bytes >= 100_000 - 1000 - websocket.PIECE_BYTES
        client.client.send(Frame(Opcode.CONT, b"y").serialize(mask=True))
        assert len(await socket.receive()) == 1001
        assert client.budget.free_bytes == 100_000 - 1001

    asyncio.run(story())


@pytest.mark.parametrize(
    ("payload", "code"), [(b"\xff", 1007), (b"x" * (4 * websocket.MAX_TEXT + 1), 1009)], ids=["no UTF-8", "long"]
)
def test_a_text_that_cannot_be_one_ends_the_connection(payload, code):
    async def story():
        client = SocketClient()
        socket = client.accept()
        client.client.send(Frame(Opcode.TEXT, payload).serialize(mask=True))
        assert await asyncio.wait_for(socket.receive(), 30) is None
        assert client.client.transport.sent[2:4] == code.to_bytes(2, "big")
        assert client.client.transport.closed

    asyncio.run(story())


def test_what_came_before_a_disconnect_is_not_parsed_behind_it():
    async def story():
        client = SocketClient()
        socket = client.accept()
        client.say(*["x" * 1000] * 200)
        client.client.transport.close()
        found = [await socket.receive() for _ in range(20)]
        assert found[-1] is None

    asyncio.run(story())


def test_a_disconnected_client_is_sent_nothing():
    async def story():
        client = SocketClient()
        socket = client.accept()
        waiting = asyncio.ensure_future(socket.receive())
        await asyncio.sleep(0)
        client.client.transport.close()
        assert await waiting is None
        assert not await socket.send(b"a")
        socket.close()

    asyncio.run(story())


def test_a_message_that_is_too_long_ends_the_connection(monkeypatch):
    monkeypatch.setattr(websocket, "MAX_MESSAGE_BYTES", 100)

    async def story():
        client = SocketClient()
        socket = client.accept()
        client.say(b"x" * 101)
        assert await socket.receive() is None
        assert client.client.transport.closed

    asyncio.run(story())


def test_a_handshake_that_is_none_is_refused():
    wire = FakeWire("WS", "/x", headers={"host": "x", "upgrade": "websocket", "connection": "Upgrade"})
    with pytest.raises(InvalidRequest):
        WebSocket.accept(wire, BodyBudget())


DONE = {"done": {"status": "ok", "function_id": FUNCTION, "result": [7]}}


def converse(invocations, *messages, takes=None, idle_s=5.0, **more):
    """Hold a conversation until the client leaves; return what was sent to it, texts as JSON."""

    async def story():
        socket = FakeSocket(*messages, takes=takes)
        await SocketCalls(fake_call(invocations, **more), socket, FUNCTION, read_message, idle_s).serve()
        return [json.loads(each) if isinstance(each, str) else each for each in socket.sent]

    return asyncio.run(story())


class Patient(FakeSocket):
    """A client that waits for the end of a call before its next message."""

    def __init__(self, *messages):
        super().__init__(*messages)
        self.idle = asyncio.Event()
        self.idle.set()

    async def receive(self):
        await self.idle.wait()
        message = await super().receive()
        if isinstance(message, str):
            self.idle.clear()
        return message

    async def send(self, message):
        if isinstance(message, str):
            self.idle.set()
        return await super().send(message)


def converse_in_turn(invocations, *messages, **more):
    async def story():
        socket = Patient(*messages)
        await SocketCalls(fake_call(invocations, **more), socket, FUNCTION, read_message, 5.0).serve()
        return [json.loads(each) if isinstance(each, str) else each for each in socket.sent]

    return asyncio.run(story())


@given(st.lists(st.binary(max_size=20), max_size=5), st.lists(st.binary(min_size=1, max_size=20), max_size=5))
def test_binary_messages_are_the_input_and_the_chunks(given_messages, chunks):
    invocations = FakeInvocations(FakeStream(chunks))
    sent = converse_in_turn(invocations, *given_messages, '{"export":"f","args":[1,"2"]}')
    assert sent == [*chunks, DONE]
    ((tenant, reference, ask),) = invocations.asked
    assert (tenant, reference) == (7, FUNCTION)
    assert (ask.export, ask.args, ask.input) == ("f", (1, "2"), b"".join(given_messages))


def test_calls_follow_one_another_each_with_its_own_input():
    invocations = FakeInvocations(FakeStream([b"x"]), FakeStream([b"y"]))
    assert converse_in_turn(invocations, b"one", "{}", b"two", "{}") == [b"x", DONE, b"y", DONE]
    assert [ask.input for _, _, ask in invocations.asked] == [b"one", b"two"]


def test_a_failure_is_sent_and_the_next_call_is_served():
    invocations = FakeInvocations(FakeStream([b"x"], GuestTrap("x", "unreachable")), FakeStream([]))
    first, error, done = converse_in_turn(invocations, "{}", "{}")
    assert (first, done) == (b"x", DONE)
    assert error["error"]["reason"] == "wasm_error"


def test_a_client_cancels_its_call():
    invocations = FakeInvocations(FakeStream([asyncio.Event()]))
    (error,) = converse(invocations, "{}", '{"cancel":true}')
    assert error["error"]["reason"] == "cancelled"
    assert len(invocations.left) == len(invocations.asked)


def test_cancelling_without_a_call_does_nothing():
    assert converse(FakeInvocations(), '{"cancel":true}') == []


def test_input_counts_until_its_call_has_ended():
    async def story():
        first, left = asyncio.Event(), asyncio.Event()
        invocations = FakeInvocations(FakeStream([first]), FakeStream([asyncio.Event()]))
        socket = FakeSocket(b"x" * 400, "{}", left, b"y" * 400, "{}", asyncio.Event())
        socket.budget = BodyBudget(1000)
        holding = asyncio.ensure_future(
            SocketCalls(fake_call(invocations), socket, FUNCTION, read_message, 5.0).serve()
        )
        await until(lambda: invocations.asked)
        with pytest.raises(CapacityExhausted):
            socket.budget.take(200, 7)
        first.set()
        await until(lambda: socket.sent)
        left.set()
        await until(lambda: len(invocations.asked) == 2)
        holding.cancel()
        await asyncio.wait((holding,))
        socket.budget.take(1000)

    asyncio.run(story())


def test_a_disconnect_ends_the_guest():
    async def story():
        started, never = asyncio.Event(), asyncio.Event()

        class Starting(FakeStream):
            async def __anext__(self):
                started.set()
                return await super().__anext__()

        invocations = FakeInvocations(Starting([never]))
        await SocketCalls(fake_call(invocations), FakeSocket("{}", started), FUNCTION, read_message, 5.0).serve()
        assert len(invocations.left) == 1

    asyncio.run(story())


def test_a_stalled_client_ends_the_guest():
    invocations = FakeInvocations(FakeStream([b"a", b"b", b"c"]))
    never = asyncio.Event()
    assert converse(invocations, "{}", never, takes=1, idle_s=0.01) == [b"a"]
    assert len(invocations.left) == 1


def test_a_second_concurrent_call_is_refused_and_ends_the_first():
    invocations = FakeInvocations(FakeStream([asyncio.Event()]))
    (error,) = converse(invocations, "{}", "{}")
    assert error["error"]["reason"] == "conflict"
    assert len(invocations.left) == len(invocations.asked)


@pytest.mark.parametrize("text", ["", "no", "[]", '{"args":1}', "[" * 5000, '{"export":"' + "a" * (1 << 20) + '"}'])
def test_an_invalid_message_is_refused(text):
    (error,) = converse(FakeInvocations(), text)
    assert error["error"]["reason"] == "invalid_json"


def test_input_is_bounded(monkeypatch):
    monkeypatch.setattr(socket_calls, "MIB", 4)
    (error,) = converse(FakeInvocations(), b"123", b"45", environment={"TENSOR_WASM_API_MAX_BODY": "1"})
    assert error["error"]["reason"] == "body_too_large"


@pytest.mark.parametrize(
    "messages",
    [("{}",), (b"x" * 300,), ("nonsense",), ("nonsense", b"never taken"), ("{}", "{}", b"y"), ('{"cancel":true}',)],
)
def test_all_that_a_client_sent_is_given_back(messages):
    async def story():
        invocations, socket = FakeInvocations(FakeStream([])), FakeSocket(b"x" * 400, *messages)
        whole_bytes = socket.budget.free_bytes
        await SocketCalls(fake_call(invocations), socket, FUNCTION, read_message, 5.0).serve()
        assert socket.budget.free_bytes == whole_bytes
        socket.budget.take(whole_bytes // 2, 7)


def test_many_small_messages_take_little_more_memory_than_their_bytes():
    async def story():
        calls = SocketCalls(fake_call(FakeInvocations()), FakeSocket(), FUNCTION, read_message, 5.0)
        for number in range(20_000):
            calls._keep(b"" if number % 2 else b"ab")
        assert len(calls._input) < 20
        assert calls._take_input() == (b"ab" * 10_000, 20_000)

    asyncio.run(story())


def test_an_idle_socket_is_closed_unless_a_call_runs():
    async def story():
        guest = asyncio.Event()
        invocations = FakeInvocations(FakeStream([guest, b"late"]))
        socket = FakeSocket("{}", asyncio.Event())
        holding = asyncio.ensure_future(
            SocketCalls(fake_call(invocations), socket, FUNCTION, read_message, 0.005).serve()
        )
        await asyncio.wait((holding,), timeout=0.05)
        assert not holding.done()
        guest.set()
        await holding
        assert socket.sent[0] == b"late"

    asyncio.run(story())


def test_every_call_is_admitted():
    admitted = []

    async def again():
        admitted.append(True)
        if len(admitted) == 2:
            raise RateLimited("too many requests")
        return SimpleNamespace(tenant=7)

    invocations = FakeInvocations(FakeStream([]), FakeStream([]))
    done, error = converse_in_turn(invocations, "{}", "{}", again=again)
    assert done == DONE
    assert error["error"]["reason"] == "rate_limited"
    assert len(invocations.asked) == 1


def test_another_tenants_function_is_refused_before_the_first_message():
    async def story():
        call = fake_call(FakeInvocations())

        async def denied(tenant, reference):
            raise NotFound("there is no such function")

        call.service.functions.resolve = denied
        socket = FakeSocket(asyncio.Event())
        await SocketCalls(call, socket, FUNCTION, read_message).serve()
        (text,) = socket.sent
        assert json.loads(text)["error"]["reason"] == "not_found"

    asyncio.run(story())


def test_a_bug_in_a_call_is_reported_and_the_next_one_is_served(caplog):
    invocations = FakeInvocations(FakeStream([b"a"], AttributeError("secret")), FakeStream([b"b"]))
    first, error, second, done = converse_in_turn(invocations, "{}", "{}")
    assert (first, error["error"]["reason"], second, done) == (b"a", "internal", b"b", DONE)
    assert "secret" not in error["error"]["message"]
    assert "secret" in caplog.text
