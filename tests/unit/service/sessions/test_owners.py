"""Two servers with one database: whatever stalls, dies or loses its lease, no acknowledged durable call is lost."""

import asyncio
import uuid

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from fakes.live_sessions import FUNCTION, FakeDesk, FakeFunctions, FakeQuotas, FakeShop, FakeTime
from tensorwasm.database.sessions import ServerRecord, find_session
from tensorwasm.errors import SessionElsewhere, StoreUnavailable
from tensorwasm.service.sessions.entries import SessionCall
from tensorwasm.service.sessions.persistence import Sharing
from tensorwasm.service.sessions.sessions import Sessions

LEASE_S = 15.0
IDLE_S = 60.0
SERVER = st.integers(0, 1)


class StallingDatabase:
    """Another server's way to the database: what it asks can be held up, and arrives when it goes on."""

    def __init__(self, database):
        self._database = database
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def read(self, fn, *args, **kwargs):
        await self.goes_on.wait()
        return await self._database.read(fn, *args, **kwargs)

    async def write(self, fn, *args, **kwargs):
        await self.goes_on.wait()
        return await self._database.write(fn, *args, **kwargs)


class Server:
    """One server, driven step by step: nothing happens in it by itself."""

    def __init__(self, machine, name, before=""):
        self.id = str(uuid.uuid4())
        self.name = name
        self.database = StallingDatabase(machine.database)
        self.sessions = Sessions(
            self.database,
            FakeFunctions(),
            machine.factory,
            FakeQuotas().hold,
            idle_s=IDLE_S,
            clock=machine.time.clock,
            sharing=Sharing(ServerRecord(self.id, name), before, LEASE_S),
        )

    def abandon(self):
        self.sessions._threads.close()
        self.sessions._persistence.threads.close()


