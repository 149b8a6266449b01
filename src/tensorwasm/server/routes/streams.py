"""Functions called, and heard while they run: as events, as bytes, or over a WebSocket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tensorwasm.errors import (
    CapacityExhausted,
    GuestError,
    InvalidArgs,
    InvalidRequest,
    InvokeTimeout,
    MissingExport,
    NotFound,
    QuotaExceeded,
    StdinTooLarge,
    TooManyArgs,
)
from tensorwasm.server.bodies import decode_base64
from tensorwasm.server.routes.functions import ask_of
from tensorwasm.server.routing import Call, Reply, Route, Streamed
from tensorwasm.server.streaming import sse
from tensorwasm.server.streaming.bodies import reads_trailers, stream_events, stream_raw
from tensorwasm.server.streaming.conversation import Conversation
from tensorwasm.server.streaming.flow import Flow
from tensorwasm.server.wire.functions import Invoke
from tensorwasm.server.wire.streams import StreamOutcome
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.server.streaming.websocket import Socket
    from tensorwasm.service.invocations.request import InvocationRequest

_CALLED: Final = (
    NotFound,
    MissingExport,
    InvalidArgs,
    InvalidRequest,
    StdinTooLarge,
    TooManyArgs,
    GuestError,
    InvokeTimeout,
    QuotaExceeded,
    CapacityExhausted,
)


async def invoke_stream(call: Call) -> Streamed:
    """Call a function, and answer with what it sends while it runs."""
    reference, body = call.params["id"], call.body
    assert isinstance(body, Invoke)  # noqa: S101 - what the route says
    call.audit["function_id"] = reference
    flow = await Flow.open(call, reference, await _read_ask(body, call.deadline))
    if sse.wanted(call.headers.get("accept")):
        return stream_events(flow, reference)
    return stream_raw(flow, trailers=reads_trailers(call.headers.get("te")))


async def invoke_socket(call: Call, socket: Socket) -> None:
    """Call a function as often as the client asks, one call after the other."""
    call.audit["function_id"] = call.params["id"]
    await Conversation(call, socket, call.params["id"], read_message).hold()


async def read_message(call: Call, body: Invoke, given: bytes) -> InvocationRequest:
    """Return what a message of a WebSocket asks for, with what was given before it."""
    deadline = body.deadline(call.service.settings.max_deadline_s).earlier(call.deadline)
    return await _read_ask(body, deadline, given)


async def _read_ask(body: Invoke, deadline: Deadline, given: bytes = b"") -> InvocationRequest:
    """Return what a body asks for; what was given beside it is its input, or more of it is refused."""
    if given and body.input_b64 is not None:
        raise InvalidRequest("input is in messages before the call, or in it, not both")
    given = given if body.input_b64 is None else await decode_base64(body.input_b64)
    stdin = b"" if body.stdin_b64 is None else await decode_base64(body.stdin_b64)
    return ask_of(body, deadline, given, stdin)


async def get_outcome(call: Call) -> Reply:
    """Say how a stream ended."""
    found = call.service.outcomes.get(call.tenant, call.params["id"])
    return Reply(StreamOutcome(found.request_id, found.reference, found.status, found.reason, found.message))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/functions/{id}/invoke-stream",
        invoke_stream,
        "Call a function and be sent what it emits: as server-sent events, or as it is.",
        "invoke",
        "invoke",
        kind="streams",
        guest=True,
        request=Invoke,
        optional_body=True,
        response=bytes,
        errors=_CALLED,
        action="invoke_stream",
    ),
    Route(
        "WS",
        "/functions/{id}/invoke-ws",
        invoke_socket,
        "Call a function over a WebSocket, as often as the client asks.",
        "invoke",
        "invoke",
        kind="streams",
        errors=(NotFound,),
        action="invoke_socket",
    ),
    Route(
        "GET",
        "/streams/{id}",
        get_outcome,
        "See how a stream ended; its name is the X-Request-Id of its answer.",
        "invoke",
        "invoke",
        response=StreamOutcome,
        errors=(NotFound,),
    ),
)
