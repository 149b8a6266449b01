"""Sessions of fake and real guests: cancelled, waiting and excess calls, eviction, saving and restarts."""

import asyncio
from functools import partial

import pytest

from fakes.live_sessions import FUNCTION, FakeDesk, FakeFunctions, FakeQuotas, FakeShop, FakeTime
from fakes.services import COUNTER, START, opened
from tensorwasm import yielding
from tensorwasm.database import sessions as rows
from tensorwasm.database.functions import FunctionOptions
from tensorwasm.database.sessions import SessionOptions, find_session, list_sessions
from tensorwasm.errors import (
    ArtifactCorrupt,
    BodyTooLarge,
    CapacityExhausted,
    Conflict,
    Draining,
    GuestTrap,
    InvalidArgs,
    InvalidRequest,
    InvokeTimeout,
    MissingExport,
    NotFound,
    NotSupported,
    QuotaExceeded,
    RateLimited,
    TooManyArgs,
)
from tensorwasm.service.sessions import memory
from tensorwasm.service.sessions.entries import MAX_WAITING, SessionCall, SessionEntry, SessionOperation
from tensorwasm.service.sessions.memory import GIVEN_BYTES
from tensorwasm.service.sessions.sessions import Sessions
from tensorwasm.values import NEVER, Deadline

OTHER_ID = "22222222-2222-4222-8222-222222222222"


class Setup:
    """Sessions over fakes."""

    def __init__(self, *, most=4, quota=4, cuda=False):
        self.database, self.factory, self.functions = FakeDesk(), FakeShop(), FakeFunctions(cuda=cuda)
        self.time, self.quotas = FakeTime(), FakeQuotas(quota)
        self.sessions = Sessions(
            self.database, self.functions, self.factory, self.quotas.hold, idle_s=60, most=most, clock=self.time.clock
        )

    async def open(self, tenant=1):
        return (await self.sessions.open(tenant, FUNCTION)).record.id

    async def row(self, session_id):
        return await self.database.read(find_session, session_id)


def run_story(story, **options):
    async def run():
        small = Setup(**options)
        try:
            await asyncio.wait_for(story(small), 30)
        finally:
            await small.sessions.close(5)
        assert small.factory.alive == 0
        assert not any(small.quotas.held.values())

    asyncio.run(run())


async def hanging(small):
    await asyncio.to_thread(small.factory.hanging.wait, 10)
    small.factory.hanging.clear()


async def gone(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_waiting_call_whose_caller_is_cancelled_is_not_made(tmp_path):
    async def story(small):
        which = await small.open()
        first = asyncio.create_task(small.sessions.call(1, which, SessionCall(export="hang", args=("a",))))
        await hanging(small)
        second = asyncio.create_task(small.sessions.call(1, which, SessionCall(args=("b",))))
        third = asyncio.create_task(small.sessions.call(1, which, SessionCall(args=("c",))))
        await asyncio.sleep(0)
        await gone(second)
        await gone(first)
        assert (await third).values == (2,)
        assert small.sessions._queue.find(1, which).live.state == ("a", "c")

    run_story(story)


def test_a_cancelled_caller_ends_its_guest_but_not_the_session():
    async def story(small):
        which = await small.open()
        for count in range(1, 4):
            call = asyncio.create_task(small.sessions.call(1, which, SessionCall(export="hang", args=(count,))))
            await hanging(small)
            await gone(call)
        assert (await small.sessions.call(1, which, SessionCall(args=(4,)))).values == (4,)

    run_story(story)


def test_a_session_is_charged_for_possible_growth_only_while_it_is_called():
    async def story(small):
        which = await small.open()
        has = small.sessions._queue.find(1, which).live.statistics().memory_bytes
        may = small.sessions._queue.find(1, which).resolved.limits.memory_bytes
        assert small.quotas.memory == {1: has}
        for _ in range(2):
            call = asyncio.create_task(small.sessions.call(1, which, SessionCall(export="hang")))
            await hanging(small)
            assert small.quotas.memory == {1: may}
            await gone(call)
            assert (await small.sessions.call(1, which, SessionCall())).values
            assert small.quotas.memory == {1: has}
            assert small.quotas.held == {1: 1}
        assert may > has

    run_story(story)


def test_a_session_that_was_loaded_to_be_saved_is_charged_for_what_it_uses():
    async def story(small):
        which = await small.open()
        has = small.quotas.memory
        small.time.now_s += 60
        assert await small.sessions.sweep() == 1
        assert not small.quotas.memory
        await small.sessions.save(1, which, lambda record, name: None)
        assert small.quotas.memory == has

    run_story(story)


def test_too_many_waiting_calls_are_refused_and_waiting_calls_time_out():
    async def story(small):
        which = await small.open()
        first = asyncio.create_task(small.sessions.call(1, which, SessionCall(export="hang")))
        await hanging(small)
        ask = SessionCall(deadline=Deadline.after(0.01))
        waiting = [asyncio.create_task(small.sessions.call(1, which, ask)) for _ in range(MAX_WAITING - 1)]
        await asyncio.sleep(0)
        with pytest.raises(RateLimited):
            await small.sessions.call(1, which, SessionCall())
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, InvokeTimeout) for outcome in outcomes)
        await gone(first)
        assert (await small.sessions.call(1, which, SessionCall(args=(1,)))).values == (1,)

    run_story(story)


