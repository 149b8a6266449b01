"""Requests as Granian hands them over, brought to the event loop by the shortest way.

Granian calls Python on a thread of its own. As it comes, that call makes a coroutine, which makes a task on the event
loop, which asks for the body, which comes by that thread again: three turns of the loop and a task for a request that
is answered in 20 microseconds. Here Granian's thread asks for the body itself where that is short, and the event loop
hears of the request once, when all of it is there: twice as many requests a second.

What is used of Granian for that is its own and not its interface's: so the version is pinned, and the tests look.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from granian import _granian
from granian.server.embed import AsyncWorker

from tensorwasm.errors import RequestTimeout
from tensorwasm.server.exchange import CONTEXT, Exchange
from tensorwasm.server.http.bodies import SHORT_BYTES

_core: Any = _granian  # what its types say is not what it has

BODILESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
"""Methods that have no body unless they say so; HTTP/2 need not say so of others."""

SWEEP_S: Final = 1.0
"""How often short bodies are looked for that do not come."""


class Waiting:
    """A request whose short body is still to come."""

    __slots__ = ("_arrivals", "_number", "began_ns", "coming", "headers", "watcher")

    def __init__(self, arrivals: Arrivals, number: int, watcher: Any, headers: Any) -> None:
        self._arrivals = arrivals
        self._number = number
        self.watcher = watcher
        self.headers = headers
        self.began_ns = time.perf_counter_ns()
        self.coming = watcher.proto()

    def ready(self, came: Any) -> None:
        """Begin with the request, on the event loop: its body is there, or does not come any more."""
        self.coming = None  # it keeps its callback, which is this, and no collector sees into it
        if self._arrivals.waiting.pop(self._number, None) is None:
            return  # it was answered meanwhile
        try:
            next(came)
        except StopIteration as end:
            watcher = self.watcher
            exchange = Exchange(watcher.scope, watcher.proto, self.headers, end.value, self.began_ns)
            self._arrivals.serve(exchange)
        except Exception:  # noqa: BLE001 - Granian's: the client has left, or what it sent was no body
            self._arrivals.refuse(self, "the request did not come in whole")


class Arrivals:
    """Takes requests in.

    Args:
        loop: the event loop that serves.
        serve: begins with a request; called on the loop.
        body_timeout_s: seconds in which a short body must have come; None begins with each request without its body.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        serve: Callable[[Exchange], None],
        body_timeout_s: float | None,
    ) -> None:
        """Wait for nothing yet."""
        self.serve = serve
        self.waiting: dict[int, Waiting] = {}
        self._short_bytes = 0 if body_timeout_s is None else SHORT_BYTES
        self._body_timeout_ns = round((body_timeout_s or 0.0) * 1e9)
        self._loop = loop
        self._numbers = itertools.count()

    def take(self, watcher: Any) -> None:
        """Take a request in, on Granian's thread. It is short, and never raises for what a client may send."""
        scope = watcher.scope
        headers = scope.headers
        if scope.proto == "http":
            length = headers.get("content-length")
            if length is not None and len(length) <= 5 and length.isdigit() and 0 < int(length) <= self._short_bytes:
                number = next(self._numbers)
                waiting = self.waiting[number] = Waiting(self, number, watcher, headers)
                waiting.coming.add_done_callback(waiting.ready, context=CONTEXT)
                return
        self._loop.call_soon_threadsafe(self._begin, watcher, headers, time.perf_counter_ns(), context=CONTEXT)

    def sweep(self) -> None:
        """Answer requests whose short body has not come in time; called on the loop, now and then."""
        oldest_ns = time.perf_counter_ns() - self._body_timeout_ns
        for number, waiting in list(self.waiting.items()):
            if waiting.began_ns > oldest_ns:
                break
            del self.waiting[number]
            waiting.coming.cancel()
            self.refuse(waiting, "the request did not come in whole in time")

    def refuse(self, waiting: Waiting, why: str) -> None:
        """Answer a request whose short body did not come."""
        watcher = waiting.watcher
        exchange = Exchange(watcher.scope, watcher.proto, waiting.headers, b"", waiting.began_ns)
        exchange.error = RequestTimeout(why)
        self.serve(exchange)

    def _begin(self, watcher: Any, headers: Any, began_ns: int) -> None:
        """Begin with a request that has no body, or one that is still to be read."""
        scope = watcher.scope
        empty = (
            scope.proto != "http"
            or headers.get("content-length") == "0"
            or (
                "content-length" not in headers
                and "transfer-encoding" not in headers
                and (scope.method in BODILESS or scope.http_version != "2")
            )
        )
        self.serve(Exchange(scope, watcher.proto, headers, b"" if empty else None, began_ns))


class _Scheduler(_core.CallbackScheduler):  # type: ignore[misc] # as above
    """What Granian gives requests to."""

    def __init__(self, _loop: Any, take: Callable[[Any], None], *_: object) -> None:
        super().__init__()
        self._schedule_fn = take


def spawner(arrivals: Arrivals) -> Any:
    """Return what `granian.server.embed.Server.serve` starts instead of its own worker."""

    async def spawn(worker_id: int, stopping: Any, _: object, sock: Any, loop: Any, *options: Any) -> None:
        # Granian's order: threads of four kinds, back-pressure, its task, HTTP's mode and settings, WebSockets, files,
        # its log, TLS, and the rest.
        *threads, _task, mode, http1, http2, websockets, files, _log, tls, _rest = options
        ended = loop.create_future()

        def stop() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: ended.done() or ended.set_result(None))

        stopping.add_cb(stop)
        http = (mode, http1, http2, websockets, files, *tls, (None, None))
        worker = _core.RSGIWorker(worker_id, sock, None, *threads, *http)
        serve = worker.serve_async_uds if (sock[0] or sock[1]).is_uds() else worker.serve_async
        serve(_Scheduler(loop, arrivals.take, None, None, None), loop, stopping)
        await ended

    return AsyncWorker.wrap_target(spawn)
