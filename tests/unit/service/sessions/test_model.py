"""Sessions against a model: what was called, in order, and what was saved of it; with failures, crashes and endings."""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from fakes.live_sessions import FUNCTION, FakeDesk, FakeFunctions, FakeQuotas, FakeShop, FakeTime
from tensorwasm.errors import (
    CapacityExhausted,
    Conflict,
    DatabaseUnavailable,
    GuestTrap,
    NotCapturable,
    NotFound,
    QuotaExceeded,
    StoreUnavailable,
)
from tensorwasm.service.sessions.entries import SessionCall
from tensorwasm.service.sessions.sessions import Sessions

EXPORTS = st.sampled_from(["main", "main", "trap"])
TENANTS = st.integers(0, 2)
IDLE_S = 60.0
REFUSALS = (DatabaseUnavailable, StoreUnavailable, CapacityExhausted, QuotaExceeded)


class Model:
    """What one session has served, how much of it must survive a crash, and whether it is lost."""

    def __init__(self, tenant: int) -> None:
        self.tenant = tenant
        self.log: list[int] = []
        self.promised = 0
        self.lost = False


class SessionMachine(RuleBasedStateMachine):
    sessions_ = Bundle("sessions")

    @initialize(most=st.integers(1, 4), quota=st.integers(1, 3))
    def begin(self, most, quota):
        self.loop = asyncio.new_event_loop()
        self.database, self.factory, self.functions = FakeDesk(), FakeShop(), FakeFunctions()
        self.time, self.most, self.quota = FakeTime(), most, quota
        self.models: dict[str, Model] = {}
        self.next = 0
        self.service = None
        self.start()

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def start(self):
        async def start():
            self.factory.alive, self.quotas = 0, FakeQuotas(self.quota)
            made = Sessions(
                self.database,
                self.functions,
                self.factory,
                self.quotas.hold,
                idle_s=IDLE_S,
                most=self.most,
                clock=self.time.clock,
            )
            await made._leases.start()  # without the task that looks after idle ones: the rules do that
            return made

        self.service = self.run(start())

    @rule(target=sessions_, tenant=TENANTS)
    def open(self, tenant):
        try:
            opened = self.run(self.service.open(tenant, FUNCTION))
        except REFUSALS:
            return multiple()
        self.models[opened.record.id] = Model(tenant)
        return opened.record.id

    @rule(
        which=sessions_,
        export=st.sampled_from(["main", "main", "trap"]),
        count=st.integers(1, 4),
        durable=st.booleans(),
    )
    def call(self, which, export, count, durable):
        model = self.models[which]
        numbers = range(self.next, self.next + count)
        self.next += count

        async def calls():
            asks = [SessionCall(export=export, args=(number,), durable=durable) for number in numbers]
            return await asyncio.gather(
                *(self.service.call(model.tenant, which, ask) for ask in asks), return_exceptions=True
            )

        for number, outcome in zip(numbers, self.run(calls()), strict=True):
            if isinstance(outcome, Conflict):
                assert model.lost
                continue
            served = isinstance(outcome, GuestTrap) or not isinstance(outcome, Exception)
            if not served:
                assert isinstance(outcome, (*REFUSALS, NotCapturable)), outcome
                # Refused before the guest ran, or served and not saved: the state itself says which.
                entry = self.service._queue.find(model.tenant, which)
                served = entry is not None and entry.live is not None and number in entry.live.state
                assert not served or durable
            elif durable:
                model.promised = len(model.log) + 1
            if served:
                model.log.append(number)
            if not isinstance(outcome, Exception):
                assert outcome.values == (len(model.log),)
        self.check_state(which)

    @rule(which=sessions_)
    def save(self, which):
        model = self.models[which]
        try:
            saved = self.run(
                self.service.save(model.tenant, which, lambda record, name: self.factory.saves[model.tenant, name])
            )
        except (*REFUSALS, NotCapturable):
            return
        except Conflict:
            assert model.lost
            return
        assert list(saved) == model.log[: len(saved)]
        if not model.lost:  # of one that is lost it is what was saved last
            model.promised = len(model.log)

    @rule(which=consumes(sessions_))
    def end(self, which):
        model = self.models[which]
        try:
            self.run(self.service.end(model.tenant, which))
        except DatabaseUnavailable:
            self.run(self.really_end(model.tenant, which))
        try:
            self.run(self.service.get(model.tenant, which))
        except NotFound:
            del self.models[which]
            return
        raise AssertionError("an ended session is there")

    async def really_end(self, tenant, which):
        assert (await self.service.get(tenant, which)).record.id == which
        self.database.fails = False
        await self.service.end(tenant, which)

    @rule(seconds=st.sampled_from([1.0, IDLE_S]))
    def wait(self, seconds):
        self.time.now_s += seconds
        self.run(self.service.sweep())
        if seconds == IDLE_S and not self.factory.store_fails and not self.database.fails and self.factory.capturable:
            assert all(entry.unsavable for entry in self.service._queue.entries())

    @rule(fails=st.booleans())
    def fail_store(self, fails):
        self.factory.store_fails = fails

    @rule(fails=st.booleans())
    def fail_database(self, fails):
        self.database.fails = fails

    @rule(capturable=st.booleans())
    def fail_capture(self, capturable):
        self.factory.capturable = capturable

    @rule()
    def crash(self):
        self.database.fails = False
        before = {which: self.run(self.stored(which)) for which in self.models}
        self.abandon()
        self.start()
        for which, model in self.models.items():
            record = before[which]
            assert record.saved_calls >= model.promised
            after = self.run(self.service.get(model.tenant, which)).record
            if record.status in {"volatile", "lost"}:
                model.lost = True
                assert after.status == "lost"
                continue
            assert after.status == ("fresh" if record.save is None else "saved")
            assert after.rewinds == record.rewinds + (record.status == "live")
            assert after.calls == after.saved_calls == record.saved_calls
            if record.saved_calls < len(model.log):
                assert after.rewinds > record.rewinds, "calls were taken back in silence"
            del model.log[record.saved_calls :]

    @rule()
    def restart(self):
        self.database.fails = False
        whole = not self.factory.store_fails and self.factory.capturable
        self.run(self.service.close(5))
        assert self.factory.alive == 0
        assert not any(self.quotas.held.values())
        self.abandon()
        self.start()
        for which, model in self.models.items():
            record = self.run(self.service.get(model.tenant, which)).record
            if record.status == "lost":
                model.lost = True
            elif not whole:
                assert record.saved_calls >= model.promised
                del model.log[record.saved_calls :]
            else:
                assert record.calls == record.saved_calls == len(model.log)

    def abandon(self):
        self.service._threads.close()
        self.service._persistence.threads.close()

    async def stored(self, which):
        from tensorwasm.database.sessions import find_session  # noqa: PLC0415 - of this check alone

        return await self.database.read(find_session, which)

    @rule(which=sessions_, stranger=TENANTS)
    def intrude(self, which, stranger):
        if stranger == self.models[which].tenant:
            return
        for awaitable in (
            self.service.get(stranger, which),
            self.service.call(stranger, which, SessionCall(args=(-1,))),
            self.service.end(stranger, which),
            self.service.save(stranger, which, print),
        ):
            try:
                self.run(awaitable)
            except NotFound:
                continue
            raise AssertionError("another tenant was served")

    def check_state(self, which):
        model = self.models[which]
        entry = self.service._queue.find(model.tenant, which)
        if entry is not None and entry.live is not None:
            assert list(entry.live.state) == model.log

    @invariant()
    def counts_agree(self):
        if getattr(self, "service", None) is None:
            return
        assert self.service.in_memory == self.factory.alive <= self.most
        assert sum(self.quotas.held.values()) == self.factory.alive
        for which, model in self.models.items():
            if not model.lost:
                session = self.run(self.service.get(model.tenant, which))
                assert session.record.calls == len(model.log), (session, model.log)
                assert session.record.saved_calls >= model.promised

    def teardown(self):
        if getattr(self, "service", None) is not None:
            self.database.fails = self.factory.store_fails = False
            self.run(self.service.close(5))
            self.loop.close()


TestSessions = SessionMachine.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
