"""A stream whose server takes anything waits for its client all the same."""

from __future__ import annotations

import asyncio

from tensorwasm.server.streaming import pacing
from tensorwasm.server.streaming.pacing import MAX_WAITING_BYTES, Pace

HALF = MAX_WAITING_BYTES // 2


class FakeConnection:
    def __init__(self):
        self.written = 1000
        self.closed = False

    def written_bytes(self):
        return self.written

    def close(self):
        self.closed = True


def test_a_client_that_keeps_up_is_never_waited_for():
    async def story():
        connection = FakeConnection()
        with Pace("a", connection) as pace:
            for _ in range(10):
                assert await pace.keep(HALF)
                connection.written += HALF
        assert connection.closed
        assert not pacing._accounts

    asyncio.run(story())


def test_what_waits_is_bounded_for_all_streams_of_a_connection(monkeypatch):
    monkeypatch.setattr(pacing, "LOOK_S", 0.0)

    async def story():
        connection = FakeConnection()
        with Pace("a", connection) as one, Pace("a", connection) as two, Pace("b", FakeConnection()) as other:
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
    monkeypatch.setattr(pacing, "LOOK_S", 0.001)

    async def story():
        with Pace("a", FakeConnection(), stall_s=0.003) as pace:
            assert [await pace.keep(HALF) for _ in range(3)] == [True] * 3
            assert not await pace.keep(1)

    asyncio.run(story())


def test_what_others_write_leaves_no_debt():
    async def story():
        connection = FakeConnection()
        with Pace("a", connection) as pace:
            connection.written += 100 * MAX_WAITING_BYTES
            for _ in range(3):
                assert await pace.keep(HALF)
            assert pace._account.given_bytes == connection.written + 3 * HALF

    asyncio.run(story())
