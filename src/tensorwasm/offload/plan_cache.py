"""Plans of a module's regions, each made once for one set of integer inputs and one size of memory.

A key is absent, being made, ready or declined. The first caller that finds it absent makes it; meanwhile it declines
for others, as it would for all if plans were made elsewhere.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from tensorwasm.offload.declined import Declined, DeclineReason

MOST_PLANS: Final = 256
"""Most keys of a module that are remembered; the oldest is forgotten first."""
TRIAL_PLANS: Final = 32
"""Plans that are made of a region whatever use they are; each further one takes a second use of an earlier one."""

_log = logging.getLogger(__name__)
_Plan = TypeVar("_Plan")


class PlanKey(NamedTuple):
    """What a plan holds for."""

    region: int  # its number in the module
    integers: tuple[int, ...]  # the region's inputs that are integers, in their order
    memory_bytes: int  # size of linear memory


class PlanRefusal(NamedTuple):
    """Why there is no plan."""

    reason: DeclineReason
    detail: str = ""


_NOT_READY: Final = PlanRefusal(DeclineReason.NOT_READY)
_UNSETTLED: Final = PlanRefusal(DeclineReason.UNSETTLED)


class PlanCache(Generic[_Plan]):
    """The plans of one module. Thread-safe."""

    def __init__(self, make: Callable[[PlanKey], _Plan]) -> None:
        """Keep what ``make`` returns, or why it raises `Declined`."""
        self._make = make
        self._lock = threading.Lock()
        self._known: dict[PlanKey, _Plan | PlanRefusal] = {}
        self._made: Counter[int] = Counter()
        self._used_again: Counter[int] = Counter()

    def find(self, key: PlanKey) -> _Plan | PlanRefusal:
        """Return a plan, made now if it was never asked for, or why there is none."""
        found = self._known.get(key)
        if found is None:
            return self._begin(key)
        if not isinstance(found, PlanRefusal):
            self._used_again[key.region] += 1
        return found

    def refuse(self, key: PlanKey, refusal: PlanRefusal) -> None:
        """Make no use of a plan any more, because it has turned out to be useless."""
        with self._lock:
            if key in self._known:
                self._known[key] = refusal

    def _begin(self, key: PlanKey) -> _Plan | PlanRefusal:
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                return found
            if self._made[key.region] >= TRIAL_PLANS + self._used_again[key.region]:
                return _UNSETTLED
            self._made[key.region] += 1
            if len(self._known) >= MOST_PLANS:
                del self._known[next(iter(self._known))]
            self._known[key] = _NOT_READY
        made = self._attempt(key)
        with self._lock:
            self._known[key] = made
        return made

    def _attempt(self, key: PlanKey) -> _Plan | PlanRefusal:
        try:
            return self._make(key)
        except Declined as declined:
            return PlanRefusal(declined.reason, declined.detail)
        except Exception as error:  # noqa: BLE001 - the guest is not to blame, and its loop runs without a plan, too
            _log.exception("no plan could be made of region %d", key.region)
            return PlanRefusal(DeclineReason.FAULT, type(error).__name__)
