"""A front's relay with more requests than it may have at a time."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from fakes.fleets import listening_at
from fakes.services import until
from fakes.wire import FakeWire
from tensorwasm.errors import CapacityExhausted
from tensorwasm.server import relay as relay_module
from tensorwasm.server.connection.listener import Listener
from tensorwasm.server.exchange import Exchange
from tensorwasm.server.relay import Relay

MOST = 4
LONG = {"host": "localhost", "content-length": "100000"}


@asynccontextmanager
async def relaying(tmp_path, begin):
    """A relay to a primary that begins with requests so."""
    listener = Listener(begin, 64, 5.0, relayed=True)
    await listener.listen(listening_at(tmp_path / "http"))
    relay = Relay(str(tmp_path / "http"), MOST)
    try:
        yield relay
    finally:
        relay.close()
        await listener.close(0.0)


class Clients:
    """Requests through a relay, by name."""

    def __init__(self, relay):
        self.relay, self.tasks = relay, {}

    def ask(self, name, wire):
        exchange = Exchange(wire, time.perf_counter_ns())
        self.tasks[name] = asyncio.ensure_future(self.relay.forward(exchange))
        return wire

    def slow_body(self, name):
        return self.ask(name, FakeWire("POST", f"/{name}", headers=LONG, chunks=[b"x", asyncio.Event()]))

    async def end(self):
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


def story(tmp_path, begin, tell):
    async def main():
        async with relaying(tmp_path, begin) as relay:
            clients = Clients(relay)
            try:
                await asyncio.wait_for(tell(clients), 30)
            finally:
                await clients.end()
            assert not relay._running

    asyncio.run(main())


def test_slow_bodies_make_room_for_others_the_oldest_first(tmp_path):
    begun = []

    def begin(wire):
        begun.append(wire.head.path)
        if not wire.long:
            wire.answer(200, [], b"hello")

    async def tell(clients):
        for number in range(MOST):
            clients.slow_body(f"slow{number}")
            await until(lambda: len(begun) == number + 1)  # noqa: B023 - it is waited for here
        for number in range(2):
            assert await clients.ask("quick", FakeWire("GET", "/quick", headers={"host": "x"})).answered.wait()
            with pytest.raises(CapacityExhausted):
                await clients.tasks[f"slow{number}"]
            clients.slow_body(f"more{number}")
            await until(lambda: len(begun) == MOST + 2 * (number + 1))  # noqa: B023 - likewise
        assert not clients.tasks[f"slow{MOST - 1}"].done()

    story(tmp_path, begin, tell)


def test_requests_that_wait_for_the_primary_are_ended_for_nobody(tmp_path):
    waiting = []

    async def tell(clients):
        wires = [clients.ask(n, FakeWire("GET", f"/{n}", headers={"host": "x"})) for n in range(MOST)]
        await until(lambda: len(waiting) == MOST)
        clients.ask("more", FakeWire("GET", "/more", headers={"host": "x"}))
        with pytest.raises(CapacityExhausted):
            await clients.tasks["more"]
        for each in waiting:
            each.answer(200, [], b"hello")
        await asyncio.gather(*(clients.tasks[n] for n in range(MOST)))
        assert {wire.body for wire in wires} == {b"hello"}

    story(tmp_path, waiting.append, tell)


class Stalled(FakeWire):
    """A client that takes nothing of its answer."""

    async def send(self, data):
        await super().send(data)
        await asyncio.Event().wait()


def test_slow_readers_make_room_and_their_answers_break_off(tmp_path):
    def begin(wire):
        if wire.head.path == "/quick":
            wire.answer(200, [], b"hello")
        else:
            wire.begin_body(200, [])._connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nx")

    async def tell(clients):
        slow = [clients.ask(n, Stalled("GET", f"/{n}", headers={"host": "x"})) for n in range(MOST)]
        await until(lambda: all(getattr(each, "pieces", None) for each in slow))
        quick = clients.ask("quick", FakeWire("GET", "/quick", headers={"host": "x"}))
        await clients.tasks["quick"]
        assert quick.body == b"hello"
        await clients.tasks[0]
        assert (slow[0].status, slow[0].ended) == (200, False)
        assert slow[0].answered.is_set(), "it was aborted"
        assert not any(each.answered.is_set() for each in slow[1:])

    story(tmp_path, begin, tell)


def test_of_many_long_answers_one_goes_on_at_a_time(tmp_path, monkeypatch):
    """A front that passed on a piece of each in one round of its loop held up the calls of others for that long."""
    slices, run_slice = [], relay_module.run_slice

    async def counted(work):
        slices.append(work)
        return await run_slice(work)

    monkeypatch.setattr(relay_module, "run_slice", counted)
    size = 10 * relay_module.READ_BYTES

    async def tell(clients):
        wires = [clients.ask(n, FakeWire("GET", f"/{n}", headers={"host": "x"})) for n in range(MOST)]
        await asyncio.gather(*clients.tasks.values())
        assert {len(wire.body) for wire in wires} == {size}
        assert len(slices) >= MOST * (size // (2 * relay_module.READ_BYTES) - 1)

    story(tmp_path, lambda wire: wire.answer(200, [], b"x" * size), tell)
