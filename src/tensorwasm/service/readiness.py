"""`Readiness`: whether the database answers; asked once at a time, however many want to know."""

from __future__ import annotations

import asyncio
from typing import Final

from tensorwasm.database.desk import Desk
from tensorwasm.database.revisions import read_revision
from tensorwasm.errors import DatabaseUnavailable

READY_S: Final = 2.0
"""In which the database must answer."""


class Readiness:
    """Whether the database answers. For one event loop.

    Anybody may ask, a token or none: so a thousand who ask cost the database no more than one.

    Args:
        desk: of the database.
    """

    def __init__(self, desk: Desk) -> None:
        """Ask nothing yet."""
        self._desk = desk
        self._asking: asyncio.Task[int] | None = None

    async def require(self) -> None:
        """Return once the database has answered.

        Raises:
            DatabaseUnavailable: it does not, or not in time.
            CapacityExhausted: too many wait for it.
        """
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._desk.read(read_revision))
            self._asking.add_done_callback(self._answered)
        done, _ = await asyncio.wait((self._asking,), timeout=READY_S)
        if not done:
            raise DatabaseUnavailable("the database does not answer in time")
        done.pop().result()

    def _answered(self, asked: asyncio.Task[int]) -> None:
        self._asking = None
        if not asked.cancelled():
            asked.exception()  # whoever still waits is told; nobody may