def test_another_tenant_s_calls_do_not_wait_in_the_owner_s_queue():
    async def story(small):
        which = await small.open()
        first = asyncio.create_task(small.sessions.call(1, which, SessionCall(export="hang")))
        await hanging(small)
        for _ in range(MAX_WAITING + 1):
            with pytest.raises(NotFound):
                await small.sessions.call(2, which, SessionCall())
        with pytest.raises(NotFound):
            await small.sessions.end(2, which)
        assert not first.done()
        await gone(first)
        assert (await small.sessions.call(1, which, SessionCall(args=(1,)))).values == (1,)
        assert len(small.sessions._queue.entries()) == 1

    run_story(story)


def test_deleting_a_session_ends_its_running_call_and_refuses_waiting_ones():
    async def story(small):
        which = await small.open()
        first = asyncio.create_task(small.sessions.call(1, which, SessionCall(export="hang")))
        await hanging(small)
        second = asyncio.create_task(small.sessions.call(1, which, SessionCall()))
        await asyncio.sleep(0)
        await small.sessions.end(1, which)
        with pytest.raises(GuestTrap):
            await first
        with pytest.raises(Conflict):
            await second
        with pytest.raises(NotFound):
            await small.sessions.call(1, which, SessionCall())
        assert small.sessions._queue.entries() == ()

    run_story(story)


def test_a_session_whose_deletion_failed_can_be_called():
    async def story(small):
        which = await small.open()
        first = asyncio.create_task(small.sessions.call(1, which, SessionCall(export="hang", args=(1,))))
        await hanging(small)
        small.database.fails = True
        with pytest.raises(Exception, match="locked"):
            await small.sessions.end(1, which)
        with pytest.raises(GuestTrap):
            await first
        small.database.fails = False
        assert (await small.sessions.call(1, which, SessionCall(args=(2,)))).values == (2,)

    run_story(story)


def test_the_least_recently_used_session_is_evicted():
    async def story(small):
        ids = []
        for _ in range(3):
            small.time.now_s += 1
            ids.append(await small.open())
            await small.sessions.call(1, ids[-1], SessionCall(args=(len(ids),)))
        assert [(await small.sessions.get(1, each)).in_memory for each in ids] == [False, True, True]
        small.time.now_s += 1
        assert (await small.sessions.call(1, ids[0], SessionCall(args=(9,)))).values == (2,)
        assert [(await small.sessions.get(1, each)).in_memory for each in ids] == [True, False, True]

    run_story(story, most=2)


