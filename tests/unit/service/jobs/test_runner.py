"""Jobs in one or two processes: leases, cancelling, retries, shares, waiting and encoding."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.desks import InlineDesk
from fakes.jobs import FakeInvocations, SetClock, invocation, resolved
from tensorwasm.database.jobs import JobFilter, count_active
from tensorwasm.database.leases import Claim, claim_jobs
from tensorwasm.errors import (
    CapacityExhausted,
    DeviceLost,
    Draining,
    Frame,
    GuestExit,
    GuestTrap,
    InvalidArgs,
    InvalidRequest,
    MissingExport,
    QuotaExceeded,
    TooManyArgs,
)
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.jobs import jobs as module
from tensorwasm.service.jobs.attempts import (
    JobOptions,
    RetryPolicy,
    Terms,
    decode_request,
    encode_failure,
    encode_request,
    encode_result,
)
from tensorwasm.service.jobs.jobs import Jobs

OPTIONS = JobOptions(places=4, share=2, lease_s=30, renew_s=5, back_off_s=2, back_off_most_s=20)


class Stage:
    """Processes on one database, and a clock."""

    def __init__(self, options=OPTIONS):
        self.database, self.clock, self.options = InlineDesk(), SetClock(), options
        self.invocations = {}

    def process(self, *, alone=False):
        calls = FakeInvocations(lambda: self.clock.now_ms)
        jobs = Jobs(self.database, calls, self.options, alone=alone, clock=self.clock.clock)
        self.invocations[jobs] = calls
        return jobs

    def calls(self, jobs):
        return self.invocations[jobs].open

    async def claim(self, jobs):
        await jobs._runner.claim_due()
        await settle()
        return self.calls(jobs)

    async def end(self, call, outcome):
        (call.outcome.set_exception if isinstance(outcome, Exception) else call.outcome.set_result)(outcome)
        await settle()


async def settle():
    for _ in range(12):
        await asyncio.sleep(0)


@pytest.fixture
def play():
    """Return a function that runs a test on its own stage."""

    def run(test, options=OPTIONS):
        async def main():
            stage = Stage(options)
            try:
                await test(stage)
            finally:
                for jobs in stage.invocations:
                    await jobs.close()
                stage.database.close_now()

        asyncio.run(main())

    return run


def test_the_result_of_a_lost_lease_is_dropped(play):
    async def test(stage):
        slow, quick = stage.process(), stage.process()
        job_id = await slow.submit(1, resolved(), InvocationRequest())
        (first,) = await stage.claim(slow)
        stage.clock.now_ms += 31_000
        await quick._sweep()
        (second,) = await stage.claim(quick)
        assert second.job.attempts == 2
        await stage.end(first, invocation(1))
        assert (await quick.get(1, job_id)).status == "running"
        await stage.end(second, invocation(2))
        job = await quick.get(1, job_id)
        assert (job.status, json.loads(job.result)["result"]) == ("completed", [2])

    play(test)


def test_a_guest_whose_lease_is_lost_is_ended(play):
    async def test(stage):
        slow, quick = stage.process(), stage.process()
        await slow.submit(1, resolved(), InvocationRequest())
        (call,) = await stage.claim(slow)
        stage.clock.now_ms += 31_000
        await quick._sweep()
        await slow._runner.renew()
        await settle()
        assert call.stopped
        assert stage.calls(slow) == []

    play(test)


def test_a_guest_is_ended_before_a_lease_that_cannot_be_renewed_expires(play):
    async def test(stage):
        jobs = stage.process()
        await jobs.submit(1, resolved(), InvocationRequest())
        (call,) = await stage.claim(jobs)
        stage.database.failing = True
        stage.clock.now_ms += 15_000
        await jobs._runner.renew()
        await settle()
        assert not call.stopped
        stage.clock.now_ms += 5_001
        await jobs._runner.renew()
        await settle()
        assert call.stopped
        stage.database.failing = False

    play(test)


def test_a_lease_is_kept_while_it_is_renewed(play):
    async def test(stage):
        jobs, other = stage.process(), stage.process()
        job_id = await jobs.submit(1, resolved(), InvocationRequest())
        (call,) = await stage.claim(jobs)
        for _ in range(10):
            stage.clock.now_ms += 29_000
            await jobs._runner.renew()
            await other._sweep()
            assert await stage.claim(other) == []
        await stage.end(call, invocation(1))
        assert (await jobs.get(1, job_id)).attempts == 1

    play(test)


def test_a_wall_clock_that_is_set_forward_ends_no_lease(play):
    async def test(stage):
        jobs = stage.process()
        job_id = await jobs.submit(1, resolved(), InvocationRequest())
        (call,) = await stage.claim(jobs)
        stage.clock.moved_ms = 3_600_000
        await jobs._sweep()
        assert await stage.claim(jobs) == [call]
        await stage.end(call, invocation(1))
        assert (await jobs.get(1, job_id)).status == "completed"

    play(test)


def test_a_cancelled_job_stays_cancelled_whatever_its_guest_returns(play):
    async def test(stage):
        jobs, other = stage.process(), stage.process()
        ids = [await jobs.submit(1, resolved(), InvocationRequest()) for _ in range(2)]
        calls = {call.job.id: call for call in await stage.claim(jobs)}
        for job_id in ids:
            assert (await other.cancel(1, job_id)).status == "running"
        await stage.end(calls[ids[0]], invocation(1))
        await stage.end(calls[ids[1]], DeviceLost("gone"))
        found = [await jobs.get(1, job_id) for job_id in ids]
        assert [(job.status, job.result, job.error) for job in found] == [("cancelled", None, None)] * 2

    play(test)


def test_a_guest_whose_job_another_process_cancels_is_ended_at_the_next_renewal(play):
    async def test(stage):
        jobs, other = stage.process(), stage.process()
        job_id = await jobs.submit(1, resolved(), InvocationRequest())
        (call,) = await stage.claim(jobs)
        await other.cancel(1, job_id)
        assert not call.stopped
        await jobs._runner.renew()
        await settle()
        assert call.stopped
        assert (await jobs.get(1, job_id)).status == "cancelled"

    play(test)


def test_a_cancelled_job_is_not_run_again_when_its_process_dies(play):
    async def test(stage):
        jobs, other = stage.process(), stage.process()
        job_id = await jobs.submit(1, resolved(), InvocationRequest())
        await stage.claim(jobs)
        await other.cancel(1, job_id)
        stage.clock.now_ms += 31_000
        await other._sweep()
        assert (await other.get(1, job_id)).status == "cancelled"
        assert await stage.claim(other) == []

    play(test)


def test_a_tenant_s_share_includes_its_running_jobs(play):
    async def test(stage):
        jobs = stage.process()
        await jobs.submit(1, resolved(), InvocationRequest())
        assert len(await stage.claim(jobs)) == 1
        for _ in range(3):
            await jobs.submit(1, resolved(), InvocationRequest())
        assert len(await stage.claim(jobs)) == 2

    play(test)


def test_retryable_errors_are_retried_after_a_pause_up_to_the_maximum(play):
    async def test(stage):
        jobs = stage.process()
        job_id = await jobs.submit(1, resolved(), InvocationRequest(), Terms(max_attempts=3))
        for attempt in (1, 2, 3):
            (call,) = await stage.claim(jobs)
            before = stage.clock.now_ms
            await stage.end(call, DeviceLost("gone"))
            job = await jobs.get(1, job_id)
            assert (job.attempts, job.error.kind) == (attempt, "device_lost")
            if attempt < 3:
                assert job.status == "pending"
                assert before <= job.due_unix_ms <= before + 2_000 * 2 ** (attempt - 1)
                stage.clock.now_ms = job.due_unix_ms
        assert job.status == "dead"
        assert jobs.active == 0

    play(test)


@pytest.mark.parametrize("error", [CapacityExhausted("full"), QuotaExceeded("over"), Draining("later")])
def test_a_job_refused_for_lack_of_capacity_stays_pending(play, error):
    async def test(stage):
        jobs = stage.process()
        job_id = await jobs.submit(1, resolved(), InvocationRequest(), Terms(max_attempts=1))
        for _ in range(5):
            (call,) = await stage.claim(jobs)
            before = stage.clock.now_ms
            await stage.end(call, error)
            job = await jobs.get(1, job_id)
            assert (job.status, job.attempts, job.error.kind) == ("pending", 0, error.kind)
            assert before <= job.due_unix_ms <= before + 20_000
            stage.clock.now_ms = max(job.due_unix_ms, before + 30_000)
        (call,) = await stage.claim(jobs)
        await stage.end(call, invocation(1))
        job = await jobs.get(1, job_id)
        assert (job.status, job.attempts, job.error) == ("completed", 1, None)

    play(test)


@pytest.mark.parametrize("error", [GuestExit(3), InvalidArgs("x"), ZeroDivisionError()])
def test_other_errors_are_not_retried(play, error):
    async def test(stage):
        jobs = stage.process()
        job_id = await jobs.submit(1, resolved(), InvocationRequest())
        (call,) = await stage.claim(jobs)
        await stage.end(call, error)
        job = await jobs.get(1, job_id)
        assert (job.status, job.attempts) == ("failed", 1)
        assert job.error.kind == getattr(error, "kind", "internal")

    play(test)


def test_a_process_that_stops_returns_its_jobs_without_counting_an_attempt(play):
    async def test(stage):
        jobs, other = stage.process(), stage.process()
        job_id = await jobs.submit(1, resolved(), InvocationRequest(), Terms(max_attempts=1))
        await stage.claim(jobs)
        await jobs.close()
        job = await other.get(1, job_id)
        assert (job.status, job.attempts, job.lease_owner) == ("pending", 0, None)
        (call,) = await stage.claim(other)
        await stage.end(call, invocation(1))
        assert (await other.get(1, job_id)).status == "completed"
        with pytest.raises(Draining):
            await jobs.submit(1, resolved(), InvocationRequest())

    play(test)


def test_a_process_that_is_alone_reclaims_running_jobs_at_once(play):
    async def test(stage):
        jobs = stage.process()
        ids = [await jobs.submit(1, resolved(), InvocationRequest(), Terms(max_attempts=n)) for n in (1, 2)]
        for attempt in jobs._runner._attempts.values():
            attempt.stop("lost")
        assert len(await stage.claim(jobs)) == 2
        after = stage.process(alone=True)
        await after._sweep(at_start=True)
        assert [(await after.get(1, each)).status for each in ids] == ["dead", "pending"]
        assert (await after.get(1, ids[0])).error.kind == "job_interrupted"
        assert after.active == 1

    play(test)


def test_an_outcome_is_written_when_the_database_answers_again(play, monkeypatch):
    monkeypatch.setattr("tensorwasm.service.jobs.runner._RECORD_PAUSE_S", 0.0)

    async def test(stage):
        jobs = stage.process()
        job_id = await jobs.submit(1, resolved(), InvocationRequest())
        (call,) = await stage.claim(jobs)
        stage.database.failing = True
        await stage.end(call, invocation(1))
        stage.database.failing = False
        await settle()
        assert (await jobs.get(1, job_id)).status == "completed"

    play(test)


def test_a_job_whose_result_is_too_long_fails(play):
    async def test(stage):
        jobs = stage.process()
        job_id = await jobs.submit(1, resolved(), InvocationRequest())
        (call,) = await stage.claim(jobs)
        await stage.end(call, invocation(1, [b"x" * (1 << 20)]))
        job = await jobs.get(1, job_id)
        assert (job.status, job.error.kind, job.result) == ("failed", "too_large", None)

    play(test)


def test_jobs_that_do_not_start_in_time_expire(play):
    async def test(stage):
        jobs = stage.process()
        late = await jobs.submit(1, resolved(), InvocationRequest(), Terms(expires_s=10))
        runs = await jobs.submit(2, resolved(), InvocationRequest(), Terms(expires_s=20))
        stage.clock.now_ms += 10_000
        (call,) = await stage.claim(jobs)
        assert call.job.id == runs
        stage.clock.now_ms += 11_000
        await jobs._sweep()
        job = await jobs.get(1, late)
        assert (job.status, job.error.kind, job.attempts) == ("failed", "job_expired", 0)
        assert (await jobs.get(2, runs)).status == "running"

    play(test)


def test_ended_jobs_are_removed_after_their_time(play):
    async def test(stage):
        jobs = stage.process()
        ids = [await jobs.submit(1, resolved(), InvocationRequest()) for _ in range(2)]
        await jobs.cancel(1, ids[0])
        stage.clock.now_ms += 99_999
        await jobs._sweep()
        assert len(await jobs.list(1, JobFilter())) == 2
        stage.clock.now_ms += 1
        await jobs._sweep()
        assert [job.id for job in await jobs.list(1, JobFilter())] == ids[1:]

    play(test, replace(OPTIONS, keep_s=100))


def test_many_jobs_of_one_tenant_do_not_delay_other_tenants(play):
    async def test(stage):
        jobs = stage.process()
        for _ in range(50):
            await jobs.submit(1, resolved(), InvocationRequest())
        assert [call.job.tenant for call in await stage.claim(jobs)] == [1, 1]
        for tenant in (2, 3, 4):
            await jobs.submit(tenant, resolved(), InvocationRequest())
        served = []
        while len(served) < 3:
            for call in await stage.claim(jobs):
                if call.job.tenant != 1:
                    served.append(call.job.tenant)
                    await stage.end(call, invocation(1))
        assert Counter(served) == {2: 1, 3: 1, 4: 1}
        assert Counter(call.job.tenant for call in await stage.claim(jobs)) == {1: 2}

    play(test)


@given(
    waiting=st.dictionaries(st.integers(0, 2**64 - 1), st.integers(1, 5), min_size=1, max_size=6),
    places=st.integers(1, 8),
    share=st.integers(1, 4),
)
def test_tenants_are_served_in_turn(waiting, places, share):
    """In rounds of claims that all end at once, no tenant is ahead of a waiting one by more than a round's share."""

    async def main():
        stage = Stage()
        jobs = stage.process()
        for tenant, count in waiting.items():
            for _ in range(count):
                await jobs.submit(tenant, resolved(), InvocationRequest())
        served, after, now = Counter(), "", stage.clock.now_ms
        while sum(served.values()) < sum(waiting.values()):
            claim = Claim("me", now, now + 1, places, share, {}, after)
            claimed, after = await stage.database.write(claim_jobs, claim)
            counts = Counter(each.job.tenant for each in claimed)
            assert 1 <= len(claimed) <= places
            assert max(counts.values()) <= share
            served.update(counts)
            waits = [tenant for tenant in waiting if served[tenant] < waiting[tenant]]
            for tenant in waits:
                assert max(served.values()) - served[tenant] <= max(share, 1) + 1
        assert served == waiting
        stage.database.close_now()

    asyncio.run(main())


