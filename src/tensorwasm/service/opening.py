"""`open_service` opens the data folder and all parts of the service in order; `Service.close` closes them in reverse.

::

    DATA/               mode 0700
        service.db      unless the database is elsewhere; the lock file beside it is held by its owner
        artifacts/      unless artifacts are elsewhere
        keys/           the key that signs snapshots, unless a setting gives one
        audit.log       unless the audit log is elsewhere
        server          the process that served last, where servers share a database
        supervisor      the server's supervisor and its reloads (`tensorwasm.server.process.record`)
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tensorwasm import settings as process
from tensorwasm.artifacts.opening import identify, open_store
from tensorwasm.artifacts.private_files import FOLDER_MODE, OTHERS, require_own
from tensorwasm.artifacts.store import ContentStore
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.engine.opening import claim_data_folder, open_database, own_database, sqlite_url
from tensorwasm.database.identity import read_revision
from tensorwasm.database.sessions import ServerRecord
from tensorwasm.database.usage import UsageAmounts, add_report
from tensorwasm.errors import UnsafeFile
from tensorwasm.runtime.api.runtime import Runtime
from tensorwasm.service.admission.admission import Admission
from tensorwasm.service.call_service import CallBase, CallService, close_runtime, open_functions, open_invocations
from tensorwasm.service.clock import SYSTEM, Clock, repeat, run_until_closed
from tensorwasm.service.fleet.messages import Changed, FrontReport
from tensorwasm.service.fleet.primary import Fronts
from tensorwasm.service.functions.functions import Functions
from tensorwasm.service.functions.models import ModelNames, parse_map
from tensorwasm.service.gauges import COUNT_S, Gauges
from tensorwasm.service.idempotency import Idempotency
from tensorwasm.service.identity.identity import NewToken, Tenants, Tokens, open_identity
from tensorwasm.service.invocations.invocations import Invocations
from tensorwasm.service.invocations.streaming import StreamEnding, StreamEndings
from tensorwasm.service.invocations.workers import Workers
from tensorwasm.service.jobs.jobs import Jobs, open_jobs
from tensorwasm.service.kernels.kernels import Kernels
from tensorwasm.service.readiness import Readiness, Storage
from tensorwasm.service.sessions.instances import InstanceFactory
from tensorwasm.service.sessions.persistence import Sharing
from tensorwasm.service.sessions.sessions import Sessions
from tensorwasm.service.snapshot_keys import SnapshotKeys
from tensorwasm.service.snapshots.snapshots import SnapshotFiles, Snapshots
from tensorwasm.service.usage import UsageMeter
from tensorwasm.settings.service import ServiceSettings, folder_of
from tensorwasm.telemetry.metrics import Metrics
from tensorwasm.tenancy.audit import AuditLog, open_audit
from tensorwasm.tenancy.quotas import QuotaHold
from tensorwasm.tenancy.shared_table import SharedTable

TIDY_S: Final = 3600.0
"""Seconds between two removals of what failed deploys and saves left."""

GRACE_S: Final = 3600.0
"""Age below which a save without a database row is kept, because its row may be about to be written."""

SHARED_TTL_S: Final = 2.0
"""How long a resolved reference is cached where other processes change the same database."""

_MAX_NAME: Final = 256
"""Longest name of a server."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Service(CallService):
    """All parts of the open service in one value, which the server and the commands use; `open_service` makes it.

    Attributes:
        first_token: made at this start because there was none, for the operator to see once; else None.
    """

    folder: Path
    tokens: Tokens
    tenants: Tenants
    first_token: NewToken | None = field(repr=False)
    store: ContentStore
    jobs: Jobs
    idempotency: Idempotency
    sessions: Sessions
    snapshots: Snapshots
    kernels: Kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base(CallBase):
    """What all other parts use; `alone` says that no other process changes this database."""

    folder: Path
    alone: bool
    snapshot_keys: SnapshotKeys
    kernels: Kernels
    audit: AuditLog
    artifacts: str


