"""`TenantThreads`: a few threads for tasks of many tenants, of which each has one thread at most."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from tensorwasm.gpu.limits.tenant_queue import TenantQueue
from tensorwasm.runtime.deploy.deployer import StopHook
from tensorwasm.yielding import lower_priority

MOST_EACH: Final = 64
"""Tasks of one tenant that wait or are being done."""
MOST: Final = 1024
"""Tasks of all."""
THREADS: Final = 2
"""So that a tenant's long task is beside the others', and not before them."""

_Result = TypeVar("_Result")


class TenantThreads:
    """Threads for tasks, each of which starts when it is needed. Thread-safe; nothing but `close` waits.

    A tenant's tasks are done one after the other, and tenants take turns.

    Args:
        name: of the threads.
        at_rest: called on a thread when there was nothing to do for it for so many seconds, and at its end.
    """

    def __init__(self, name: str, at_rest: Callable[[], object] = lambda: None, rest_s: float = 60.0) -> None:
        self._name = name
        self._at_rest = at_rest
        self._rest_s = rest_s
        self._changed = threading.Condition()
        self._waiting: TenantQueue[tuple[Future[Any], Callable[[StopHook], Any]]] = TenantQueue()
        self._counts: Counter[str] = Counter()
        self._running: dict[str, StopHook] = {}
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, tenant: str, task: Callable[[StopHook], _Result]) -> Future[_Result] | None:
        """Have a task done, which closing stops; return its outcome, None if too much waits.

        Closing cancels what has not begun.
        """
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
            ready = sum(each not in self._running for each in self._waiting)
            if ready > self._idle and len(self._threads) < THREADS:
                self._threads.append(threading.Thread(target=self._serve, name=self._name, daemon=True))
                self._threads[-1].start()
            self._changed.notify_all()
        return future

    def close(self) -> None:
        """Cancel what waits, stop what is being done, and wait for it. Idempotent."""
        with self._changed:
            self._closed = True
            dropped = []
            while (each := self._waiting.take()) is not None:
                dropped.append(each[0])
            stops = list(self._running.values())
            self._changed.notify_all()
        for future in dropped:
            future.cancel()
        for stop in stops:
            stop.stop()
        for thread in self._threads:
            thread.join()

    def _leave(self, tenant: str) -> None:
        with self._changed:
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]

    def _serve(self) -> None:
        lower_priority()
        while (found := self._next()) is not None:
            tenant, future, task, stop = found
            if future.set_running_or_notify_cancel():
                _do(future, task, stop)
            with self._changed:
                del self._running[tenant]
                self._changed.notify_all()
            del found, future, task  # they may be large, and the next task may come late
        self._at_rest()

    def _next(self) -> tuple[str, Future[Any], Callable[[StopHook], Any], StopHook] | None:
        while not self._closed:
            with self._changed:
                tenant = next((each for each in self._waiting if each not in self._running), None)
                if tenant is not None:
                    future, task = found = self._waiting.first(tenant)
                    self._waiting.remove(tenant, found)
                    self._waiting.end_turn(tenant)
                    self._running[tenant] = StopHook()
                    return tenant, future, task, self._running[tenant]
                if self._closed:
                    return None
                self._idle += 1
                waited = self._changed.wait(self._rest_s)
                self._idle -= 1
            if not waited:
                self._at_rest()
        return None


def _do(future: Future[_Result], task: Callable[[StopHook], _Result], stop: StopHook) -> None:
    if stop.stopped:
        future.set_exception(CancelledError())
        return
    try:
        outcome = task(stop)
    except BaseException as error:  # noqa: BLE001 - it is the task's outcome
        future.set_exception(error)
    else:
        future.set_result(outcome)
