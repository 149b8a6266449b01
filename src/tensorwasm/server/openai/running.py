"""Models run: one invocation for each answer, ended once that is complete."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import ModelNotFound, ModelOutputInvalid, NotFound
from tensorwasm.server.openai.answer import Answer, Piece
from tensorwasm.server.openai.documents import Plan
from tensorwasm.server.streaming.flow import pulse, raise_exit, result_of
from tensorwasm.server.streaming.sse import KEEP_ALIVE_S
from tensorwasm.service.invocations.request import InvocationRequest

if TYPE_CHECKING:
    from tensorwasm.server.routing import Call

QUIET: Final = Piece()
"""Stands for some time without anything."""


async def find(call: Call, model: str) -> str:
    """Return the reference of the function that a model is.

    Raises:
        ModelNotFound: the tenant has no such model.
    """
    reference = call.service.models.known(call.tenant, model)
    return reference or await call.service.models.find(call.tenant, model)


class Run:
    """One answer being made.

    Attributes:
        answer: so far.
        prompt: what it answers, if that is text.
    """

    __slots__ = ("_ask", "_bounded", "_call", "_plan", "_reference", "answer", "prompt")

    def __init__(self, call: Call, plan: Plan, reference: str, index: int) -> None:
        """Prepare one of a plan's answers.

        Args:
            call: the request.
            plan: what it comes to.
            reference: the function.
            index: which answer.
        """
        given = plan.prompts[index]
        self.prompt = given if isinstance(given, str) else ""
        self.answer = Answer(given, plan.stops, plan.max_tokens)
        self._bounded = bool(plan.stops) or plan.max_tokens is not None
        self._call = call
        self._plan = plan
        self._reference = reference
        self._ask = InvocationRequest(input=plan.runs[index], deadline=call.deadline)

    async def whole(self) -> list[Piece]:
        """Return all of the answer.

        Raises:
            TensorWasmError: the guest failed, or did not answer by the protocol.
        """
        if self._bounded:
            async with aclosing(self.pieces()) as pieces:
                return [piece async for piece in pieces if piece is not QUIET]
        try:
            outcome = await self._call.service.invocations.invoke(self._call.admitted, self._reference, self._ask)
        except NotFound:
            raise self._missing() from None
        made = [piece for chunk in raise_exit(outcome).chunks for piece in self.answer.feed(chunk)]
        return made + self.answer.finish()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield the answer as it comes, and `QUIET` now and then while nothing does.

        The guest is ended once the answer is complete, or nobody takes it.

        Raises:
            TensorWasmError: the guest failed, or did not answer by the protocol.
        """
        try:
            async with self._call.service.invocations.stream(self._call.admitted, self._reference, self._ask) as stream:
                async for chunk in pulse(stream, KEEP_ALIVE_S):
                    for piece in (QUIET,) if chunk is None else self.answer.feed(chunk):
                        yield piece
                    if self.answer.ended:
                        return
                result_of(stream)
        except NotFound:
            raise self._missing() from None
        for piece in self.answer.finish():
            yield piece

    def _missing(self) -> ModelNotFound:
        self._call.service.models.forget(self._call.tenant, self._plan.model)
        return ModelNotFound("the model is not there any more")


async def embed(call: Call, plan: Plan, reference: str, count: int) -> tuple[list[list[float]], int]:
    """Return a vector for each text, and the tokens of all texts.

    Args:
        call: the request.
        plan: what it comes to.
        reference: the function.
        count: how many texts there are.

    Raises:
        ModelOutputInvalid: there are not as many vectors as texts, or not all of one length.
        TensorWasmError: the guest failed.
    """
    run = Run(call, plan, reference, 0)
    vectors = [list(piece.embedding) for piece in await run.whole() if piece.embedding is not None]
    if not run.answer.in_lines or len(vectors) != count or len({len(each) for each in vectors}) != 1:
        raise ModelOutputInvalid("the model did not answer with one vector for each text, all of one length")
    return vectors, run.answer.usage.prompt_tokens
