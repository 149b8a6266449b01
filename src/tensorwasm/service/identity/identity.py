"""`Tokens` and `Tenants`, which administrate them, and `open_identity`, which opens these and what checks credentials.

An administrator of some tenants may name and disable them, except the last one that is not disabled, because that could
not be undone. Weights and quotas divide what all tenants share, so only an administrator of all tenants changes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tensorwasm.database import Connection
from tensorwasm.database import identity as queries
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.identity import TenantRecord, TokenRecord, take_revision
from tensorwasm.errors import Conflict, InvalidRequest, NotFound, TenantScopeDenied
from tensorwasm.service.clock import SYSTEM, Clock
from tensorwasm.service.functions.checks import checked_name
from tensorwasm.service.identity.cache import IdentityCache
from tensorwasm.service.pages import DEFAULT_PAGE, checked_limit
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.authentication import Authenticator, MintedToken, TokenTable, mint, parse_digests, parse_tokens
from tensorwasm.tenancy.caps import checked_quotas, checked_weight, parse_caps
from tensorwasm.tenancy.oidc import open_verifier
from tensorwasm.tenancy.principal import (
    MAX_TENANT,
    SCOPES,
    USER_SCOPES,
    AdminCapability,
    Authority,
    Principal,
    Registry,
)
from tensorwasm.tenancy.quotas import TenantPolicy

_PUBLISHERS: Final = "TENSOR_WASM_API_KERNEL_PUBLISH_TOKENS"
MAX_TENANTS: Final = 1024
MAX_OVERLAP_S: Final = 30 * 86_400
MAX_UNIX_MS: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made: what is stored, and the text, for its owner to see once."""

    record: TokenRecord
    text: str = field(repr=False)


class _Administration:
    """What the administrators of one registry change, in the database and in this process's copy of it."""

    def __init__(
        self, database: DatabaseExecutor, identities: IdentityCache, registry: Registry, clock: Clock = SYSTEM
    ) -> None:
        self._database = database
        self._identities = identities
        self._registry = registry
        self._clock = clock


class Tokens(_Administration):
    """The tokens of one registry.

    Every method takes a capability of that registry, and reads and changes only tokens whose tenants it covers. No
    token can be made that may do more than the capability. All methods raise ScopeDenied for a capability of another
    registry or without the needed scopes, NotFound for a token that is not covered, and DatabaseUnavailable; then
    nothing is changed.
    """

    async def create(
        self,
        capability: AdminCapability,
        name: str,
        tenants: Iterable[int] | None,
        scopes: Iterable[str] = USER_SCOPES,
        expires_unix_ms: int | None = None,
    ) -> NewToken:
        """Make a token for tenants (None for all) that ends at a time (None for never).

        Raises:
            TenantScopeDenied: the capability does not cover one of the tenants.
            InvalidName: the name is invalid.
            InvalidRequest: no tenants or too many, no scopes or unknown ones, or an expiry in the past.
        """
        authority = self._registry.authority(capability)
        chosen, allowed = _checked_tenants(tenants), _checked_scopes(scopes)
        authority.require(chosen, allowed)
        now_unix_ms = self._clock.unix_ms()
        minted = mint()
        record = TokenRecord(
            id=minted.id,
            digest=minted.digest,
            name=checked_name(name),
            tenants=chosen,
            scopes=allowed,
            created_unix_ms=now_unix_ms,
            expires_unix_ms=_checked_end(expires_unix_ms, now_unix_ms),
        )
        (record,) = await self._identities.change(_add, record)
        return NewToken(record, minted.text)

    async def get(self, capability: AdminCapability, token_id: str) -> TokenRecord:
        """Return a token, valid or ended."""
        return await self._database.read(_find, self._registry.authority(capability), token_id)

    async def list(
        self, capability: AdminCapability, after: str | None = None, limit: int = DEFAULT_PAGE
    ) -> list[TokenRecord]:
        """Return covered tokens, valid or ended, oldest first, after an ID; `limit` is 1 to 1000."""
        authority = self._registry.authority(capability)
        return await self._database.read(
            queries.list_tokens, after, checked_limit(limit), lambda record: authority.covers(record.tenants)
        )

    async def rotate(
        self, capability: AdminCapability, token_id: str, overlap_s: float = 0.0, expires_unix_ms: int | None = None
    ) -> NewToken:
        """Replace a token by a new one with the same rights; None for its expiry takes that of the old one.

        The old one stays valid for `overlap_s`, at most 30 days. Raise Conflict if it has ended or was replaced
        already, and InvalidRequest for a time out of range.
        """
        authority = self._registry.authority(capability)
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise InvalidRequest(f"overlap_s is from 0 to {MAX_OVERLAP_S}")
        now_unix_ms = self._clock.unix_ms()
        end = _checked_end(expires_unix_ms, now_unix_ms)
        minted = mint()
        record, _ = await self._identities.change(
            _replace, authority, token_id, minted, now_unix_ms, int(overlap_s * 1000), end
        )
        return NewToken(record, minted.text)

    async def revoke(self, capability: AdminCapability, token_id: str) -> TokenRecord:
        """Revoke a token: this server refuses it when this returns, other servers 2 s later. Idempotent."""
        (record,) = await self._identities.change(
            _revoke, self._registry.authority(capability), token_id, self._clock.unix_ms()
        )
        return record

    async def ensure_first_token(self, capability: AdminCapability) -> NewToken | None:
        """Make a token for everything, unless there is a valid token; the capability must be for everything too."""
        self._registry.authority(capability).require(None, SCOPES)
        now_unix_ms = self._clock.unix_ms()
        minted = mint()
        record = TokenRecord(
            id=minted.id,
            digest=minted.digest,
            name="first",
            tenants=None,
            scopes=frozenset(SCOPES),
            created_unix_ms=now_unix_ms,
        )
        made = await self._identities.change(_add_first, record, now_unix_ms)
        return NewToken(made[0], minted.text) if made else None


