"""`RequestTiming`: which requests are timed, the header of their replies, and the traces of sampled ones."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AbstractContextManager
from typing import Final

from tensorwasm.server.exchange import WEBSOCKET, Exchange
from tensorwasm.server.http.routing import Route
from tensorwasm.service.admission.admission import RouteClass
from tensorwasm.service.call_service import CallService
from tensorwasm.telemetry.timeline import RequestTimeline
from tensorwasm.telemetry.trace_log import Trace, open_trace_log

TIMED: Final = frozenset[RouteClass]({"invoke", "openai", "streams"})
"""Classes of the routes that call functions, whose requests are timed."""

TIMING: Final = "x-tensorwasm-timing"
"""Header of a request that asks to be timed, with ``1``."""


class RequestTiming:
    """Times requests that ask for it, and a part of the others. For one event loop.

    Attributes:
        sampling: whether any request is timed that does not ask for it.
    """

    def __init__(self, service: CallService) -> None:
        """Open the log of traces, which the service closes; raise InvalidArgs for a setting that is invalid."""
        self._share, self._due = service.settings.trace_sample, 0.0
        self.sampling = self._share > 0
        self._log = open_trace_log(service.settings.trace_log) if self.sampling else None
        if self._log is not None:
            service.stack.push_async_callback(asyncio.to_thread, self._log.close)

    def is_due(self) -> bool:
        """Return whether the next request is one of the sampled ones, which come at even intervals."""
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    def begin(self, exchange: Exchange, *, sampled: bool) -> AbstractContextManager[None]:
        """Begin with a request that is timed; what runs in the block finds its timeline."""
        exchange.timeline = timeline = RequestTimeline(exchange.began_ns, sampled=sampled)
        return timeline.current()

    def end(self, exchange: Exchange, route: Route, status: int) -> None:
        """Write the trace of a request that was answered."""
        timeline = exchange.timeline
        if timeline is None:
            return
        if self._log is not None and timeline.sampled:
            spans, total_ns = timeline.spans()
            self._log.append(
                Trace(
                    time.time_ns() // 1_000_000,
                    os.getpid(),
                    exchange.trace_id,
                    exchange.request_id,
                    exchange.tenant,
                    f"{route.method} {route.path}",
                    status,
                    total_ns / 1e3,
                    [(name, start_ns / 1e3, length_ns / 1e3) for name, start_ns, length_ns in spans],
                )
            )
        timeline.close()


def note_admission(exchange: Exchange, timeline: RequestTimeline, route: Route) -> None:
    """Note that a request was admitted; one that does not call a function, or calls several, is timed no more."""
    if route.kind in TIMED and exchange.method != WEBSOCKET:
        timeline.admit()
    else:
        timeline.close()
        exchange.timeline = None