def test_a_tenant_s_quota_evicts_only_its_own_sessions():
    async def story(small):
        mine = [await small.open(1) for _ in range(2)]
        other = await small.open(2)
        small.time.now_s += 1
        await small.open(1)
        assert [(await small.sessions.get(1, each)).in_memory for each in mine] == [False, True]
        assert (await small.sessions.get(2, other)).in_memory
        busy = [asyncio.create_task(small.sessions.call(1, mine[1], SessionCall(export="hang")))]
        await hanging(small)
        busy.append(asyncio.create_task(small.sessions.call(1, mine[0], SessionCall(export="hang"))))
        await hanging(small)
        with pytest.raises(QuotaExceeded):
            await small.open(1)
        for call in busy:
            await gone(call)

    run_story(story, quota=2)


def test_a_session_that_cannot_be_saved_is_not_evicted():
    async def story(small):
        which = await small.open()
        await small.sessions.call(1, which, SessionCall(args=(1,)))
        small.factory.capturable = False
        with pytest.raises(CapacityExhausted):
            await small.open()
        session = await small.sessions.get(1, which)
        assert (session.in_memory, session.record.status, session.save_error) == (True, "volatile", "not_capturable")
        assert (await small.row(which)).status == "volatile"

    run_story(story, most=1)


def test_sessions_whose_tenant_has_no_room_to_save_them_do_not_keep_others_out_of_memory():
    async def story(small):
        full = [await small.open(1) for _ in range(memory.EVICTIONS)]
        for which in full:
            await small.sessions.call(1, which, SessionCall(args=(1,)))
        small.factory.full.add(1)
        other = await small.open(2)
        await small.sessions.call(2, other, SessionCall(args=(1,)))
        small.time.now_s += 60
        assert await small.sessions.sweep() == 1, "only the other tenant's can leave"
        await small.sessions.call(2, other, SessionCall(args=(1,)))
        await small.open(3)
        assert not (await small.sessions.get(2, other)).in_memory
        assert {(await small.sessions.get(1, each)).save_error for each in full} == {"quota_exceeded"}
        tried = small.factory.tried
        small.time.now_s += 59
        assert await small.sessions.sweep() == 0
        assert small.factory.tried == tried, "they are tried again after as long"
        small.factory.full.clear()
        small.time.now_s += 1
        assert await small.sessions.sweep() >= len(full)

    run_story(story, most=memory.EVICTIONS + 1, quota=memory.EVICTIONS)


def test_a_session_that_cannot_be_saved_when_the_service_ends_is_marked_lost():
    small_rows = []

    async def story(small):
        which = await small.open()
        await small.sessions.call(1, which, SessionCall(args=(1,)))
        small.factory.capturable = False
        await small.sessions.close(5)
        assert (await small.row(which)).status == "lost"
        with pytest.raises(Draining):
            await small.sessions.call(1, which, SessionCall())
        small_rows.append(which)

    run_story(story)
    assert small_rows


def test_closing_ends_running_calls_and_saves_all_sessions():
    async def story(small):
        ids = [await small.open() for _ in range(4)]
        await asyncio.gather(*(small.sessions.call(1, each, SessionCall(args=(1,))) for each in ids))
        call = asyncio.create_task(small.sessions.call(1, ids[0], SessionCall(export="hang", args=(2,))))
        await hanging(small)
        waiting = asyncio.create_task(small.sessions.call(1, ids[0], SessionCall(args=(3,))))
        await asyncio.sleep(0)
        await small.sessions.close(0.4)
        with pytest.raises(GuestTrap):
            await call
        with pytest.raises(Draining):
            await waiting
        records = [await small.row(each) for each in ids]
        assert all(record.status == "saved" and record.saved_calls == record.calls for record in records)
        assert [small.factory.saves[1, f"session/{each.id}/{each.save}"][:2] for each in records] == [
            (1, 2),
            *[(1,)] * 3,
        ]

    run_story(story)


