"""`open_service`: the data folder, and every part of the service in it, opened in order and closed in reverse.

::

    DATA/               0700, the service's own
        service.db      unless the database is elsewhere; beside it a lock, which its owner holds
        artifacts/      unless artifacts are elsewhere
        keys/           what signs snapshots, unless a setting says a key
        audit.log       unless the audit log is elsewhere
        server          which process served last, where servers share a database
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from tensorwasm import settings as process
from tensorwasm.artifacts.opening import identify, open_store
from tensorwasm.artifacts.private_files import FOLDER_MODE, OTHERS, require_own
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.engine.opening import Database, open_database, sqlite_url
from tensorwasm.database.engine.ownership import claim_data_folder, own_database
from tensorwasm.database.identity import read_revision
from tensorwasm.database.servers import ServerRecord
from tensorwasm.errors import UnsafeFile
from tensorwasm.runtime.api.runtime import Runtime
from tensorwasm.service.admission.admission import Admission
from tensorwasm.service.admission.host_memory import host_bytes
from tensorwasm.service.admission.instance_queue import InstanceQueue
from tensorwasm.service.clock import Clock
from tensorwasm.service.functions.functions import Functions
from tensorwasm.service.functions.loading import Loader
from tensorwasm.service.functions.models import Models, parse_map
from tensorwasm.service.functions.modules import Modules
from tensorwasm.service.functions.options import Ceilings
from tensorwasm.service.gauges import CENSUS_S, Gauges
from tensorwasm.service.idempotency import Idempotency
from tensorwasm.service.identity.identity import open_identity
from tensorwasm.service.instances import open_instances
from tensorwasm.service.invocations.invocations import Invocations
from tensorwasm.service.invocations.outcomes import Outcomes
from tensorwasm.service.invocations.workers import Workers
from tensorwasm.service.jobs.jobs import open_jobs
from tensorwasm.service.kernels.kernels import Kernels
from tensorwasm.service.maintenance import do
from tensorwasm.service.readiness import Readiness
from tensorwasm.service.service import Service
from tensorwasm.service.sessions.persistence import Sharing
from tensorwasm.service.snapshot_keys import SnapshotKeys
from tensorwasm.service.storage import Storage
from tensorwasm.service.usage import UsageMeter
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.telemetry.metrics import Metrics
from tensorwasm.tenancy.audit import open_audit
from tensorwasm.tenancy.buckets import RateLimiter
from tensorwasm.tenancy.policy import TenantPolicy
from tensorwasm.tenancy.quotas import Quotas

TIDY_S: Final = 3600.0
"""Seconds between two looks for what deploys left that failed."""

_NAME: Final = 256
"""Longest name of a server."""

SHARED_TTL_S: Final = 2.0
"""How long a reference is remembered where other processes change the same database."""

_log = logging.getLogger(__name__)


async def open_service(
    settings: ServiceSettings,
    *,
    runtime: Runtime | None = None,
    workers: Workers | None = None,
    metrics: Metrics | None = None,
    clock: Clock = Clock(),  # noqa: B008 - immutable
) -> Service:
    """Open the service, on the running event loop. Whatever fails, nothing stays open.

    Args:
        settings: of the service.
        runtime: runs guests without a device, and outlives the service; None opens one that goes with it.
        workers: run guests with a device, and go with it; None takes what the settings say.
        metrics: counts what it does; None takes new ones, without routes.
        clock: what time it is.

    Raises:
        UnsafeFile: the data folder is not this user's alone, or cannot be made.
        DatabaseUnavailable: the database does not open.
        StoreUnavailable: the artifact store does not open.
        InvalidArgs: a setting makes no sense, or differs from other servers' of the database where it must not.
        InvalidKey: a setting is no key.
        CapacityExhausted: this process has no room for the pool of sandboxes.
    """
    async with AsyncExitStack() as stack:
        folder = await asyncio.to_thread(open_folder, settings.data)
        url = settings.database or sqlite_url(folder / "service.db")
        alone = await asyncio.to_thread(stack.enter_context, own_database(url))
        database = await asyncio.to_thread(open_database, url)
        desk = DatabaseExecutor(database)
        stack.push_async_callback(desk.close)
        seals = await asyncio.to_thread(SnapshotKeys.from_settings, settings.snapshot_hmac_key, folder)
        kernels = Kernels.from_settings(desk, settings)
        room_bytes = await asyncio.to_thread(host_bytes)
        identity = await open_identity(settings, desk, clock)
        _attend(stack, identity.directory.follow())
        audit = await asyncio.to_thread(open_audit, settings, folder)
        stack.push_async_callback(asyncio.to_thread, audit.close)
        place = process.current().artifacts or str(folder / "artifacts")
        store = await asyncio.to_thread(open_store, place, cap=partial(_artifact_cap, identity.directory.policy))
        if runtime is None:
            runtime = await asyncio.to_thread(Runtime)
            stack.push_async_callback(asyncio.to_thread, runtime.close)
        usage = UsageMeter(desk, clock)
        usage.open()
        stack.push_async_callback(usage.close)
        modules = Modules(store)
        stack.push_async_callback(asyncio.to_thread, modules.close)
        loader = Loader(runtime, lambda tenant: identity.directory.policy(tenant).weight)
        stack.push_async_callback(loader.close)
        functions = Functions(
            desk, modules, loader, Ceilings.of(settings), ttl_s=_ttl_s(database), now_unix_ms=clock.unix_ms
        )
        quotas = Quotas(clock.unix_ms, room_bytes)
        await usage.recall(quotas)
        workers = workers or Workers.of(settings.isolation)
        policy = identity.directory.policy
        admission = Admission(
            identity.authenticator, policy, RateLimiter.from_settings(settings), quotas, InstanceQueue(quotas)
        )
        invocations = Invocations(functions, workers, admission, usage)
        stack.push_async_callback(invocations.close, settings.drain_s)
        metrics = metrics or Metrics()
        gauges = Gauges(
            desk=desk,
            audit=audit,
            quotas=quotas,
            invocations=invocations,
            loader=loader,
            warm=runtime.warm.statistics,
        )
        gauges.watch(metrics)
        _repeat(stack, gauges.refresh, CENSUS_S, "functions, jobs and sessions cannot be counted")
        count_jobs = metrics.gauge("tensor_wasm_jobs_active").set
        jobs = await open_jobs(stack, settings, desk, invocations, admission, clock, alone=alone, on_active=count_jobs)
        sharing = None if alone else await asyncio.to_thread(_share, stack, settings, folder, seals.id, place)
        kept = await open_instances(
            stack,
            settings,
            seals,
            desk,
            functions,
            store,
            admission,
            policy,
            usage,
            clock,
            sharing,
        )
        _repeat(stack, functions.tidy, TIDY_S, "modules cannot be tidied")
        _repeat(stack, kept.tidy, TIDY_S, "saves cannot be tidied")
        return Service(
            settings=settings,
            folder=folder,
            clock=clock,
            desk=desk,
            authenticator=identity.authenticator,
            directory=identity.directory,
            tokens=identity.tokens,
            tenants=identity.tenants,
            first_token=identity.first_token,
            store=store,
            runtime=runtime,
            metrics=metrics,
            audit=audit,
            quotas=quotas,
            usage=usage,
            functions=functions,
            admission=admission,
            invocations=invocations,
            jobs=jobs,
            idempotency=Idempotency(desk, clock),
            sessions=kept.sessions,
            snapshots=kept.snapshots,
            kernels=kernels,
            models=Models(functions, parse_map(settings.openai_models)),
            outcomes=Outcomes(clock.monotonic_s),
            readiness=Readiness(
                {
                    "database": partial(desk.read, read_revision),
                    "data folder": Storage(folder, settings.disk_reserve_mib, clock.monotonic_s).require,
                }
            ),
            stack=stack.pop_all(),
        )


def folder_of(where: str) -> Path:
    """Return the path of the data folder; empty takes ``service`` in the state folder."""
    return Path(where).expanduser() if where else process.state_dir() / "service"


def open_folder(where: str) -> Path:
    """Return the data folder, made with mode 0700 if it is not there. Blocks.

    Args:
        where: its path; empty takes ``service`` in the state folder.

    Raises:
        UnsafeFile: it is somebody else's, open to others, or cannot be made.
    """
    folder = folder_of(where)
    what = "the data folder (TENSOR_WASM_DATA)"
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        require_own(folder.stat(), what, OTHERS, "chmod 700")
    except OSError as error:
        raise UnsafeFile(f"{what} cannot be made or read: {error.strerror}") from None
    return folder


def _share(
    stack: AsyncExitStack, settings: ServiceSettings, folder: Path, snapshot_key: str, artifacts: str
) -> Sharing:
    """Return how the database is shared with other servers, and whose place this one takes. Blocks."""
    process_id = str(uuid.uuid4())
    before = stack.enter_context(claim_data_folder(folder, process_id))
    name = settings.server_name or f"{socket.gethostname()} process {os.getpid()}"
    shown = name.encode("ascii", "replace").decode()[:_NAME]
    server = ServerRecord(process_id, shown, snapshot_key, identify(artifacts))
    return Sharing(server, before, settings.session_lease_s)


def _artifact_cap(policy: Callable[[int], TenantPolicy], tenant: str) -> int | None:
    """Return how many bytes of artifacts a tenant may keep, as it was said of it; on any thread."""
    return policy(int(tenant)).quotas.get("artifact_bytes") if tenant.isdecimal() else None


def _ttl_s(database: Database) -> float | None:
    """Return how long a reference is remembered: a file is one server's, a database server's tables are not."""
    return None if database.dialect == "sqlite" else SHARED_TTL_S


def _repeat(stack: AsyncExitStack, work: Callable[[], Awaitable[object]], every_s: float, what: str) -> None:
    """Have something done now and every so often, until the service is closed."""

    async def go_on() -> None:
        while True:
            await do(work, what, _log)
            await asyncio.sleep(every_s)

    _attend(stack, go_on())


def _attend(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Have something go on until the service is closed."""

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    task = asyncio.ensure_future(work)
    stack.push_async_callback(end)
