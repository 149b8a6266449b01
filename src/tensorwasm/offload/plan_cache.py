"""Plans of a module's regions, each made once for one set of integer inputs and one size of memory.

A key is absent, being made, ready or declined. Plans are made elsewhere: the first caller that finds a key absent asks
for it and declines, as others do until it is ready.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.values import Deadline

MOST_PLANS: Final = 256
"""Most keys of a module that are remembered; the oldest is forgotten first."""
TRIAL_PLANS: Final = 32
"""Plans that are made of a region whatever use they are; each further one takes a second use of an earlier one."""

PAUSE_S: Final = 0.1
"""How long nothing is asked for once too much waits: asking takes a caller longer than most loops."""

_log = logging.getLogger(__name__)
_Code = TypeVar("_Code")
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

    @property
    def words(self) -> str:
        """The reason's name, and the detail."""
        return f"{self.reason.name.lower()}{f' ({self.detail})' if self.detail else ''}"


NOT_READY: Final = PlanRefusal(DeclineReason.NOT_READY)
"""Of a plan that is being made."""
_UNSETTLED: Final = PlanRefusal(DeclineReason.UNSETTLED)


class PlanCache(Generic[_Code, _Plan]):
    """The plans of one module. Thread-safe.

    Args:
        request: has code made, on another thread; returns None if too much waits. A future that is cancelled, or gives
            `NOT_READY`, counts as never requested.
        load: makes a plan of the code, on the thread that settles the future; may raise `Declined`. None counts as
            never requested, too.
        waits: whether callers wait for plans, for figures and comparisons that are to be the same each time.
    """

    def __init__(
        self,
        request: Callable[[PlanKey], Future[_Code | PlanRefusal] | None],
        load: Callable[[_Code], _Plan | None],
        *,
        waits: bool = False,
    ) -> None:
        self._request = request
        self._load = load
        self._waits = waits
        self._changed = threading.Condition()
        self._known: dict[PlanKey, _Plan | PlanRefusal] = {}
        self._made: Counter[int] = Counter()
        self._used_again: Counter[int] = Counter()
        self._full_s = -math.inf  # when too much waited

    def find(self, key: PlanKey, deadline: Deadline) -> _Plan | PlanRefusal:
        """Return a plan, or why there is none; a cache that waits does so until the deadline."""
        found = self._known.get(key)
        if found is None:
            found = self._begin(key)
        elif not isinstance(found, PlanRefusal):
            self._used_again[key.region] += 1
        if found is NOT_READY and self._waits:
            return self._wait(key, deadline)
        return found

    def keys(self) -> list[PlanKey]:
        """Return the keys that are remembered, in the order in which they were asked for."""
        with self._changed:
            return list(self._known)

    def refuse(self, key: PlanKey, refusal: PlanRefusal) -> None:
        """Make no use of a plan any more, because it has turned out to be useless."""
        with self._changed:
            if key in self._known:
                self._known[key] = refusal

    def _begin(self, key: PlanKey) -> _Plan | PlanRefusal:
        with self._changed:
            found = self._known.get(key)
            if found is not None:
                return found
            if self._made[key.region] >= TRIAL_PLANS + self._used_again[key.region]:
                return _UNSETTLED
            now_s = time.monotonic()
            if now_s < self._full_s + PAUSE_S:
                return NOT_READY
            requested = self._request(key)
            if requested is None:
                self._full_s = now_s
                return NOT_READY
            self._made[key.region] += 1
            if len(self._known) >= MOST_PLANS:
                del self._known[next(iter(self._known))]
            self._known[key] = NOT_READY
        requested.add_done_callback(partial(self._settle, key))
        return NOT_READY

    def _settle(self, key: PlanKey, made: Future[_Code | PlanRefusal]) -> None:
        plan = NOT_READY if made.cancelled() else self._attempt(key, made)
        with self._changed:
            if self._known.get(key) is NOT_READY:
                self._known[key] = plan
                if plan is NOT_READY:
                    del self._known[key]
            self._changed.notify_all()

    def _attempt(self, key: PlanKey, made: Future[_Code | PlanRefusal]) -> _Plan | PlanRefusal:
        try:
            code = made.result()
            return code if isinstance(code, PlanRefusal) else self._load(code) or NOT_READY
        except Declined as declined:
            return PlanRefusal(declined.reason, declined.detail)
        except Exception as error:  # noqa: BLE001 - the guest is not to blame, and its loop runs without a plan, too
            _log.exception("no plan could be made of region %d", key.region)
            return PlanRefusal(DeclineReason.FAULT, type(error).__name__)

    def _wait(self, key: PlanKey, deadline: Deadline) -> _Plan | PlanRefusal:
        with self._changed:
            limit_s = min(deadline.remaining_s(), threading.TIMEOUT_MAX)
            self._changed.wait_for(lambda: self._known.get(key) is not NOT_READY, limit_s)
            return self._known.get(key, NOT_READY)
