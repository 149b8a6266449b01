"""Tokens as texts: how they are made, what of them is kept, and how an operator's list of them is read."""

from __future__ import annotations

import base64
import logging
import re
import secrets
import uuid
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.tenancy.principal import MAX_TENANT

VARIABLE: Final = "TENSOR_WASM_API_TOKENS"
MIN_TOKEN_BYTES: Final = 16
SECRET_BYTES: Final = 32
TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)
"""What a bearer token can be. Source: RFC 6750, 2.1."""

_SCOPED: Final = ":tenant="
_PLACEHOLDER: Final = "changeme"
_log = logging.getLogger(__name__)


def digest(token: str) -> bytes:
    """Return what is kept of a token: 32 bytes of BLAKE2b.

    A plain fast hash: the secrets made here have 256 bits, which nobody finds by trying, so slowness would only cost.
    Operators' own tokens may have fewer; their digests never leave the process's memory.
    """
    return blake2b(token.encode("ascii", "replace"), digest_size=32, person=b"tensorwasm.token").digest()


@dataclass(frozen=True, slots=True)
class Minted:
    """A new token.

    Attributes:
        id: UUID, which is kept.
        text: the token itself, which is shown once.
        digest: of the text, which is kept.
    """

    id: str
    text: str = field(repr=False)
    digest: bytes = field(repr=False)


def mint() -> Minted:
    """Return a new token: ``tw_<id>_<secret>``, by which people and scanners of leaked secrets know one."""
    id = uuid.uuid4()  # noqa: A001 - what it is
    text = f"tw_{label(str(id))}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return Minted(str(id), text, digest(text))


def label(id: str) -> str:  # noqa: A002 - what it is
    """Return the 16 characters by which a token's text names its id: its first 80 bits in base32."""
    return base64.b32encode(uuid.UUID(id).bytes[:10]).decode().lower()


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A token of the operator's list.

    Attributes:
        place: in the list, from 1 on: its name in logs.
        digest: of the token.
        tenants: whom it may act for; None for all.
    """

    place: int
    digest: bytes = field(repr=False)
    tenants: frozenset[int] | None


def parse_tokens(text: str, variable: str = VARIABLE) -> tuple[StaticToken, ...]:
    """Read a list of ``TOKEN:tenant=*`` and ``TOKEN:tenant=1,2,3``, separated by commas.

    After numbers of tenants all up to the next ``:tenant=`` are more of them, so that a misspelt one never becomes a
    token for everything; an entry with one that is no number from 0 to 2**64 - 1 is left out, with a warning. ``TOKEN``
    alone is for all tenants, and deprecated: a warning says so. Neither warnings nor errors have anything of a token.

    Raises:
        InvalidArgs: a token is shorter than 16 bytes, a placeholder, there twice, or has characters that no bearer
            token has; the message has its place.
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
    """Read a list of tokens without tenants, separated by commas, and return their digests.

    Raises:
        InvalidArgs: as `parse_tokens`.
    """
    tokens = [part for part in map(str.strip, text.split(",")) if part]
    for place, token in enumerate(tokens, 1):
        _require_strong(token, place, variable)
    return frozenset(map(digest, tokens))


def _entries(text: str) -> list[tuple[str, list[str] | None]]:
    """Return each token with the texts of its tenants, None where it has none."""
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
    """Return the tenants, None for all, none at all where one of them is no tenant."""
    if texts is None or texts == ["*"]:
        return None
    numbers = [int(each) if re.fullmatch(r"[0-9]{1,20}", each) else MAX_TENANT + 1 for each in texts]
    return frozenset(numbers) if max(numbers) <= MAX_TENANT else frozenset()


def _require_strong(token: str, place: int, variable: str) -> None:
    if TOKEN.fullmatch(token) is None:
        raise InvalidArgs(f"{variable}: token {place} is no bearer token: letters, digits and -._~+/, then =")
    if len(token) < MIN_TOKEN_BYTES or _PLACEHOLDER in token.lower():
        raise InvalidArgs(
            f"{variable}: token {place} can be guessed: it has {MIN_TOKEN_BYTES} bytes at least, and is no placeholder"
        )
