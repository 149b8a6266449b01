"""A queue in which tenants take turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class TenantQueue(Generic[T]):
    """What waits, first in, first out for each tenant, and tenants in the order of their turns. Not thread-safe."""

    def __init__(self) -> None:
        # To find the first key of a plain dict takes as long as keys before it were removed.
        self._waiting: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()

    def __bool__(self) -> bool:
        """Return whether anything waits."""
        return bool(self._waiting)

    def __iter__(self) -> Iterator[str]:
        """Yield the tenants for whom something waits, in the order of their turns."""
        return iter(self._waiting)

    def put(self, tenant: str, item: T) -> bool:
        """Have something wait behind the rest of its tenant; return False if it waits already."""
        items = self._waiting.setdefault(tenant, OrderedDict())
        if item in items:
            return False
        items[item] = None
        return True

    def first(self, tenant: str) -> T:
        """Return what comes next of a tenant for whom something waits."""
        return next(iter(self._waiting[tenant]))

    def take(self) -> T | None:
        """Return the first of the tenant whose turn it is, which waits no more; None if nothing waits."""
        for tenant in self:
            item = self.first(tenant)
            self.remove(tenant, item)
            self.end_turn(tenant)
            return item
        return None

    def remove(self, tenant: str, item: T) -> bool:
        """Have something wait no more; return whether it did."""
        items = self._waiting.get(tenant)
        if items is None or item not in items:
            return False
        del items[item]
        if not items:
            del self._waiting[tenant]
        return True

    def end_turn(self, tenant: str) -> None:
        """Put what waits for a tenant, if anything does, behind the other tenants."""
        if tenant in self._waiting:
            self._waiting.move_to_end(tenant)
