"""Making tokens, and reading the operator's list of them."""

from __future__ import annotations

import base64
import logging
import re
import secrets
import uuid
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.tenancy.authentication import TOKEN, StaticToken, digest
from tensorwasm.tenancy.principal import MAX_TENANT

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