async def open_service(
    settings: ServiceSettings,
    *,
    runtime: Runtime | None = None,
    workers: Workers | None = None,
    metrics: Metrics | None = None,
    clock: Clock = SYSTEM,
    table: SharedTable | None = None,
    alive: Iterable[int] | None = None,
) -> Service:
    """Open the service on the running event loop. If a part cannot be opened, all opened parts are closed again.

    Args:
        settings: the service's settings.
        runtime: runs guests without a device and is not closed with the service; None opens one that is.
        workers: run guests with a device, and are closed with the service; None takes those of the settings.
        metrics: None makes new ones, without those of routes.
        clock: of all parts.
        table: of quotas and rates, shared with the fronts.
        alive: the processes of fronts that there are already; None without fronts.

    Raises:
        UnsafeFile: the data folder is open to other users, or cannot be made.
        DatabaseUnavailable: the database cannot be opened.
        StoreUnavailable: the artifact store cannot be opened.
        InvalidArgs: a setting is invalid, or must equal that of other servers of the database and does not.
        InvalidKey: a key in the settings is malformed.
        CapacityExhausted: the pool of sandboxes does not fit into this process.
    """
    async with AsyncExitStack() as stack:
        workers = workers or Workers.from_settings(settings.isolation, settings.broker)
        base = await _open_base(stack, settings, runtime, clock, table)
        stack.push_async_callback(workers.close)  # it is closed before, where calls were opened
        workers.begin()  # that takes longer than all the rest
        functions = open_functions(stack, base, workers.prepare)
        invocations = await open_invocations(stack, base, functions, workers)
        await base.usage.recall(invocations.admission.quotas)
        metrics = metrics or Metrics()
        _open_gauges(stack, base, functions, invocations, metrics)
        count_jobs, admission = metrics.gauge("tensor_wasm_jobs_active").set, invocations.admission
        jobs = await open_jobs(
            stack, settings, base.database, invocations, admission, clock, alone=base.alone, on_active=count_jobs
        )
        sessions, snapshots = await _open_instances(stack, base, functions, admission)
        service = _assemble(stack, base, functions, invocations, metrics, jobs, sessions, snapshots)
        if alive is not None:
            service.fronts = _open_fronts(service.stack, service, base.audit, alive)
        return service


async def _open_base(
    stack: AsyncExitStack,
    settings: ServiceSettings,
    runtime: Runtime | None,
    clock: Clock,
    table: SharedTable | None,
) -> _Base:
    """Open data folder, database, keys, identity, audit log, artifact store, runtime and usage."""
    folder = await asyncio.to_thread(open_folder, settings.data)
    url = settings.database or sqlite_url(folder / "service.db")
    alone = await asyncio.to_thread(stack.enter_context, own_database(url))
    opened = await asyncio.to_thread(open_database, url)
    database = DatabaseExecutor(opened)
    stack.push_async_callback(database.close)
    snapshot_keys = await asyncio.to_thread(SnapshotKeys.from_settings, settings.snapshot_hmac_key, folder)
    kernels = Kernels.from_settings(database, settings)
    identity = await open_identity(settings, database, clock)
    run_until_closed(stack, identity.identities.follow())
    audit = await asyncio.to_thread(open_audit, settings, folder)
    stack.push_async_callback(asyncio.to_thread, audit.close)
    artifacts = process.current().artifacts or str(folder / "artifacts")
    store = await asyncio.to_thread(open_store, artifacts, cap=identity.identities.artifact_cap)
    if runtime is None:
        runtime = await asyncio.to_thread(Runtime)
        stack.push_async_callback(close_runtime, runtime)
    usage = UsageMeter(database, clock)
    usage.open()
    stack.push_async_callback(usage.close)
    return _Base(
        settings=settings,
        clock=clock,
        folder=folder,
        alone=alone,
        database=database,
        ttl_s=None if opened.dialect == "sqlite" else SHARED_TTL_S,  # one server alone changes a SQLite file
        snapshot_keys=snapshot_keys,
        kernels=kernels,
        identity=identity,
        audit=audit,
        artifacts=artifacts,
        store=store,
        runtime=runtime,
        usage=usage,
        table=table,
    )


def _open_gauges(
    stack: AsyncExitStack, base: _Base, functions: Functions, invocations: Invocations, metrics: Metrics
) -> None:
    gauges = Gauges(
        database=base.database,
        audit=base.audit,
        quotas=invocations.admission.quotas,
        invocations=invocations,
        loader=functions.loader,
        warm=base.runtime.warm.statistics,
    )
    gauges.watch(metrics)
    repeat(stack, gauges.refresh, COUNT_S, "functions, jobs and sessions cannot be counted", _log)


async def _open_instances(
    stack: AsyncExitStack, base: _Base, functions: Functions, admission: Admission
) -> tuple[Sessions, Snapshots]:
    """Open sessions and snapshots, and begin to tidy; when the stack is closed every session is saved."""
    policy, settings, clock = base.identity.identities.policy, base.settings, base.clock

    def hold(tenant: int, memory_bytes: int, instances: int = 1) -> QuotaHold:
        return admission.quotas.hold(tenant, policy(tenant).quotas, instances=instances, memory_bytes=memory_bytes)

    async def tidy() -> None:
        before_ns = clock.unix_ms() * 1_000_000 - round(GRACE_S * 1e9)
        await sessions.tidy(before_ns)
        await snapshots.tidy(before_ns)

    sharing = None if base.alone else await asyncio.to_thread(_share, stack, base)
    factory, files = InstanceFactory(base.store, base.snapshot_keys), SnapshotFiles(base.store, base.snapshot_keys)
    sessions = Sessions(
        base.database,
        functions,
        factory,
        hold,
        guests=admission.instances,
        idle_s=settings.session_idle_s,
        ledger=base.usage,
        clock=clock,
        sharing=sharing,
    )
    admission.instances.idle = sessions.memory
    snapshots = Snapshots(base.database, functions, sessions, factory, files, hold, clock)
    stack.callback(snapshots.close)
    stack.push_async_callback(sessions.close, settings.drain_s)
    await sessions.start()
    repeat(stack, functions.tidy, TIDY_S, "modules cannot be tidied", _log)
    repeat(stack, tidy, TIDY_S, "saves cannot be tidied", _log)
    return sessions, snapshots