def test_too_many_pending_jobs_are_refused(play, monkeypatch):
    monkeypatch.setattr(module, "MAX_PENDING", 3)

    async def test(stage):
        jobs = stage.process()
        for _ in range(3):
            await jobs.submit(1, resolved(), InvocationRequest())
        with pytest.raises(QuotaExceeded, match="3"):
            await jobs.submit(1, resolved(), InvocationRequest())
        await jobs.submit(2, resolved(), InvocationRequest())
        assert stage.database.write_now(count_active) == 4

    play(test)


@pytest.mark.parametrize(
    ("ask", "terms", "error"),
    [
        (InvocationRequest(args=(1,)), Terms(), InvalidArgs),
        (InvocationRequest(args=("x", 1)), Terms(), InvalidArgs),
        (InvocationRequest(args=(1,) * 257), Terms(), TooManyArgs),
        (InvocationRequest(args=(1, 2)), Terms(max_attempts=101), InvalidRequest),
        (InvocationRequest(args=(1, 2)), Terms(delay_s=-1), InvalidRequest),
        (InvocationRequest(args=(1, 2)), Terms(delay_s=float("nan")), InvalidRequest),
        (InvocationRequest(args=(1, 2)), Terms(delay_s=9, expires_s=9), InvalidRequest),
    ],
)
def test_invalid_calls_and_terms_are_refused(play, ask, terms, error):
    async def test(stage):
        jobs = stage.process()
        with pytest.raises(error):
            await jobs.submit(1, resolved(("i32", "i32")), ask, terms)
        assert stage.database.write_now(count_active) == 0

    play(test)


