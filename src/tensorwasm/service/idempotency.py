"""Idempotency keys: a request repeated under its key gets the first request's answer.

A key belongs to one tenant and one operation. It is written in the transaction that creates its subject, so neither
exists without the other; of two concurrent requests the second finds the first's key, or waits for its transaction.
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
"""Seconds that a key is kept."""

KEYS: Final = 100_000
"""Keys kept of one tenant; the oldest beyond that are dropped."""

_MAX_KEY: Final = 255


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A client's key of 1 to 255 printable ASCII characters.

    Attributes:
        operation: ``deploy`` or ``invoke``.
        digest: of the whole request, 32 bytes.
    """

    operation: str
    key: str = field(repr=False)
    digest: bytes = field(repr=False)


class Repeated(Exception):
    """The request was made before and created `subject` (an ID). Rolls back the second one's transaction."""

    def __init__(self, subject: str) -> None:
        super().__init__("the request was made before")
        self.subject = subject


def make_key(operation: str, header: str | None, *parts: bytes) -> IdempotencyKey | None:
    """Return the key of a request, None if it has none.

    Args:
        operation: as in `IdempotencyKey`.
        header: the value of ``Idempotency-Key``.
        parts: the whole request.

    Raises:
        InvalidRequest: the header is not 1 to 255 printable ASCII characters.
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
    """Write a key in the transaction that creates its subject.

    Raises:
        Repeated: the same request was made before; the transaction must be rolled back.
        IdempotencyMismatch: the key was used with another request.
    """
    record = KeyRecord(tenant, key.operation, key.key, key.digest, subject, now_unix_ms)
    while not put_key(connection, record):
        found = get_key(connection, tenant, key.operation, key.key)
        if found is None:
            continue  # it was removed between the two statements
        earlier = _subject_of(found, key, now_unix_ms)
        if earlier is not None:
            raise Repeated(earlier)
        drop_key(connection, found)


def find_key(connection: Connection, tenant: int, key: IdempotencyKey, now_unix_ms: int) -> str | None:
    """Return what the same request created before, None if it was not made; raises IdempotencyMismatch as `use_key`."""
    found = get_key(connection, tenant, key.operation, key.key)
    return None if found is None else _subject_of(found, key, now_unix_ms)


def forget_keys(connection: Connection, now_unix_ms: int, limit: int) -> int:
    """Remove keys that are too old or too many, at most ``limit`` for each reason; return the greater count."""
    return max(remove_keys(connection, now_unix_ms - KEY_S * 1000, limit), trim_keys(connection, KEYS, limit))


def _subject_of(found: KeyRecord, key: IdempotencyKey, now_unix_ms: int) -> str | None:
    if found.created_unix_ms < now_unix_ms - KEY_S * 1000:
        return None
    if found.request_digest != key.digest:
        raise IdempotencyMismatch("this Idempotency-Key was used with another request")
    return found.subject


class Idempotency:
    """Looks keys up before costly work begins."""

    def __init__(self, database: DatabaseExecutor, clock: Clock = SYSTEM) -> None:
        self._database = database
        self._clock = clock

    async def find(self, tenant: int, key: IdempotencyKey | None) -> str | None:
        """Return the ID of what the same request created before. Raises as `find_key` and the database do."""
        return None if key is None else await self._database.read(find_key, tenant, key, self._clock.unix_ms())

    def note(self, tenant: int, key: IdempotencyKey | None) -> Callable[[Connection, str], None] | None:
        """Return a function that calls `use_key` with a connection and the subject's ID; None without a key."""
        if key is None:
            return None
        now = self._clock.unix_ms()
        return lambda connection, subject: use_key(connection, tenant, key, subject, now)
