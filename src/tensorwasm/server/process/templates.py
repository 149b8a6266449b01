"""`Templates`: the template that processes are forked from now, the next after a crash or for a new release.

Each release has a template of GPU workers besides, which its processes ask themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from tensorwasm.server.process.fleet import say
from tensorwasm.server.process.options import ServeOptions
from tensorwasm.server.process.server_process import ServerProcess, Template
from tensorwasm.server.process.worker_template import OnDemandTemplate

AGAIN_S: Final = 10.0
"""Least seconds between two starts of a template that nobody waits for."""


@dataclass(slots=True)
class _Release:
    """The templates of a release: of its processes, if there is one now, and of workers, where these are forked."""

    workers: OnDemandTemplate | None
    template: Template | None = None

    def close_template(self) -> None:
        """End the template of processes."""
        if self.template is not None:
            self.template.close()
            self.template = None


class Templates:
    """The templates of one server.

    Args:
        make: starts one, whose processes inherit a descriptor; -1 for none.
        make_workers: makes the template of a release's workers.

    Attributes:
        loaded: whether a process that is asked for begins at once; None if its template has died before that.
    """

    def __init__(self, make: Callable[[int], Template], make_workers: Callable[[], OnDemandTemplate | None]) -> None:
        self._make, self._make_workers = make, make_workers
        self._current = _Release(make_workers())
        self._before: _Release | None = None
        self._complete = False
        self._again_s = 0.0
        self.loaded: bool | None = False

    def __iter__(self) -> Iterator[Template | OnDemandTemplate]:
        """Return those that there is something to read from."""
        for each in self._releases():
            if each.template is not None:
                yield each.template
            if each.workers is not None and each.workers.pid is None:
                yield each.workers

    @property
    def pids(self) -> list[int]:
        """The numbers of their processes."""
        found = [template for each in self._releases() for template in (each.template, each.workers)]
        return [template.pid for template in found if template is not None and template.pid is not None]

    def look(self, now_s: float) -> None:
        """Read what they say, and start another in place of one that has died."""
        for each in self._releases():
            if each.workers is not None:
                each.workers.look()
            if each.template is not None:
                each.template.look()
        if self._before is not None and self._before.template is not None and self._before.template.ended:
            self._before.close_template()
        template = self._current.template
        if template is None or not template.ended:
            self.loaded = self.loaded if template is None else template.loaded
            return
        worked = template.loaded
        self._current.close_template()
        self.loaded = False if worked else None
        if worked and now_s >= self._again_s:
            self._again_s = now_s + AGAIN_S
            self._open()

    def start(self, options: ServeOptions) -> ServerProcess | None:
        """Have a process forked; return None if the system lets none be started now."""
        template = self._current.template
        if (template is None or template.ended) and not self._open():
            return None
        assert self._current.template is not None  # noqa: S101 - it is opened
        try:
            return self._current.template.fork(replace(options, workers=self._asking))
        except OSError as error:
            say(f"no process can be started: {error.strerror}")
            return None

    def begin_workers(self) -> None:
        """Start the template of workers before a process asks it."""
        if self._current.workers is not None:
            self._current.workers.start()

    def complete(self) -> None:
        """Have compiled code loaded before the next process is forked, now and by each further template."""
        self._complete = True
        if self._current.template is not None:
            self._current.template.complete()

    def renew(self) -> bool:
        """Fork from a new template from now on, of the release installed now; return whether it could be started."""
        self._before, self._current = self._current, _Release(self._make_workers())
        if self._before.workers is not None and self._before.workers.pid is not None:
            self.begin_workers()  # they are wanted
        return self._open()

    def keep(self, *, renewed: bool) -> None:
        """Keep the new template, or else return to the one before, whose release is known to work."""
        if self._before is None:
            return
        kept, left = (self._current, self._before) if renewed else (self._before, self._current)
        self._current, self._before = kept, None
        left.close_template()
        if left.workers is not None:
            left.workers.leave()

    def close(self) -> None:
        """End all, when no process can ask them any more."""
        for each in self._releases():
            each.close_template()
            if each.workers is not None:
                each.workers.close()

    @property
    def _asking(self) -> int:
        workers = self._current.workers
        return -1 if workers is None else workers.asking.fileno()

    def _releases(self) -> Iterator[_Release]:
        return (each for each in (self._current, self._before) if each is not None)

    def _open(self) -> bool:
        self._current.close_template()
        try:
            self._current.template = self._make(self._asking)
        except OSError as error:
            say(f"no process can be started: {error.strerror}")
            return False
        self.loaded = False
        if self._complete:
            self._current.template.complete()
        return True
