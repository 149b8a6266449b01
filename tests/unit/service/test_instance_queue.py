"""Guests wait for memory that running guests give back; refused where nothing will be given back."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.services import GUEST, opened, until
from fakes.shared_tables import tables
from fakes.virtual_time import run_virtually
from tensorwasm.errors import CapacityExhausted, InvokeTimeout, QuotaExceeded
from tensorwasm.service.admission import instance_queue
from tensorwasm.service.admission.instance_queue import InstanceQueue, host_bytes
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.sessions.entries import SessionCall
from tensorwasm.tenancy.quotas import LEAST_MEMORY_BYTES, Quotas, TenantPolicy
from tensorwasm.values import MIB, NEVER, Deadline


def run(story, **options):
    quotas = Quotas(**options)

    async def telling():
        await story(quotas, InstanceQueue(quotas, lambda _tenant: TenantPolicy()))
        assert not any(quotas.held("memory_bytes"))
        assert not any(quotas.held("instances"))

    asyncio.run(telling())


def run_two(story, **options):
    """A story of two processes that share a table, in virtual time."""

    async def telling():
        with tables(2) as (_, views):
            both = [Quotas(table=view, **options) for view in views]
            await story(*(InstanceQueue(quotas, lambda _tenant: TenantPolicy()) for quotas in both))
            assert not any(quotas.held("memory_bytes") for quotas in both)

    run_virtually(telling)


async def settle():
    for _ in range(3):
        await asyncio.sleep(0)


def test_released_memory_goes_to_the_first_waiting_call():
    async def story(quotas, queue):
        first = queue.try_hold(1, {}, 80)
        order = []

        async def one(tenant, size):
            holding = await queue.hold(tenant, {}, size, NEVER)
            order.append(tenant)
            queue.release(tenant, holding)

        assert queue.try_hold(2, {}, 40) is None
        waiting = [asyncio.ensure_future(one(2, 40)), asyncio.ensure_future(one(3, 10))]
        await settle()
        assert order == []
        assert (queue.waiting, queue.waits) == (2, 2)
        assert queue.try_hold(4, {}, 10) is None  # it would fit, and was not first
        queue.release(1, first)
        await asyncio.gather(*waiting)
        assert order == [2, 3]

    run(story, host_bytes=100)


def test_many_calls_that_wait_for_the_same_are_looked_at_once():
    async def story(quotas, queue):
        limits = {"memory_bytes": 80}
        running = [queue.try_hold(1, limits, 40) for _ in range(2)]
        waiting = [asyncio.ensure_future(queue.hold(1, limits, 40, NEVER)) for _ in range(50)]
        await settle()
        assert quotas.refusals()["memory_bytes"] <= 2
        for served, each in enumerate(waiting, 1):
            queue.release(1, running.pop(0))
            running.append(await each)
            assert queue.waiting == 50 - served
        assert quotas.refusals()["memory_bytes"] <= 2 + 50
        for holding in running:
            queue.release(1, holding)

    run(story, host_bytes=100)


def test_a_tenant_at_its_own_quota_does_not_block_others():
    async def story(quotas, queue):
        limits = {"memory_bytes": 50}
        first = queue.try_hold(1, limits, 50)
        second = asyncio.ensure_future(queue.hold(1, limits, 50, NEVER))
        await settle()
        queue.release(2, await queue.hold(2, limits, 50, NEVER))
        assert not second.done()
        queue.release(1, first)
        queue.release(1, await second)

    run(story, host_bytes=1000)


def test_memory_that_will_not_be_released_is_refused_at_once():
    async def story(quotas, queue):
        with quotas.hold(1, {}, memory_bytes=80):  # a session's
            with pytest.raises(CapacityExhausted):
                queue.try_hold(2, {}, 40)
            with pytest.raises(CapacityExhausted):
                await queue.hold(2, {}, 40, NEVER)
            with pytest.raises(QuotaExceeded, match="memory_bytes"):
                queue.try_hold(1, {"memory_bytes": 90}, 15)
        first = queue.try_hold(1, {"instances": 1, "memory_bytes": 50}, 20)
        with pytest.raises(QuotaExceeded, match="instances"):
            queue.try_hold(1, {"instances": 1, "memory_bytes": 50}, 20)
        assert not queue.will_be_free(QuotaExceeded("short"), 1, {"memory_bytes": 50}, 51)
        with pytest.raises(CapacityExhausted):
            queue.try_hold(2, {}, 101)
        queue.release(1, first)

    run(story, host_bytes=100)


def test_waiting_ends_at_the_deadline_or_with_the_quota_s_error(monkeypatch):
    async def story(quotas, queue):
        first = queue.try_hold(1, {}, 80)
        with pytest.raises(InvokeTimeout, match="waited for memory"):
            await queue.hold(2, {}, 40, Deadline.after(0.0))
        monkeypatch.setattr(instance_queue, "WAIT_S", 0.001)
        with pytest.raises(CapacityExhausted):
            await queue.hold(2, {}, 40, NEVER)
        with pytest.raises(QuotaExceeded, match="memory_bytes"):
            await queue.hold(1, {"memory_bytes": 90}, 40, Deadline.after(60))
        queue.release(1, first)
        queue.release(2, queue.try_hold(2, {}, 100))

    run(story, host_bytes=100)


def test_a_tenant_without_a_limit_waits_for_any_guest_and_blocks_none():
    async def story(quotas, queue):
        first, other = queue.try_hold(1, {}, 600 * MIB), queue.try_hold(2, {}, 100 * MIB)
        with pytest.raises(QuotaExceeded):  # more than one tenant ever has
            queue.try_hold(1, {}, 601 * MIB)
        second = asyncio.ensure_future(queue.hold(1, {}, 100 * MIB, NEVER))
        await settle()
        queue.release(3, await queue.hold(3, {}, 50 * MIB, NEVER))
        assert not second.done()
        queue.release(2, other)
        await settle()
        assert not second.done()
        queue.release(1, first)
        queue.release(1, await second)

    run(story, host_bytes=1200 * MIB)


def test_random_cancellations_leave_nothing_held():
    async def one(queue, chance, held):
        tenant, size = chance.randrange(4), chance.randrange(1, 60)
        limits = {"memory_bytes": 60}
        holding = queue.try_hold(tenant, limits, size)
        if holding is None:
            holding = await queue.hold(tenant, limits, size, NEVER)
        held[tenant] = held.get(tenant, 0) + size
        assert held[tenant] <= 60
        assert sum(held.values()) <= 100
        try:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        finally:
            held[tenant] -= size
            queue.release(tenant, holding)

    async def story(quotas, queue):
        chance, held = random.Random(7), {}
        for _ in range(60):
            tasks = [asyncio.ensure_future(one(queue, chance, held)) for _ in range(40)]
            await asyncio.sleep(0)
            for task in chance.sample(tasks, 5):
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(each is None or isinstance(each, asyncio.CancelledError) for each in outcomes)

    run(story, host_bytes=100)


def test_streams_beyond_the_memory_take_turns(tmp_path, runtime):
    async def one(service, function_id, at):
        async with service.invocations.stream(
            service.admission.admit_tenant(1), function_id, InvocationRequest("echo", input=b"%04d" % at)
        ) as stream:
            return b"".join([chunk async for chunk in stream])

    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "guest", GUEST)
            service.quotas.host_bytes = 600 * MIB  # two guests of usual size
            outcomes = await asyncio.gather(*(one(service, made.id, at) for at in range(20)))
            assert outcomes == [b"%04d" % at for at in range(20)]
            spins = [
                service.invocations.invoke(
                    service.admission.admit_tenant(1), made.id, InvocationRequest("spin", deadline=Deadline.after(0.02))
                )
                for _ in "1234"
            ]
            ended = await asyncio.gather(*spins, return_exceptions=True)
            assert {type(each).__name__ for each in ended} <= {"InvokeTimeout", "CapacityExhausted"}
            assert (
                await service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest("say"))
            ).stdout == b"hi"

    asyncio.run(story())


def test_a_wait_without_a_deadline_ends(monkeypatch):
    monkeypatch.setattr(instance_queue, "WAIT_S", 0.01)

    async def story(quotas, queue):
        first = queue.try_hold(1, {}, 80)
        with pytest.raises(CapacityExhausted):
            await queue.hold(2, {}, 40, NEVER)
        queue.release(1, first)

    run(story, host_bytes=100)


def test_other_memory_waits_in_the_same_queue_and_is_taken_by_its_caller():
    async def story(quotas, queue):
        first, order = queue.try_hold(1, {}, 80), []

        async def session():
            async with queue.freed(2, 40, NEVER):
                with quotas.hold(2, {}, instances=1, memory_bytes=40):
                    order.append("session")

        async def guest():
            holding = await queue.hold(3, {}, 100, NEVER)
            order.append("guest")
            queue.release(3, holding)

        waiting = [asyncio.ensure_future(session()), asyncio.ensure_future(guest())]
        await settle()
        queue.release(1, first)
        await asyncio.gather(*waiting)
        assert order == ["session", "guest"]

    run(story, host_bytes=100)


def test_memory_that_active_sessions_hold_is_refused_at_once():
    async def story(quotas, queue):
        with quotas.hold(1, {}, memory_bytes=80), pytest.raises(CapacityExhausted):
            async with queue.freed(2, 40, NEVER):
                raise AssertionError

    run(story, host_bytes=100)


def test_a_call_of_a_session_waits_for_guests_that_run(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "guest", GUEST)
            session = await service.sessions.open(1, made.id)
            service.quotas.host_bytes = 300 * MIB  # one guest of usual size
            mine = await service.functions.deploy(2, "guest", GUEST)
            spins = asyncio.ensure_future(
                service.invocations.invoke(
                    service.admission.admit_tenant(2), mine.id, InvocationRequest("spin", deadline=Deadline.after(0.2))
                )
            )
            await until(lambda: service.invocations.statistics().running)
            called = await service.sessions.call(1, session.record.id, SessionCall(export="say"))
            assert called.stdout == b"hi"
            assert spins.done()
            with pytest.raises(InvokeTimeout):
                await spins

    asyncio.run(story())


def test_guests_and_sessions_wait_for_a_session_that_is_called(tmp_path, runtime):
    """A case of 2026-11-23: only guests of plain calls counted as running, so the others were refused at once."""

    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "guest", GUEST)
            first, second = [(await service.sessions.open(1, made.id)).record.id for _ in range(2)]
            other = await service.functions.deploy(2, "guest", GUEST)
            service.quotas.host_bytes = 300 * MIB  # one guest of usual size
            for ask in (
                lambda: service.sessions.call(1, second, SessionCall(export="say")),
                lambda: service.invocations.invoke(
                    service.admission.admit_tenant(2), other.id, InvocationRequest("say")
                ),
            ):
                spin = SessionCall(export="spin", deadline=Deadline.after(1))
                spins = asyncio.ensure_future(service.sessions.call(1, first, spin))
                await until(lambda: service.quotas.usage(1)["memory_bytes"] >= 256 * MIB)
                await ask()
                with pytest.raises(InvokeTimeout):
                    await spins
            assert service.invocations.statistics().memory_waits == 2
            assert service.quotas.usage(1)["memory_bytes"] < 16 * MIB
            assert service.quotas.usage(2)["memory_bytes"] == 0

    asyncio.run(story())


def test_a_call_beyond_its_fair_share_does_not_block_others():
    async def story(quotas, queue):
        first = queue.try_hold(1, {}, 1400 * MIB)
        large = asyncio.ensure_future(queue.hold(2, {}, 1900 * MIB, NEVER))
        await settle()
        queue.release(3, await queue.hold(3, {}, 64 * MIB, NEVER))
        assert not large.done()
        queue.release(1, first)
        queue.release(2, await large)

    run(story, host_bytes=4000 * MIB)


def test_small_calls_pass_a_large_one_up_to_a_part_of_its_memory():
    async def story(quotas, queue):
        first = queue.try_hold(1, {}, 120)
        large = asyncio.ensure_future(queue.hold(2, {}, 160, NEVER))
        await settle()
        small = await queue.hold(3, {}, 20, NEVER)
        more = asyncio.ensure_future(queue.hold(4, {}, 1, NEVER))  # with the other it is more than an eighth of 160
        await settle()
        assert not more.done()
        queue.release(3, small)
        passed = await more
        assert not large.done()
        queue.release(1, first)
        queue.release(2, await large)
        queue.release(4, passed)

    run(story, host_bytes=200)


class IdleSessions:
    """Instances of idle sessions, which hold memory until they leave."""

    def __init__(self, quotas, *sizes):
        self.held = [quotas.hold(9, {}, memory_bytes=size) for size in sizes]

    def any_idle(self, tenant):
        return bool(self.held) and tenant in {None, 9}

    async def evict_one(self, tenant):
        await asyncio.sleep(0)
        if not self.any_idle(tenant):
            return False
        self.held.pop().release()
        return True


def test_idle_sessions_are_evicted_for_calls_and_no_more_than_needed():
    async def story(quotas, queue):
        queue.idle = sessions = IdleSessions(quotas, 30, 30, 30)
        assert queue.will_be_free(CapacityExhausted("full"), 1, {}, 60)
        holding = await queue.hold(1, {}, 60, NEVER)
        assert len(sessions.held) == 1
        queue.release(1, holding)
        with pytest.raises(QuotaExceeded):  # its own quota is short, and none of the sessions is its own
            queue.try_hold(1, {"memory_bytes": 10}, 20)
        sessions.held.pop().release()

    run(story, host_bytes=100)


def test_an_idle_session_is_saved_when_a_call_needs_its_memory(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "guest", GUEST)
            session = (await service.sessions.open(1, made.id)).record.id
            await service.sessions.call(1, session, SessionCall(export="say"))
            held_bytes = service.quotas.usage(1)["memory_bytes"]
            assert held_bytes
            service.quotas.host_bytes = 256 * MIB + held_bytes - 1  # room for one guest without the session
            other = await service.functions.deploy(2, "guest", GUEST)
            admitted = service.admission.admit_tenant(2)
            said = await service.invocations.invoke(admitted, other.id, InvocationRequest("say"))
            assert said.stdout == b"hi"
            assert service.quotas.usage(1)["memory_bytes"] == 0
            assert (await service.sessions.call(1, session, SessionCall(export="say"))).stdout == b"hi"

    asyncio.run(story())


def test_a_session_that_becomes_idle_is_evicted_for_a_call_that_waits_already():
    async def story(quotas, queue):
        queue.idle = sessions = IdleSessions(quotas)
        busy = quotas.hold(9, {}, memory_bytes=60)
        queue.begin(9)
        waiting = asyncio.ensure_future(queue.hold(1, {}, 60, NEVER))
        await settle()
        assert not waiting.done()
        sessions.held.append(busy)
        queue.end(9)
        queue.release(1, await waiting)

    run(story, host_bytes=100)


@given(st.integers(1, 1 << 44))
def test_host_memory_leaves_a_reserve_and_the_compilers_part(whole):
    room = host_bytes(whole)
    assert room >= LEAST_MEMORY_BYTES
    assert room == LEAST_MEMORY_BYTES or room <= whole * 3 // 4 - 384 * MIB + 1


def test_a_group_of_3_gib_holds_seven_instances_of_usual_size():
    assert host_bytes(3072 * MIB) // (256 * MIB) == 7


def test_a_tenant_over_its_own_share_evicts_no_session_of_others():
    async def story(quotas, queue):
        queue.idle = sessions = IdleSessions(quotas, 30 * MIB, 30 * MIB)
        first = queue.try_hold(1, {}, 500 * MIB)
        with pytest.raises(InvokeTimeout):
            await queue.hold(1, {}, 300 * MIB, Deadline.after(0.01))
        assert len(sessions.held) == 2
        queue.release(1, first)
        for held in sessions.held:
            held.release()

    run(story, host_bytes=1200 * MIB)


class SlowSession:
    """One idle session, which is saved for some time before its memory is free."""

    def __init__(self, quotas):
        self.idle, self.saved, self.holding = True, asyncio.Event(), quotas.hold(9, {}, memory_bytes=50)

    def any_idle(self, _tenant):
        return self.idle

    async def evict_one(self, _tenant):
        if not self.idle:
            return False
        self.idle = False
        await self.saved.wait()
        self.holding.release()
        return True


def test_a_call_waits_for_a_session_that_is_leaving_memory_whoever_comes_meanwhile():
    """A session that is being evicted is not idle any more: the next call let all be refused that waited for it."""

    async def story(quotas, queue):
        queue.idle = session = SlowSession(quotas)
        calls = []
        for tenant, size in ((1, 60), (2, 60)):
            calls.append(asyncio.create_task(queue.hold(tenant, {"memory_bytes": 100}, size, NEVER)))
            await settle()
        assert not any(call.done() for call in calls)
        session.saved.set()
        queue.release(1, await calls[0])
        queue.release(2, await calls[1])

    run(story, host_bytes=100)


@pytest.mark.parametrize(
    ("tenant", "limits", "host_bytes"),
    [(2, {}, 100), (1, {"memory_bytes": 100}, 1000), (1, {}, LEAST_MEMORY_BYTES)],
)
def test_a_call_waits_for_memory_that_another_process_holds(tenant, limits, host_bytes):
    async def story(queue, other):
        first = other.try_hold(1, {}, host_bytes if not limits else 100)
        assert queue.try_hold(tenant, limits, 60) is None
        waiting = asyncio.ensure_future(queue.hold(tenant, limits, 60, NEVER))
        await asyncio.sleep(1)
        assert not waiting.done()
        began_s = asyncio.get_running_loop().time()
        other.release(1, first)
        queue.release(tenant, await waiting)
        assert asyncio.get_running_loop().time() - began_s <= 2 * instance_queue.LOOK_S
        await asyncio.sleep(1)  # nobody waits, nothing is looked at
        assert queue._look is None
        assert queue.waits == 1

    run_two(story, host_bytes=host_bytes)


def test_a_call_that_waits_for_another_process_is_refused_in_the_end():
    async def story(queue, other):
        first = other.try_hold(1, {}, 100)
        with pytest.raises(CapacityExhausted):
            await queue.hold(2, {}, 60, NEVER)
        assert asyncio.get_running_loop().time() == pytest.approx(instance_queue.WAIT_S)
        with pytest.raises(CapacityExhausted):
            queue.try_hold(2, {}, 101)  # it never fits
        other.release(1, first)

    run_two(story, host_bytes=100)


def test_instances_of_another_process_count_as_the_tenant_s():
    async def story(queue, other):
        first = other.try_hold(1, {"instances": 1}, 10)
        with pytest.raises(QuotaExceeded, match="instances"):
            queue.try_hold(1, {"instances": 1}, 10)
        other.release(1, first)
        queue.release(1, queue.try_hold(1, {"instances": 1}, 10))

    run_two(story, host_bytes=100)
