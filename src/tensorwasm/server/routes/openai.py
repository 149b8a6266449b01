"""Functions as models, for clients of OpenAI's API. docs/openai.md has what a guest is told and may answer."""

from __future__ import annotations

from typing import Any, Final

from tensorwasm.errors import (
    CapacityExhausted,
    GuestError,
    InvalidRequest,
    InvokeTimeout,
    ModelNotFound,
    ModelOutputInvalid,
    QuotaExceeded,
)
from tensorwasm.server.openai.documents import Plan, plan_chat, plan_completion, plan_embedding
from tensorwasm.server.openai.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Sampling
from tensorwasm.server.openai.response_answers import Response, ResponseBuilder
from tensorwasm.server.openai.response_requests import ResponsesRequest, as_chat
from tensorwasm.server.openai.responses import (
    ChatChoice,
    Choice,
    Completion,
    Embeddings,
    Model,
    Models,
    Shape,
    TextChoice,
    add_usage,
    render_embeddings,
)
from tensorwasm.server.openai.running import Run, embed, find
from tensorwasm.server.openai.streaming import stream, stream_response
from tensorwasm.server.routing import Call, Reply, Route, Streamed

_RUN: Final = (
    ModelNotFound,
    InvalidRequest,
    GuestError,
    ModelOutputInvalid,
    InvokeTimeout,
    QuotaExceeded,
    CapacityExhausted,
)


async def list_models(call: Call) -> Reply:
    """List the tenant's models."""
    found = await call.service.models.list(call.tenant)
    return Reply(Models([_model(name, record) for name, record in found.items()]))


async def get_model(call: Call) -> Reply:
    """See one model."""
    model = call.params["id"]
    return Reply(_model(model, await call.service.models.get(call.tenant, model)))


async def chat(call: Call) -> Reply | Streamed:
    """Answer a conversation."""
    body: ChatRequest = call.body
    return await _complete(call, body, plan_chat(body), chat=True)


async def complete(call: Call) -> Reply | Streamed:
    """Go on with a text."""
    body: CompletionRequest = call.body
    return await _complete(call, body, plan_completion(body), chat=False, echo=bool(body.echo))


async def respond(call: Call) -> Reply | Streamed:
    """Answer by the Responses API."""
    body: ResponsesRequest = call.body
    plan, builder = plan_chat(as_chat(body)), ResponseBuilder(body)
    reference = await find(call, body.model)
    call.audit["function_id"] = reference
    if body.stream:
        return await stream_response(call, plan, reference, builder)
    run = Run(call, plan, reference, 0)
    for piece in await run.whole():
        builder.add(piece)
    builder.finish(run.answer.finish_reason, run.answer.usage)
    return Reply(builder.whole())


async def embed_texts(call: Call) -> Reply:
    """Turn texts into vectors."""
    body: EmbeddingRequest = call.body
    plan = plan_embedding(body)
    vectors, tokens = await embed(call, plan, await find(call, body.model), plan.inputs)
    return Reply(render_embeddings(body.model, vectors, tokens, packed=body.encoding_format == "base64"))


async def _complete(call: Call, body: Sampling, plan: Plan, *, chat: bool, echo: bool = False) -> Reply | Streamed:
    reference = await find(call, body.model)
    call.audit["function_id"] = reference
    counted = body.stream_options is not None and body.stream_options.include_usage
    shape = Shape.of(body.model, chat=chat, counted=counted)
    if body.stream:
        return await stream(call, plan, reference, shape, echo=echo)
    choices, spent = [], []
    for index in range(len(plan.runs)):
        run = Run(call, plan, reference, index)
        pieces = await run.whole()
        choices.append(Choice(pieces, run.answer.finish_reason, run.prompt if echo else ""))
        spent.append(run.answer.usage)
    return Reply(shape.whole(choices, add_usage(spent)))


def _model(name: str, record: Any) -> Model:
    return Model(name, record.created_unix_ms // 1000, f"tenant-{record.tenant}")


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET", "/v1/models", list_models, "List models.", "openai", "invoke", response=Models, openai=True, etag=True
    ),
    Route(
        "GET",
        "/v1/models/{id}",
        get_model,
        "See a model.",
        "openai",
        "invoke",
        response=Model,
        errors=(ModelNotFound,),
        openai=True,
        etag=True,
    ),
    Route(
        "POST",
        "/v1/chat/completions",
        chat,
        "Answer a conversation.",
        "openai",
        "invoke",
        kind="openai",
        guest=True,
        request=ChatRequest,
        response=Completion[ChatChoice],
        errors=_RUN,
        action="chat",
        openai=True,
    ),
    Route(
        "POST",
        "/v1/completions",
        complete,
        "Go on with a text.",
        "openai",
        "invoke",
        kind="openai",
        guest=True,
        request=CompletionRequest,
        response=Completion[TextChoice],
        errors=_RUN,
        action="complete",
        openai=True,
    ),
    Route(
        "POST",
        "/v1/responses",
        respond,
        "Answer by the Responses API; nothing is kept of it.",
        "openai",
        "invoke",
        kind="openai",
        guest=True,
        request=ResponsesRequest,
        response=Response,
        errors=_RUN,
        action="respond",
        openai=True,
    ),
    Route(
        "POST",
        "/v1/embeddings",
        embed_texts,
        "Turn texts into vectors.",
        "openai",
        "invoke",
        kind="openai",
        guest=True,
        request=EmbeddingRequest,
        response=Embeddings,
        errors=_RUN,
        action="embed",
        openai=True,
    ),
)
