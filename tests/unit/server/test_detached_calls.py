"""Calls in other processes whose heads came before: they need no task, and are answered as the first one is."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from wasmtime import wat2wasm

from fakes.applications import ANY, bearer, read_record, serving
from fakes.wire import FakeWire
from tensorwasm.errors import CapacityExhausted, DeviceFault, GuestTrap, QuotaExceeded
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.server.application import Application
from tensorwasm.service.functions.functions import FunctionOptions
from tensorwasm.tenancy.quotas import TenantPolicy

GUEST = bytes(wat2wasm('(module (func (export "f") (result i32) i32.const 1))'))
TENANT = 7
SOON_S = 30


def ended(stdout=b"", exit_code=0):
    return Invocation("f", (1,), ("i32",), exit_code, stdout, b"", (), 0.25, None)


class HeldWorkers:
    """Workers that answer when they are told to."""

    restarts = 0

    def __init__(self):
        self.sent, self.stopped, self.refusal = [], [], None

    @property
    def executor(self):
        return self

    def send(self, request, ticket):
        if self.refusal is not None:
            raise self.refusal
        ticket.stop_with(lambda: self.stopped.append(ticket))
        self.sent.append(ticket)

    def answer(self, outcome):
        self.sent.pop(0).settle(outcome)

    def statistics(self):
        return ()

    async def close(self):
        pass


class Caller:
    """Asks one function again and again, with a head and a body that are known from the second time on."""

    def __init__(self, service, pipeline, workers, path):
        self.service, self.pipeline, self.workers, self.path = service, pipeline, workers, path
        self.head = None
        self.records = []
        service.audit.append = lambda record: self.records.append(read_record(record))

    def ask(self):
        headers = {name.lower(): value for name, value in bearer(ANY, TENANT).items()} | {
            "host": "localhost",
            "content-type": "application/json",
        }
        wire = FakeWire("POST", self.path, headers=headers, body=b'{"export":"f"}')
        self.head = wire.head = self.head or wire.head
        self.pipeline.begin(wire)
        return wire

    async def answered(self, wire):
        await asyncio.wait_for(wire.answered.wait(), SOON_S)
        return wire

    async def under_way(self):
        """Ask, and wait until a worker has the call."""
        wire = self.ask()
        while not self.workers.sent:
            assert not wire.answered.is_set(), wire.body
            await asyncio.sleep(0)
        return wire

    async def first(self):
        """Have the head, the body and the function known."""
        wire = await self.under_way()
        self.workers.answer(ended())
        await self.answered(wire)
        self.records.clear()

    def held(self):
        """Return what calls under way hold, and what is counted for them."""
        quotas = self.service.admission.quotas
        flying = sum(counts.in_flight for counts in self.service.metrics.routes)
        statistics = self.service.invocations.statistics()
        names = ("requests", "instances", "memory_bytes")
        return [quotas.held(name) for name in names], flying, statistics.running, len(self.pipeline.repeated.detached)


NOTHING = ([{}, {}, {}], 0, 0, 0)


@asynccontextmanager
async def calling(folder):
    async with serving(folder) as (service, pipeline):
        made = await service.functions.deploy(TENANT, "gpu", GUEST, FunctionOptions(grants=("cuda",)))
        workers = service.invocations.workers = HeldWorkers()
        caller = Caller(service, pipeline, workers, f"/functions/{made.id}/invoke")
        await caller.first()
        yield caller


OUTCOMES = {
    "a result": ended(),
    "output": ended(b"said"),
    "much output": ended(b"x" * (200 << 10)),
    "an exit": ended(b"said", 3),
    "a trap": GuestTrap("unreachable", "unreachable"),
    "a fault": DeviceFault("the worker has crashed"),
}


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_a_call_without_a_task_is_answered_and_counted_as_one_with_a_task(tmp_path, outcome, elsewhere):
    async def story():
        async with calling(tmp_path) as caller:
            told = []
            for known in (False, True):
                if not known:
                    caller.head = None
                used = caller.service.usage._counts[TENANT].copy()
                wire = await caller.under_way()
                assert len(caller.pipeline.repeated.detached) == known
                assert bool(caller.pipeline.tasks) is not known
                [requests, instances, _], flying, running, _ = caller.held()
                assert (requests, instances, flying, running) == ({TENANT: 1}, {TENANT: 1}, 1, 1)
                if elsewhere:
                    thread = threading.Thread(target=caller.workers.answer, args=(outcome,))
                    thread.start()
                    thread.join()
                else:
                    caller.workers.answer(outcome)
                await caller.answered(wire)
                while caller.pipeline.tasks:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0)
                assert caller.held() == NOTHING
                counted = [now - before for now, before in zip(caller.service.usage._counts[TENANT], used, strict=True)]
                fields = {
                    name: value for name, value in wire.headers.pairs if name not in {"x-request-id", "ratelimit"}
                }
                (record,) = caller.records
                caller.records.clear()
                audited = record.action, record.resource, bytes(record.outcome), record.peer_addr
                times = 2 if isinstance(outcome, BaseException) else 0  # their time is measured, others have their own
                told.append((wire.status, fields, wire.body, audited, counted[:2], counted[2 + times :]))
            assert told[0] == told[1]

    asyncio.run(story())


def test_a_call_that_a_worker_refuses_holds_nothing(tmp_path):
    async def story():
        async with calling(tmp_path) as caller:
            caller.workers.refusal = CapacityExhausted("full")
            wire = await caller.answered(caller.ask())
            assert wire.kind == "capacity_exhausted"
            assert caller.held() == NOTHING

    asyncio.run(story())


def test_what_must_wait_has_a_task(tmp_path):
    async def story():
        async with calling(tmp_path) as caller:
            caller.service.identities.policies[TENANT] = TenantPolicy(
                quotas={
                    "memory_bytes": caller.service.functions.find(TENANT, caller.path.split("/")[2]).limits.memory_bytes
                }
            )
            first = await caller.under_way()
            caller.workers.answer(ended())
            await caller.answered(first)
            one, two = caller.ask(), caller.ask()
            assert len(caller.pipeline.repeated.detached) == 1
            caller.workers.answer(ended())
            await caller.answered(one)
            while not caller.workers.sent:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
            caller.workers.answer(ended())
            assert [each.status for each in (one, await caller.answered(two))] == [200, 200]

    asyncio.run(story())


def test_a_client_that_leaves_ends_its_call(tmp_path):
    async def story():
        async with calling(tmp_path) as caller:
            wire = caller.ask()
            (ticket,) = caller.workers.sent
            wire.leave()
            assert caller.workers.stopped == [ticket]
            assert (wire.status, wire.abandoned) == (None, True)
            assert caller.held() == NOTHING
            ticket.settle(ended())
            await asyncio.sleep(0)
            assert (wire.status, caller.held()) == (None, NOTHING)
            (record,) = caller.records
            assert b"499" in bytes(record.outcome) or b"client" in bytes(record.outcome)

    asyncio.run(story())


def test_a_request_too_many_ends_the_call_that_was_begun_for_it(tmp_path, monkeypatch):
    async def story():
        async with calling(tmp_path) as caller:
            quotas = caller.service.admission.quotas
            hold = quotas.hold

            def refuse(tenant, limits, **amounts):
                if "requests" in amounts:
                    raise QuotaExceeded("another process was quicker")
                return hold(tenant, limits, **amounts)

            monkeypatch.setattr(quotas, "hold", refuse)
            wire = await caller.answered(caller.ask())
            assert wire.kind == "quota_exceeded"
            assert caller.workers.stopped == caller.workers.sent
            assert caller.held() == NOTHING

    asyncio.run(story())


@pytest.mark.parametrize("in_time", [True, False])
def test_a_server_that_goes_down_waits_for_calls_without_a_task_and_ends_them(tmp_path, in_time):
    async def story():
        async with calling(tmp_path) as caller:
            application = Application.__new__(Application)
            application.pipeline = caller.pipeline
            wire = caller.ask()
            (ticket,) = caller.workers.sent
            drained = asyncio.ensure_future(application.drain(SOON_S if in_time else 0.0))
            await asyncio.sleep(0)
            assert drained.done() is not in_time
            ticket.settle(ended())
            await asyncio.wait_for(drained, SOON_S)
            assert (wire.status, wire.kind if wire.status != 200 else "") == (
                (200, "") if in_time else (503, "draining")
            )
            assert caller.workers.stopped == ([] if in_time else [ticket])
            assert caller.held() == NOTHING

    asyncio.run(story())
