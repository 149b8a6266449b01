"""State machine: an accepted job ends once, and never runs twice at a time, whatever processes and clients do."""

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule
from sqlalchemy import func, select

from fakes.desks import InlineDesk
from fakes.jobs import FakeInvocations, SetClock, invocation, resolved
from tensorwasm.database.jobs import ENDED, get_job, record_of
from tensorwasm.database.schema import JOBS
from tensorwasm.errors import CapacityExhausted, Conflict, DatabaseUnavailable, DeviceLost, GuestTrap
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.jobs import runner
from tensorwasm.service.jobs.attempts import JobOptions, Terms
from tensorwasm.service.jobs.jobs import Jobs

OPTIONS = JobOptions(
    attempts=3, keep_s=10_000, places=3, share=2, lease_s=30, renew_s=5, back_off_s=2, back_off_most_s=20
)
TENANTS = (7, 2**64 - 1)
ERRORS = {
    "retryable": DeviceLost,
    "full": CapacityExhausted,
    "trap": GuestTrap,
    "bug": ZeroDivisionError,
    "stopped": asyncio.CancelledError,
}
PROCESS = st.integers(0, 1)
TERMS = st.builds(
    Terms, st.integers(1, 3), delay_s=st.sampled_from((0, 0, 3)), expires_s=st.sampled_from((None, None, 40))
)


class Process:
    """One process that runs jobs, driven step by step."""

    def __init__(self, database, clock, *, alone):
        self.invocations = FakeInvocations(lambda: clock.now_ms)
        self.jobs = Jobs(database, self.invocations, OPTIONS, alone=alone, clock=clock.clock)
        self.runner = self.jobs._runner

    def crash(self):
        """Stop in the middle of everything, and write nothing."""
        for task in (*self.runner._tasks, *(attempt.call for attempt in self.runner._attempts.values())):
            task.cancel()