def test_waiting_callers_are_woken_when_the_job_or_the_process_ends(play):
    async def test(stage):
        jobs = stage.process()
        ids = [await jobs.submit(1, resolved(), InvocationRequest()) for _ in range(2)]
        waiting = [asyncio.ensure_future(jobs.wait(1, each, 3600)) for each in ids]
        calls = await stage.claim(jobs)
        await stage.end(next(call for call in calls if call.job.id == ids[0]), invocation(1))
        assert (await waiting[0]).status == "completed"
        assert not waiting[1].done()
        await jobs.close()
        assert (await waiting[1]).status in {"running", "pending"}
        assert jobs._waiters._waiting == {}

    play(test)


def test_due_jobs_are_run_in_the_background(play):
    async def test(stage):
        @asynccontextmanager
        async def opened(jobs):
            await jobs.open()
            try:
                yield jobs
            finally:
                await jobs.close()

        async def invoke(job, ask):
            return invocation(int(ask.args[0]))

        jobs = Jobs(stage.database, invoke, replace(OPTIONS, poll_s=60), alone=True)
        async with opened(jobs):
            now = await jobs.submit(1, resolved(("i32",)), InvocationRequest(args=(7,)))
            soon = await jobs.submit(1, resolved(("i32",)), InvocationRequest(args=(8,)), Terms(delay_s=0.02))
            for job_id, value in ((now, 7), (soon, 8)):
                job = await jobs.wait(1, job_id, 30)
                assert json.loads(job.result)["result"] == [value]
            assert jobs.active == 0

    play(test)


