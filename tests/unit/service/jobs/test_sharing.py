"""Two processes on one PostgreSQL server: they share the jobs, and never run one at the same time."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from fakes import postgres
from fakes.jobs import invocation, resolved
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.engine.opening import open_database
from tensorwasm.errors import DeviceLost
from tensorwasm.service.idempotency import make_key
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.jobs.attempts import JobOptions, Terms
from tensorwasm.service.jobs.jobs import Jobs

OPTIONS = replace(JobOptions(), places=4, share=3, poll_s=0.05, renew_s=0.1, sweep_s=0.1, back_off_s=0.01)


@pytest.fixture(scope="module")
def server():
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.running() as server:
        yield server


class Floor:
    """Where both processes run their jobs: it sees who runs what."""

    def __init__(self):
        self.running, self.runs, self.by, self.crowded = set(), Counter(), Counter(), []
        self.failing = {}

    def process(self, name):
        async def invoke(job, ask):
            if job.id in self.running:
                self.crowded.append(job.id)
            self.running.add(job.id)
            self.runs[job.id] += 1
            self.by[name] += 1
            try:
                if ask.export == "spin":
                    await asyncio.Event().wait()
                await asyncio.sleep(0.002)
                if self.runs[job.id] <= self.failing.get(ask.export, 0):
                    raise DeviceLost("gone")
                return invocation(self.runs[job.id])
            finally:
                self.running.discard(job.id)

        return invoke


@asynccontextmanager
async def two(server, floor):
    """Two processes' jobs."""
    url = server.empty()
    desks = [DatabaseExecutor(open_database(url)) for _ in range(2)]
    both = [Jobs(database, floor.process(index), OPTIONS, alone=False) for index, database in enumerate(desks)]
    for jobs in both:
        await jobs.open()
    try:
        yield both
    finally:
        for jobs, database in zip(both, desks, strict=True):
            await jobs.close()
            await database.close()


def test_a_job_is_run_by_one_process_at_a_time(server):
    async def main():
        floor = Floor()
        floor.failing = {"twice": 2}
        async with two(server, floor) as both:
            asked = [(n % 5, both[n % 2], "twice" if n % 7 == 0 else "run") for n in range(120)]
            ids = await asyncio.gather(
                *(jobs.submit(t, resolved(), InvocationRequest(e), Terms()) for t, jobs, e in asked)
            )
            # Each is waited for where it was not accepted, so that ends elsewhere are heard of too.
            ended = await asyncio.gather(
                *(both[n % 2 == 0].wait(asked[n][0], job_id, 60) for n, job_id in enumerate(ids))
            )
        assert not floor.crowded
        assert {job.status for job in ended} == {"completed"}
        expected = {job_id: 3 if asked[n][2] == "twice" else 1 for n, job_id in enumerate(ids)}
        assert floor.runs == expected
        assert {job.id: job.attempts for job in ended} == expected
        assert min(floor.by.values()) > 0
        assert len(floor.by) == 2

    asyncio.run(main())


def test_a_job_is_cancelled_from_the_other_process(server):
    async def main():
        floor = Floor()
        async with two(server, floor) as both:
            ids = [await both[0].submit(1, resolved(), InvocationRequest("spin")) for _ in range(4)]
            while len(floor.running) < 4:  # noqa: ASYNC110 - it is the other task that is waited for
                await asyncio.sleep(0.001)
            for job_id in ids:
                assert (await both[0].cancel(1, job_id)).cancelled
            ended = [await both[1].wait(1, job_id, 60) for job_id in ids]
            assert {job.status for job in ended} == {"cancelled"}
        assert not floor.running
        assert len(floor.by) == 2, "one process ran all of them"

    asyncio.run(main())


def test_two_processes_accept_one_job_for_one_idempotency_key(server):
    async def main():
        floor = Floor()
        async with two(server, floor) as both:
            key = make_key("invoke", "once", b"all of it")
            submissions = [jobs.submit(1, resolved(), InvocationRequest(), idempotency_key=key) for jobs in both * 8]
            ids = await asyncio.gather(*submissions)
            assert len(set(ids)) == 1
            await both[0].wait(1, ids[0], 60)
        assert floor.runs == {ids[0]: 1}

    asyncio.run(main())
