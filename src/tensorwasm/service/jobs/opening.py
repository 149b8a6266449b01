"""`open_jobs`: jobs that call the service's functions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.jobs import JobRecord
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.service.admission.admission import Admission
from tensorwasm.service.clock import Clock
from tensorwasm.service.invocations.invocations import Invocations
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.jobs.jobs import Jobs
from tensorwasm.service.jobs.options import JobOptions
from tensorwasm.settings.service import ServiceSettings

_GRACE: Final = 0.25
"""The part of the time that all has to end in which jobs may; what does not is made again after the next start."""


async def open_jobs(
    stack: AsyncExitStack,
    settings: ServiceSettings,
    desk: DatabaseExecutor,
    invocations: Invocations,
    admission: Admission,
    clock: Clock,
    *,
    alone: bool,
    on_active: Callable[[int], None],
) -> Jobs:
    """Begin to run jobs, on the running event loop.

    Args:
        stack: closes them, before what they need.
        settings: of the service.
        desk: of the database.
        invocations: calls functions.
        admission: the gate: jobs of a tenant that is disabled meanwhile fail.
        clock: what time it is.
        alone: no other process runs jobs of this database.
        on_active: told how many jobs have not ended, whenever that changes.

    Raises:
        DatabaseUnavailable: the database does not answer.
    """

    async def invoke(job: JobRecord, ask: InvocationRequest) -> Invocation:
        admitted = admission.admit_tenant(job.tenant)
        return await invocations.invoke(admitted, f"{job.function_id}@{job.version}", ask)

    options = JobOptions(attempts=settings.job_attempts, keep_s=settings.job_keep_s)
    jobs = Jobs(desk, invoke, options, alone=alone, clock=clock, on_active=on_active)
    stack.push_async_callback(jobs.close, settings.drain_s * _GRACE)
    await jobs.open()
    return jobs
