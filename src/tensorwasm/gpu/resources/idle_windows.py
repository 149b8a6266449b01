"""Windows that no session has, kept by their size for the next ones."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class PooledWindow(Protocol):
    """A window of a session."""

    tenant: str

    @property
    def size_bytes(self) -> int:
        """Addresses that it has."""

    @property
    def idle_bytes(self) -> int:
        """Device memory that it takes while no session has it."""


_Window = TypeVar("_Window", bound=PooledWindow)


class IdleWindows(Generic[_Window]):
    """Idle windows, of each size those that are idle for longest first. Not safe from several threads.

    Args:
        most_bytes: of device memory that they may take.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._by_size: dict[int, list[_Window]] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return sum(map(len, list(self._by_size.values())))

    def has_room(self, window: _Window) -> bool:
        """Return whether a window may be added within the limit."""
        return self._held_bytes + window.idle_bytes <= self._most_bytes

    def add(self, window: _Window) -> None:
        """Add a window, whether there is room or not."""
        self._held_bytes += window.idle_bytes
        self._by_size.setdefault(window.size_bytes, []).append(window)

    def choose(self, tenant: str, size_bytes: int) -> _Window | None:
        """Take a window of a size: the tenant's own last one, else the one that is idle for longest."""
        fitting = self._by_size.get(size_bytes, [])
        own = [at for at, window in enumerate(fitting) if window.tenant == tenant]
        return self._take(fitting, own[-1] if own else 0) if fitting else None

    def take_any(self) -> _Window | None:
        """Take a window of the largest size that there is, the one that is idle for longest."""
        sizes = [size for size, windows in self._by_size.items() if windows]
        return self._take(self._by_size[max(sizes)], 0) if sizes else None

    def take_all(self) -> list[_Window]:
        """Take all windows."""
        taken = [window for windows in self._by_size.values() for window in windows]
        self._by_size, self._held_bytes = {}, 0
        return taken

    def _take(self, windows: list[_Window], at: int) -> _Window:
        window = windows.pop(at)
        self._held_bytes -= window.idle_bytes
        return window
