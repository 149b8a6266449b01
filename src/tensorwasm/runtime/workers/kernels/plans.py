"""`WorkerPlans`: makes plans of loops for worker processes, which have no key, and keeps them on the disk."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial
from typing import Final

from tensorwasm import settings
from tensorwasm.errors import CapacityExhausted, InternalError, TensorWasmError
from tensorwasm.runtime.deploy.deployer import Deployer
from tensorwasm.runtime.offload.compiler import OffloadCompiler
from tensorwasm.runtime.workers.kernels.service import Done, Outcome

_log: Final = logging.getLogger(__name__)


class WorkerPlans:
    """Makes plans for workers. Thread-safe; nothing but `close` waits.

    A worker that a guest has broken into may ask for any plan of the tenants that it has. It gets no more from that
    than these plans: each is made here, of what it is kept under.
    """

    def __init__(self) -> None:
        self._compiler = OffloadCompiler(Deployer(settings.current()))

    def submit(self, tenant: str, job: bytes, done: Done) -> None:
        """Have a plan made, or taken from the disk; `done` is called once, perhaps now, from any thread.

        It gets a packed `tensorwasm.runtime.offload.plan_job.PlanOutcome`, or why there is none.
        """
        made = self._compiler.answer(tenant, job)
        if made is None:
            done(CapacityExhausted("too many plans wait to be made"))
        else:
            made.add_done_callback(partial(_pass_on, done))

    def close(self) -> None:
        """End what is being made. Idempotent."""
        self._compiler.close()


def _pass_on(done: Done, made: Future[bytes]) -> None:
    outcome: Outcome
    if made.cancelled():
        outcome = CapacityExhausted("the service stops")
    elif (error := made.exception()) is None:
        outcome = made.result()
    elif isinstance(error, TensorWasmError):
        outcome = error
    else:
        _log.error("a plan was not made", exc_info=error)
        outcome = InternalError("a plan was not made")
    done(outcome)