def _checked_tenants(tenants: Iterable[int] | None) -> frozenset[int] | None:
    if tenants is None:
        return None
    chosen = frozenset(tenants)
    if not 1 <= len(chosen) <= MAX_TENANTS or not all(0 <= each <= MAX_TENANT for each in chosen):
        raise InvalidRequest(f"tenants are 1 to {MAX_TENANTS} numbers from 0 to 2**64 - 1")
    return chosen


def _checked_scopes(scopes: Iterable[str]) -> frozenset[str]:
    chosen = frozenset(scopes)
    if not chosen or not chosen <= SCOPES.keys():
        raise InvalidRequest(f"scopes are some of {', '.join(SCOPES)}")
    return chosen


def _checked_end(expires_unix_ms: int | None, now_unix_ms: int) -> int | None:
    if expires_unix_ms is not None and not now_unix_ms < expires_unix_ms <= MAX_UNIX_MS:
        raise InvalidRequest("expires_unix_ms is a time in the future, in milliseconds since 1970")
    return expires_unix_ms


def _find(connection: Connection, authority: Authority, token_id: str, *, lock: bool = False) -> TokenRecord:
    """Return a token that an authority covers; others are as if they did not exist."""
    record = queries.find_token(connection, token_id, lock=lock)
    if record is None or not authority.covers(record.tenants):
        raise NotFound("there is no such token")
    return record


def _add(connection: Connection, record: TokenRecord) -> tuple[TokenRecord]:
    return (queries.add_token(connection, record),)


def _add_first(connection: Connection, record: TokenRecord, now_unix_ms: int) -> tuple[TokenRecord, ...]:
    take_revision(connection)  # only one of several processes that start together makes it
    if queries.has_live_token(connection, now_unix_ms):
        return ()
    return _add(connection, record)


def _replace(
    connection: Connection,
    authority: Authority,
    token_id: str,
    minted: MintedToken,
    now_unix_ms: int,
    overlap_ms: int,
    expires_unix_ms: int | None,
) -> tuple[TokenRecord, TokenRecord]:
    old = _find(connection, authority, token_id, lock=True)
    authority.require(old.tenants, old.scopes)
    if not old.live(now_unix_ms):
        raise Conflict("the token has ended")
    if queries.is_replaced(connection, token_id):
        raise Conflict("the token has been replaced already")
    overlap_end = now_unix_ms + overlap_ms
    end = overlap_end if old.expires_unix_ms is None else min(old.expires_unix_ms, overlap_end)
    ended = queries.end_token(
        connection,
        old,
        expires_unix_ms=end if overlap_ms else old.expires_unix_ms,
        revoked_unix_ms=None if overlap_ms else now_unix_ms,
    )
    new = TokenRecord(
        id=minted.id,
        digest=minted.digest,
        name=old.name,
        tenants=old.tenants,
        scopes=old.scopes,
        created_unix_ms=now_unix_ms,
        expires_unix_ms=old.expires_unix_ms if expires_unix_ms is None else expires_unix_ms,
        replaces=old.id,
    )
    return queries.add_token(connection, new), ended


