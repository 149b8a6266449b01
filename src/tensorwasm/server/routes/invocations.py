"""Routes that call functions: with one reply, with a stream of what the guest emits, or over a WebSocket."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Final

from tensorwasm.errors import (
    DeviceFault,
    DeviceUnavailable,
    GuestError,
    GuestExit,
    GuestTrap,
    InvalidArgs,
    InvalidBase64,
    InvalidRequest,
    InvokeTimeout,
    KernelFault,
    MissingExport,
    NotFound,
    QuotaExceeded,
    StdinTooLarge,
    StoreUnavailable,
    TensorWasmError,
    TooManyArgs,
)
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.server.http.decoding import STORED, check_arguments, decode_optional
from tensorwasm.server.http.results import immediate_reply, is_long, result_reply
from tensorwasm.server.http.routing import DetachedBegun, HttpRequest, Reply, Route, StreamedReply
from tensorwasm.server.http.schemas import Invoke, Invoked, StreamOutcome
from tensorwasm.server.streaming.socket_calls import SocketCalls
from tensorwasm.server.streaming.streamed_call import (
    StreamedCall,
    reads_trailers,
    stream_events,
    stream_raw,
    wants_events,
)
from tensorwasm.server.streaming.websocket import WebSocket
from tensorwasm.service.admission.admission import Admitted
from tensorwasm.service.call_service import CallService
from tensorwasm.service.functions.loading import Resolved
from tensorwasm.service.invocations.device_call import DeviceCall
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.tenancy.audit import RecordFrame
from tensorwasm.values import NEVER, Deadline

CALLED: Final = (
    MissingExport, InvalidArgs, TooManyArgs, InvalidBase64, InvalidRequest, GuestTrap, GuestExit, KernelFault,
    InvokeTimeout, QuotaExceeded, DeviceUnavailable, DeviceFault, StoreUnavailable, StdinTooLarge, *STORED,
)  # fmt: skip
"""Errors of a call."""


class PreparedInvocation:
    """A `tensorwasm.server.http.routing.PreparedCall` of a function."""

    __slots__ = ("_call", "_reference", "audit", "frame")

    def __init__(self, reference: str, call: InvocationRequest) -> None:
        self._reference, self._call = reference, call
        self.audit = {"function_id": reference}
        self.frame: RecordFrame | None = None

    def begin(self, service: CallService, admitted: Admitted) -> Reply | Coroutine[Any, Any, Reply | StreamedReply]:
        """Call the function; at once if it is loaded and ends at once."""
        resolved = service.functions.find(admitted.tenant, self._reference)
        return self._begin(service, admitted, resolved) if resolved is not None else self._resolve(service, admitted)

    def begin_detached(self, service: CallService, admitted: Admitted) -> DetachedBegun:
        """Do the same; a call in a worker process needs no task, if there is nothing to wait for."""
        resolved = service.functions.find(admitted.tenant, self._reference)
        if resolved is None:
            return self._resolve(service, admitted)
        started = service.invocations.start(admitted, resolved, self._call) if resolved.in_worker else None
        return self._begin(service, admitted, resolved) if started is None else started

    def _begin(
        self, service: CallService, admitted: Admitted, resolved: Resolved
    ) -> Reply | Coroutine[Any, Any, Reply | StreamedReply]:
        outcome = service.invocations.begin(admitted, resolved, self._call)
        if isinstance(outcome, Invocation):
            return immediate_reply("function_id", resolved.record.id, outcome)
        return _finish(resolved.record.id, outcome)

    def reply(self, call: DeviceCall, outcome: Invocation) -> Reply | Coroutine[Any, Any, Reply | StreamedReply]:
        """Return the reply; of much output a coroutine, which encodes it in pieces."""
        if is_long(outcome):
            return result_reply("function_id", call.function_id, outcome)
        return immediate_reply("function_id", call.function_id, outcome)

    async def _resolve(self, service: CallService, admitted: Admitted) -> Reply | StreamedReply:
        resolved = await service.invocations.resolve(admitted, self._reference, self._call.deadline)
        begun = self._begin(service, admitted, resolved)
        return begun if isinstance(begun, Reply) else await begun


def prepare_invoke(params: Mapping[str, str], body: Invoke) -> PreparedInvocation | None:
    """Return the call of a body without a deadline and without base64; None for others, and for an invalid one."""
    if body.input_b64 is not None or body.stdin_b64 is not None or body.deadline_ms is not None:
        return None
    try:
        return PreparedInvocation(params["id"], call_of(body, NEVER, b"", b""))
    except TensorWasmError:
        return None  # which `invoke` raises in its place among other errors


def invoke(request: HttpRequest) -> Reply | Coroutine[Any, Any, Reply | StreamedReply]:
    """Call a function; at once if it is loaded and ends at once."""
    body: Invoke = request.body
    reference = request.audit["function_id"] = request.params["id"]
    if body.input_b64 is not None or body.stdin_b64 is not None:
        return _decode_and_invoke(request, reference)
    call = PreparedInvocation(reference, call_of(body, request.deadline, b"", b""))
    return call.begin(request.service, request.admitted)


async def _decode_and_invoke(request: HttpRequest, reference: str) -> Reply | StreamedReply:
    given = await decode_input(request.body)
    call = PreparedInvocation(reference, call_of(request.body, request.deadline, *given))
    begun = call.begin(request.service, request.admitted)
    return begun if isinstance(begun, Reply) else await begun


async def _finish(function_id: str, running: Coroutine[Any, Any, Invocation]) -> Reply | StreamedReply:
    return await result_reply("function_id", function_id, await running)


async def decode_input(body: Invoke) -> tuple[bytes, bytes]:
    """Return `input_b64` and `stdin_b64` decoded; empty without them."""
    return await decode_optional(body.input_b64), await decode_optional(body.stdin_b64)


def call_of(body: Invoke, deadline: Deadline, given: bytes, stdin: bytes) -> InvocationRequest:
    """Return the call that a body describes, with its base64 fields decoded.

    Raises:
        InvalidArgs: an argument is neither a number nor a text.
        InvalidRequest: input or standard input is given twice.
    """
    if body.args:
        check_arguments(body.args)
    if body.input is None and body.stdin is None and body.env is None and body.argv is None and not given and not stdin:
        return InvocationRequest(body.export, body.args, deadline=deadline)
    if (body.input is not None and given) or (body.stdin is not None and stdin):
        raise InvalidRequest("input and stdin are texts or base64, not both")
    return InvocationRequest(
        body.export,
        body.args,
        input=body.input.encode() if body.input is not None else given,
        stdin=body.stdin.encode() if body.stdin is not None else stdin,
        env=tuple((body.env or {}).items()),
        argv=body.argv,
        deadline=deadline,
    )


async def invoke_stream(request: HttpRequest) -> StreamedReply:
    """Call a function, and reply with what it emits while it runs."""
    reference = request.audit["function_id"] = request.params["id"]
    body: Invoke = request.body
    call = call_of(body, request.deadline, *await decode_input(body))
    stream = await StreamedCall.open(request, reference, call)
    if wants_events(request.headers.get("accept")):
        return stream_events(stream, reference)
    return stream_raw(stream, trailers=reads_trailers(request.headers.get("te")))


async def invoke_socket(request: HttpRequest, socket: WebSocket) -> None:
    """Call a function once for each message of a WebSocket, one call after the other."""
    reference = request.audit["function_id"] = request.params["id"]
    await SocketCalls(request, socket, reference, read_message).serve()


async def read_message(request: HttpRequest, body: Invoke, given: bytes) -> InvocationRequest:
    """Return the call that a message of a WebSocket describes, with the input of the binary messages before it.

    Raises:
        InvalidRequest: there is input before the message and in it.
    """
    deadline = body.deadline(request.service.settings.max_deadline_s).earlier(request.deadline)
    if given and body.input_b64 is not None:
        raise InvalidRequest("input is in messages before the call, or in it, not both")
    encoded, stdin = await decode_input(body)
    return call_of(body, deadline, given or encoded, stdin)


async def get_outcome(request: HttpRequest) -> Reply:
    """Return how a stream ended."""
    service, stream = request.service, request.params["id"]
    try:
        found = service.outcomes.get(request.tenant, stream)
    except NotFound:
        if service.fronts is None:
            raise
        await service.fronts.settle()  # one of them may be about to tell
        found = service.outcomes.get(request.tenant, stream)
    return Reply(StreamOutcome(found.request_id, found.reference, found.status, found.reason, found.message))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST", "/functions/{id}/invoke", invoke, "Call a function.", "functions", "invoke", kind="invoke", guest=True,
        everywhere=True, request=Invoke, optional_body=True, response=Invoked, errors=CALLED, action="invoke_function",
        prepare=prepare_invoke,
    ),
    Route(
        "POST", "/functions/{id}/invoke-stream", invoke_stream,
        "Call a function and stream what it emits, as server-sent events or raw bytes.", "invoke", "invoke",
        kind="streams", guest=True, everywhere=True, request=Invoke, optional_body=True, response=bytes,
        action="invoke_stream",
        errors=(
            MissingExport, InvalidArgs, InvalidRequest, StdinTooLarge, TooManyArgs, GuestError, InvokeTimeout,
            QuotaExceeded, *STORED,
        ),
    ),
    Route(
        "WS", "/functions/{id}/invoke-ws", invoke_socket,
        "Call a function over a WebSocket, once for each message.", "invoke", "invoke", kind="streams",
        everywhere=True, errors=(NotFound,), action="invoke_socket",
    ),
    Route(
        "GET", "/streams/{id}", get_outcome,
        "Show how a stream ended; its ID is the X-Request-Id of its reply.", "invoke", "invoke",
        response=StreamOutcome, errors=(NotFound,),
    ),
)  # fmt: skip
