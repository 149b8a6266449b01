"""`IdentityCache`: tokens and tenants as every request needs them, kept true to the database."""

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
from tensorwasm.service.clock import Clock
from tensorwasm.tenancy.policy import TenantPolicy
from tensorwasm.tenancy.tokens import TokenTable

FRESH_S: Final = 0.25
"""How far apart looks for unknown tokens are, and so how much later another process's new token is good at most."""
FOLLOW_S: Final = 2.0
"""Seconds between looks for what other processes changed: how long a token lives on that one of them revoked."""
STALE_S: Final = 30.0
"""Without a look that succeeds for this long no token of the database is believed any more."""
TIDY_ROUNDS: Final = 1800
KEEP_DEAD_MS: Final = 30 * 86_400_000
"""How long tokens that ended can still be seen."""

Records = Sequence[TokenRecord | TenantRecord]
P = ParamSpec("P")
T = TypeVar("T", bound=Records)
_log = logging.getLogger(__name__)


class IdentityCache:
    """What each request asks about tokens and tenants, without waiting. Used by one event loop.

    Each change takes a number in the database, and this process looks for greater ones than it has seen: every 2 s, and
    when a token comes in that it does not know. What it changes itself it knows at once. One thing happens at a time,
    so that nothing old is ever taken for new.

    Args:
        desk: of the database.
        roll: of good tokens, which is kept true.
        clock: what time it is.
        sleep: waits some seconds.
        caps: what holds for tenants of whom nothing else was said, as `tensorwasm.tenancy.quotas.CAPS` names it.
    """

    def __init__(
        self,
        desk: DatabaseExecutor,
        roll: TokenTable,
        clock: Clock = Clock(),  # noqa: B008 - frozen
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        caps: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._desk = desk
        self._roll = roll
        self._clock = clock
        self._sleep = sleep
        self._caps = dict(caps)
        self._usual = TenantPolicy(quotas=MappingProxyType(self._caps))
        self._policies: dict[int, TenantPolicy] = {}
        self._revision = 0
        self._looked_s = float("-inf")
        self._rounds = 0
        self._turn = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    def policy(self, tenant: int) -> TenantPolicy:
        """Return what holds for a tenant."""
        return self._policies.get(tenant, self._usual)

    async def catch_up(self) -> None:
        """Return once all is known that other processes had changed 0.25 s before, with one look for all who ask.

        Raises:
            DatabaseUnavailable: it does not answer.
            CapacityExhausted: too many wait for it.
        """
        asked_s = self._clock.monotonic_s()
        async with self._turn:
            if self._looked_s < asked_s - FRESH_S:
                await self._look()

    async def change(self, write: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function wrote, once it is in the database and known here; who is cancelled changes it too.

        Args:
            write: takes a connection and the arguments; returns the records that it wrote.
            args: for the function.
            kwargs: likewise.

        Raises:
            DatabaseUnavailable: it does not answer. Nothing is changed.
            CapacityExhausted: too many wait for it.
            Exception: what the function raises.
        """
        task = asyncio.ensure_future(self._change(write, *args, **kwargs))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def follow(self) -> None:
        """Look for what others changed, for ever."""
        while True:
            await self._sleep(FOLLOW_S)
            await self.follow_once()

    async def follow_once(self) -> None:
        """Look for what others changed, and stop believing in what could not be looked at for long."""
        try:
            async with self._turn:
                await self._look()
            self._rounds += 1
            if self._rounds % TIDY_ROUNDS == 0:
                self._roll.sweep(self._clock.unix_ms())
                await self._desk.write(erase_dead_tokens, self._clock.unix_ms() - KEEP_DEAD_MS)
        except Exception as error:  # noqa: BLE001 - without a next look what others revoke would stay good for ever
            kind = error.kind if isinstance(error, TensorWasmError) else "a bug"
            _log.warning("tokens and tenants cannot be looked at: %s", kind, exc_info=kind == "a bug")
            if self._revision and self._clock.monotonic_s() - self._looked_s > STALE_S:
                _log.error("tokens of the database are no longer believed")
                self._forget()

    async def _change(self, write: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._turn:
            records = await self._desk.write(write, *args, **kwargs)
            self._apply(records)
            return records

    async def _look(self) -> None:
        began_s = self._clock.monotonic_s()
        revision, records = await self._desk.read(_changed, self._revision, self._clock.unix_ms())
        if revision < self._revision:  # the database is an older one, brought back
            self._forget()
            revision, records = await self._desk.read(_changed, 0, self._clock.unix_ms())
        self._apply(records)
        self._revision = revision
        self._looked_s = began_s

    def _apply(self, records: Records) -> None:
        for record in records:
            if isinstance(record, TokenRecord):
                self._roll.enter(record, self._clock.unix_ms())
            else:
                quotas = MappingProxyType(self._caps | dict(record.quotas))
                self._policies[record.tenant] = TenantPolicy(record.weight, quotas, record.disabled)

    def _forget(self) -> None:
        """Forget tokens; a tenant's policy stays, for that of one who is disabled must."""
        self._roll.clear()
        self._revision = 0


def _changed(connection: Connection, since: int, now_unix_ms: int) -> tuple[int, Records]:
    """Return the last revision, and what changed after another; nothing if it is an earlier one."""
    revision = read_revision(connection)
    if revision <= since:
        return revision, ()
    return revision, [*changed_tokens(connection, since, now_unix_ms), *changed_tenants(connection, since)]
