"""`Tokens`: administration of the database's tokens: making, listing, rotating and revoking."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.database import Connection
from tensorwasm.database import identity as queries
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.identity import TokenRecord, take_revision
from tensorwasm.errors import Conflict, InvalidRequest, NotFound
from tensorwasm.service.clock import SYSTEM, Clock
from tensorwasm.service.functions.names import checked_name
from tensorwasm.service.identity.cache import IdentityCache
from tensorwasm.service.pages import DEFAULT_PAGE, checked_limit
from tensorwasm.tenancy.authentication import MintedToken, mint
from tensorwasm.tenancy.principal import MAX_TENANT, SCOPES, USER_SCOPES, AdminCapability, Authority, Registry

MAX_TENANTS: Final = 1024
MAX_OVERLAP_S: Final = 30 * 86_400
MAX_UNIX_MS: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made: what is stored, and the text, for its owner to see once."""

    record: TokenRecord
    text: str = field(repr=False)


class Tokens:
    """The tokens of one registry.

    Every method takes a capability of that registry, and reads and changes only tokens whose tenants it covers. No
    token can be made that may do more than the capability. All methods raise ScopeDenied for a capability of another
    registry or without the needed scopes, NotFound for a token that is not covered, and DatabaseUnavailable; then
    nothing is changed.
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
        overlap_ms = int(overlap_s * 1000)
        record, _ = await self._identities.change(_replace, authority, token_id, minted, now_unix_ms, overlap_ms, end)
        return NewToken(record, minted.text)

    async def revoke(self, capability: AdminCapability, token_id: str) -> TokenRecord:
        """Revoke a token: this process refuses it when this returns, other processes 2 s later. Idempotent."""
        authority = self._registry.authority(capability)
        (record,) = await self._identities.change(_revoke, authority, token_id, self._clock.unix_ms())
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
    end = {"expires_unix_ms": record.expires_unix_ms, "revoked_unix_ms": now_unix_ms}
    return (queries.end_token(connection, record, **end),)
