"""`LruCache`: entries bounded in number and in bytes; the least recently used one goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

KEPT_MODULES: Final = 64
KEPT_MODULE_BYTES: Final = 512 << 20

_Value = TypeVar("_Value")


class LruCache(Generic[_Value]):
    """A bounded cache, such as of what was made of modules; one entry may be larger than the bytes. Not thread-safe.

    Attributes:
        entries: values and their bytes, the least recently used first.
        held_bytes: of all entries.
    """

    def __init__(self, items: int = KEPT_MODULES, size_bytes: int = KEPT_MODULE_BYTES) -> None:
        self.held_bytes = 0
        self.entries: OrderedDict[Hashable, tuple[_Value, int]] = OrderedDict()
        self._items, self._size_bytes = items, size_bytes

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, key: Hashable) -> _Value | None:
        """Return an entry, None if it is not there."""
        found = self.entries.get(key)
        if found is None:
            return None
        self.entries.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, value: _Value, size_bytes: int) -> list[_Value]:
        """Add an entry that is not there; return the evicted ones."""
        self.entries[key] = value, size_bytes
        self.held_bytes += size_bytes
        evicted = []
        while len(self.entries) > 1 and (len(self.entries) > self._items or self.held_bytes > self._size_bytes):
            _, (old, old_bytes) = self.entries.popitem(last=False)
            self.held_bytes -= old_bytes
            evicted.append(old)
        return evicted

    def drop(self, key: Hashable) -> None:
        """Remove an entry, if it is there."""
        found = self.entries.pop(key, None)
        if found is not None:
            self.held_bytes -= found[1]