class OwnersMachine(RuleBasedStateMachine):
    """A call appends a number to the state of its session; so a state says which calls it has."""

    sessions_ = Bundle("sessions")

    @initialize()
    def begin(self):
        self.loop = asyncio.new_event_loop()
        self.time, self.factory = FakeTime(), FakeShop()
        self.database = FakeDesk(lambda: round(self.time.now_s * 1000))
        self.kept: dict[str, list[int]] = {}
        self.waiting: list[tuple[asyncio.Task, str, int, bool]] = []
        self.next = 0
        self.servers = []
        self.servers = [self.start("first"), self.start("second")]

    def start(self, name, before=""):
        async def start():
            server = Server(self, name, before)
            await server.sessions._leases.start()
            return server

        return self.run(start())

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def settle(self):
        """Let whatever is not held up come to its end, and look at what it came to."""

        async def settle():
            for _ in range(50):
                await asyncio.sleep(0)
            goes_on = [server.database.goes_on.is_set() for server in self.servers]
            if all(goes_on) and self.waiting:
                await asyncio.wait([each[0] for each in self.waiting], timeout=30)

        self.run(settle())
        for task, which, number, durable in [each for each in self.waiting if each[0].done()]:
            self.waiting.remove((task, which, number, durable))
            if not task.cancelled() and task.exception() is None and durable:
                self.kept[which].append(number)
            elif not task.cancelled() and task.exception() is not None:
                assert isinstance(task.exception(), (SessionElsewhere, StoreUnavailable)), task.exception()

    @rule(target=sessions_, where=SERVER)
    def open(self, where):
        server = self.servers[where]
        server.database.goes_on.set()
        which = self.run(server.sessions.open(1, FUNCTION)).record.id
        self.kept[which] = []
        return which

    @rule(which=sessions_, where=SERVER, durable=st.booleans(), count=st.integers(1, 3))
    def call(self, which, where, durable, count):
        async def begin(number):
            ask = SessionCall(args=(number,), durable=durable)
            return asyncio.ensure_future(self.servers[where].sessions.call(1, which, ask))

        for _ in range(count):
            self.waiting.append((self.run(begin(self.next)), which, self.next, durable))
            self.next += 1
        self.settle()

    @rule(which=sessions_, where=SERVER)
    def call_both(self, which, where):
        self.call(which, where, durable=True, count=1)
        self.call(which, 1 - where, durable=True, count=1)

    @rule(where=SERVER, steps=st.integers(0, 12))
    def stall(self, where, steps):
        """Stop a server in the middle of what it does: some steps on, it hears nothing of the database any more."""

        async def stall():
            for _ in range(steps):
                await asyncio.sleep(0)
            self.servers[where].database.goes_on.clear()

        self.run(stall())

    @rule(which=sessions_, where=SERVER, durable=st.booleans(), steps=st.integers(0, 12))
    def overtake(self, which, where, durable, steps):
        """Stall a server in the middle of a call until its lease has run out and the other one has served; go on."""
        for server in self.servers:
            server.database.goes_on.set()
        self.settle()
        self.call(which, where, durable=True, count=1)

        async def begin(number):
            ask = SessionCall(args=(number,), durable=durable)
            task = asyncio.ensure_future(self.servers[where].sessions.call(1, which, ask))
            for _ in range(steps):
                await asyncio.sleep(0)
            self.servers[where].database.goes_on.clear()
            return task

        self.waiting.append((self.run(begin(self.next)), which, self.next, durable))
        self.next += 1
        self.time.now_s += LEASE_S + 1
        self.call(which, 1 - where, durable=True, count=1)
        self.go_on(where)

    @rule(where=SERVER)
    def go_on(self, where):
        self.servers[where].database.goes_on.set()
        self.settle()

    @rule(seconds=st.sampled_from([1.0, LEASE_S / 2, LEASE_S + 1, IDLE_S]))
    def pass_time(self, seconds):
        self.time.now_s += seconds

    @rule(where=SERVER)
    def renew(self, where):
        server = self.servers[where]
        if server.database.goes_on.is_set():
            self.run(server.sessions.renew())
            self.settle()

    @rule(where=SERVER)
    def sweep(self, where):
        server = self.servers[where]
        if server.database.goes_on.is_set():
            self.run(server.sessions.sweep())
            self.settle()

    @rule(where=SERVER, known=st.booleans())
    def crash(self, where, known):
        """End a server in the middle of everything; the next one may know whose place it takes."""
        dead = self.servers[where]
        for task in dead.sessions._queue._tasks:
            task.cancel()
        self.settle_cancelled()
        dead.abandon()
        self.servers[where] = self.start(dead.name, dead.id if known else "")

    def settle_cancelled(self):
        async def settle():
            for _ in range(5):
                await asyncio.sleep(0)

        self.run(settle())

    @rule(where=SERVER)
    def restart(self, where):
        server = self.servers[where]
        server.database.goes_on.set()
        self.settle()
        self.run(server.sessions.close(5))
        self.settle()
        self.servers[where] = self.start(server.name)

    @rule(fails=st.booleans())
    def fail_store(self, fails):
        self.factory.store_fails = fails

    @invariant()
    def acknowledged_calls_are_saved(self):
        for which, kept in getattr(self, "kept", {}).items():
            record = self.run(self.database.read(find_session, which))
            state = () if record.save is None else self.factory.saves[1, f"session/{which}/{record.save}"]
            assert set(kept) <= set(state), f"{sorted(set(kept) - set(state))} were acknowledged and are not in {state}"
            assert len(set(state)) == len(state)

    @invariant()
    def one_server_may_write(self):
        for which in getattr(self, "kept", {}):
            record = self.run(self.database.read(find_session, which))
            entries = [server.sessions._queue.find(1, which) for server in self.servers]
            able = [
                entry
                for entry in entries
                if entry and (entry.record.owner, entry.record.epoch) == (record.owner, record.epoch)
            ]
            assert len([entry for entry in able if record.owner is not None]) <= 1

    def teardown(self):
        if getattr(self, "servers", None):
            self.factory.store_fails = False
            for server in self.servers:
                server.database.goes_on.set()
            self.settle()
            for which in self.kept:
                self.time.now_s += LEASE_S + 1
                self.waiting.append((self.run(self.task(which)), which, self.next, True))
                self.settle()
                assert self.kept[which][-1] == self.next, "a session that no living server has cannot be called"
                self.next += 1
            self.acknowledged_calls_are_saved()
            for server in self.servers:
                self.run(server.sessions.close(5))
            self.loop.close()

    async def task(self, which):
        return asyncio.ensure_future(
            self.servers[0].sessions.call(1, which, SessionCall(args=(self.next,), durable=True))
        )


TestOwners = OwnersMachine.TestCase
TestOwners.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_server_that_lost_its_lease_answers_no_call():
    """Its clock says that others may have the session: it asks the database before it says anything."""

    async def story():
        time = FakeTime()
        database, factory = FakeDesk(lambda: round(time.now_s * 1000)), FakeShop()
        machine = type("M", (), {"database": database, "factory": factory, "time": time})
        first, second = Server(machine, "first"), Server(machine, "second")
        for server in (first, second):
            await server.sessions._leases.start()
        which = (await first.sessions.open(1, FUNCTION)).record.id
        assert (await first.sessions.call(1, which, SessionCall(args=(1,), durable=True))).values == (1,)
        with pytest.raises(SessionElsewhere) as refused:
            await second.sessions.call(1, which, SessionCall(args=(2,)))
        assert refused.value.server == "first"
        time.now_s += LEASE_S + 1
        assert (await second.sessions.call(1, which, SessionCall(args=(3,)))).values == (2,)
        for durable in (False, True):
            with pytest.raises(SessionElsewhere):
                await first.sessions.call(1, which, SessionCall(args=(4,), durable=durable))
        assert (await second.sessions.call(1, which, SessionCall(args=(5,)))).values == (3,)
        for server in (first, second):
            await server.sessions.close(5)
        assert factory.alive == 0

    asyncio.run(story())
