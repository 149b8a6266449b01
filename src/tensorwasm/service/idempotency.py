"""Idempotency keys: a request that is made again under its key is answered as the first time.

A key belongs to one tenant and one operation. It is written in the transaction that makes what it names, so there is
never one without the other; of two requests that race, the second finds the first's key, or waits for its transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.artifacts.hashing import hasher
from tensorwasm.database import Connection
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.idempotency import KeyRecord, drop_key, get_key, put_key, remove_keys, trim_keys
from tensorwasm.errors import IdempotencyMismatch, InvalidRequest
from tensorwasm.service.clock import SYSTEM, Clock

KEY_S: Final = 86_400
"""Seconds that a key is remembered."""

KEYS: Final = 100_000
"""Keys of one tenant that are remembered; of more, the oldest are forgotten."""

_MAX_KEY: Final = 255


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A key, with what it is used for.

    Attributes:
        operation: ``deploy`` or ``invoke``.
        key: the client's, 1 to 255 printable ASCII characters.
        digest: of all that is asked, 32 bytes.
    """

    operation: str
    key: str = field(repr=False)
    digest: bytes = field(repr=False)


class Repeated(Exception):
    """The request was made before. It undoes the transaction of the second one, and never leaves the service.

    Attributes:
        subject: id of what the first one made.
    """

    def __init__(self, subject: str) -> None:
        """Remember what was made."""
        super().__init__("the request was made before")
        self.subject = subject


def make_key(operation: str, header: str | None, *parts: bytes) -> IdempotencyKey | None:
    """Return the key of a request; None where it brings none.

    Args:
        operation: what it is used for.
        header: the value of ``Idempotency-Key``.
        parts: all that is asked.

    Raises:
        InvalidRequest: it is not 1 to 255 printable ASCII characters.
    """
    if header is None:
        return None
    if not 1 <= len(header) <= _MAX_KEY or not (header.isascii() and header.isprintable()):
        raise InvalidRequest(f"Idempotency-Key is 1 to {_MAX_KEY} printable ASCII characters")
    digest = hasher()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return IdempotencyKey(operation, header, bytes(digest.digest()))


def use_key(connection: Connection, tenant: int, key: IdempotencyKey, subject: str, now_unix_ms: int) -> None:
    """Write, in the transaction that makes something, under which key it is made.

    Raises:
        Repeated: the same request was made before; the caller's transaction is undone.
        IdempotencyMismatch: the key was used with another request.
    """
    record = KeyRecord(tenant, key.operation, key.key, key.digest, subject, now_unix_ms)
    while not put_key(connection, record):
        found = get_key(connection, tenant, key.operation, key.key)
        if found is None:
            continue
        earlier = _subject_of(found, key, now_unix_ms)
        if earlier is not None:
            raise Repeated(earlier)
        drop_key(connection, found)


def find_key(connection: Connection, tenant: int, key: IdempotencyKey, now_unix_ms: int) -> str | None:
    """Return what the same request made before, None if there was none.

    Raises:
        IdempotencyMismatch: the key was used with another request.
    """
    found = get_key(connection, tenant, key.operation, key.key)
    return None if found is None else _subject_of(found, key, now_unix_ms)


def forget_keys(connection: Connection, now_unix_ms: int, limit: int) -> int:
    """Remove keys that are too old or too many, ``limit`` of each at most; return how many of the more."""
    old = remove_keys(connection, now_unix_ms - KEY_S * 1000, limit)
    return max(old, trim_keys(connection, KEYS, limit))


def _subject_of(found: KeyRecord, key: IdempotencyKey, now_unix_ms: int) -> str | None:
    if found.created_unix_ms < now_unix_ms - KEY_S * 1000:
        return None
    if found.request_digest != key.digest:
        raise IdempotencyMismatch("this Idempotency-Key was used with another request")
    return found.subject


class Idempotency:
    """Looks keys up before anything costly is begun."""

    def __init__(self, desk: DatabaseExecutor, clock: Clock = SYSTEM) -> None:
        self._desk = desk
        self._clock = clock

    async def find(self, tenant: int, key: IdempotencyKey | None) -> str | None:
        """Return id of what the same request made before; None where there was none.

        Raises:
            IdempotencyMismatch: the key was used with another request.
            DatabaseUnavailable: the database does not answer.
            CapacityExhausted: too many wait for it.
        """
        if key is None:
            return None
        return await self._desk.read(find_key, tenant, key, self._clock.unix_ms())

    def note(self, tenant: int, key: IdempotencyKey | None) -> Callable[[Connection, str], None] | None:
        """Return what writes, in a transaction that makes something, under which key that is; None without a key.

        It is given the connection and the subject's ID, and raises `Repeated` and `IdempotencyMismatch`.
        """
        if key is None:
            return None
        now = self._clock.unix_ms()
        return lambda connection, subject: use_key(connection, tenant, key, subject, now)
