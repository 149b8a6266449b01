"""`Tenants`: what was said of tenants: names, weights, quotas, and that one is served no more.

Who administers some tenants names and disables them, but for the last one that he may act for: he could not undo it.
Weights and quotas are shares of what all have, and he may be one of those whom they hold down: they are for who
administers all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorwasm.database import Connection
from tensorwasm.database import identity as queries
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.identity import TenantRecord
from tensorwasm.errors import Conflict, InvalidRequest, TenantScopeDenied
from tensorwasm.service.clock import Clock
from tensorwasm.service.functions.names import checked_name
from tensorwasm.service.identity.cache import IdentityCache
from tensorwasm.service.pages import USUAL_PAGE, checked_limit
from tensorwasm.tenancy.capability import AdminCapability, Registry
from tensorwasm.tenancy.policy import TenantPolicy, checked_quotas, checked_weight
from tensorwasm.tenancy.principal import MAX_TENANT, Principal


@dataclass(frozen=True, slots=True)
class TenantChange:
    """What is to be different of a tenant; None leaves it as it is.

    Attributes:
        name: for people; may be empty.
        weight: its share where tenants wait for one another, 1 to 1000.
        quotas: caps to set by name; one that is None goes back to the service's own.
        disabled: whether nothing of it is served.
    """

    name: str | None = None
    weight: int | None = None
    quotas: Mapping[str, int | None] | None = None
    disabled: bool | None = None


class Tenants:
    """The tenants of one registry. Every number is a tenant: one of whom nothing was said has the service's own rules.

    Args:
        desk: of the database.
        directory: which knows each change at once.
        registry: that the capabilities are of.
        clock: what time it is.
    """

    def __init__(
        self,
        desk: DatabaseExecutor,
        directory: IdentityCache,
        registry: Registry,
        clock: Clock = Clock(),  # noqa: B008 - frozen
    ) -> None:
        self._desk = desk
        self._directory = directory
        self._registry = registry
        self._clock = clock

    def policy(self, tenant: int) -> TenantPolicy:
        """Return what holds for a tenant, without waiting."""
        return self._directory.policy(tenant)

    def admit(self, principal: Principal) -> AdminCapability:
        """Return a capability for what a principal may administer.

        Raises:
            ScopeDenied: it may not administer.
            TenantScopeDenied: all tenants that it may act for are disabled, so nobody lifts that from himself.
        """
        capability = self._registry.admit(principal)
        if principal.tenants is not None and all(self.policy(tenant).disabled for tenant in principal.tenants):
            raise TenantScopeDenied("the tenant is disabled")
        return capability

    async def create(self, capability: AdminCapability, tenant: int, change: TenantChange) -> TenantRecord:
        """Say something of a tenant of whom nothing was said.

        Raises:
            ScopeDenied: the capability is another registry's.
            TenantScopeDenied: it does not reach the tenant; or not all of them, where weight or quotas are to change.
            InvalidName: the name cannot be one.
            InvalidRequest: a tenant, a weight or a quota that cannot be.
            Conflict: something was said of it before.
            DatabaseUnavailable: it does not answer; nothing is changed.
        """
        self._require(capability, tenant, change)
        record = _changed(TenantRecord(tenant=tenant, created_unix_ms=self._clock.unix_ms()), change)
        (record,) = await self._directory.change(_create, record)
        return record

    async def get(self, capability: AdminCapability, tenant: int) -> TenantRecord:
        """Return a tenant; one of whom nothing was said has no time of creation.

        Raises:
            ScopeDenied: the capability is another registry's.
            TenantScopeDenied: it does not reach the tenant.
            InvalidRequest: there can be no such tenant.
            DatabaseUnavailable: it does not answer.
        """
        self._require(capability, tenant)
        return await self._desk.read(_find, tenant)

    async def list(
        self, capability: AdminCapability, after: int | None = None, limit: int = USUAL_PAGE
    ) -> list[TenantRecord]:
        """Return tenants of whom something was said and that the capability reaches, in the order of their numbers.

        Args:
            capability: of the registry.
            after: the last number seen; None begins with the first.
            limit: most that are returned, 1 to 1000.

        Raises:
            ScopeDenied: the capability is another registry's.
            InvalidRequest: the limit is out of its range.
            DatabaseUnavailable: it does not answer.
        """
        among = self._registry.authority(capability).tenants
        return await self._desk.read(queries.list_tenants, after, checked_limit(limit), among)

    async def update(self, capability: AdminCapability, tenant: int, change: TenantChange) -> TenantRecord:
        """Change a tenant. When this returns, it holds for what comes in here, and in other processes 2 s later.

        Raises:
            ScopeDenied: the capability is another registry's.
            TenantScopeDenied: it does not reach the tenant; or not all of them, where weight or quotas are to change;
                or no other that is served, where this one is to be disabled.
            InvalidName: the name cannot be one.
            InvalidRequest: a tenant, a weight or a quota that cannot be.
            DatabaseUnavailable: it does not answer; nothing is changed.
        """
        self._require(capability, tenant, change)
        (record,) = await self._directory.change(_update, tenant, change, self._clock.unix_ms())
        return record

    async def disable(self, capability: AdminCapability, tenant: int) -> TenantRecord:
        """Serve nothing of a tenant any more; all that is kept of it stays. Raises as `update` does."""
        return await self.update(capability, tenant, TenantChange(disabled=True))

    def _require(self, capability: AdminCapability, tenant: int, change: TenantChange = TenantChange()) -> None:
        """Hold what is wanted of a tenant against a capability: nobody lifts what holds him down himself."""
        lifts = change.weight is not None or change.quotas is not None
        authority = self._registry.authority(capability)
        authority.require(None if lifts else {tenant})
        if change.disabled and authority.tenants is not None:
            rest = authority.tenants - {tenant}
            if all(self.policy(each).disabled for each in rest):
                raise TenantScopeDenied(
                    "it is the last tenant that this token may act for: another administrator, of more, disables it"
                )
        if not 0 <= tenant <= MAX_TENANT:
            raise InvalidRequest("a tenant is a number from 0 to 2**64 - 1")


def _changed(record: TenantRecord, change: TenantChange) -> TenantRecord:
    """Return a tenant with what is to be different."""
    quotas = record.quotas if change.quotas is None else checked_quotas({**record.quotas, **change.quotas})
    return replace(
        record,
        name=record.name if change.name is None else change.name and checked_name(change.name),
        weight=record.weight if change.weight is None else checked_weight(change.weight),
        quotas=quotas,
        disabled=record.disabled if change.disabled is None else change.disabled,
    )


def _find(connection: Connection, tenant: int) -> TenantRecord:
    return queries.find_tenant(connection, tenant) or TenantRecord(tenant=tenant)


def _create(connection: Connection, record: TenantRecord) -> tuple[TenantRecord]:
    if queries.find_tenant(connection, record.tenant, lock=True) is not None:
        raise Conflict("the tenant is there already")
    return (queries.add_tenant(connection, record),)


def _update(connection: Connection, tenant: int, change: TenantChange, now_unix_ms: int) -> tuple[TenantRecord]:
    found = queries.find_tenant(connection, tenant, lock=True)
    if found is None:
        return (
            queries.add_tenant(connection, _changed(TenantRecord(tenant=tenant, created_unix_ms=now_unix_ms), change)),
        )
    return (queries.change_tenant(connection, _changed(found, change)),)
