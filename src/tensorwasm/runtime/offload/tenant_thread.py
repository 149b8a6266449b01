"""`TenantThread`: one thread that does the tasks of tenants, who take turns."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from tensorwasm.gpu.limits.tenant_queue import TenantQueue
from tensorwasm.yielding import lower_priority

MOST_EACH: Final = 64
"""Tasks of one tenant that wait."""
MOST: Final = 1024
"""Tasks that wait."""

_Result = TypeVar("_Result")


class TenantThread:
    """A thread for tasks, which starts with the first one. Thread-safe; nothing but `close` waits.

    Args:
        name: of the thread.
        at_rest: called on the thread when there was nothing to do for so many seconds, and at its end.
    """

    def __init__(self, name: str, at_rest: Callable[[], object] = lambda: None, rest_s: float = 60.0) -> None:
        self._name = name
        self._at_rest = at_rest
        self._rest_s = rest_s
        self._changed = threading.Condition()
        self._waiting: TenantQueue[tuple[Future[Any], Callable[[], Any]]] = TenantQueue()
        self._counts: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, tenant: str, task: Callable[[], _Result]) -> Future[_Result] | None:
        """Have a task done; return its outcome, None if too much waits. Closing cancels what has not begun."""
        future: Future[_Result] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                return future
            if self._counts[tenant] >= MOST_EACH or self._counts.total() >= MOST:
                return None
            self._counts[tenant] += 1
            self._waiting.put(tenant, (future, task))
            future.add_done_callback(lambda _: self._leave(tenant))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return future

    def close(self) -> None:
        """Cancel what waits, and wait for what is being done. Idempotent."""
        with self._changed:
            self._closed = True
            dropped = []
            while (each := self._waiting.take()) is not None:
                dropped.append(each[0])
            self._changed.notify_all()
        for future in dropped:
            future.cancel()
        if self._thread is not None:
            self._thread.join()

    def _leave(self, tenant: str) -> None:
        with self._changed:
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]

    def _serve(self) -> None:
        lower_priority()
        while (found := self._next()) is not None:
            future, task = found
            if future.set_running_or_notify_cancel():
                try:
                    outcome = task()
                except BaseException as error:  # noqa: BLE001 - it is the task's outcome
                    future.set_exception(error)
                else:
                    future.set_result(outcome)
            del found, future, task  # they may be large, and the next task may come late
        self._at_rest()

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._closed:
                if (found := self._waiting.take()) is not None:
                    return found
                if not self._changed.wait(self._rest_s):
                    self._at_rest()
        return None
