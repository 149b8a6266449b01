"""Answers of models as they are made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from tensorwasm.errors import TensorWasmError
from tensorwasm.server.answers import error_body, openai_detail
from tensorwasm.server.openai.documents import Plan
from tensorwasm.server.openai.response_answers import ResponseBuilder
from tensorwasm.server.openai.responses import DONE, Shape, add_usage
from tensorwasm.server.openai.running import QUIET, Run
from tensorwasm.server.routing import Ending, Send, Streamed
from tensorwasm.server.streaming import sse
from tensorwasm.server.streaming.flow import hold_stream

if TYPE_CHECKING:
    from tensorwasm.server.routing import Call

_HEADERS = (("cache-control", "no-store"), ("x-accel-buffering", "no"))


async def stream(call: Call, plan: Plan, reference: str, shape: Shape, *, echo: bool = False) -> Streamed:
    """Return a chat or completion in parts, once its first is there: what goes wrong before is an ordinary error.

    Args:
        call: the request.
        plan: what it comes to.
        reference: the function.
        shape: renders the parts.
        echo: the prompts come first.

    Raises:
        TensorWasmError: the first guest failed before it had answered anything.
    """
    parts = _parts(call, plan, reference, shape, echo=echo)
    return await _send(parts, DONE, lambda error: b"data: " + error_body(error, openai=True) + b"\n\n")


async def stream_response(call: Call, plan: Plan, reference: str, builder: ResponseBuilder) -> Streamed:
    """Return a response as the events that build it; the rest as in `stream`."""

    def fail(error: TensorWasmError) -> bytes:
        detail = openai_detail(error)
        return builder.fail(detail.code or error.kind, detail.message)

    return await _send(_events(call, plan, reference, builder), b"", fail)


async def _send(
    parts: AsyncGenerator[bytes, None], ending: bytes, fail: Callable[[TensorWasmError], bytes]
) -> Streamed:
    """Return parts as an answer, once the first is there.

    Args:
        parts: all but what ends them.
        ending: what does.
        fail: what is sent in its place after an error.
    """
    first = await anext(parts)

    async def send_all(send: Send) -> Ending:
        async with aclosing(parts):
            try:
                if not await send(first):
                    return Ending(whole=False)
                async for part in parts:
                    if not await send(part):
                        return Ending(whole=False)
            except TensorWasmError as error:
                return Ending(whole=await send(fail(error)))
            return Ending(whole=await send(ending))

    return Streamed(send_all, f"{sse.MEDIA_TYPE}; charset=utf-8", _HEADERS)


async def _events(call: Call, plan: Plan, reference: str, builder: ResponseBuilder) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response; comments while there is none."""
    with hold_stream(call):
        run = Run(call, plan, reference, 0)
        head = builder.begin()
        async with aclosing(run.pieces()) as pieces:
            async for piece in pieces:
                if piece is QUIET:
                    yield sse.KEEP_ALIVE
                elif events := builder.add(piece):
                    yield head + events
                    head = b""
        yield head + builder.finish(run.answer.finish_reason, run.answer.usage)


async def _parts(call: Call, plan: Plan, reference: str, shape: Shape, *, echo: bool) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a stream, but for its end; comments while there is none."""
    with hold_stream(call):
        spent = []
        for index in range(len(plan.runs)):
            run = Run(call, plan, reference, index)
            before = run.prompt if echo else ""
            offset = len(before)
            head = shape.first(index, before)
            async with aclosing(run.pieces()) as pieces:
                async for piece in pieces:
                    if piece is QUIET:
                        yield sse.KEEP_ALIVE
                    elif piece.text or piece.tool_calls or piece.logprobs:
                        yield head + shape.piece(index, piece, offset)
                        head = b""
                        offset += len(piece.text)
            spent.append(run.answer.usage)
            yield head + shape.last(index, run.answer.finish_reason)
        if shape.counted:
            yield shape.usage(add_usage(spent))
