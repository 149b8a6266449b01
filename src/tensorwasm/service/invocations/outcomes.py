"""`Outcomes`: how streams ended, for some minutes: who was cut off, or could not see the end, asks for it here."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from tensorwasm.errors import NotFound

KEPT_S: Final = 600.0
"""Seconds that an outcome is kept."""

KEPT: Final = 256
"""Outcomes that are kept of one tenant: what another does costs it none."""

TENANTS: Final = 4096
"""Tenants of whom outcomes are kept; of more, those go that had no stream for the longest time."""

ALL: Final = 20_000
"""Outcomes that are kept of all tenants; of more, those go as above."""

Status = Literal["running", "done", "error"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a stream ended, or that it has not.

    Attributes:
        request_id: UUID of its request.
        reference: what was called.
        status: whether it runs, came to its end, or failed.
        reason: stable name of the failure; empty without one.
        message: what a client may be told of it; empty without one.
    """

    request_id: str
    reference: str
    status: Status
    reason: str = ""
    message: str = ""


class Outcomes:
    """A bounded number of outcomes. For one event loop.

    Args:
        clock_s: the monotonic clock.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Know none yet."""
        self._clock_s = clock_s
        self._tenants: OrderedDict[int, OrderedDict[str, tuple[float, Outcome]]] = OrderedDict()
        self._count = 0

    def put(self, tenant: int, outcome: Outcome) -> None:
        """Keep an outcome, in place of that of the same request."""
        kept = self._tenants.setdefault(tenant, OrderedDict())
        self._tenants.move_to_end(tenant)
        self._count += outcome.request_id not in kept
        kept.pop(outcome.request_id, None)
        kept[outcome.request_id] = self._clock_s() + KEPT_S, outcome
        if len(kept) > KEPT:
            kept.popitem(last=False)
            self._count -= 1
        while len(self._tenants) > TENANTS or self._count > ALL:
            self._count -= len(self._tenants.popitem(last=False)[1])

    def get(self, tenant: int, request_id: str) -> Outcome:
        """Return the outcome of one of a tenant's streams.

        Raises:
            NotFound: it had none of that name lately; another's are the same as none.
        """
        kept = self._tenants.get(tenant)
        found = kept.get(request_id) if kept is not None else None
        if found is None or found[0] <= self._clock_s():
            raise NotFound("there was no such stream lately")
        return found[1]
