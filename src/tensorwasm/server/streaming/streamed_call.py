"""`StreamedCall`: a guest whose output is streamed, as server-sent events or raw bytes.

A failure before the guest's first output is an ordinary error. Events carry any bytes exactly: an event ``chunk`` has a
chunk as text, if it is text that every reader of events returns unchanged; an event ``chunk-base64`` has it in base64.
So the chunks decode to the guest's bytes wherever it divided its characters.

Source: WHATWG HTML 9.2.5, 9.2.6 (parsing and interpreting an event stream); RFC 4648 4 (base64).
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Final, Self

from tensorwasm.errors import GuestError, InvokeTimeout, TensorWasmError
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.server.http.replies import message_of
from tensorwasm.server.http.results import encode_result, end_of_output, failure_fields, require_success
from tensorwasm.server.http.routing import HttpRequest, SendChunk, StreamedReply, StreamEnd
from tensorwasm.server.http.schemas import FailureOutput, encode
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.invocations.streaming import GuestStream, StreamEnding
from tensorwasm.telemetry.timeline import note_guest, note_output
from tensorwasm.tenancy.quotas import QuotaHold

EVENT_STREAM: Final = "text/event-stream"
EVENTS_TYPE: Final = f"{EVENT_STREAM}; charset=utf-8"
EVENTS_HEADERS: Final = (("cache-control", "no-store"), ("x-accel-buffering", "no"))
"""Headers that keep proxies from caching or buffering events."""

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment, so that no side takes a quiet connection for a dead one."""

KEEP_ALIVE_S: Final = 15.0
"""Seconds without output after which it is sent."""

# An event stream reads CR as LF. The standard carries NUL and the other characters here, but some readers take them for
# line ends too (as Python's splitlines does).
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")


def wants_events(accept: str | None) -> bool:
    """Return whether an Accept header has the media type of event streams."""
    return any(part.strip().lower().startswith(EVENT_STREAM) for part in (accept or "").split(","))


def encode_event(name: str, data: str) -> bytes:
    """Return one event; its data has no line break but LF."""
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"event: {name}\n{lines}\n".encode()


def encode_chunk(chunk: bytes) -> bytes:
    """Return the event of one chunk, which is not empty."""
    try:
        text = chunk.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or _UNSAFE.search(text):
        return encode_event("chunk-base64", base64.b64encode(chunk).decode("ascii"))
    return encode_event("chunk", text)


HEAD_S: Final = 0.5
"""Seconds in which a failure is still an ordinary error; then the reply begins."""

OUTCOME: Final = "X-TensorWasm-Outcome"
REASON: Final = "X-TensorWasm-Reason"

_RAW: Final = (("cache-control", "no-store"), ("trailer", f"{OUTCOME}, {REASON}"))


def reason_of(error: TensorWasmError) -> str:
    """Return a stream's name for a failure: `deadline_elapsed`, `wasm_error` or the error's kind."""
    if isinstance(error, InvokeTimeout):
        return "deadline_elapsed"
    return "wasm_error" if isinstance(error, GuestError) else error.kind


async def pulse(stream: GuestStream, idle_s: float) -> AsyncIterator[bytes | None]:
    """Yield chunks as they arrive, and None after every `idle_s` seconds without one."""
    while True:
        try:
            async with asyncio.timeout(idle_s):
                chunk = await anext(stream)  # cancelling it loses no chunk
        except TimeoutError:
            yield None
        except StopAsyncIteration:
            return
        else:
            yield chunk


def hold_stream(request: HttpRequest) -> QuotaHold:
    """Count one more open stream of the tenant for a ``with`` block; raise `QuotaExceeded` for too many."""
    service, tenant = request.service, request.tenant
    return service.quotas.hold(tenant, service.identities.policy(tenant).quotas, streams=1)


