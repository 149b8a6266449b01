"""`LoadPlaces`: how many kernels of one tenant are loaded at a time by guests that hold a shared thread meanwhile.

Loading may wait for a compiler, up to the guest's deadline. Without places, one tenant's loads took all threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from tensorwasm.errors import InvokeTimeout
from tensorwasm.values import Deadline

LOADS_EACH: Final = 2
"""Of the eight threads for blocking calls (`tensorwasm.guest.reactor.threads`)."""

_R = TypeVar("_R")


class LoadPlaces:
    """Places for loads, so many for each tenant, first come first served. Thread-safe.

    Args:
        each: places of a tenant.
    """

    def __init__(self, each: int = LOADS_EACH) -> None:
        self._each = each
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[LoadPlace]] = {}

    def open(self, tenant: str) -> LoadPlace:
        """Return a place that is still to be waited for."""
        return LoadPlace(self, tenant)

    def enter(self, place: LoadPlace) -> bool:
        """Take a place, or queue for it; return whether it was taken."""
        with self._lock:
            taken = self._taken.get(place.tenant, 0)
            if taken < self._each:
                self._taken[place.tenant] = taken + 1
                return True
            self._waiting.setdefault(place.tenant, deque()).append(place)
            return False

    def drop(self, place: LoadPlace) -> bool:
        """Leave the queue; return False if the place was taken before."""
        with self._lock:
            waiting = self._waiting.get(place.tenant, ())
            if place not in waiting:
                return False
            self._waiting[place.tenant].remove(place)
            if not self._waiting[place.tenant]:
                del self._waiting[place.tenant]
            return True

    def leave(self, tenant: str) -> None:
        """Give a place to the next one that waits for it, or back."""
        with self._lock:
            waiting = self._waiting.get(tenant)
            following = waiting.popleft() if waiting else None
            if following is None:
                left = self._taken.pop(tenant) - 1
                if left:
                    self._taken[tenant] = left
            elif not waiting:
                del self._waiting[tenant]
        if following is not None:
            following.notify()


class LoadPlace:
    """One load's place, as a `tensorwasm.guest.imports.suspension.WaitQueue`.

    Attributes:
        tenant: whose load it is.
        notify: tells that the place was taken.
    """

    __slots__ = ("_places", "notify", "tenant")

    def __init__(self, places: LoadPlaces, tenant: str) -> None:
        self._places = places
        self.tenant = tenant
        self.notify: Callable[[], object] = bool

    def join(self, notify: Callable[[], object], _until: Deadline) -> bool:
        """Take the place, or queue for it; return whether ``notify`` will be called."""
        self.notify = notify
        return not self._places.enter(self)

    def give_up(self) -> None:
        """Leave because the time is over; raise `InvokeTimeout`, unless the place was taken before."""
        if self._places.drop(self):
            raise InvokeTimeout("the deadline passed while other kernels of the tenant were loaded")

    def abandon(self) -> None:
        """Leave because the guest has ended."""
        if not self._places.drop(self):
            self._places.leave(self.tenant)

    def hold(self, load: Callable[[], _R]) -> _R:
        """Load, and give the place back."""
        try:
            return load()
        finally:
            self.notify = bool  # the caller's function refers to this place: a cycle
            self._places.leave(self.tenant)
