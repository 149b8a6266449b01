"""Those who wait for a job's end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.jobs import ended_jobs
from tensorwasm.errors import TensorWasmError

_log = logging.getLogger(__name__)


class JobWaiters:
    """Wakes those who wait for a job, for one event loop.

    Args:
        desk: of the database.
        poll_s: how often jobs are looked for that ended in other processes.
    """

    def __init__(self, desk: DatabaseExecutor, poll_s: float) -> None:
        """Wait for nothing yet."""
        self._desk = desk
        self._poll_s = poll_s
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._poller: asyncio.Task[None] | None = None

    @contextmanager
    def waiting(self, job_id: str) -> Iterator[asyncio.Future[None]]:
        """Give a future that is done once the job has ended. It is made before the job is looked at."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, set()).add(future)
        if self._poller is None:
            self._poller = asyncio.ensure_future(self._poll(self._poll_s))
        try:
            yield future
        finally:
            future.cancel()
            others = self._waiting.get(job_id)
            if others is not None:
                others.discard(future)
                if not others:
                    del self._waiting[job_id]

    def announce(self, job_id: str) -> None:
        """Wake those who wait for a job."""
        for future in self._waiting.pop(job_id, ()):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Wake everybody."""
        for job_id in tuple(self._waiting):
            self.announce(job_id)
        if self._poller is not None:
            self._poller.cancel()

    async def _poll(self, pause_s: float) -> None:
        """Look for what ended elsewhere, as long as anybody waits."""
        while self._waiting:
            await asyncio.sleep(pause_s)
            try:
                ended = await self._desk.read(ended_jobs, tuple(self._waiting))
            except TensorWasmError as error:
                _log.warning("jobs that ended could not be looked for: %s", error.kind)
                continue
            for job_id in ended:
                self.announce(job_id)
        self._poller = None