class StreamedCall:
    """Chunks as they arrive, then the outcome. Leaving its ``async with`` ends the guest and records how it ended."""

    def __init__(
        self, stack: AsyncExitStack, stream: GuestStream, first: bytes | None, request: HttpRequest, reference: str
    ) -> None:
        self._stack = stack
        self._stream = stream
        self._first = first
        self._put = partial(request.service.outcomes.put, request.tenant)
        self._outcome = partial(StreamEnding, request.request_id, reference)
        self._ended = False

    @classmethod
    async def open(cls, request: HttpRequest, reference: str, call: InvocationRequest, head_s: float = HEAD_S) -> Self:
        """Start a guest, and wait for its first chunk, its end or `head_s` seconds, whichever comes first.

        Raises:
            QuotaExceeded: the tenant has as many streams open as it may.
            TensorWasmError: the guest did not start, or failed before its first output.
        """
        streaming = request.service.invocations.stream(request.admitted, reference, call)
        async with AsyncExitStack() as stack:
            stack.enter_context(hold_stream(request))
            stream = await stack.enter_async_context(streaming)
            first: bytes | None = None
            try:
                with suppress(TimeoutError):  # no output yet: the reply begins without it
                    async with asyncio.timeout(head_s):
                        first = await anext(stream)
            except StopAsyncIteration:
                require_success(stream.outcome)
            note_output()
            opened = cls(stack.pop_all(), stream, first, request, reference)
            opened._put(opened._outcome("running"))
            return opened

    async def chunks(self, idle_s: float) -> AsyncIterator[bytes | None]:
        """Yield chunks as they arrive, and None at the start without one and after `idle_s` seconds without one."""
        yield self._first
        async for chunk in pulse(self._stream, idle_s):
            yield chunk

    def finish(self) -> Invocation:
        """Return the outcome after the last chunk, and record it; raise the guest's error."""
        try:
            outcome = require_success(self._stream.outcome)
        except TensorWasmError as error:
            self._record(self._outcome("error", reason_of(error), message_of(error)))
            raise
        note_guest(outcome.elapsed_s, outcome.device_s, outcome.offload_s)
        self._record(self._outcome("done"))
        return outcome

    def _record(self, outcome: StreamEnding) -> None:
        if not self._ended:
            self._ended = True
            self._put(outcome)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        message = "the client disconnected, or was too slow, before the stream had ended"
        self._record(self._outcome("error", "client_gone", message))
        await self._stack.aclose()


class StreamFailure(FailureOutput, kw_only=True, omit_defaults=True):
    """Why a stream failed, by a stable name: ``deadline_elapsed``, ``wasm_error``, or an error's kind."""

    reason: str
    message: str

    @classmethod
    def of(cls, error: TensorWasmError) -> StreamFailure:
        """Return the JSON of an error."""
        return cls(reason=reason_of(error), message=message_of(error), **failure_fields(error))


def encode_outcome(reference: str, outcome: Invocation) -> bytes:
    """Return the JSON at the end of a stream: the function, its results and what it wrote."""
    function_id = encode(reference.partition("@")[0])
    written = {"stdout": outcome.stdout, "stderr": outcome.stderr}
    shown: dict[str, object] = {name: end_of_output(data) for name, data in written.items() if data}
    shown |= {f"{name}_truncated": True for name in outcome.truncated}
    more = b"," + encode(shown)[1:-1] if shown else b""
    return b'{"status":"ok","function_id":%b,"result":%b%b}' % (function_id, encode_result(outcome), more)


def stream_events(stream: StreamedCall, reference: str) -> StreamedReply:
    """Return a body of events: ``chunk`` and ``chunk-base64``, then one ``done`` or ``error``."""

    async def send_all(send: SendChunk) -> StreamEnd:
        async with stream:
            async for chunk in stream.chunks(KEEP_ALIVE_S):
                if not await send(KEEP_ALIVE if chunk is None else encode_chunk(chunk)):
                    return StreamEnd(whole=False)
            try:
                last = encode_event("done", encode_outcome(reference, stream.finish()).decode())
            except TensorWasmError as error:
                last = encode_event("error", encode(StreamFailure.of(error)).decode())
            return StreamEnd(whole=await send(last))

    return StreamedReply(send_all, EVENTS_TYPE, EVENTS_HEADERS)


def stream_raw(stream: StreamedCall, *, trailers: bool) -> StreamedReply:
    """Return a body of the raw chunks.

    Trailers report how it ended. For a client that does not read trailers the transfer is aborted if the guest fails,
    so that it does not take the body for complete. Source: RFC 9110 6.5.1, 10.1.4.
    """

    async def send_all(send: SendChunk) -> StreamEnd:
        async with stream:
            async for chunk in stream.chunks(KEEP_ALIVE_S):
                if not await send(chunk or b""):
                    return StreamEnd(whole=False)
            try:
                stream.finish()
            except TensorWasmError as error:
                return StreamEnd(((OUTCOME, "error"), (REASON, reason_of(error))), whole=trailers)
            return StreamEnd(((OUTCOME, "done"),))

    return StreamedReply(send_all, "application/octet-stream", _RAW, exact=True)


def reads_trailers(te: str | None) -> bool:
    """Return whether a TE header announces that the client reads trailers."""
    return any(part.partition(";")[0].strip().lower() == "trailers" for part in (te or "").split(","))
