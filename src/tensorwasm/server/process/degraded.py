"""The application while the service cannot be opened for lack of disk space: it is alive and reports the reason."""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.server.arrivals import Arrivals
from tensorwasm.server.exchange import WEBSOCKET, Exchange
from tensorwasm.server.http.head import Origins
from tensorwasm.server.http.replies import JSON
from tensorwasm.server.sending import refuse

_LIVE: Final = frozenset({"/livez", "/healthz"})
_BODY_S: Final = 30.0


class DegradedApplication:
    """Answers ``/livez`` as usual and everything else with one error. For one event loop."""

    def __init__(self, error: TensorWasmError) -> None:
        self._error = error
        self._origins = Origins()
        self.arrivals = Arrivals(asyncio.get_running_loop(), self._answer, _BODY_S)

    def _answer(self, exchange: Exchange) -> None:
        exchange.request_id, exchange.trace_id = str(uuid.uuid4()), ""
        if exchange.path in _LIVE and exchange.method != WEBSOCKET:
            exchange.proto.response_bytes(200, [JSON, ("x-request-id", exchange.request_id)], b'{"status":"ok"}')
        else:
            refuse(exchange, self._error, self._origins)