def _revoke(connection: Connection, authority: Authority, token_id: str, now_unix_ms: int) -> tuple[TokenRecord]:
    record = _find(connection, authority, token_id, lock=True)
    if record.revoked_unix_ms is not None:
        return (record,)
    return (queries.end_token(connection, record, expires_unix_ms=record.expires_unix_ms, revoked_unix_ms=now_unix_ms),)


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


class Tenants(_Administration):
    """The tenants of one registry. Every number is a tenant; one without a record has the service's default policy.

    All methods with a capability raise ScopeDenied for one of another registry, TenantScopeDenied if it does not cover
    the tenant (or, for weight and quotas, all tenants), InvalidRequest for an invalid tenant, and DatabaseUnavailable;
    then nothing is changed.
    """

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
        return await self._database.read(_find_tenant, tenant)

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
        """Check a change against a capability, so that a limited administrator cannot lift its own limits."""
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
    return replace(
        record,
        name=record.name if change.name is None else change.name and checked_name(change.name),
        weight=record.weight if change.weight is None else checked_weight(change.weight),
        quotas=record.quotas if change.quotas is None else checked_quotas({**record.quotas, **change.quotas}),
        disabled=record.disabled if change.disabled is None else change.disabled,
    )


def _find_tenant(connection: Connection, tenant: int) -> TenantRecord:
    return queries.find_tenant(connection, tenant) or TenantRecord(tenant=tenant)


def _create(connection: Connection, record: TenantRecord) -> tuple[TenantRecord]:
    if queries.find_tenant(connection, record.tenant, lock=True) is not None:
        raise Conflict("the tenant exists already")
    return (queries.add_tenant(connection, record),)


def _update(connection: Connection, tenant: int, change: TenantChange, now_unix_ms: int) -> tuple[TenantRecord]:
    found = queries.find_tenant(connection, tenant, lock=True)
    write = queries.add_tenant if found is None else queries.change_tenant
    found = found or TenantRecord(tenant=tenant, created_unix_ms=now_unix_ms)
    return (write(connection, _changed(found, change)),)


@dataclass(frozen=True, slots=True)
class Identity:
    """Tokens and tenants; see `tensorwasm.service.opening.Service` for the first token."""

    authenticator: Authenticator
    identities: IdentityCache
    tokens: Tokens
    tenants: Tenants
    first_token: NewToken | None = field(repr=False)


async def open_identity(
    settings: ServiceSettings, database: DatabaseExecutor, clock: Clock = SYSTEM, *, writes: bool = True
) -> Identity:
    """Open tokens and tenants; the caller must run `IdentityCache.follow`. Raise InvalidArgs for an invalid setting.

    Requests without a token are accepted only if the operator allows it and there is no token and no issuer. If there
    is no token otherwise, the process that `writes` makes the first one, and does not keep the capability for it.
    """
    table = TokenTable(parse_tokens(settings.tokens), parse_digests(settings.kernel_publish_tokens, _PUBLISHERS))
    verifier = await asyncio.to_thread(open_verifier, settings.oidc_issuer, settings.oidc_audience, settings.oidc_jwks)
    listed = len(table) > 0
    identities = IdentityCache(database, table, clock, caps=parse_caps(settings.tenant_caps), tidies=writes)
    await identities.catch_up()
    developing = settings.allow_dev_mode and verifier is None and not len(table)
    registry, everything = Registry.open()
    tokens = Tokens(database, identities, registry, clock)
    return Identity(
        Authenticator(table, identities.catch_up, verifier=verifier, developing=developing, now_unix_ms=clock.unix_ms),
        identities,
        tokens,
        Tenants(database, identities, registry, clock),
        None if developing or listed or not writes else await tokens.ensure_first_token(everything),
    )
