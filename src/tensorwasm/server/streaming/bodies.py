"""The two bodies of a stream: server-sent events, and the bytes themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from tensorwasm.errors import TensorWasmError
from tensorwasm.server.answers import message_of
from tensorwasm.server.routing import Ending, Send, Streamed
from tensorwasm.server.streaming import sse
from tensorwasm.server.streaming.flow import Flow, reason_of
from tensorwasm.server.wire.output import Left, Output, left_by

if TYPE_CHECKING:
    from tensorwasm.runtime.invoke.invocation import Invocation

OUTCOME: Final = "X-TensorWasm-Outcome"
REASON: Final = "X-TensorWasm-Reason"

CUT: Final = Ending(whole=False)

_EVENTS: Final = (("cache-control", "no-store"), ("x-accel-buffering", "no"))
"""Proxies neither keep nor gather events."""

_RAW: Final = (("cache-control", "no-store"), ("trailer", f"{OUTCOME}, {REASON}"))

_encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode


class Failed(Left, kw_only=True, omit_defaults=True):
    """How a stream failed.

    Attributes:
        reason: stable name: ``deadline_elapsed``, ``wasm_error``, or an error's kind.
        message: for people.
    """

    reason: str
    message: str

    @classmethod
    def of(cls, error: TensorWasmError) -> Failed:
        """Return what is told of an error."""
        return cls(reason=reason_of(error), message=message_of(error), **left_by(error))


def describe(reference: str, outcome: Invocation) -> bytes:
    """Return what the end of a stream says of what came of it; the results have every digit."""
    function_id = _encode(reference.partition("@")[0])
    result = outcome.to_json().encode() if outcome.result_types else b'"ok"'
    written = {"stdout": outcome.stdout, "stderr": outcome.stderr}
    shown: dict[str, object] = {name: Output.end_of(data) for name, data in written.items() if data}
    shown |= {f"{name}_truncated": True for name in outcome.truncated}
    more = b"," + _encode(shown)[1:-1] if shown else b""
    return b'{"status":"ok","function_id":%b,"result":%b%b}' % (function_id, result, more)


def stream_events(flow: Flow, reference: str) -> Streamed:
    """Return a body of events: ``chunk`` and ``chunk-base64``, and one ``done`` or ``error`` at the end.

    Args:
        flow: the guest.
        reference: what was called.
    """

    async def send_all(send: Send) -> Ending:
        async with flow:
            async for chunk in flow.chunks(sse.KEEP_ALIVE_S):
                if not await send(sse.KEEP_ALIVE if chunk is None else sse.encode_chunk(chunk)):
                    return CUT
            try:
                last = sse.encode_event("done", describe(reference, flow.finish()).decode())
            except TensorWasmError as error:
                last = sse.encode_event("error", _encode(Failed.of(error)).decode())
            return Ending(whole=await send(last))

    return Streamed(send_all, f"{sse.MEDIA_TYPE}; charset=utf-8", _EVENTS)


def stream_raw(flow: Flow, *, trailers: bool) -> Streamed:
    """Return a body of the chunks themselves, with nothing between or after them.

    Trailers say how it ended. Whoever has not said that it reads them is cut off where the guest failed instead: it
    would take what there is for all.

    Args:
        flow: the guest.
        trailers: whether the client reads them.

    Source: RFC 9110 6.5.1, 10.1.4.
    """

    async def send_all(send: Send) -> Ending:
        async with flow:
            async for chunk in flow.chunks(sse.KEEP_ALIVE_S):
                if not await send(chunk or b""):
                    return CUT
            try:
                flow.finish()
            except TensorWasmError as error:
                return Ending(((OUTCOME, "error"), (REASON, reason_of(error))), whole=trailers)
            return Ending(((OUTCOME, "done"),))

    return Streamed(send_all, "application/octet-stream", _RAW, exact=True)


def reads_trailers(te: str | None) -> bool:
    """Return whether a TE header says that the client reads trailers."""
    return any(part.partition(";")[0].strip().lower() == "trailers" for part in (te or "").split(","))
