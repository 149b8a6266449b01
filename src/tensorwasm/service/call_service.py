"""`CallService`: what calls of functions need, which every process that serves opens."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.artifacts.store import ContentStore
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.runtime.api.runtime import Runtime
from tensorwasm.service.admission.admission import Admission
from tensorwasm.service.admission.instance_queue import InstanceQueue, host_bytes
from tensorwasm.service.clock import Clock
from tensorwasm.service.fleet.front import ReportedAudit
from tensorwasm.service.fleet.primary import Fronts
from tensorwasm.service.functions.checks import Ceilings
from tensorwasm.service.functions.functions import Functions
from tensorwasm.service.functions.loading import Loader, Prepare
from tensorwasm.service.functions.models import ModelNames
from tensorwasm.service.functions.modules import Modules
from tensorwasm.service.identity.cache import IdentityCache
from tensorwasm.service.identity.identity import Identity
from tensorwasm.service.invocations.invocations import Invocations
from tensorwasm.service.invocations.streaming import StreamEndings
from tensorwasm.service.invocations.workers import Workers
from tensorwasm.service.readiness import Readiness
from tensorwasm.service.usage import UsageMeter
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.telemetry.metrics import Metrics
from tensorwasm.tenancy.audit import AuditLog
from tensorwasm.tenancy.authentication import Authenticator
from tensorwasm.tenancy.buckets import RateLimiter
from tensorwasm.tenancy.quotas import Quotas
from tensorwasm.tenancy.shared_table import SharedTable

CLOSE_S: Final = 2.0
"""How long guests may take to end once they were interrupted. One that runs while compiled host functions are still
being loaded cannot be interrupted; see `tensorwasm.runtime.invoke.fiber_runner`."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class CallService:
    """What calls of functions need, which every process that serves has.

    Attributes:
        identities: tokens and tenants as requests need them.
        fronts: the processes that accept requests for this one, and call functions; None where it does that itself.
        stack: closes all parts, in reverse order of opening.
    """

    settings: ServiceSettings
    clock: Clock
    database: DatabaseExecutor
    authenticator: Authenticator
    identities: IdentityCache
    runtime: Runtime
    metrics: Metrics
    audit: AuditLog | ReportedAudit
    quotas: Quotas
    usage: UsageMeter
    functions: Functions
    admission: Admission
    invocations: Invocations
    models: ModelNames
    outcomes: StreamEndings
    readiness: Readiness
    fronts: Fronts | None = None
    stack: AsyncExitStack = field(repr=False)

    async def close(self) -> None:
        """Wait for running work, as long as the settings allow, and close all parts. Idempotent."""
        await self.stack.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBase:
    """What the parts of `CallService` are opened on; for `ttl_s` a resolved reference is cached, None for always."""

    settings: ServiceSettings
    clock: Clock
    database: DatabaseExecutor
    ttl_s: float | None
    identity: Identity
    store: ContentStore
    runtime: Runtime
    usage: UsageMeter
    table: SharedTable | None


def open_functions(stack: AsyncExitStack, base: CallBase, prepare: Prepare | None) -> Functions:
    """Open functions, whose kernels `prepare` gets ready."""
    modules = Modules(base.store)
    stack.push_async_callback(asyncio.to_thread, modules.close)
    loader = Loader(base.runtime, base.identity.identities.policy, prepare)
    stack.push_async_callback(loader.close)
    ceilings = Ceilings.from_settings(base.settings)
    return Functions(base.database, modules, loader, ceilings, ttl_s=base.ttl_s, now_unix_ms=base.clock.unix_ms)


async def open_invocations(
    stack: AsyncExitStack, base: CallBase, functions: Functions, workers: Workers
) -> Invocations:
    """Open quotas, admission and invocations."""
    quotas = Quotas(base.clock.unix_ms, await asyncio.to_thread(host_bytes), table=base.table)
    identity, limiter = base.identity, RateLimiter.from_settings(base.settings, base.table)
    admission = Admission(
        identity.authenticator, identity.identities, limiter, quotas, InstanceQueue(quotas, identity.identities.policy)
    )
    invocations = Invocations(functions, workers, admission, base.usage)
    stack.push_async_callback(invocations.close, base.settings.drain_s)
    return invocations


async def close_runtime(runtime: Runtime) -> None:
    """Close a runtime, for which it has a limited time; the process may end then, although guests still run."""
    closed, loop = asyncio.Event(), asyncio.get_running_loop()

    def close() -> None:
        try:
            runtime.close()
        finally:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(closed.set)

    # Not on the loop's executor, whose threads the end of the loop would wait for.
    threading.Thread(target=close, name="tensorwasm-closing", daemon=True).start()
    try:
        await asyncio.wait_for(closed.wait(), CLOSE_S)
    except TimeoutError:
        _log.warning("guests that cannot be interrupted still run: they end with this process")
