"""WebSockets: their token and subprotocol, and the calls of a function over one."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.services import until
from fakes.streaming import FUNCTION, FakeInvocations, FakeSocket, FakeStream, fake_call
from tensorwasm.errors import CapacityExhausted, GuestTrap, InvalidRequest, NotFound, RateLimited
from tensorwasm.server.http.bodies import BodyBudget
from tensorwasm.server.routes.invocations import read_message
from tensorwasm.server.streaming import websocket
from tensorwasm.server.streaming.websocket import SocketCalls, WebSocket, authorization, offered


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


class Transport:
    def __init__(self, *messages):
        self.messages = list(messages)

    async def receive(self):
        if not self.messages:
            raise RuntimeError("closed")
        return self.messages.pop(0)

    async def send_bytes(self, data):
        raise RuntimeError("closed")

    async def send_str(self, data):
        await asyncio.Event().wait()


def message(kind, data=None):
    return SimpleNamespace(kind=kind, data=data)


def test_messages_end_with_the_clients_last():
    async def story():
        socket = WebSocket(None, Transport(message(1, b"a"), message(2, "b"), message(0)), None, BodyBudget())
        assert [await socket.receive() for _ in range(4)] == [b"a", "b", None, None]

    asyncio.run(story())


def test_a_stalled_or_disconnected_client_is_sent_nothing():
    async def story():
        socket = WebSocket(None, Transport(), None, BodyBudget(), stall_s=0.01)
        assert not await socket.send(b"a")
        assert not await socket.send("a")

    asyncio.run(story())


def test_a_disconnect_before_acceptance_is_no_bug():
    async def story():
        async def accept():
            raise RuntimeError("closed")

        scope = SimpleNamespace(client="127.0.0.1:1", server="127.0.0.1:2", headers={})
        with pytest.raises(InvalidRequest):
            await WebSocket.accept(scope, SimpleNamespace(accept=accept), BodyBudget())

    asyncio.run(story())


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
    monkeypatch.setattr(websocket, "MIB", 4)
    (error,) = converse(FakeInvocations(), b"123", b"45", environment={"TENSOR_WASM_API_MAX_BODY": "1"})
    assert error["error"]["reason"] == "body_too_large"


@pytest.mark.parametrize("last", ["{}", b"x" * 300, "nonsense"])
def test_input_counts_against_the_budget_of_all_clients(last):
    async def story():
        invocations, socket = FakeInvocations(FakeStream([])), FakeSocket(b"x" * 400, last)
        await SocketCalls(fake_call(invocations), socket, FUNCTION, read_message, 5.0).serve()
        assert socket.budget.free_bytes == 1000
        if isinstance(last, bytes):
            assert json.loads(socket.sent[0])["error"]["reason"] == "capacity_exhausted"

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
