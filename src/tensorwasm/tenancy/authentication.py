"""`Authenticator`: returns the principal of an Authorization header; and tokens: made, listed by the operator, live."""

from __future__ import annotations

import base64
import logging
import re
import secrets
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import InvalidArgs, RateLimited, Unauthorized
from tensorwasm.tenancy.oidc import JwtVerifier
from tensorwasm.tenancy.principal import MAX_TENANT, REFUSAL, SCOPES, USER_SCOPES, Principal
from tensorwasm.tenancy.quotas import unix_ms

if TYPE_CHECKING:
    from tensorwasm.database.identity import TokenRecord

TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)
"""The syntax of a bearer token. Source: RFC 6750, 2.1."""

MAX_HEADER: Final = 8192
MAX_SLOW: Final = 64
"""Unknown tokens that are looked up at a time; more are refused."""
MAX_FORGERIES: Final = 50
"""JWTs that may fail in a second before other new ones are refused: each costs up to 0.1 ms of the event loop."""
JWT_CACHE: Final = 8192
JWT_CACHE_MS: Final = 300_000

_DEVELOPING: Final = b"dev"
DEVELOPER: Final = Principal("dev", "dev", None)
"""Every client in dev mode. It may not administer, since what it made would outlast the dev mode."""

_HEADER: Final = re.compile(rf"bearer +({TOKEN.pattern})", re.IGNORECASE | re.ASCII)
_USUAL: Final = "Bearer "


def digest(token: str) -> bytes:
    """Return the stored form of a token: 32 bytes of BLAKE2b.

    A fast hash is enough: secrets made here have 256 bits, which cannot be guessed, so a slow hash would only cost
    time. Operators' own tokens may have fewer bits; their digests never leave the process's memory.
    """
    return blake2b(token.encode("ascii", "replace"), digest_size=32, person=b"tensorwasm.token").digest()


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A token of the operator's list; its place from 1 is its name in logs, and None as tenants means all."""

    place: int
    digest: bytes = field(repr=False)
    tenants: frozenset[int] | None


class TokenTable:
    """The operator's tokens and all live ones of the database, by digest. Used by one thread.

    A look-up takes the time of a dictionary of digests: its timing reveals at most a hash of a digest, seeded anew in
    each process, and nothing of a token. Only administrators make the table grow.

    Tokens whose digests are among the publishers may publish kernels whatever their scopes. The attribute ``find``
    returns the principal of a digest, or None.
    """

    def __init__(self, listed: Iterable[StaticToken] = (), publishers: frozenset[bytes] = frozenset()) -> None:
        self._publishers = publishers
        self._listed = {
            each.digest: Principal("bearer", f"env:{each.place}", each.tenants, self._widen(each.digest, USER_SCOPES))
            for each in listed
        }
        self._digests: dict[str, bytes] = {}
        self._known = dict(self._listed)
        self.find = self._known.get  # bound once, since every request calls it

    def __len__(self) -> int:
        return len(self._known)

    def enter(self, record: TokenRecord, now_unix_ms: int) -> None:
        """Add a token of the database, or remove it if it is no longer live."""
        if not record.live(now_unix_ms):
            self._remove(record.id)
        elif record.digest not in self._listed:
            scopes = self._widen(record.digest, record.scopes.intersection(SCOPES))
            self._digests[record.id] = record.digest
            self._known[record.digest] = Principal("bearer", record.id, record.tenants, scopes, record.expires_unix_ms)

    def sweep(self, now_unix_ms: int) -> None:
        """Remove expired tokens."""
        for token_id, digest in list(self._digests.items()):
            expires_unix_ms = self._known[digest].expires_unix_ms
            if expires_unix_ms is not None and now_unix_ms >= expires_unix_ms:
                self._remove(token_id)

    def clear(self) -> None:
        """Remove all tokens of the database."""
        for token_id in list(self._digests):
            self._remove(token_id)

    def _remove(self, token_id: str) -> None:
        digest = self._digests.pop(token_id, None)
        if digest is not None:
            del self._known[digest]

    def _widen(self, digest: bytes, scopes: frozenset[str]) -> frozenset[str]:
        return scopes | {"kernels:publish"} if digest in self._publishers else scopes


