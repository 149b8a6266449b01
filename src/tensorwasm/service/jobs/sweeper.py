"""`Sweeper`: looks for jobs that are lost, late or old, and for old idempotency keys, in small batches."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from tensorwasm.database import Connection
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.jobs import JobEnd, JobStatus, count_active, expire_jobs, remove_jobs, trim_jobs
from tensorwasm.database.leases import reclaim_jobs
from tensorwasm.service.clock import Clock
from tensorwasm.service.idempotency import forget_keys
from tensorwasm.service.jobs.outcomes import EXPIRED, INTERRUPTED, Judge
from tensorwasm.values import MIB

BATCH: Final = 200
"""Rows of each kind in one transaction."""

ENDED_JOBS: Final = 10_000
"""Ended jobs that are kept of one tenant; of more, those go that ended first."""

ENDED_BYTES: Final = 256 * MIB
"""Likewise their results."""


@dataclass(frozen=True, slots=True)
class SweepParameters:
    """What one sweep writes.

    Attributes:
        lost: the end of a job whose process went down in its last attempt.
        late: the end of a job that did not begin in time.
        mine: jobs that this process runs at the moment.
        alone: no other process runs jobs, and this one has begun none yet.
    """

    lost: JobEnd
    late: JobEnd
    mine: Collection[str]
    alone: bool


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep found.

    Attributes:
        changed: jobs that are something else now, with what.
        active: jobs that have not ended.
        more: there may be more to sweep.
    """

    changed: tuple[tuple[str, JobStatus], ...]
    active: int
    more: bool


class Sweeper:
    """Sweeps.

    Args:
        desk: of the database.
        judge: says how jobs end.
        clock: what time it is.
        running: returns the jobs that this process runs.
        changed: told each job's new status, once that is durable.
    """

    def __init__(
        self,
        desk: DatabaseExecutor,
        judge: Judge,
        clock: Clock,
        running: Callable[[], Collection[str]],
        changed: Callable[[str, JobStatus], None],
    ) -> None:
        """Sweep nothing yet."""
        self._desk = desk
        self._judge = judge
        self._clock = clock
        self._running = running
        self._changed = changed

    async def sweep(self, *, alone: bool = False) -> int:
        """Sweep until nothing is left, and return how many jobs have not ended.

        Args:
            alone: no other process runs jobs, and this one has begun none: whatever runs is lost.

        Raises:
            DatabaseUnavailable: the database does not answer.
            CapacityExhausted: too many wait for it.
        """
        while True:
            now = self._clock.unix_ms()
            lost, late = self._judge.fail(INTERRUPTED, now, dead=True), self._judge.fail(EXPIRED, now)
            swept = await self._desk.write(_sweep, SweepParameters(lost, late, self._running(), alone))
            for job_id, status in swept.changed:
                self._changed(job_id, status)
            if not swept.more:
                return swept.active


def _sweep(connection: Connection, broom: SweepParameters) -> Swept:
    now = broom.late.at_unix_ms
    found = reclaim_jobs(connection, broom.lost, broom.mine, BATCH, alone=broom.alone)
    late = expire_jobs(connection, broom.late, BATCH)
    removed = remove_jobs(connection, now, BATCH)
    trimmed = trim_jobs(connection, ENDED_JOBS, ENDED_BYTES, BATCH)
    forgotten = forget_keys(connection, now, BATCH)
    changed = (*found, *((job_id, broom.late.status) for job_id in late))
    more = max(len(found), len(late), removed, trimmed, forgotten) >= BATCH
    return Swept(changed, count_active(connection), more)
