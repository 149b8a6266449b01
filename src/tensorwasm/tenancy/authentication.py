"""`Authenticator`: from an Authorization header to a principal."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from tensorwasm.errors import RateLimited, Unauthorized
from tensorwasm.tenancy.principal import Principal
from tensorwasm.tenancy.roll import Roll
from tensorwasm.tenancy.tokens import TOKEN, digest

MAX_HEADER: Final = 8192
MAX_SLOW: Final = 64
"""Unknown tokens that are looked into at a time; more are turned away."""
MAX_FORGERIES: Final = 50
"""JWTs that fail in a second before others that are new are turned away: each costs up to 0.1 ms of the event loop."""
JWT_CACHE: Final = 8192
JWT_CACHE_MS: Final = 300_000

DEVELOPER: Final = Principal("dev", "dev", None)
"""Anybody, where nobody is asked. Such a one administers nothing: what it made would outlast the dev mode."""

_HEADER: Final = re.compile(rf"bearer +({TOKEN.pattern})", re.IGNORECASE | re.ASCII)
_USUAL: Final = "Bearer "
_REFUSAL: Final = "no credentials that are known, in time and not revoked"


class Verifier(Protocol):
    """What tells a good JWT from others: a `tensorwasm.tenancy.oidc.JwtVerifier`."""

    async def verify(self, token: str) -> Principal:
        """Return whose a JWT is, or raise Unauthorized."""


class _Verified(NamedTuple):
    principal: Principal
    until_unix_ms: int


class Authenticator:
    """Knows tokens and JWTs. Used by one event loop.

    A token that is not on the roll may be one that another process just made, so the roll is brought up to date, by one
    look into the database for all who wait for it, and at most a few a second. Nothing is kept of tokens that are no
    good: a flood of them costs a hash each, and no memory.

    Args:
        roll: tokens that are good.
        catch_up: brings the roll up to date; called by as many as wait at a time.
        verifier: of JWTs; None takes none.
        developing: everybody is let through, as any tenant.
        now_unix_ms: the clock that tokens end by.
    """

    def __init__(
        self,
        roll: Roll,
        catch_up: Callable[[], Awaitable[None]],
        *,
        verifier: Verifier | None = None,
        developing: bool = False,
        now_unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._find = roll.find
        self._catch_up = catch_up
        self._verifier = verifier
        self._developing = developing
        self._now_unix_ms = now_unix_ms
        self._verified: dict[bytes, _Verified] = {}
        self._slow = 0
        self._second = 0
        self._forgeries = 0

    def authenticate(self, header: str | None) -> Principal | None:
        """Return who sent an Authorization header; None for a token that only `authenticate_slowly` can tell.

        Source: RFC 6750, 2.1; the name of the scheme in any case by RFC 9110, 11.1.

        Raises:
            Unauthorized: there is none, it is too long, it has no bearer token, or one that ended.
        """
        if self._developing:
            return DEVELOPER
        if header is None or len(header) > MAX_HEADER:
            raise Unauthorized(_REFUSAL)
        key = digest(_cut(header))
        found = self._find(key)
        if found is None:
            found = self._find_verified(key)
            if found is None:
                _presented(header)
            return found
        if found.expires_unix_ms is not None and self._now_unix_ms() >= found.expires_unix_ms:
            raise Unauthorized(_REFUSAL)
        return found

    async def authenticate_slowly(self, header: str | None) -> Principal:
        """Return who sent an Authorization header, after a look wherever there are credentials.

        Raises:
            Unauthorized: there are no credentials, or none that are known, in time and not revoked.
            RateLimited: too many unknown credentials come in.
            DatabaseUnavailable: nobody can tell, for the database does not answer.
            CapacityExhausted: likewise, for too many wait for it.
        """
        found = self.authenticate(header)
        if found is not None:
            return found
        if self._slow >= MAX_SLOW:
            raise RateLimited("too many unknown credentials")
        self._slow += 1
        try:
            return await self._look(header or "")
        finally:
            self._slow -= 1

    async def _look(self, header: str) -> Principal:
        token = _presented(header)
        if self._verifier is not None and token.count(".") == 2:
            return await self._verify(self._verifier, token)
        await self._catch_up()
        found = self.authenticate(header)
        if found is None:
            raise Unauthorized(_REFUSAL)
        return found

    async def _verify(self, verifier: Verifier, token: str) -> Principal:
        self._require_few_forgeries()
        try:
            principal = await verifier.verify(token)
        except Unauthorized:
            self._forgeries += 1
            raise
        until_unix_ms = self._now_unix_ms() + JWT_CACHE_MS
        if principal.expires_unix_ms is not None:
            until_unix_ms = min(until_unix_ms, principal.expires_unix_ms)
        if len(self._verified) >= JWT_CACHE:
            del self._verified[next(iter(self._verified))]
        self._verified[digest(token)] = _Verified(principal, until_unix_ms)
        return principal

    def _find_verified(self, key: bytes) -> Principal | None:
        found = self._verified.get(key)
        if found is None:
            return None
        if self._now_unix_ms() >= found.until_unix_ms:
            del self._verified[key]
            return None
        return found.principal

    def _require_few_forgeries(self) -> None:
        second = self._now_unix_ms() // 1000
        if second != self._second:
            self._second, self._forgeries = second, 0
        if self._forgeries >= MAX_FORGERIES:
            raise RateLimited("too many unknown credentials")


def _cut(header: str) -> str:
    """Return what is most likely the token; whether it is one at all only matters if nobody knows it."""
    start = len(_USUAL)
    return header[start:] if header.startswith(_USUAL) and header[start : start + 1] != " " else _presented(header)


def _presented(header: str) -> str:
    found = _HEADER.fullmatch(header)
    if found is None:
        raise Unauthorized(_REFUSAL)
    return found[1]
