"""`Shelf`: what was made of modules, kept while it is used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

KEPT_MODULES: Final = 64
KEPT_MODULE_BYTES: Final = 512 << 20

_Value = TypeVar("_Value")


class Shelf(Generic[_Value]):
    """A bounded store of what was made of modules; what was not used for longest goes first. Not thread-safe.

    Args:
        items: most entries.
        size_bytes: most bytes of module, all together; one entry may be larger.
    """

    def __init__(self, items: int = KEPT_MODULES, size_bytes: int = KEPT_MODULE_BYTES) -> None:
        self._entries: OrderedDict[Hashable, tuple[_Value, int]] = OrderedDict()
        self._items = items
        self._size_bytes = size_bytes
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_bytes(self) -> int:
        """Bytes of all entries."""
        return self._held_bytes

    def get(self, key: Hashable) -> _Value | None:
        """Return an entry, None if it is not there."""
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, value: _Value, size_bytes: int) -> list[_Value]:
        """Add an entry that is not there; return those that had to go."""
        self._entries[key] = value, size_bytes
        self._held_bytes += size_bytes
        gone = []
        while len(self._entries) > 1 and (len(self._entries) > self._items or self._held_bytes > self._size_bytes):
            _, (old, old_bytes) = self._entries.popitem(last=False)
            self._held_bytes -= old_bytes
            gone.append(old)
        return gone

    def drop(self, key: Hashable) -> None:
        """Remove an entry, if it is there."""
        found = self._entries.pop(key, None)
        if found is not None:
            self._held_bytes -= found[1]
