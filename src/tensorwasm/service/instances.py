"""What keeps instances: sessions and snapshots, opened together, since each needs the other's parts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Final

from tensorwasm.artifacts.store import ContentStore
from tensorwasm.service.admission.admission import Admission
from tensorwasm.service.admission.instance_queue import InstanceQueue
from tensorwasm.service.clock import Clock
from tensorwasm.service.database_port import DatabasePort
from tensorwasm.service.invocations.spending import UsageLedger
from tensorwasm.service.sessions.instances import InstanceFactory
from tensorwasm.service.sessions.memory import Resolver
from tensorwasm.service.sessions.persistence import Sharing
from tensorwasm.service.sessions.sessions import Sessions
from tensorwasm.service.snapshot_keys import SnapshotKeys
from tensorwasm.service.snapshots.snapshots import SnapshotFiles, Snapshots
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.policy import TenantPolicy
from tensorwasm.tenancy.quotas import QuotaHold
from tensorwasm.values import Deadline

GRACE_S: Final = 3600.0
"""How long nothing touches a save that may be about to get its row."""


@dataclass(frozen=True, slots=True)
class Instances:
    """Sessions and snapshots.

    Attributes:
        sessions: instances that several calls share.
        snapshots: what they were.
        clock: what time it is.
    """

    sessions: Sessions
    snapshots: Snapshots
    clock: Clock

    async def tidy(self) -> int:
        """Take away saves that neither a session nor a snapshot leads to, and return how many.

        Raises:
            TensorWasmError: the store or the database does not answer.
        """
        before_ns = self.clock.unix_ms() * 1_000_000 - round(GRACE_S * 1e9)
        return await self.sessions.tidy(before_ns) + await self.snapshots.tidy(before_ns)


@dataclass(frozen=True, slots=True)
class _Guests:
    """What sessions tell the queue of guests, and ask of it; see `tensorwasm.service.sessions.memory.RunningGuests`."""

    queue: InstanceQueue
    policy: Callable[[int], TenantPolicy]

    def freed(self, tenant: int, memory_bytes: int, deadline: Deadline) -> AbstractAsyncContextManager[None]:
        return self.queue.freed(tenant, self.policy(tenant).quotas, memory_bytes, deadline)

    def begin(self, tenant: int) -> None:
        self.queue.begin(tenant)

    def end(self, tenant: int) -> None:
        self.queue.end(tenant)


async def open_instances(
    stack: AsyncExitStack,
    settings: ServiceSettings,
    seals: SnapshotKeys,
    desk: DatabasePort,
    functions: Resolver,
    store: ContentStore,
    admission: Admission,
    policy: Callable[[int], TenantPolicy],
    ledger: UsageLedger,
    clock: Clock,
    sharing: Sharing | None,
) -> Instances:
    """Open sessions and snapshots; when the stack is closed every session is saved.

    Args:
        stack: closes both, before anything that was opened earlier.
        settings: of the service.
        seals: what signs saves.
        desk: of the database.
        functions: finds what sessions run.
        store: where saves are.
        admission: holds what instances take.
        policy: what holds for a tenant.
        ledger: is told what calls used.
        clock: what time it is.
        sharing: how the database is shared with other servers; None where this one has it alone.

    Raises:
        DatabaseUnavailable: sessions cannot be taken back to their last saves.
    """

    def hold(tenant: int, memory_bytes: int, instances: int = 1) -> QuotaHold:
        return admission.quotas.hold(tenant, policy(tenant).quotas, instances=instances, memory_bytes=memory_bytes)

    workshop, files = InstanceFactory(store, seals), SnapshotFiles(store, seals)
    sessions = Sessions(
        desk,
        functions,
        workshop,
        hold,
        guests=_Guests(admission.instances, policy),
        idle_s=settings.session_idle_s,
        ledger=ledger,
        clock=clock,
        sharing=sharing,
    )
    admission.instances.idle = sessions.memory
    snapshots = Snapshots(desk, functions, sessions, workshop, files, hold, clock)
    stack.callback(snapshots.close)
    stack.push_async_callback(sessions.close, settings.drain_s)
    await sessions.start()
    return Instances(sessions, snapshots, clock)
