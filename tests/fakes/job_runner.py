"""A process that runs jobs until it is killed. Lines in: how many jobs to submit; lines out: what it did."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from fakes.jobs import invocation, resolved
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.engine.opening import open_database
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.jobs.attempts import JobOptions, Terms
from tensorwasm.service.jobs.jobs import Jobs


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(url):
    desk = DatabaseExecutor(open_database(url))

    async def invoke(job, ask):
        say("run", job.id, job.attempts)
        await asyncio.sleep(0.002)
        return invocation(job.attempts)

    jobs = Jobs(desk, invoke, replace(JobOptions(), places=4), alone=True, on_active=lambda count: say("active", count))
    await jobs.open()
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)

    async def submit(number):
        say("accepted", await jobs.submit(number % 3, resolved(), InvocationRequest(), Terms(max_attempts=100)))

    say("ready")
    while line := await commands.readline():
        await asyncio.gather(*map(submit, range(int(line))))
    await jobs.close()
    await desk.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
