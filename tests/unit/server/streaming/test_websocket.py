"""Who opens a WebSocket may say who it is where browsers can."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from tensorwasm.errors import InvalidRequest
from tensorwasm.server.bodies import Budget
from tensorwasm.server.streaming.websocket import Socket, authorization, offered


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
def test_of_two_tokens_none_counts(more):
    with pytest.raises(InvalidRequest):
        authorization({"sec-websocket-protocol": "bearer.b" if more else "bearer.a, bearer.b"} | more)


def test_subprotocols_are_what_is_between_commas():
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
        socket = Socket(None, Transport(message(1, b"a"), message(2, "b"), message(0)), None, Budget())
        assert [await socket.receive() for _ in range(4)] == [b"a", "b", None, None]

    asyncio.run(story())


def test_what_is_not_taken_in_time_or_by_nobody_is_not_sent():
    async def story():
        socket = Socket(None, Transport(), None, Budget(), stall_s=0.01)
        assert not await socket.send(b"a")
        assert not await socket.send("a")

    asyncio.run(story())


def test_a_client_that_left_before_it_was_accepted_is_no_bug():
    async def story():
        async def accept():
            raise RuntimeError("closed")

        scope = SimpleNamespace(client="127.0.0.1:1", server="127.0.0.1:2", headers={})
        with pytest.raises(InvalidRequest):
            await Socket.accept(scope, SimpleNamespace(accept=accept), Budget())

    asyncio.run(story())
