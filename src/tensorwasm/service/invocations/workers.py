"""`Workers`: the worker processes behind the service, started when a guest first needs a device, or at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Final

from tensorwasm import settings
from tensorwasm.errors import CapacityExhausted, DeviceUnavailable, InvalidArgs, NotReady, TensorWasmError
from tensorwasm.gpu.opening import parse_choice
from tensorwasm.runtime.workers.conversation.loop_reader import LoopReader
from tensorwasm.runtime.workers.options import WorkerStatistics
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.settings.parsing import checked_isolation

_MAX_PREPARING: Final = 16
"""Modules whose kernels are to be looked for; that is done for one at a time."""

JOIN_S: Final = 5.0
"""How long a broker may take to start: it may have been started together with this process."""

JOIN_AGAIN_S: Final = 0.05

_log: Final = logging.getLogger(__name__)


class Workers:
    """An executor that is opened when first needed. For one event loop.

    Args:
        open_executor: opens it.
        early: whether `begin` does something.

    Attributes:
        executor: takes requests; None before it was opened.
    """

    def __init__(self, open_executor: Callable[[], WorkerExecutor], *, early: bool = False) -> None:
        self._open_executor, self._early = open_executor, early
        self._opening: asyncio.Task[WorkerExecutor] | None = None
        self._preparing: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Lock()  # one of the threads that all work of the service shares
        self.executor: WorkerExecutor | None = None
        self._reader: LoopReader | None = None
        self._closed = False

    @classmethod
    def from_settings(cls, isolation: str, broker: str = "") -> Workers:
        """Return workers with an isolation, the device's default for an empty one, or those of a broker.

        Raises InvalidArgs for an unknown isolation, and for one together with a broker, whose workers have theirs.
        """
        if broker and isolation:
            raise InvalidArgs(
                "TENSOR_WASM_API_ISOLATION is for a server's own workers: with TENSOR_WASM_BROKER, leave it out"
            )
        if broker:
            return cls(partial(_join_broker, Path(broker)))
        chosen = checked_isolation("TENSOR_WASM_API_ISOLATION", isolation) if isolation else None
        device = settings.current().device
        return cls(partial(WorkerExecutor, device, isolation=chosen), early=parse_choice(device)[0] == "cuda")

    def statistics(self) -> tuple[WorkerStatistics, ...]:
        """Return a snapshot of every worker; empty before one is needed."""
        return self.executor.workers() if self.executor is not None else ()

    @property
    def restarts(self) -> int:
        """Number of processes that replaced others."""
        return sum(max(0, worker.starts - 1) for worker in self.statistics())

    @property
    def prepared(self) -> int:
        """Number of kernels compiled before anybody asked for them."""
        return self.executor.prepared if self.executor is not None else 0

    def prepare(self, tenant: str, module: bytes, gpu_bytes: int | None) -> None:
        """Have a module's kernels compiled before it is called, as `WorkerExecutor.prepare`. Neither waits nor raises.

        What comes while many others are looked at is left to the first call.
        """
        if not self._closed and len(self._preparing) < _MAX_PREPARING:
            self._do(self._prepare(tenant, module, gpu_bytes))

    def begin(self) -> None:
        """Start what tenants share now, if a GPU was chosen by name: then its first call waits for nothing."""
        if self._early:
            self._do(self._begin())

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(_report_failure(work))
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)

    async def _prepare(self, tenant: str, module: bytes, gpu_bytes: int | None) -> None:
        executor = await self.open()
        async with self._looking:
            await asyncio.to_thread(executor.prepare, tenant, module, gpu_bytes)

    async def _begin(self) -> None:
        (await self.open()).begin()

    async def open(self) -> WorkerExecutor:
        """Return the executor, opened on another thread, which may take a minute to find GPUs.

        Raise CapacityExhausted once this is closed, and what `WorkerExecutor` raises; the next call tries again.
        """
        if self._closed:
            raise CapacityExhausted("the workers are closed")
        if self._opening is None:
            self._opening = asyncio.create_task(asyncio.to_thread(self._open_executor))
        try:
            executor = await asyncio.shield(self._opening)
        except Exception:
            self._opening = None  # the next request tries again
            raise
        if self.executor is None:
            self._reader = LoopReader()
            executor.read_on(self._reader)
            self.executor = executor
        return executor

    async def close(self, limit_s: float = 0.0) -> None:
        """Refuse new requests, wait `limit_s` at most for the running ones, and end the processes."""
        self._closed = True
        await asyncio.gather(*self._preparing)
        if self._opening is not None:
            executor = (await asyncio.gather(self._opening, return_exceptions=True))[0]
            if isinstance(executor, WorkerExecutor):
                await asyncio.to_thread(executor.drain, limit_s)
        if self._reader is not None:
            self._reader.close()


async def _report_failure(work: Coroutine[None, None, None]) -> None:
    """Run a coroutine, and log its error instead of raising it."""
    try:
        await work
    except TensorWasmError as error:  # a call is told the same
        _log.info("nothing is made ready for calls with a GPU: %s", error)
    except Exception:  # noqa: BLE001 - a bug that is to harm no deploy
        _log.exception("nothing is made ready for calls with a GPU")


def _join_broker(path: Path) -> WorkerExecutor:
    """Return an executor over a broker's workers; waits for one that is about to start. Blocks."""
    ends_s = time.monotonic() + JOIN_S
    while True:
        try:
            return WorkerExecutor(broker=path)
        except InvalidArgs as error:  # during a reload
            _log.warning("this process has GPU workers of its own: %s", error.message)
            return WorkerExecutor(settings.current().device)
        except DeviceUnavailable as error:
            if time.monotonic() > ends_s:
                raise NotReady(error.message) from None  # it may come later: jobs are tried again
        time.sleep(JOIN_AGAIN_S)
