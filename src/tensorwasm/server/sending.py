"""Giving an answer to the server, with the headers that every answer has."""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.server.answers import JSON, body_of, error_body, error_headers
from tensorwasm.server.exchange import WEBSOCKET, Exchange
from tensorwasm.server.origin import Origins
from tensorwasm.server.routing import Reply, Streamed
from tensorwasm.server.streaming.answering import answer as send_in_pieces

OPENAI: Final = "/v1/"
"""Where the routes are whose errors have OpenAI's shape, those that there are not too."""

_JSON_TYPE: Final = JSON[1]


async def send(exchange: Exchange, answer: Reply | Streamed, origins: Origins) -> int:
    """Answer a request, and return the status.

    Raises:
        TensorWasmError: it cannot be answered so; nothing was sent.
    """
    usual = exchange.route.status if exchange.route is not None else 200
    common = [("x-request-id", exchange.request_id), ("x-trace-id", exchange.trace_id)]
    if origins.origins:
        common += origins.cors(exchange.headers.get("origin"))
    if not isinstance(answer, Reply):
        await send_in_pieces(exchange.scope, exchange.proto, usual, common, answer)
        return usual
    status = answer.status or usual
    body = body_of(answer)
    if not body:
        exchange.proto.response_empty(status, [*common, *answer.headers])
        return status
    kind = JSON if answer.content_type == _JSON_TYPE else ("content-type", answer.content_type)
    exchange.proto.response_bytes(status, [kind, *common, *answer.headers], body)
    return status


def refuse(exchange: Exchange, error: TensorWasmError, origins: Origins) -> int:
    """Answer a request with an error, and return the status."""
    if exchange.method == WEBSOCKET:
        exchange.proto.close(error.http_status)
        return error.http_status
    openai = exchange.path.startswith(OPENAI) if exchange.route is None else exchange.route.openai
    headers = [
        JSON,
        ("x-request-id", exchange.request_id),
        ("x-trace-id", exchange.trace_id),
        *origins.cors(exchange.headers.get("origin")),
        *error_headers(error),
    ]
    exchange.proto.response_bytes(error.http_status, headers, error_body(error, openai=openai))
    return error.http_status
