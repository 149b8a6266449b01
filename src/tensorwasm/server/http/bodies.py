"""Request bodies: how much is read, how long that may take, and how much memory all bodies share.

A short body arrives in one piece, read ahead by the code that accepts requests. A longer one is read chunk by chunk,
and every byte counts against one budget for all connections until the reply is sent. A request that finds the
budget used up is refused and may be retried, so a thousand concurrent uploads need no more memory than a few. No tenant
gets more of the budget than it leaves for others.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from tensorwasm.errors import BodyTooLarge, CapacityExhausted, InvalidRequest, RequestTimeout
from tensorwasm.server.http.long_work import run_slice
from tensorwasm.values import MIB

AT_ONCE_BYTES: Final = 128 << 10
"""How much of a body is copied without waiting for a slice (`tensorwasm.server.http.long_work`): about 20 us."""

BUDGET_BYTES: Final = 512 * MIB
"""Memory that all longer bodies share, unless a single body may be larger."""


class BodyBudget:
    """Memory for bodies, `limit_bytes` in total, shared by all connections of one event loop."""

    def __init__(self, limit_bytes: int = BUDGET_BYTES) -> None:
        self.free_bytes = limit_bytes
        self._held: dict[int, int] = {}

    def take(self, size_bytes: int, tenant: int | None = None) -> None:
        """Reserve memory for a tenant, which never gets more than it leaves for others, or for none.

        Raises:
            CapacityExhausted: not enough is left.
        """
        left = self.free_bytes - size_bytes
        held = 0 if tenant is None else self._held.get(tenant, 0) + size_bytes
        if left < held:
            raise CapacityExhausted("too many long requests are arriving at once")
        self.free_bytes = left
        if tenant is not None:
            self._held[tenant] = held

    def give(self, size_bytes: int, tenant: int | None = None) -> None:
        """Return memory that `take` reserved."""
        self.free_bytes += size_bytes
        if tenant is not None:
            left = self._held.pop(tenant, 0) - size_bytes
            if left > 0:
                self._held[tenant] = left


def declared_bytes(length: str | None) -> int | None:
    """Return the value of a Content-Length, None without one; raise `InvalidRequest` if it is malformed."""
    if length is None:
        return None
    if not (length.isascii() and length.isdigit()) or len(length) > 18:
        raise InvalidRequest("Content-Length is not a number of bytes")
    return int(length)


class BodyMemory:
    """Memory that one long body of a tenant, or of none, has reserved from a budget."""

    def __init__(self, budget: BodyBudget, limit_bytes: int, tenant: int | None = None) -> None:
        self._budget = budget
        self._limit_bytes = limit_bytes
        self._tenant = tenant
        self._held_bytes = 0

    def close(self) -> None:
        """Return the memory to the budget; the body must not be used any more."""
        self._budget.give(self._held_bytes, self._tenant)
        self._held_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """Reserve memory for more of the body.

        Raises:
            BodyTooLarge: the body is longer than the limit.
            CapacityExhausted: the budget is used up.
        """
        if self._held_bytes + size_bytes > self._limit_bytes:
            raise too_large(self._limit_bytes)
        self._budget.take(size_bytes, self._tenant)
        self._held_bytes += size_bytes

    def hand_over(self, size_bytes: int) -> None:
        """Leave so much of the memory to the caller, who returns it to the budget."""
        self._held_bytes -= size_bytes


class BodyReader(BodyMemory):
    """Reads one long body piece by piece, and reserves memory for it.

    Args:
        read: returns the next piece, None behind the last; raises if the body breaks off.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes | None]],
        budget: BodyBudget,
        limit_bytes: int,
        tenant: int | None = None,
    ) -> None:
        super().__init__(budget, limit_bytes, tenant)
        self._read = read

    async def read(self, timeout_s: float) -> bytes:
        """Return the whole body, which must arrive in `timeout_s`; raise as `hold` does.

        Raises:
            RequestTimeout: it did not arrive in time, or broke off.
        """
        whole = io.BytesIO()  # grows in place and hands over its buffer: joining parts would copy everything at once
        try:
            async with asyncio.timeout(timeout_s):
                while (chunk := await self._read()) is not None:
                    self.hold(len(chunk))
                    if self._held_bytes <= AT_ONCE_BYTES:
                        whole.write(chunk)
                    else:
                        await run_slice(partial(whole.write, chunk))
        except TimeoutError:
            raise RequestTimeout("the request did not arrive in full in time") from None
        return whole.getvalue()


def too_large(limit_bytes: int) -> BodyTooLarge:
    """Return the error of a body over the limit."""
    return BodyTooLarge(f"the body is longer than {limit_bytes} bytes")