def _assemble(
    stack: AsyncExitStack,
    base: _Base,
    functions: Functions,
    invocations: Invocations,
    metrics: Metrics,
    jobs: Jobs,
    sessions: Sessions,
    snapshots: Snapshots,
) -> Service:
    storage = Storage(base.folder, base.settings.disk_reserve_mib, base.clock.monotonic_s)
    return Service(
        settings=base.settings,
        folder=base.folder,
        clock=base.clock,
        database=base.database,
        authenticator=base.identity.authenticator,
        identities=base.identity.identities,
        tokens=base.identity.tokens,
        tenants=base.identity.tenants,
        first_token=base.identity.first_token,
        store=base.store,
        runtime=base.runtime,
        metrics=metrics,
        audit=base.audit,
        quotas=invocations.admission.quotas,
        usage=base.usage,
        functions=functions,
        admission=invocations.admission,
        invocations=invocations,
        jobs=jobs,
        idempotency=Idempotency(base.database, base.clock),
        sessions=sessions,
        snapshots=snapshots,
        kernels=base.kernels,
        models=ModelNames(functions, parse_map(base.settings.openai_models)),
        outcomes=StreamEndings(base.clock.monotonic_s),
        readiness=Readiness({"database": partial(base.database.read, read_revision), "data folder": storage.require}),
        stack=stack.pop_all(),
    )


def _open_fronts(stack: AsyncExitStack, service: Service, audit: AuditLog, alive: Iterable[int]) -> Fronts:
    """Open the links to fronts: what they report is written here, and what changes here is told to them."""

    async def take(report: FrontReport) -> None:
        if report.usage:
            await _write_usage(service, report)
        for each in report.ended:
            service.outcomes.put(
                each.tenant, StreamEnding(each.request_id, each.reference, each.status, each.reason, each.message)
            )
        if report.audit or report.dropped or report.suppressed or report.hurry:
            await audit.extend(report.audit, report.dropped, report.suppressed, hurry=report.hurry)

    fronts = Fronts(take, service.sessions.memory.evict_one, alive)
    stack.push_async_callback(fronts.close)
    stack.push_async_callback(audit.extend, (), 0, 0, hurry=True)  # before that: what is on the disk is acknowledged
    service.metrics.read("tensor_wasm_fronts", lambda: len(fronts))
    service.metrics.read("tensor_wasm_front_requests_total", fronts.requests)
    service.identities.tell = lambda: fronts.tell(Changed(identities=True))
    service.functions.tell = lambda functions, names: fronts.tell(Changed(functions=list(functions), names=list(names)))
    return fronts


async def _write_usage(service: Service, report: FrontReport) -> None:
    """Write what a front has reported, before it is acknowledged."""
    reported: dict[int, dict[int, UsageAmounts]] = {}
    for used in report.usage:
        reported.setdefault(used.hour_unix_ms, {})[used.tenant] = UsageAmounts(*used.amounts)
    if await service.database.write(add_report, report.reporter, report.mark, reported):
        for hour_unix_ms, by_tenant in reported.items():
            for tenant, each in by_tenant.items():
                service.quotas.restore(tenant, hour_unix_ms, gpu_us=each.gpu_us, launches=each.launches)


def open_folder(where: str) -> Path:
    """Return the data folder, made with mode 0700 if missing; UnsafeFile if others can use it. Blocks."""
    folder = folder_of(where)
    what = "the data folder (TENSOR_WASM_DATA)"
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        require_own(folder.stat(), what, OTHERS, "chmod 700")
    except OSError as error:
        raise UnsafeFile(f"{what} cannot be made or read: {error.strerror}") from None
    return folder


def _share(stack: AsyncExitStack, base: _Base) -> Sharing:
    """Return how this server shares the database, and which earlier process it replaces. Blocks."""
    process_id = str(uuid.uuid4())
    before = stack.enter_context(claim_data_folder(base.folder, process_id))
    name = base.settings.server_name or f"{socket.gethostname()} process {os.getpid()}"
    shown = name.encode("ascii", "replace").decode()[:_MAX_NAME]
    server = ServerRecord(process_id, shown, base.snapshot_keys.id, identify(base.artifacts))
    return Sharing(server, before, base.settings.session_lease_s)
