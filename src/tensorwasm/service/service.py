"""`Service`: all parts of the service in one value, which the server and the commands use."""

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
from tensorwasm.service.functions.models import ModelNames
from tensorwasm.service.idempotency import Idempotency
from tensorwasm.service.identity.cache import IdentityCache
from tensorwasm.service.identity.tenants import Tenants
from tensorwasm.service.identity.tokens import NewToken, Tokens
from tensorwasm.service.invocations.invocations import Invocations
from tensorwasm.service.invocations.streaming import StreamEndings
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
    """The open service; `tensorwasm.service.opening.open_service` makes it.

    Attributes:
        identities: tokens and tenants as requests need them.
        first_token: made at this start because there was none, for the operator to see once; else None.
        stack: closes all parts, in reverse order of opening.
    """

    settings: ServiceSettings
    folder: Path
    clock: Clock
    database: DatabaseExecutor
    authenticator: Authenticator
    identities: IdentityCache
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
    models: ModelNames
    outcomes: StreamEndings
    readiness: Readiness
    stack: AsyncExitStack = field(repr=False)

    async def close(self) -> None:
        """Wait for running work, as long as the settings allow, and close all parts. Idempotent."""
        await self.stack.aclose()
