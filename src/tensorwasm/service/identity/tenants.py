"""`Tenants`: administration of tenants: names, weights, quotas, and disabling.

An administrator of some tenants may name and disable them, except the last one that is not disabled, because that could
not be undone. Weights and quotas divide what all tenants share, so only an administrator of all tenants changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorwasm.database import Connection
from tensorwasm.database import identity as queries
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.identity import TenantRecord
from tensorwasm.errors import Conflict, InvalidRequest, TenantScopeDenied
from tensorwasm.service.clock import SYSTEM, Clock
from tensorwasm.service.functions.names import checked_name
from tensorwasm.service.identity.cache import IdentityCache
from tensorwasm.service.pages import DEFAULT_PAGE, checked_limit
from tensorwasm.tenancy.principal import MAX_TENANT, AdminCapability, Principal, Registry
from tensorwasm.tenancy.quotas import TenantPolicy, checked_quotas, checked_weight


@dataclass(frozen=True, slots=True)
class TenantChange:
    """A change of a tenant; None leaves a field as it is.

    Attributes:
        name: for people; may be empty.
        weight: its share in queues, 1 to 1000.
        quotas: caps to set by name; one that is None is reset to the service's default.
        disabled: whether its requests are refused.
    """

    name: str | None = None
    weight: int | None = None
    quotas: Mapping[str, int | None] | None = None
    disabled: bool | None = None


class Tenants:
    """The tenants of one registry. Every number is a tenant; one without a record has the service's default policy.

    All methods with a capability raise ScopeDenied for one of another registry, TenantScopeDenied if it does not cover
    the tenant (or, for weight and quotas, all tenants), InvalidRequest for an invalid tenant, and DatabaseUnavailable;
    then nothing is changed.
    """

    def __init__(
        self,
        database: DatabaseExecutor,
        identities: IdentityCache,
        registry: Registry,
        clock: Clock = SYSTEM,
    ) -> None:
        self._database = database
        self._identities = identities
        self._registry = registry
        self._clock = clock

    def policy(self, tenant: int) -> TenantPolicy:
        """Return a tenant's policy, without waiting."""
        return self._identities.policy(tenant)

    def admit(self, principal: Principal) -> AdminCapability:
        """Return a capability for what a principal may administer.

        Raises:
            ScopeDenied: it may not administer.
            TenantScopeDenied: all of its tenants are disabled, which it must not undo itself.
        """
        capability = self._registry.admit(principal)
        if principal.tenants is not None and all(self.policy(tenant).disabled for tenant in principal.tenants):
            raise TenantScopeDenied("the tenant is disabled")
        return capability

    async def create(self, capability: AdminCapability, tenant: int, change: TenantChange) -> TenantRecord:
        """Make a tenant's record.

        Raises:
            InvalidName: the name is invalid.
            InvalidRequest: a weight or a quota is out of range.
            Conflict: the tenant has a record.
        """
        self._require(capability, tenant, change)
        record = _changed(TenantRecord(tenant=tenant, created_unix_ms=self._clock.unix_ms()), change)
        (record,) = await self._identities.change(_create, record)
        return record

    async def get(self, capability: AdminCapability, tenant: int) -> TenantRecord:
        """Return a tenant; one without a record has no time of creation."""
        self._require(capability, tenant)
        return await self._database.read(_find, tenant)

    async def list(
        self, capability: AdminCapability, after: int | None = None, limit: int = DEFAULT_PAGE
    ) -> list[TenantRecord]:
        """Return the records that the capability covers, by number, after a number; `limit` is 1 to 1000."""
        among = self._registry.authority(capability).tenants
        return await self._database.read(queries.list_tenants, after, checked_limit(limit), among)

    async def update(self, capability: AdminCapability, tenant: int, change: TenantChange) -> TenantRecord:
        """Change a tenant; this process applies it when this returns, other processes 2 s later.

        Raises as `create` does, and TenantScopeDenied if the capability's last enabled tenant would be disabled.
        """
        self._require(capability, tenant, change)
        (record,) = await self._identities.change(_update, tenant, change, self._clock.unix_ms())
        return record

    async def disable(self, capability: AdminCapability, tenant: int) -> TenantRecord:
        """Refuse a tenant's requests; its data stays. Raises as `update` does."""
        return await self.update(capability, tenant, TenantChange(disabled=True))

    def _require(self, capability: AdminCapability, tenant: int, change: TenantChange = TenantChange()) -> None:
        """Check a change against a capability, so that limits cannot be lifted by those whom they limit."""
        lifts = change.weight is not None or change.quotas is not None
        authority = self._registry.authority(capability)
        authority.require(None if lifts else {tenant})
        if change.disabled and authority.tenants is not None:
            rest = authority.tenants - {tenant}
            if all(self.policy(each).disabled for each in rest):
                raise TenantScopeDenied(
                    "it is the last tenant of this token: only an administrator of more tenants can disable it"
                )
        if not 0 <= tenant <= MAX_TENANT:
            raise InvalidRequest("a tenant is a number from 0 to 2**64 - 1")


def _changed(record: TenantRecord, change: TenantChange) -> TenantRecord:
    """Return a changed record."""
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
        raise Conflict("the tenant exists already")
    return (queries.add_tenant(connection, record),)


def _update(connection: Connection, tenant: int, change: TenantChange, now_unix_ms: int) -> tuple[TenantRecord]:
    found = queries.find_tenant(connection, tenant, lock=True)
    if found is None:
        record = _changed(TenantRecord(tenant=tenant, created_unix_ms=now_unix_ms), change)
        return (queries.add_tenant(connection, record),)
    return (queries.change_tenant(connection, _changed(found, change)),)