def test_functions_that_are_granted_cuda_are_refused_by_name():
    async def story(small):
        with pytest.raises(NotSupported, match="cuda"):
            await small.open()

    run_story(story, cuda=True)


def test_invalid_requests_are_refused():
    async def story(small):
        with pytest.raises(InvalidRequest):
            await small.sessions.open(1, FUNCTION, session_id="7")
        with pytest.raises(InvalidArgs):
            await small.sessions.open(1, FUNCTION, SessionOptions(env=(("a=b", ""),)))
        await small.sessions.open(1, FUNCTION, session_id=OTHER_ID)
        for tenant in (1, 2):
            with pytest.raises(Conflict):
                await small.sessions.open(tenant, FUNCTION, session_id=OTHER_ID)
        with pytest.raises(TooManyArgs):
            await small.sessions.call(1, OTHER_ID, SessionCall(args=tuple(range(257))))
        assert (await small.sessions.call(1, OTHER_ID, SessionCall(args=(1,)))).values == (1,)

    run_story(story)


def test_a_session_whose_function_or_save_is_gone_is_not_loaded():
    async def story(small):
        which = await small.open()
        await small.sessions.call(1, which, SessionCall(args=(1,)))
        small.time.now_s += 60
        assert await small.sessions.sweep() == 1
        small.functions.gone = True
        with pytest.raises(NotFound, match="function is gone"):
            await small.sessions.call(1, which, SessionCall())
        small.functions.gone = False
        small.factory.saves.clear()
        with pytest.raises(ArtifactCorrupt):
            await small.sessions.call(1, which, SessionCall())

    run_story(story)


def test_saves_that_no_row_refers_to_are_deleted():
    async def story(small):
        which = await small.open()
        await small.sessions.call(1, which, SessionCall(args=(1,), durable=True))
        small.factory.saves |= {(1, f"session/{which}/{OTHER_ID}"): (), (2, f"session/{OTHER_ID}/{which}"): ()}
        assert await small.sessions.tidy(0) == 2
        assert [name for _, name in small.factory.saves] == [f"session/{which}/{(await small.row(which)).save}"]

    run_story(story)


# ---------------------------------------------------------------- real guests


def serve(tmp_path, runtime, story, **environment):
    async def run():
        async with opened(tmp_path, runtime=runtime, environment=environment) as service:
            return await story(service)

    return asyncio.run(run())


async def count(service, which, tenant=1, **ask):
    return (await service.sessions.call(tenant, which, SessionCall(**ask))).values[0]


def test_a_counter_continues_after_saves_evictions_and_restarts(tmp_path, runtime):
    async def begin(service):
        function = await service.functions.deploy(1, "counter", COUNTER)
        session = await service.sessions.open(1, function.id)
        which = session.record.id
        assert [await count(service, which) for _ in range(3)] == [1, 2, 3]
        assert await service.sessions.sweep() == 1
        assert service.sessions.in_memory == 0
        assert service.quotas.usage(1)["instances"] == 0
        assert await asyncio.gather(*(count(service, which) for _ in range(5))) == [4, 5, 6, 7, 8]
        assert service.quotas.usage(1)["instances"] == 1
        now_ms = service.clock.unix_ms()
        report = await service.usage.report(1, now_ms - 7_200_000, now_ms + 3_600_000)
        assert report.total.requests == 8
        return which

    async def go_on(service):
        session = await service.sessions.get(1, which)
        assert (session.record.calls, session.record.saved_calls, session.record.rewinds) == (8, 8, 0)
        assert await count(service, which) == 9
        assert await count(service, which, export="kept") == 9
        assert await count(service, which, export="begun") == 41
        with pytest.raises(GuestTrap):
            await count(service, which, export="trap")
        with pytest.raises(InvokeTimeout):
            await count(service, which, export="spin", deadline=Deadline.after(0.05))
        with pytest.raises(MissingExport):
            await count(service, which, export="nothing")
        assert await count(service, which) == 11

    which = serve(tmp_path, runtime, begin, TENSOR_WASM_API_SESSION_IDLE="0.000001")
    serve(tmp_path, runtime, go_on)


