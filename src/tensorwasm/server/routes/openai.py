"""Routes of OpenAI's API, with functions as models. docs/openai.md documents a guest's input and output."""

from __future__ import annotations

from functools import partial
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
from tensorwasm.server.http.routing import HttpRequest, Reply, Route, StreamedReply
from tensorwasm.server.openai.completions import (
    ChatChoice,
    Completion,
    CompletionRenderer,
    Embeddings,
    FinishedChoice,
    Model,
    Models,
    TextChoice,
    add_usage,
    render_embeddings,
)
from tensorwasm.server.openai.documents import ModelPlan, plan_chat, plan_completion, plan_embedding, plan_response
from tensorwasm.server.openai.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    ResponsesRequest,
    Sampling,
)
from tensorwasm.server.openai.response_builder import Response, ResponseBuilder
from tensorwasm.server.openai.running import ModelRun, embed, find, stream_completion, stream_response


async def list_models(request: HttpRequest) -> Reply:
    """List the tenant's models."""
    found = await request.service.models.list(request.tenant)
    return Reply(Models([_model(name, record) for name, record in found.items()]))


async def get_model(request: HttpRequest) -> Reply:
    """Return one model."""
    model = request.params["id"]
    return Reply(_model(model, await request.service.models.get(request.tenant, model)))


async def chat(request: HttpRequest) -> Reply | StreamedReply:
    """Answer a conversation."""
    body: ChatRequest = request.body
    return await _complete(request, body, plan_chat(body), chat=True)


async def complete(request: HttpRequest) -> Reply | StreamedReply:
    """Continue a text."""
    body: CompletionRequest = request.body
    return await _complete(request, body, plan_completion(body), chat=False, echo=bool(body.echo))


async def respond(request: HttpRequest) -> Reply | StreamedReply:
    """Answer a request of the Responses API."""
    body: ResponsesRequest = request.body
    plan, builder = plan_response(body), ResponseBuilder(body)
    reference = request.audit["function_id"] = await find(request, body.model)
    if body.stream:
        return await stream_response(request, plan, reference, builder)
    run = ModelRun(request, plan, reference, 0)
    for piece in await run.whole():
        builder.add(piece)
    builder.finish(run.answer.finish_reason, run.answer.usage)
    return Reply(builder.response)


async def embed_texts(request: HttpRequest) -> Reply:
    """Return the embedding vectors of texts."""
    body: EmbeddingRequest = request.body
    plan = plan_embedding(body)
    vectors, tokens = await embed(request, plan, await find(request, body.model))
    return Reply(render_embeddings(body.model, vectors, tokens, packed=body.encoding_format == "base64"))


async def _complete(
    request: HttpRequest, body: Sampling, plan: ModelPlan, *, chat: bool, echo: bool = False
) -> Reply | StreamedReply:
    reference = request.audit["function_id"] = await find(request, body.model)
    counted = body.stream_options is not None and body.stream_options.include_usage
    renderer = CompletionRenderer.of(body.model, chat=chat, counted=counted)
    if body.stream:
        return await stream_completion(request, plan, reference, renderer, echo=echo)
    choices, spent = [], []
    for index in range(len(plan.runs)):
        run = ModelRun(request, plan, reference, index)
        pieces = await run.whole()
        choices.append(FinishedChoice(pieces, run.answer.finish_reason, run.prompt if echo else ""))
        spent.append(run.answer.usage)
    return Reply(renderer.whole(choices, add_usage(spent)))


def _model(name: str, record: Any) -> Model:
    return Model(name, record.created_unix_ms // 1000, f"tenant-{record.tenant}")


_read = partial(Route, group="openai", scope="invoke", openai=True, etag=True)
_run = partial(
    Route, group="openai", scope="invoke", openai=True, kind="openai", guest=True,
    errors=(
        ModelNotFound, InvalidRequest, GuestError, ModelOutputInvalid, InvokeTimeout, QuotaExceeded, CapacityExhausted
    ),
)  # fmt: skip

ROUTES: Final[tuple[Route, ...]] = (
    _read("GET", "/v1/models", list_models, "List models.", response=Models),
    _read("GET", "/v1/models/{id}", get_model, "Show a model.", response=Model, errors=(ModelNotFound,)),
    _run(
        "POST", "/v1/chat/completions", chat, "Answer a conversation.", request=ChatRequest,
        response=Completion[ChatChoice], action="chat",
    ),
    _run(
        "POST", "/v1/completions", complete, "Continue a text.", request=CompletionRequest,
        response=Completion[TextChoice], action="complete",
    ),
    _run(
        "POST", "/v1/responses", respond, "Answer a request of the Responses API; nothing is stored.",
        request=ResponsesRequest, response=Response, action="respond",
    ),
    _run(
        "POST", "/v1/embeddings", embed_texts, "Return the embedding vectors of texts.", request=EmbeddingRequest,
        response=Embeddings, action="embed",
    ),
)  # fmt: skip
