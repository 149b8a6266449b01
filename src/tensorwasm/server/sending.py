"""Giving an answer to the server, with the headers that every answer has."""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.server.exchange import WEBSOCKET, Exchange
from tensorwasm.server.http.head import Origins
from tensorwasm.server.http.replies import (
    GZIP_BYTES,
    JSON,
    REVALIDATED,
    accepts_gzip,
    body_of,
    deflate,
    entity_tag,
    error_body,
    error_headers,
    is_compressible,
    is_known,
)
from tensorwasm.server.http.routing import Reply, StreamedReply
from tensorwasm.server.streaming.transfer import send_streamed as send_in_pieces

OPENAI: Final = "/v1/"
"""Where the routes are whose errors have OpenAI's shape, those that there are not too."""

_JSON_TYPE: Final = JSON[1]


async def send(exchange: Exchange, answer: Reply | StreamedReply, origins: Origins) -> int:
    """Answer a request, and return the status.

    Raises:
        TensorWasmError: it cannot be answered so; nothing was sent.
    """
    route = exchange.route
    usual = route.status if route is not None else 200
    if not isinstance(answer, Reply):
        await send_in_pieces(exchange.wire, usual, _common(exchange, origins), answer)
        return usual
    status = answer.status or usual
    body = answer.body if isinstance(answer.body, bytes) else body_of(answer)
    if not body:
        exchange.wire.answer(status, [*_common(exchange, origins), *answer.headers])
        return status
    kind = JSON if answer.content_type == _JSON_TYPE else ("content-type", answer.content_type)
    packable = len(body) >= GZIP_BYTES and is_compressible(answer.content_type)
    headers = [kind, *_common(exchange, origins, packable=packable), *answer.headers]
    if route is not None and route.etag:
        tag = await entity_tag(body)
        headers += (("etag", tag), REVALIDATED)
        if is_known(exchange.headers, tag):
            exchange.wire.answer(304, headers[1:])
            return 304
    if packable and accepts_gzip(exchange.headers.get("accept-encoding")):
        body = await deflate(body)
        headers.append(("content-encoding", "gzip"))
    _give(exchange, status, headers, body)
    return status


def refuse(exchange: Exchange, error: TensorWasmError, origins: Origins) -> int:
    """Answer a request with an error, and return the status."""
    if exchange.method == WEBSOCKET:
        exchange.wire.answer(error.http_status, [("sec-websocket-version", "13")])  # RFC 6455 4.4
        return error.http_status
    openai = exchange.path.startswith(OPENAI) if exchange.route is None else exchange.route.openai
    headers = [JSON, *_common(exchange, origins), *error_headers(error)]
    _give(exchange, error.http_status, headers, error_body(error, openai=openai))
    return error.http_status


def _give(exchange: Exchange, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
    """Answer with a body, of which a HEAD gets the length alone."""
    if exchange.method == "HEAD":
        exchange.wire.answer(status, headers, length=len(body))
    else:
        exchange.wire.answer(status, headers, body)


def _common(exchange: Exchange, origins: Origins, *, packable: bool = False) -> list[tuple[str, str]]:
    """Return the headers that every answer has; one that may be compressed says that it depends on who asks."""
    common = [("x-request-id", exchange.request_id), ("x-trace-id", exchange.trace_id), *exchange.limits]
    if exchange.timeline is not None and (timing := exchange.timeline.header()):
        common.append(("server-timing", timing))
    if origins.origins:
        common.append(("vary", "Accept-Encoding, Origin" if packable else "Origin"))
        common += origins.cors(exchange.headers.get("origin"))
    elif packable:
        common.append(("vary", "Accept-Encoding"))
    return common
