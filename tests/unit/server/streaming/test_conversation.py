"""A function is called over one WebSocket as often as the client asks."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.services import until
from fakes.streaming import FUNCTION, FakeInvocations, FakeSocket, FakeStream, fake_call
from tensorwasm.errors import CapacityExhausted, GuestTrap, NotFound, RateLimited
from tensorwasm.server.routes.streams import read_message
from tensorwasm.server.streaming import conversation
from tensorwasm.server.streaming.conversation import Conversation

DONE = {"done": {"status": "ok", "function_id": FUNCTION, "result": [7]}}


def converse(invocations, *messages, takes=None, idle_s=5.0, **more):
    """Hold a conversation until the client leaves; return what was sent to it, texts as JSON."""

    async def story():
        socket = FakeSocket(*messages, takes=takes)
        await Conversation(fake_call(invocations, **more), socket, FUNCTION, read_message, idle_s).hold()
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
        await Conversation(fake_call(invocations, **more), socket, FUNCTION, read_message, 5.0).hold()
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


def test_a_failure_is_told_and_the_next_call_is_served():
    invocations = FakeInvocations(FakeStream([b"x"], GuestTrap("x", "unreachable")), FakeStream([]))
    first, error, done = converse_in_turn(invocations, "{}", "{}")
    assert (first, done) == (b"x", DONE)
    assert error["error"]["reason"] == "wasm_error"


def test_a_call_is_ended_when_the_client_says_so():
    invocations = FakeInvocations(FakeStream([asyncio.Event()]))
    (error,) = converse(invocations, "{}", '{"cancel":true}')
    assert error["error"]["reason"] == "cancelled"
    assert len(invocations.left) == len(invocations.asked)


def test_ending_what_does_not_run_is_nothing():
    assert converse(FakeInvocations(), '{"cancel":true}') == []


def test_input_counts_until_the_call_that_has_it_has_ended():
    async def story():
        first, left = asyncio.Event(), asyncio.Event()
        invocations = FakeInvocations(FakeStream([first]), FakeStream([asyncio.Event()]))
        socket = FakeSocket(b"x" * 400, "{}", left, b"y" * 400, "{}", asyncio.Event())
        holding = asyncio.ensure_future(
            Conversation(fake_call(invocations), socket, FUNCTION, read_message, 5.0).hold()
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


def test_a_client_that_leaves_ends_the_guest():
    async def story():
        started, never = asyncio.Event(), asyncio.Event()

        class Starting(FakeStream):
            async def __anext__(self):
                started.set()
                return await super().__anext__()

        invocations = FakeInvocations(Starting([never]))
        await Conversation(fake_call(invocations), FakeSocket("{}", started), FUNCTION, read_message, 5.0).hold()
        assert len(invocations.left) == 1

    asyncio.run(story())


def test_a_client_that_takes_nothing_more_ends_the_guest():
    invocations = FakeInvocations(FakeStream([b"a", b"b", b"c"]))
    never = asyncio.Event()
    assert converse(invocations, "{}", never, takes=1, idle_s=0.01) == [b"a"]
    assert len(invocations.left) == 1


def test_a_second_call_at_a_time_is_refused_and_ends_the_first():
    invocations = FakeInvocations(FakeStream([asyncio.Event()]))
    (error,) = converse(invocations, "{}", "{}")
    assert error["error"]["reason"] == "conflict"
    assert len(invocations.left) == len(invocations.asked)


@pytest.mark.parametrize("text", ["", "no", "[]", '{"args":1}', "[" * 5000, '{"export":"' + "a" * (1 << 20) + '"}'])
def test_what_is_no_message_is_refused(text):
    (error,) = converse(FakeInvocations(), text)
    assert error["error"]["reason"] == "invalid_json"


def test_input_is_bounded(monkeypatch):
    monkeypatch.setattr(conversation, "MIB", 4)
    (error,) = converse(FakeInvocations(), b"123", b"45", environment={"TENSOR_WASM_API_MAX_BODY": "1"})
    assert error["error"]["reason"] == "body_too_large"


@pytest.mark.parametrize("last", ["{}", b"x" * 300, "nonsense"])
def test_input_is_held_within_what_all_clients_may_send(last):
    async def story():
        invocations, socket = FakeInvocations(FakeStream([])), FakeSocket(b"x" * 400, last)
        await Conversation(fake_call(invocations), socket, FUNCTION, read_message, 5.0).hold()
        assert socket.budget.free_bytes == 1000
        if isinstance(last, bytes):
            assert json.loads(socket.sent[0])["error"]["reason"] == "capacity_exhausted"

    asyncio.run(story())


def test_a_silent_socket_is_closed_but_not_while_something_runs():
    async def story():
        guest = asyncio.Event()
        invocations = FakeInvocations(FakeStream([guest, b"late"]))
        socket = FakeSocket("{}", asyncio.Event())
        holding = asyncio.ensure_future(
            Conversation(fake_call(invocations), socket, FUNCTION, read_message, 0.005).hold()
        )
        await asyncio.wait((holding,), timeout=0.05)
        assert not holding.done()
        guest.set()
        await holding
        assert socket.sent[0] == b"late"

    asyncio.run(story())


def test_every_call_is_admitted_anew():
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


def test_another_tenants_function_is_told_before_anything_is_asked():
    async def story():
        call = fake_call(FakeInvocations())

        async def denied(tenant, reference):
            raise NotFound("there is no such function")

        call.service.functions.resolve = denied
        socket = FakeSocket(asyncio.Event())
        await Conversation(call, socket, FUNCTION, read_message).hold()
        (text,) = socket.sent
        assert json.loads(text)["error"]["reason"] == "not_found"

    asyncio.run(story())


def test_a_bug_in_a_call_is_said_and_the_next_one_goes_on(caplog):
    invocations = FakeInvocations(FakeStream([b"a"], AttributeError("secret")), FakeStream([b"b"]))
    first, error, second, done = converse_in_turn(invocations, "{}", "{}")
    assert (first, error["error"]["reason"], second, done) == (b"a", "internal", b"b", DONE)
    assert "secret" not in error["error"]["message"]
    assert "secret" in caplog.text