class Authenticator:
    """Authenticates by tokens and JWTs. Used by one event loop.

    Another process may just have made a token that is not in the table; so the table is brought up to date, by one
    query for all who wait for it, and at most a few in a second. Nothing is stored about bad tokens: a flood of them
    costs a hash each, and no memory.

    Args:
        tokens: the live tokens.
        catch_up: brings the table up to date; called concurrently.
        verifier: of JWTs; None refuses them.
        developing: dev mode: every client may act for every tenant; also an attribute.
        now_unix_ms: the clock.
    """

    def __init__(
        self,
        tokens: TokenTable,
        catch_up: Callable[[], Awaitable[None]],
        *,
        verifier: JwtVerifier | None = None,
        developing: bool = False,
        now_unix_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self._find = tokens.find
        self._catch_up = catch_up
        self._verifier = verifier
        self.developing = developing
        self._now_unix_ms = now_unix_ms
        self._verified: dict[bytes, tuple[Principal, int]] = {}  # of JWTs, each until a time
        self._slow = self._second = self._forgeries = 0

    def authenticate(self, header: str | None) -> Principal | None:
        """Return the principal of an Authorization header; None for a token that `authenticate_slowly` must look up.

        Source: RFC 6750, 2.1; the name of the scheme in any case by RFC 9110, 11.1.

        Raises:
            Unauthorized: the header is missing, too long or without a bearer token, or the token has expired.
        """
        return self.find(self.identify(header))

    def identify(self, header: str | None) -> bytes:
        """Return what `find` knows the credentials of an Authorization header by. Raises as `authenticate`."""
        if self.developing:
            return _DEVELOPING
        if header is None or len(header) > MAX_HEADER:
            raise Unauthorized(REFUSAL)
        key = digest(_cut(header))
        if self._find(key) is None and self._find_verified(key) is None:
            _presented(header)
        return key

    def find(self, key: bytes) -> Principal | None:
        """Return whose credentials these are, as `authenticate` does."""
        if self.developing:
            return DEVELOPER
        found = self._find(key)
        if found is None:
            return self._find_verified(key)
        if found.expires_unix_ms is not None and self._now_unix_ms() >= found.expires_unix_ms:
            raise Unauthorized(REFUSAL)
        return found

    async def authenticate_slowly(self, header: str | None) -> Principal:
        """Return the principal of an Authorization header, after looking an unknown token up.

        Raises:
            Unauthorized: the credentials are missing, unknown, expired or revoked.
            RateLimited: too many unknown credentials come in.
            DatabaseUnavailable, CapacityExhausted: the database does not respond, or has too many waiting calls.
        """
        found = self.authenticate(header)
        if found is not None:
            return found
        if self._slow >= MAX_SLOW:
            raise RateLimited("too many unknown credentials")
        self._slow += 1
        try:
            token = _presented(header or "")
            if self._verifier is not None and token.count(".") == 2:
                return await self._verify(self._verifier, token)
            await self._catch_up()
            found = self.authenticate(header)
        finally:
            self._slow -= 1
        if found is None:
            raise Unauthorized(REFUSAL)
        return found

    async def _verify(self, verifier: JwtVerifier, token: str) -> Principal:
        second = self._now_unix_ms() // 1000
        if second != self._second:
            self._second, self._forgeries = second, 0
        if self._forgeries >= MAX_FORGERIES:
            raise RateLimited("too many unknown credentials")
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
        self._verified[digest(token)] = principal, until_unix_ms
        return principal

    def _find_verified(self, key: bytes) -> Principal | None:
        found = self._verified.get(key)
        if found is None:
            return None
        principal, until_unix_ms = found
        if self._now_unix_ms() >= until_unix_ms:
            del self._verified[key]
            return None
        return principal


def _cut(header: str) -> str:
    """Return what is probably the token; its syntax is checked only if it is unknown."""
    start = len(_USUAL)
    return header[start:] if header.startswith(_USUAL) and header[start : start + 1] != " " else _presented(header)


def _presented(header: str) -> str:
    found = _HEADER.fullmatch(header)
    if found is None:
        raise Unauthorized(REFUSAL)
    return found[1]


MIN_TOKEN_BYTES: Final = 16
_SCOPED: Final = ":tenant="
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MintedToken:
    """A new token: its UUID and digest are stored, its text is shown once."""

    id: str
    text: str = field(repr=False)
    digest: bytes = field(repr=False)


def mint() -> MintedToken:
    """Return a new token: ``tw_<id>_<secret>``, a form that people and scanners for leaked secrets recognize."""
    id = uuid.uuid4()  # noqa: A001 - what it is
    text = f"tw_{label(str(id))}_{secrets.token_urlsafe(32)}"
    return MintedToken(str(id), text, digest(text))


def label(id: str) -> str:  # noqa: A002 - what it is
    """Return the 16 characters that stand for an id in a token's text: its first 80 bits in base32."""
    return base64.b32encode(uuid.UUID(id).bytes[:10]).decode().lower()


def parse_tokens(text: str, variable: str = "TENSOR_WASM_API_TOKENS") -> tuple[StaticToken, ...]:
    """Read a list of ``TOKEN:tenant=*`` and ``TOKEN:tenant=1,2,3``, separated by commas.

    After a tenant's number, all entries up to the next ``:tenant=`` are further numbers, so that a misspelt one never
    becomes a token for all tenants. A token with an invalid number (not 0 to 2**64 - 1) is skipped with a warning. A
    ``TOKEN`` alone is for all tenants, and deprecated with a warning. No message contains a part of a token.

    Raises:
        InvalidArgs: a token is shorter than 16 bytes, a placeholder, a duplicate, or not a bearer token; the message
            has its place in the list.
    """
    found: dict[bytes, StaticToken] = {}
    for place, (token, tenants) in enumerate(_entries(text), 1):
        _require_strong(token, place, variable)
        kept = digest(token)
        if kept in found:
            raise InvalidArgs(f"{variable}: tokens {found[kept].place} and {place} are the same")
        if tenants is None:
            _log.warning("%s: token %d names no tenants and is for all: deprecated, write :tenant=*", variable, place)
        scope = _parse_tenants(tenants)
        if scope == frozenset():
            _log.warning("%s: token %d names a tenant that is no number, and is left out", variable, place)
        found[kept] = StaticToken(place, kept, scope)
    return tuple(each for each in found.values() if each.tenants != frozenset())


def parse_digests(text: str, variable: str) -> frozenset[bytes]:
    """Return the digests of a list of tokens without tenants, separated by commas; raises as `parse_tokens`."""
    tokens = [part for part in map(str.strip, text.split(",")) if part]
    for place, token in enumerate(tokens, 1):
        _require_strong(token, place, variable)
    return frozenset(map(digest, tokens))


def _entries(text: str) -> list[tuple[str, list[str] | None]]:
    """Return each token with the texts of its tenants; None for a token without tenants."""
    tenants: list[str] | None = None
    found: list[tuple[str, list[str] | None]] = []
    for part in filter(None, map(str.strip, text.split(","))):
        token, scoped, first = part.rpartition(_SCOPED)
        if scoped:
            tenants = [first.strip()]
            found.append((token, tenants))
        elif tenants is None or tenants == ["*"]:
            tenants = None
            found.append((part, None))
        else:
            tenants.append(part)
    return found


def _parse_tenants(texts: list[str] | None) -> frozenset[int] | None:
    """Return the tenants: None for all, an empty set if one of them is invalid."""
    if texts is None or texts == ["*"]:
        return None
    numbers = [int(each) if re.fullmatch(r"[0-9]{1,20}", each) else MAX_TENANT + 1 for each in texts]
    return frozenset(numbers) if max(numbers) <= MAX_TENANT else frozenset()


def _require_strong(token: str, place: int, variable: str) -> None:
    if TOKEN.fullmatch(token) is None:
        raise InvalidArgs(f"{variable}: token {place} is no bearer token: letters, digits and -._~+/, then =")
    if len(token) < MIN_TOKEN_BYTES or "changeme" in token.lower():
        raise InvalidArgs(
            f"{variable}: token {place} can be guessed: it must have at least {MIN_TOKEN_BYTES} bytes, and be no "
            "placeholder"
        )
