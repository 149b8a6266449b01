"""`IdentityCache`: tokens and tenants in memory, kept equal to the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from tensorwasm.database import Connection
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.identity import (
    TenantRecord,
    TokenRecord,
    changed_tenants,
    changed_tokens,
    erase_dead_tokens,
    read_revision,
)
from tensorwasm.errors import TensorWasmError
from tensorwasm.service.clock import SYSTEM, Clock
from tensorwasm.tenancy.authentication import TokenTable
from tensorwasm.tenancy.quotas import TenantPolicy

FRESH_S: Final = 0.25
"""Least seconds between reads for unknown tokens, and the longest delay of a token that another process made."""
FOLLOW_S: Final = 2.0
"""Seconds between reads of changes, and how long a token that another process revoked stays valid."""
STALE_S: Final = 30.0
"""After so many seconds without a successful read no token of the database is accepted."""
TIDY_ROUNDS: Final = 1800
KEEP_DEAD_MS: Final = 30 * 86_400_000
"""How long ended tokens are kept."""

Records = Sequence[TokenRecord | TenantRecord]
P = ParamSpec("P")
T = TypeVar("T", bound=Records)
_log = logging.getLogger(__name__)


class IdentityCache:
    """Tokens and policies of tenants, which requests read without waiting. For one event loop.

    Each change has a revision in the database, and this process reads those after the last one seen: every 2 s, and
    when an unknown token arrives. Its own changes apply at once. Reads and changes are serialized, so that an old
    state never replaces a newer one.

    Args:
        database: where tokens and tenants are.
        tokens: the table of valid tokens, which is updated.
        clock: of all times.
        sleep: waits some seconds.
        caps: quotas of tenants without their own, by the names of `tensorwasm.tenancy.quotas.CAPS`.
        tidies: whether ended tokens are erased from the database by this process.

    Attributes:
        tell: is awaited after each change of this process, before it is acknowledged; None for nothing.
        policies: of the tenants that have their own, updated in place.
        default_policy: of all others.
    """

    def __init__(
        self,
        database: DatabaseExecutor,
        tokens: TokenTable,
        clock: Clock = SYSTEM,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        caps: Mapping[str, int] = MappingProxyType({}),
        *,
        tidies: bool = True,
    ) -> None:
        self._database = database
        self._tokens = tokens
        self._clock = clock
        self._sleep = sleep
        self._caps = dict(caps)
        self._tidies = tidies
        self.tell: Callable[[], Awaitable[None]] | None = None
        self.default_policy = TenantPolicy(quotas=MappingProxyType(self._caps))
        self.policies: dict[int, TenantPolicy] = {}
        self._revision = 0
        self._read_s = float("-inf")
        self._rounds = 0
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    def policy(self, tenant: int) -> TenantPolicy:
        """Return a tenant's policy."""
        return self.policies.get(tenant, self.default_policy)

    def artifact_cap(self, tenant: str) -> int | None:
        """Return a tenant's limit of artifact bytes, None for none. For any thread."""
        return self.policy(int(tenant)).quotas.get("artifact_bytes") if tenant.isdecimal() else None

    async def catch_up(self) -> None:
        """Return once all changes of other processes up to 0.25 s ago are known; concurrent callers share one read."""
        asked_s = self._clock.monotonic_s()
        async with self._lock:
            if self._read_s < asked_s - FRESH_S:
                await self._read()

    async def read_again(self) -> None:
        """Return once all changes of other processes so far are known. Raises as `catch_up`."""
        async with self._lock:
            await self._read()

    async def change(self, write: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the records that `write` wrote, once they are in the database and known here.

        A cancelled caller does not cancel the change. Raises what `write` raises, and as `catch_up` does; then nothing
        is changed.
        """
        task = asyncio.ensure_future(self._change(write, *args, **kwargs))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def follow(self) -> None:
        """Read the changes of other processes every 2 s, forever."""
        while True:
            await self._sleep(FOLLOW_S)
            await self.follow_once()

    async def follow_once(self) -> None:
        """Read the changes of other processes; drop all tokens of the database if it did not answer for long."""
        try:
            async with self._lock:
                await self._read()
            self._rounds += 1
            if self._tidies and self._rounds % TIDY_ROUNDS == 0:
                self._tokens.sweep(self._clock.unix_ms())
                await self._database.write(erase_dead_tokens, self._clock.unix_ms() - KEEP_DEAD_MS)
        except Exception as error:  # noqa: BLE001 - without further reads revoked tokens would stay valid
            kind = error.kind if isinstance(error, TensorWasmError) else "a bug"
            _log.warning("tokens and tenants cannot be read: %s", kind, exc_info=kind == "a bug")
            if self._revision and self._clock.monotonic_s() - self._read_s > STALE_S:
                _log.error("tokens of the database are no longer accepted")
                self._forget()

    async def _change(self, write: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._lock:
            records = await self._database.write(write, *args, **kwargs)
            self._apply(records)
        if self.tell is not None:
            await self.tell()
        return records

    async def _read(self) -> None:
        began_s = self._clock.monotonic_s()
        revision, records = await self._database.read(_changed, self._revision, self._clock.unix_ms())
        if revision < self._revision:  # an older copy of the database was restored
            self._forget()
            revision, records = await self._database.read(_changed, 0, self._clock.unix_ms())
        self._apply(records)
        self._revision = revision
        self._read_s = began_s

    def _apply(self, records: Records) -> None:
        for record in records:
            if isinstance(record, TokenRecord):
                self._tokens.enter(record, self._clock.unix_ms())
            else:
                quotas = MappingProxyType(self._caps | dict(record.quotas))
                self.policies[record.tenant] = TenantPolicy(record.weight, quotas, record.disabled)

    def _forget(self) -> None:
        """Drop the tokens; policies stay, so that a disabled tenant stays disabled."""
        self._tokens.clear()
        self._revision = 0


def _changed(connection: Connection, since: int, now_unix_ms: int) -> tuple[int, Records]:
    """Return the last revision, and the records changed after `since`; none if the revision is older."""
    revision = read_revision(connection)
    if revision <= since:
        return revision, ()
    return revision, [*changed_tokens(connection, since, now_unix_ms), *changed_tenants(connection, since)]