@given(
    args=st.lists(st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats(), st.text()), max_size=5),
    given_bytes=st.binary(),
    env=st.dictionaries(st.text(), st.text(), max_size=3),
    timeout_s=st.one_of(st.none(), st.floats(0.001, 1e6)),
)
def test_a_stored_call_is_restored_unchanged(args, given_bytes, env, timeout_s):
    ask = InvocationRequest("run", tuple(args), given_bytes, given_bytes[::-1], tuple(env.items()), ("a", "b"))
    kept = decode_request(encode_request(ask, timeout_s))
    assert repr(kept.args) == repr(ask.args)
    for name in ("export", "input", "stdin", "env", "argv"):
        assert getattr(kept, name) == getattr(ask, name)
    assert (kept.deadline.at_ns is None) == (timeout_s is None)


@given(st.binary(max_size=40))
def test_a_guest_s_output_is_stored_byte_for_byte(written):
    answer = json.loads(encode_result("f", invocation(1, [written])))
    assert answer["result"] == [1]
    if written:
        kept = answer["output"]
        assert list(kept) == (["text"] if written.decode(errors="replace").encode() == written else ["base64"])
    else:
        assert "output" not in answer


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_truncated_output_is_marked_as_truncated(name):
    flag = f"{name}_truncated"
    assert json.loads(encode_result("f", invocation(1)._replace(**{flag: True})))[flag] is True
    assert flag not in json.loads(encode_result("f", invocation(1)))


@given(st.integers(1, 200), st.floats(0, 1))
def test_pauses_double_up_to_a_bound(attempts, dice):
    policy = RetryPolicy(OPTIONS, lambda: dice)
    assert 0 <= policy.retry_pause_ms(attempts) <= min(20_000, 2_000 * 2 ** (attempts - 1))


def test_a_missing_export_is_refused_on_submission(play):
    async def test(stage):
        function = resolved()

        def choose(export):
            raise MissingExport(export)

        function.function.choose = choose
        with pytest.raises(MissingExport):
            await stage.process().submit(1, function, InvocationRequest("absent"))

    play(test)


def test_output_and_backtrace_of_a_trap_are_stored():
    error = GuestTrap("unreachable", "unreachable")
    error.stderr = b"why"
    error.backtrace = (Frame(1, "f", 84, "a.c", 3), Frame(0, "", 68))
    assert json.loads(encode_failure(error)) == {
        "stderr": {"text": "why"},
        "backtrace": [
            {"function": 1, "name": "f", "offset": 84, "file": "a.c", "line": 3},
            {"function": 0, "name": "", "offset": 68},
        ],
    }
