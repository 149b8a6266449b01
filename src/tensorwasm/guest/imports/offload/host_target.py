"""Runs plans on all cores of the host, in place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, partial

from tensorwasm import settings
from tensorwasm.errors import InternalError
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.guest.imports.offload.recording import SpanKind, SpanLog, measured
from tensorwasm.offload.codegen.host import LoadedProgram
from tensorwasm.offload.codegen.host_pool import HostOutcome, HostPool
from tensorwasm.offload.codegen.sizes import ReadyPlan
from tensorwasm.offload.declined import Declined, DeclineReason


class HostTarget:
    """The host's cores; see `tensorwasm.guest.imports.offload.guards.OffloadTarget`."""

    moved_bytes = 0

    def __init__(self, tenant: str, spans: SpanLog | None = None) -> None:
        """Use a tenant's share of the threads."""
        self._tenant = tenant
        self._spans = spans

    def run(
        self,
        plan: ReadyPlan[LoadedProgram],
        inputs: Mapping[int, int],
        call: HostCall,
        kept: list[tuple[int, bytes]] | None = None,
    ) -> Mapping[int, int]:
        """Run a plan; raise what `HostCall.check` raises if the guest is to end meanwhile."""
        address, must_end = call.memory.address, partial(_must_end, call)
        with measured(self._spans, SpanKind.RUN) as span:
            run = _pool().run(plan, address, inputs, call.deadline, must_end, tenant=self._tenant, kept=kept)
            if span is not None:
                span.amount = 1
        if run.outcome is HostOutcome.NOT_A_NUMBER:
            raise Declined(DeclineReason.NOT_A_NUMBER)
        if run.outcome is HostOutcome.STOPPED:
            call.check()
            raise InternalError("the threads of the host have stopped, and the guest was not to end")
        return run.results

    def stop(self) -> None:
        """Do nothing: threads ask `HostCall.check`."""

    def statistics(self) -> None:
        """Return nothing: no device was used."""


@cache
def _pool() -> HostPool:
    """Return the threads of this process."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return HostPool(settings.current().offload_threads or processors)


def _must_end(call: HostCall) -> bool:
    try:
        call.check()
    except BaseException:  # noqa: BLE001 - it is raised once the threads have stopped
        return True
    return False
