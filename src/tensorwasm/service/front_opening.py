"""`open_front`: opens a process that accepts requests and calls functions, and leaves all that lasts to the primary."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, suppress
from functools import partial
from hashlib import blake2b
from typing import Final

from tensorwasm import settings as process
from tensorwasm.artifacts.opening import open_store
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.engine.opening import READERS, read_database, sqlite_url
from tensorwasm.database.identity import read_revision
from tensorwasm.runtime.api.runtime import Runtime
from tensorwasm.service.call_service import CallBase, CallService, close_runtime, open_functions, open_invocations
from tensorwasm.service.clock import SYSTEM, run_until_closed
from tensorwasm.service.fleet.front import (
    CLOSE_S,
    PrimaryLink,
    ReportedAudit,
    ReportedEndings,
    SessionsInPrimary,
)
from tensorwasm.service.fleet.messages import Changed
from tensorwasm.service.functions.models import ModelNames, parse_map
from tensorwasm.service.gauges import Gauges
from tensorwasm.service.identity.identity import open_identity
from tensorwasm.service.invocations.workers import Workers
from tensorwasm.service.opening import SHARED_TTL_S
from tensorwasm.service.readiness import Check, Readiness, Storage
from tensorwasm.service.usage import UsageMeter
from tensorwasm.settings.service import ServiceSettings, folder_of
from tensorwasm.telemetry.metrics import Metrics
from tensorwasm.tenancy.audit import AuditLog
from tensorwasm.tenancy.shared_table import SharedTable

REPORT_S: Final = 1.0
"""Seconds between two reports of usage to the primary."""


async def open_front(settings: ServiceSettings, path: str, metrics: Metrics, table: SharedTable) -> CallService:
    """Open a front on the running event loop, once the primary whose control socket has a path has opened the service.

    Raises:
        DatabaseUnavailable: the database cannot be opened.
        StoreUnavailable: the artifact store cannot be opened.
        InvalidArgs: a setting is invalid.
    """
    opened: list[CallService] = []

    async def refresh(changed: Changed | None) -> None:
        """Read again what has changed; None for everything. What is opened later reads it then."""
        for service in opened:
            if changed is None:
                service.functions.forget_all()
            else:
                service.functions.forget(changed.functions, changed.names)
            if changed is None or changed.identities:
                await service.identities.read_again()

    async with AsyncExitStack() as stack:
        link = PrimaryLink(path, refresh, metrics.snapshot, _reporter(settings, table))
        stack.push_async_callback(link.close)
        await link.open()
        url = settings.database or sqlite_url(folder_of(settings.data) / "service.db")
        database = DatabaseExecutor(await asyncio.to_thread(read_database, url, readers=READERS))
        stack.push_async_callback(database.close)
        audit: AuditLog | ReportedAudit = AuditLog(None)
        if settings.audit_log != "none":
            audit = ReportedAudit(link)
            stack.push_async_callback(audit.close)
        base = await _open_base(stack, settings, link, database, table)
        service = await _open_parts(stack, base, link, audit, metrics)
        opened.append(service)
        await refresh(None)  # what changed while the parts were opened
        return service


async def _open_base(
    stack: AsyncExitStack,
    settings: ServiceSettings,
    link: PrimaryLink,
    database: DatabaseExecutor,
    table: SharedTable,
) -> CallBase:
    identity = await open_identity(settings, database, writes=False)
    run_until_closed(stack, identity.identities.follow())
    artifacts = process.current().artifacts or str(folder_of(settings.data) / "artifacts")
    store = await asyncio.to_thread(open_store, artifacts, cap=identity.identities.artifact_cap)
    runtime = await asyncio.to_thread(Runtime)
    stack.push_async_callback(close_runtime, runtime)
    usage = UsageMeter(database, flush_s=REPORT_S, write=link.write_usage)
    usage.open()
    stack.push_async_callback(_close_usage, usage)
    return CallBase(
        settings=settings,
        clock=SYSTEM,
        database=database,
        ttl_s=SHARED_TTL_S if settings.database.startswith("postgresql") else None,
        identity=identity,
        store=store,
        runtime=runtime,
        usage=usage,
        table=table,
    )


async def _close_usage(usage: UsageMeter) -> None:
    """Report what is left, while there is a primary."""
    with suppress(TimeoutError):
        await asyncio.wait_for(usage.close(), CLOSE_S)


def _reporter(settings: ServiceSettings, table: SharedTable) -> str:
    """Return who reports usage here: of all servers of a database, one process at a time has that name."""
    place = f"{socket.gethostname()} {folder_of(settings.data).absolute()} {table.row}"
    return blake2b(place.encode(), digest_size=16).hexdigest()


async def _open_parts(
    stack: AsyncExitStack, base: CallBase, link: PrimaryLink, audit: AuditLog | ReportedAudit, metrics: Metrics
) -> CallService:
    settings, database, identity = base.settings, base.database, base.identity
    functions = open_functions(stack, base, None)
    invocations = await open_invocations(
        stack, base, functions, Workers.from_settings(settings.isolation, settings.broker)
    )
    quotas = invocations.admission.quotas
    invocations.admission.instances.idle = SessionsInPrimary(link, quotas.held_elsewhere)
    link.reported = lambda tenant, used: quotas.reported(tenant, gpu_us=used.gpu_us, launches=used.launches)
    Gauges(
        database=database,
        audit=audit,
        quotas=quotas,
        invocations=invocations,
        loader=functions.loader,
        warm=base.runtime.warm.statistics,
    ).watch(metrics)
    storage = Storage(folder_of(settings.data), settings.disk_reserve_mib)
    checks: dict[str, Check] = {
        "database": partial(database.read, read_revision),
        "data folder": storage.require,  # before the primary, which does not open without room
        "primary process": link.require,
    }
    return CallService(
        settings=settings,
        clock=SYSTEM,
        database=database,
        authenticator=identity.authenticator,
        identities=identity.identities,
        runtime=base.runtime,
        metrics=metrics,
        audit=audit,
        quotas=quotas,
        usage=base.usage,
        functions=functions,
        admission=invocations.admission,
        invocations=invocations,
        models=ModelNames(functions, parse_map(settings.openai_models)),
        outcomes=ReportedEndings(link),
        readiness=Readiness(checks),
        stack=stack.pop_all(),
    )
