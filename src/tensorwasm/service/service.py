"""`Service`: all that is served, in one value that the edges are given."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tensorwasm.artifacts.store import ContentStore
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.runtime.api.runtime import Runtime
from tensorwasm.service.admission.admission import Admission
from tensorwasm.service.clock import Clock
from tensorwasm.service.functions.functions import Functions
from tensorwasm.service.functions.models import Models
from tensorwasm.service.idempotency import Idempotency
from tensorwasm.service.identity.cache import IdentityCache
from tensorwasm.service.identity.tenants import Tenants
from tensorwasm.service.identity.tokens import NewToken, Tokens
from tensorwasm.service.invocations.invocations import Invocations
from tensorwasm.service.invocations.outcomes import Outcomes
from tensorwasm.service.jobs.jobs import Jobs
from tensorwasm.service.kernels.kernels import Kernels
from tensorwasm.service.readiness import Readiness
from tensorwasm.service.sessions.sessions import Sessions
from tensorwasm.service.snapshots.snapshots import Snapshots
from tensorwasm.service.usage import UsageMeter
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.telemetry.metrics import Metrics
from tensorwasm.tenancy.audit import AuditLog
from tensorwasm.tenancy.authentication import Authenticator
from tensorwasm.tenancy.quotas import Quotas


@dataclass(slots=True, kw_only=True)
class Service:
    """What is served; `tensorwasm.service.opening.open_service` opens it.

    Attributes:
        settings: what it was opened under.
        folder: of its data.
        clock: what time it is.
        desk: of the database.
        authenticator: from a header to a principal.
        directory: what holds for a tenant.
        tokens: administers tokens.
        tenants: administers tenants.
        first_token: made just now because there was none; for the operator to see once.
        store: artifacts.
        runtime: runs guests without a device.
        metrics: what is counted.
        audit: who changed what.
        quotas: what tenants hold and use up.
        usage: what they used.
        functions: what they have deployed.
        admission: the gate that every call passes.
        invocations: calls functions.
        jobs: calls of functions that are made later.
        idempotency: what requests that are made again made the first time.
        sessions: instances that several calls share.
        snapshots: what they were.
        kernels: the registry of signed kernels.
        models: functions by the names that clients of OpenAI's API use.
        outcomes: how streams ended lately.
        readiness: whether it can serve.
        stack: closes all of it, in reverse.
    """

    settings: ServiceSettings
    folder: Path
    clock: Clock
    desk: DatabaseExecutor
    authenticator: Authenticator
    directory: IdentityCache
    tokens: Tokens
    tenants: Tenants
    first_token: NewToken | None = field(repr=False)
    store: ContentStore
    runtime: Runtime
    metrics: Metrics
    audit: AuditLog
    quotas: Quotas
    usage: UsageMeter
    functions: Functions
    admission: Admission
    invocations: Invocations
    jobs: Jobs
    idempotency: Idempotency
    sessions: Sessions
    snapshots: Snapshots
    kernels: Kernels
    models: Models
    outcomes: Outcomes
    readiness: Readiness
    stack: AsyncExitStack = field(repr=False)

    async def close(self) -> None:
        """Let what runs end, within the time that the settings give it, and close everything. Idempotent."""
        await self.stack.aclose()
