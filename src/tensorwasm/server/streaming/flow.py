"""`Flow`: a guest that is streamed, from its first chunk on: what goes wrong before that is an ordinary error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final, Self

from tensorwasm.errors import GuestError, GuestExit, InvokeTimeout, TensorWasmError
from tensorwasm.server.answers import message_of
from tensorwasm.service.invocations.outcomes import Outcome, Outcomes

if TYPE_CHECKING:
    from tensorwasm.runtime.invoke.invocation import Invocation
    from tensorwasm.server.routing import Call
    from tensorwasm.service.invocations.request import InvocationRequest
    from tensorwasm.service.invocations.streaming import GuestStream
    from tensorwasm.tenancy.quotas import QuotaHold

HEAD_S: Final = 0.5
"""Seconds in which a guest may fail as if it were not streamed; after that the answer begins."""


def reason_of(error: TensorWasmError) -> str:
    """Return what a stream calls a failure: two names of its own, and the kinds of all other errors."""
    if isinstance(error, InvokeTimeout):
        return "deadline_elapsed"
    return "wasm_error" if isinstance(error, GuestError) else error.kind


def result_of(stream: GuestStream) -> Invocation:
    """Return what came of a guest, after its last chunk.

    Raises:
        TensorWasmError: how it failed.
    """
    return raise_exit(stream.outcome)


def raise_exit(outcome: Invocation) -> Invocation:
    """Return what came of a guest.

    Raises:
        GuestExit: it said that it failed.
    """
    if outcome.exit_code:
        raise GuestExit(outcome.exit_code, outcome.stdout, outcome.stderr)
    return outcome


async def pulse(stream: GuestStream, idle_s: float) -> AsyncIterator[bytes | None]:
    """Yield chunks as they come, and None after every so many seconds without one."""
    while True:
        try:
            async with asyncio.timeout(idle_s):
                chunk = await anext(stream)  # what it has is not lost when it is cancelled
        except TimeoutError:
            yield None
        except StopAsyncIteration:
            return
        else:
            yield chunk


def hold_stream(call: Call) -> QuotaHold:
    """Count one more open stream of the caller's tenant, until what is returned is left.

    Raises:
        QuotaExceeded: it has as many as it may.
    """
    service, tenant = call.service, call.tenant
    return service.quotas.hold(tenant, service.directory.policy(tenant).quotas, streams=1)


class Register:
    """Writes down how one stream ends.

    Args:
        outcomes: where.
        tenant: whose stream it is.
        request_id: UUID of its request.
        reference: what it calls.
    """

    __slots__ = ("_outcomes", "_reference", "_request_id", "_tenant")

    def __init__(self, outcomes: Outcomes, tenant: int, request_id: str, reference: str) -> None:
        self._outcomes = outcomes
        self._tenant = tenant
        self._request_id = request_id
        self._reference = reference

    def begin(self) -> None:
        """Write down that it runs."""
        self._outcomes.put(self._tenant, Outcome(self._request_id, self._reference, "running"))

    def finish(self) -> None:
        """Write down that it came to its end."""
        self._outcomes.put(self._tenant, Outcome(self._request_id, self._reference, "done"))

    def fail(self, reason: str, message: str) -> None:
        """Write down that it failed."""
        self._outcomes.put(self._tenant, Outcome(self._request_id, self._reference, "error", reason, message))


class Flow:
    """Chunks as they come, and what came of the guest. Use it in ``async with``; leaving ends the guest."""

    def __init__(self, stack: AsyncExitStack, stream: GuestStream, first: bytes | None, register: Register) -> None:
        """Go on with a stream whose first chunk was taken, if there was one."""
        self._stack = stack
        self._stream = stream
        self._first = first
        self._register = register
        self._told = False

    @classmethod
    async def open(cls, call: Call, reference: str, ask: InvocationRequest, head_s: float = HEAD_S) -> Self:
        """Start a guest, and wait for its first chunk, its end or `head_s`, whatever comes first.

        Args:
            call: the request.
            reference: what it calls.
            ask: what it asks of that.
            head_s: seconds.

        Raises:
            QuotaExceeded: the tenant has as many streams open as it may.
            TensorWasmError: the guest did not start, or failed before it had sent anything.
        """
        register = Register(call.service.outcomes, call.tenant, call.request_id, reference)
        streaming = call.service.invocations.stream(call.admitted, reference, ask)
        async with AsyncExitStack() as stack:
            stack.enter_context(hold_stream(call))
            stream = await stack.enter_async_context(streaming)
            first: bytes | None = None
            try:
                with suppress(TimeoutError):  # nothing yet: the answer begins without it
                    async with asyncio.timeout(head_s):
                        first = await anext(stream)
            except StopAsyncIteration:
                result_of(stream)
            register.begin()
            return cls(stack.pop_all(), stream, first, register)

    async def chunks(self, idle_s: float) -> AsyncIterator[bytes | None]:
        """Yield chunks as they come, and None after every so many seconds without one, or if none was there."""
        yield self._first
        async for chunk in pulse(self._stream, idle_s):
            yield chunk

    def finish(self) -> Invocation:
        """Return what came of the guest, after its last chunk, and write it down.

        Raises:
            TensorWasmError: how it failed.
        """
        try:
            outcome = result_of(self._stream)
        except TensorWasmError as error:
            self._tell(reason_of(error), message_of(error))
            raise
        self._tell()
        return outcome

    def _tell(self, reason: str = "", message: str = "") -> None:
        if not self._told:
            self._told = True
            if reason:
                self._register.fail(reason, message)
            else:
                self._register.finish()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._tell("client_gone", "the client left, or was too slow, before the stream had ended")
        await self._stack.aclose()