class QueueMachine(RuleBasedStateMachine):
    """Two processes on one database."""

    jobs = Bundle("jobs")
    alone = False
    processes_count = 2

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.database, self.clock = InlineDesk(), SetClock()
        self.processes = [self.make() for _ in range(self.processes_count)]
        self.accepted, self.cancelled, self.ends = {}, set(), {}

    def make(self):
        process = Process(self.database, self.clock, alone=self.alone)
        self.do(process.jobs._sweep(at_start=True))
        return process

    def do(self, coroutine):
        """Run something, and whatever follows from it without more time."""
        try:
            return self.loop.run_until_complete(coroutine)
        finally:
            self.settle()

    def settle(self):
        async def idle():
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(idle())

    def attempt(self, coroutine):
        """Do something that an unreachable database may refuse."""
        try:
            return self.do(coroutine)
        except DatabaseUnavailable:
            assert self.database.failing
            return None

    def record(self, job_id):
        failing, self.database.failing = self.database.failing, False
        try:
            return self.database.write_now(get_job, job_id)
        finally:
            self.database.failing = failing

    @initialize(
        target=jobs,
        orders=st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 3)), min_size=3, max_size=9),
    )
    def begin(self, orders):
        made = [self.order(0, tenant, Terms(attempts)) for tenant, attempts in orders]
        for index in range(len(self.processes)):
            self.claim(index)
        return multiple(*made)

    @rule(target=jobs, which=PROCESS, tenant=st.sampled_from(TENANTS), terms=TERMS)
    def submit(self, which, tenant, terms):
        return self.order(which, tenant, terms)

    def order(self, which, tenant, terms):
        jobs = self.processes[which % len(self.processes)].jobs
        job_id = self.attempt(jobs.submit(tenant, resolved(), InvocationRequest(), terms))
        if job_id is not None:
            self.accepted[job_id] = (tenant, terms.max_attempts)
        return job_id

    @rule(which=PROCESS)
    def claim(self, which):
        self.attempt(self.processes[which % len(self.processes)].runner.claim_due())

    @rule(which=PROCESS)
    def renew(self, which):
        process = self.processes[which % len(self.processes)].runner
        self.do(process.renew())
        for attempt in process._attempts.values():
            if attempt.stop_reason != "lost":
                job = self.record(attempt.job.id)
                assert (job.lease_owner, job.attempts) == (process.owner, attempt.lease.attempt), "it is not its own"
                assert attempt.until_s * 1000 > self.clock.now_ms, "the lease has run out"

    @rule(which=PROCESS, slow=st.booleans())
    def slow_down(self, which, slow):
        self.processes[which % len(self.processes)].invocations.slow = slow

    @rule(which=PROCESS)
    def sweep(self, which):
        self.attempt(self.processes[which % len(self.processes)].jobs._sweep())

    @rule(seconds=st.sampled_from((1, 4, 15, 31)))
    def pass_time(self, seconds):
        self.clock.now_ms += seconds * 1000

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 8), outcome=st.sampled_from(("ok", "ok", "long", *ERRORS)))
    def finish(self, index, outcome):
        found = self.open
        call = found[index % len(found)]
        if outcome in ERRORS:
            error = ERRORS[outcome]
            call.outcome.cancel() if error is asyncio.CancelledError else call.outcome.set_exception(error("x"))
        else:
            chunks = [b"x" * (1 << 20)] if outcome == "long" else []
            call.outcome.set_result(invocation(call.job.attempts, chunks))
        self.settle()

    @property
    def open(self):
        return [call for process in self.processes for call in process.invocations.open]

    @rule(which=PROCESS, job_id=jobs)
    def cancel(self, which, job_id):
        if job_id is None:
            return
        tenant, _ = self.accepted[job_id]
        before = self.record(job_id)
        try:
            job = self.attempt(self.processes[which % len(self.processes)].jobs.cancel(tenant, job_id))
        except Conflict:
            assert self.record(job_id).status in ENDED
            return
        if job is not None:
            self.cancelled.add(job_id)
            assert job.cancelled
            assert job.status == ("running" if before.status == "running" else "cancelled")

    @rule(which=PROCESS)
    def crash(self, which):
        self.end(which % len(self.processes), Process.crash)

    @rule(which=PROCESS)
    def restart(self, which):
        self.end(which % len(self.processes), self.close)

    def close(self, process):
        process.invocations.slow = False
        for call in process.invocations.open:
            if call.stopped:
                call.outcome.set_result(invocation(0))
        self.do(process.jobs.close())

    def end(self, index, how):
        how(self.processes[index])
        self.settle()
        failing, self.database.failing = self.database.failing, False
        self.processes[index] = self.make()
        self.database.failing = failing

    @precondition(lambda self: self.open and not self.database.failing)
    @rule()
    def lose_database(self):
        self.database.failing = True

    @precondition(lambda self: self.database.failing)
    @rule()
    def find_database(self):
        self.database.failing = False
        self.settle()

    @invariant()
    def every_job_is_there_and_ends_once(self):
        with self.database.begin() as connection:
            found = {row.id: record_of(row) for row in connection.execute(select(JOBS))}
        assert found.keys() >= self.accepted.keys(), "an accepted job is lost"
        for job_id, (tenant, attempts) in self.accepted.items():
            job = found[job_id]
            assert job.tenant == tenant
            assert 0 <= job.attempts <= attempts
            assert (job.lease_owner is None) == (job.status != "running")
            if job.status in ENDED:
                assert self.ends.setdefault(job_id, job) == job, "a second end was recorded"
                self.check_end(job)
            else:
                assert job_id not in self.ends, "it ended, and went on"

    def check_end(self, job):
        assert (job.result is not None) == (job.status == "completed")
        assert (job.error is not None) == (job.status in {"failed", "dead"})
        assert job.ended_unix_ms <= self.clock.now_ms
        if job.status == "completed":
            expected = f'{{"function_id":"{job.function_id}","result":[{job.attempts}]}}'
            assert job.result == expected.encode(), "another attempt's result"
            assert job.id not in self.cancelled
        if job.status == "dead":
            assert job.attempts == job.max_attempts
            assert job.error.kind in {"device_lost", "job_interrupted"}

    @invariant()
    def a_job_is_run_by_one(self):
        attempts = [each for process in self.processes for each in process.runner._attempts.values()]
        owned = [
            each.job.id for each in attempts if each.stop_reason != "lost" and each.until_s * 1000 > self.clock.now_ms
        ]
        assert len(owned) == len(set(owned)), "two processes run a job, and both take it for theirs"
        assert {each.job.id for each in attempts} <= self.accepted.keys()

    @invariant()
    def a_process_runs_a_job_once(self):
        for process in self.processes:
            open_calls = [call for call in process.invocations.open if not call.stopped]
            assert len(open_calls) == len({call.job.id for call in open_calls})
            for call in open_calls:
                assert call.job.expires_unix_ms is None or call.begun_ms < call.job.expires_unix_ms

    @invariant()
    def no_tenant_exceeds_its_share(self):
        for process in self.processes:
            counts = [call.job.tenant for call in process.invocations.open]
            assert len(counts) <= OPTIONS.places
            assert all(counts.count(tenant) <= OPTIONS.share for tenant in counts)

    def teardown(self):
        """Let everything go well from now on: then every job ends, and those that are counted are none."""
        self.database.failing = False
        for _ in range(400):
            if all(self.record(job_id).status in ENDED for job_id in self.accepted):
                break
            self.clock.now_ms += 21_000
            for process in self.processes:
                self.do(process.runner.renew())
                self.do(process.jobs._sweep())
                self.do(process.runner.claim_due())
                for call in process.invocations.open:
                    call.outcome.set_result(invocation(call.job.attempts))
                self.settle()
        self.every_job_is_there_and_ends_once()
        assert self.ends.keys() == self.accepted.keys(), "a job never ends"
        assert {each for each in self.cancelled if self.ends[each].status != "cancelled"} == set()
        for process in self.processes:
            self.do(process.jobs._sweep())
            if self.alone:
                assert process.jobs.active == 0
            self.close(process)
        self.clock.now_ms += 10_001_000
        self.do(self.processes[0].jobs._sweep())
        with self.database.begin() as connection:
            assert connection.execute(select(func.count()).select_from(JOBS)).scalar_one() == 0
        self.database.close_now()
        self.loop.close()


class LonelyMachine(QueueMachine):
    """One process that owns the database, as with a file of SQLite."""

    alone = True
    processes_count = 1


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(runner, "_RECORD_PAUSE_S", 0.0)


FEW = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.mark.usefixtures("impatient")
class TestQueue(QueueMachine.TestCase):
    settings = FEW


@pytest.mark.usefixtures("impatient")
class TestLonely(LonelyMachine.TestCase):
    settings = FEW


def test_a_process_that_paused_past_its_leases_ends_its_attempts_before_it_claims_again():
    """Found by the machine: a process whose leases ran out unnoticed claimed its own jobs beside their attempts."""
    machine = QueueMachine()
    machine.begin(orders=[(7, 1), (7, 1), (7, 3)])
    machine.pass_time(seconds=31)
    machine.sweep(which=0)
    machine.claim(which=1)
    machine.a_process_runs_a_job_once()
    machine.teardown()
