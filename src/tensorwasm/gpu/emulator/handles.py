"""The open objects of a device, and numbers for them that compiled code may hold."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

from tensorwasm.errors import InvalidHandle

_STEP: Final = 16  # so that no handle is mistaken for an index

T = TypeVar("T", bound=Hashable)


class OpenObjects(Generic[T]):
    """The open objects of one class; ``refusal`` is the error's message for others. Safe from any thread."""

    def __init__(self, kind: type[T], refusal: str) -> None:
        self._kind, self._refusal = kind, refusal
        self._objects: set[T] = set()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        """Yield the objects that are open now."""
        return iter(list(self._objects))

    def __contains__(self, item: object) -> bool:
        """Return whether an object is of this kind and open."""
        return isinstance(item, self._kind) and item in self._objects

    def add(self, item: T) -> T:
        """Note that an object is open, and return it."""
        self._objects.add(item)
        return item

    def require(self, item: object) -> T:
        """Return an object that must be open; raises `InvalidHandle` if it is not."""
        if not isinstance(item, self._kind) or item not in self._objects:
            raise InvalidHandle(self._refusal)
        return item

    def discard(self, item: object) -> None:
        """Forget an object; nothing happens if it is not open."""
        if isinstance(item, self._kind):
            self._objects.discard(item)

    def take_all(self) -> set[T]:
        """Forget every object, and return them."""
        taken, self._objects = self._objects, set()
        return taken


class Handles:
    """Handles of objects of any kind. A handle is never used twice, and is no address. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[int, object] = {}
        self._handles: dict[Hashable, int] = {}
        self._next = _STEP

    def of(self, item: Hashable) -> int:
        """Return the handle of an object, always the same."""
        with self._lock:
            handle = self._handles.get(item)
            if handle is None:
                handle, self._next = self._next, self._next + _STEP
                self._handles[item] = handle
                self._objects[handle] = item
            return handle

    def find(self, handle: int, kind: type[T]) -> T | None:
        """Return the object of a handle, or None if it is not of this kind."""
        found = self._objects.get(handle)
        return found if isinstance(found, kind) else None

    def drop(self, item: Hashable) -> None:
        """Forget an object and its handle."""
        with self._lock:
            handle = self._handles.pop(item, None)
            if handle is not None:
                del self._objects[handle]
