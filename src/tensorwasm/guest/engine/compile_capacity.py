"""`CompileCapacity`: the memory and the processors that all compilations of a process share.

Cranelift takes some forty bytes for each byte of a module, and hundreds for a byte of one long function. So each
compilation holds what it may use at most, its process is limited to that, and all of them together never hold more than
the room has. They wait in one line, in the order in which they came, so a large one is not passed for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Final, Protocol

from tensorwasm import machine_memory
from tensorwasm.values import MIB

MACHINE_SHARE: Final = 4
"""The room is one part of so many of the memory that the process may use, unless the operator says how much."""

LEAST_BYTES: Final = 512 * MIB
"""What the room has on the smallest machine: with less nothing but tiny modules compiles."""


_opening: Final = threading.Lock()
_rooms: Final[dict[tuple[int | None, int], CompileCapacity]] = {}


class Stop(Protocol):
    """What says that a compilation is not wanted any more (`tensorwasm.runtime.deploy.stop_hook.StopHook`)."""

    stopped: bool

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Have a function called when it is stopped, at once if it was."""

    def forget(self) -> None:
        """Call nothing any more."""


class CompileCapacity:
    """Memory for compilations, and how many run at a time. Thread-safe.

    Args:
        whole_bytes: memory of all of them together.
        places: most that run at a time.
    """

    def __init__(self, whole_bytes: int, places: int) -> None:
        self.whole_bytes = whole_bytes
        self._free_bytes = whole_bytes
        self._places = places
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size_bytes: int, stop: Stop | None = None) -> Iterator[None]:
        """Hold memory and a place, once both are free and it is this compilation's turn.

        Args:
            size_bytes: at most the whole.
            stop: ends the wait.

        Raises:
            CancelledError: it was stopped while it waited.
        """
        mine = object()
        if stop is not None:
            stop.stop_with(self._look)
        with self._changed:
            self._line.append(mine)
            try:
                self._changed.wait_for(lambda: _is_stopped(stop) or self._is_turn(mine, size_bytes))
                if _is_stopped(stop):
                    raise CancelledError
                self._free_bytes -= size_bytes
                self._places -= 1
            finally:
                self._line.remove(mine)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free_bytes += size_bytes
                self._places += 1
                self._changed.notify_all()

    def _is_turn(self, mine: object, size_bytes: int) -> bool:
        return self._line[0] is mine and self._places > 0 and size_bytes <= self._free_bytes

    def _look(self) -> None:
        with self._changed:
            self._changed.notify_all()


def shared_room(whole_bytes: int | None, places: int) -> CompileCapacity:
    """Return the room of this process, the same one to all threads.

    Args:
        whole_bytes: None takes a quarter of the memory that the process may use, 512 MiB at least.
        places: most compilations at a time.
    """
    with _opening:
        key = (whole_bytes, places)
        if key not in _rooms:
            if whole_bytes is None:
                whole_bytes = max(LEAST_BYTES, machine_memory.limit_bytes() // MACHINE_SHARE)
            _rooms[key] = CompileCapacity(whole_bytes, places)
        return _rooms[key]


def _is_stopped(stop: Stop | None) -> bool:
    return stop is not None and stop.stopped
