"""`Templates`: the template that processes are forked from now, the next after a crash or for a new release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tensorwasm.server.process.fleet import say
from tensorwasm.server.process.options import ServeOptions
from tensorwasm.server.process.server_process import ServerProcess, Template

AGAIN_S: Final = 10.0
"""Least seconds between two starts of a template that nobody waits for."""


class Templates:
    """The templates of one server.

    Args:
        make: starts one.

    Attributes:
        loaded: whether a process that is asked for begins at once; None if its template has died before that.
    """

    def __init__(self, make: Callable[[], Template]) -> None:
        self._make = make
        self._current: Template | None = None
        self._before: Template | None = None
        self._complete = False
        self._again_s = 0.0
        self.loaded: bool | None = False

    def __iter__(self) -> Iterator[Template]:
        """Return those that there are."""
        return (each for each in (self._current, self._before) if each is not None)

    def look(self, now_s: float) -> None:
        """Read what they say, and start another in place of one that has died."""
        for each in self:
            each.look()
        if self._before is not None and self._before.ended:
            self._close_before()
        if self._current is None or not self._current.ended:
            self.loaded = self.loaded if self._current is None else self._current.loaded
            return
        worked = self._current.loaded
        self._close_current()
        self.loaded = False if worked else None
        if worked and now_s >= self._again_s:
            self._again_s = now_s + AGAIN_S
            self._open()

    def start(self, options: ServeOptions) -> ServerProcess | None:
        """Have a process forked; return None if the system lets none be started now."""
        if (self._current is None or self._current.ended) and not self._open():
            return None
        assert self._current is not None  # noqa: S101 - it is opened
        try:
            return self._current.fork(options)
        except OSError as error:
            say(f"no process can be started: {error.strerror}")
            return None

    def complete(self) -> None:
        """Have compiled code loaded before the next process is forked, now and by each further template."""
        self._complete = True
        if self._current is not None:
            self._current.complete()

    def renew(self) -> bool:
        """Fork from a new template from now on, of the release installed now; return whether it could be started."""
        self._before, self._current = self._current, None
        return self._open()

    def keep(self, *, renewed: bool) -> None:
        """Keep the new template, or else return to the one before, whose release is known to work."""
        if not renewed and self._before is not None:
            self._before, self._current = self._current, self._before
        self._close_before()

    def close(self) -> None:
        """End all."""
        self._close_before()
        self._close_current()

    def _open(self) -> bool:
        self._close_current()
        try:
            self._current = self._make()
        except OSError as error:
            say(f"no process can be started: {error.strerror}")
            return False
        self.loaded = False
        if self._complete:
            self._current.complete()
        return True

    def _close_before(self) -> None:
        if self._before is not None:
            self._before.close()
            self._before = None

    def _close_current(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None