def test_a_guest_whose_caller_is_cancelled_is_ended_at_once(tmp_path, runtime):
    async def story(service):
        function = await service.functions.deploy(1, "counter", COUNTER)
        which = (await service.sessions.open(1, function.id)).record.id
        assert await count(service, which) == 1
        call = asyncio.create_task(service.sessions.call(1, which, SessionCall(export="spin")))
        while service.sessions._queue.find(1, which).running is None:  # noqa: ASYNC110 - no event tells when it begins
            await asyncio.sleep(0.001)
        await gone(call)
        assert await asyncio.wait_for(count(service, which), 5) == 2

    serve(tmp_path, runtime, story)


def test_a_session_keeps_the_version_that_it_was_opened_with(tmp_path, runtime):
    async def story(service):
        function = await service.functions.deploy(1, "counter", COUNTER)
        which = (await service.sessions.open(1, function.id)).record.id
        await service.functions.update(1, function.id, module=START)
        assert await count(service, which) == 1
        newer = (await service.sessions.open(1, function.id)).record.id
        assert await count(service, newer) == 42

    serve(tmp_path, runtime, story)


def test_a_function_that_is_granted_cuda_has_no_sessions(tmp_path, runtime):
    async def story(service):
        function = await service.functions.deploy(1, "gpu", COUNTER, FunctionOptions(grants=("cuda",)))
        with pytest.raises(NotSupported):
            await service.sessions.open(1, function.id)

    serve(tmp_path, runtime, story)


class Guest:
    cancelled = False

    def cancel(self):
        self.cancelled = True


def test_abandoning_an_operation_that_has_ended_ends_no_other_guest():
    async def story(small):
        entry = SessionEntry(1, OTHER_ID)
        operation = SessionOperation(entry, NEVER, started=True, task=asyncio.ensure_future(asyncio.sleep(0)))
        entry.running = running = Guest()
        operation.abandon()
        assert running.cancelled
        await operation.task
        entry.running = following = Guest()
        operation.abandon()
        assert not following.cancelled

    run_story(story)


def test_the_options_and_the_number_of_sessions_are_bounded(monkeypatch):
    async def story(small):
        argv = ("x" * (GIVEN_BYTES // 2),) * 2
        await small.sessions.open(1, FUNCTION, SessionOptions(argv=argv))
        with pytest.raises(BodyTooLarge):
            await small.sessions.open(1, FUNCTION, SessionOptions(argv=argv, input=b"1"))
        monkeypatch.setattr(memory, "MAX_SESSIONS", 2)
        await small.open()
        with pytest.raises(QuotaExceeded):
            await small.open()
        assert await small.open(tenant=2)

    run_story(story)


def test_a_list_does_not_read_options():
    async def story(small):
        made = await small.sessions.open(1, FUNCTION, SessionOptions(input=b"x" * 1000))
        (found,) = await small.database.read(list_sessions, 1, None, 10)
        assert found.options == SessionOptions()
        assert (await small.row(made.record.id)).options.input == b"x" * 1000

    run_story(story)


def test_threads_that_save_and_call_yield_to_others():
    def courteous():
        return hasattr(yielding._of_thread, "due_ns")

    async def story(small):
        assert await small.sessions._persistence.threads.run(courteous)
        assert await small.sessions._threads.run(courteous)

    run_story(story)


def test_sessions_are_read_written_and_deleted_by_prebuilt_statements(monkeypatch):
    async def story(small):
        record = await small.row(await small.open())
        for maker in ("select", "update", "delete"):
            monkeypatch.setattr(rows, maker, partial(pytest.fail, "a statement was made anew"))
        assert await small.database.write(rows.write_session, record)
        assert await small.row(record.id) == record
        assert await small.database.write(rows.delete_session, record)
        monkeypatch.undo()

    run_story(story)
