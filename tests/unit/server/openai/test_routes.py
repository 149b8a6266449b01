"""The routes over guests by script: whole answers, streams, failures, and guests that are ended."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from fakes.streaming import FakeInvocations, FakeStream, fake_call
from tensorwasm.errors import GuestTrap, InvokeTimeout, ModelNotFound, ModelOutputInvalid, ModelRefused, NotFound
from tensorwasm.server.http.routing import StreamEnd
from tensorwasm.server.openai.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from tensorwasm.server.routes import openai

HEADER = b'{"tensorwasm":1,"usage":{"prompt_tokens":9}}\n'
ROUTES = {
    "chat": (openai.chat, ChatRequest, {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
    "completion": (openai.complete, CompletionRequest, {"model": "m", "prompt": "hi"}),
    "embedding": (openai.embed_texts, EmbeddingRequest, {"model": "m", "input": ["a", "b"]}),
}


def make_call(invocations, kind, **fields):
    handle, request, usual = ROUTES[kind]
    return handle, fake_call(invocations, body=msgspec.json.decode(json.dumps(usual | fields), type=request))


def answer(streams, kind="chat", **fields):
    """Return the JSON of a whole answer."""

    async def story():
        handle, call = make_call(FakeInvocations(*streams), kind, **fields)
        return json.loads((await handle(call)).body)

    return asyncio.run(story())


def parts(streams, kind="chat", takes=None, **fields):
    """Return the events of a stream, its ending and its guests."""

    async def story():
        invocations, sent = FakeInvocations(*streams), []

        async def send(data):
            if takes is not None and len(sent) >= takes:
                return False
            sent.append(data)
            return True

        handle, call = make_call(invocations, kind, stream=True, **fields)
        ending = await (await handle(call)).send(send)
        return b"".join(sent).decode().split("\n\n")[:-1], ending, invocations

    return asyncio.run(story())


def contents(events):
    found = [json.loads(each.removeprefix("data: ")) for each in events if each.startswith("data: {")]
    return [choice["delta"].get("content") for each in found for choice in each.get("choices", []) if "delta" in choice]


def test_a_whole_answer_of_plain_text():
    found = answer([FakeStream([b"Hi", b" there"])])
    assert found["choices"][0]["message"]["content"] == "Hi there"
    assert found["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


@pytest.mark.parametrize("fields", [{"max_tokens": 2}, {"stop": "c"}])
def test_a_bounded_answer_ends_its_guest(fields):
    stream = FakeStream([b"a", b"b", b"c", asyncio.Event()])
    assert answer([stream], **fields)["choices"][0]["message"]["content"] == "ab"


def test_each_choice_is_a_separate_answer():
    found = answer([FakeStream([b"a"]), FakeStream([b"b"])], n=2)
    assert [each["message"]["content"] for each in found["choices"]] == ["a", "b"]
    assert found["usage"]["completion_tokens"] == 2


def test_choices_that_are_held_at_once_are_bounded_together(monkeypatch):
    monkeypatch.setattr(openai, "MAX_WHOLE_BYTES", 10)
    assert len(answer([FakeStream([b"12345"]) for _ in range(2)], n=2)["choices"]) == 2
    with pytest.raises(ModelOutputInvalid, match="ask for a stream"):
        answer([FakeStream([b"12345"]), FakeStream([b"123456"])], n=2)
    assert parts([FakeStream([b"12345"]), FakeStream([b"123456"])], n=2)[1].whole


def test_a_completion_echoes_its_prompt():
    assert answer([FakeStream([b"!"])], "completion", echo=True)["choices"][0]["text"] == "hi!"


def test_a_stream_has_every_part_and_its_end():
    chunks = [HEADER, b'{"delta":"a"}\n{"delta":"b"}\n', b'{"finish_reason":"length"}\n']
    events, ending, _ = parts([FakeStream(chunks)], stream_options={"include_usage": True})
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2][6:])["usage"] == {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    assert json.loads(events[-3][6:])["choices"][0]["finish_reason"] == "length"
    assert contents(events) == ["", "a", "b", None]
    assert ending == StreamEnd()


def test_characters_that_chunks_divide_are_whole_in_a_stream():
    events, _, _ = parts([FakeStream([b"\xf0\x9d", b"\x84\x9e", b"!"])])
    assert "".join(each or "" for each in contents(events)) == "𝄞!"


def test_a_failure_in_a_stream_is_an_event_and_no_end_follows():
    events, ending, _ = parts([FakeStream([b"a"], GuestTrap("secret", "unreachable"))])
    assert json.loads(events[-1][6:])["error"]["code"] == "wasmtime"
    assert "secret" not in events[-1]
    assert "[DONE]" not in "".join(events)
    assert ending.whole


def test_a_disconnect_from_a_stream_ends_the_guest():
    _, ending, invocations = parts([FakeStream([b"a", b"b", asyncio.Event()])], takes=1)
    assert not ending.whole
    assert len(invocations.left) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("guest", "expected"),
    [
        (FakeStream([], GuestTrap("x", "unreachable")), GuestTrap),
        (FakeStream([], InvokeTimeout("x")), InvokeTimeout),
        (FakeStream([HEADER, b"nonsense\n"]), ModelOutputInvalid),
        (FakeStream([HEADER, b'{"error":"too long"}\n']), ModelRefused),
    ],
)
def test_a_failure_before_any_answer_is_an_ordinary_error(guest, expected, stream):
    async def story():
        invocations = FakeInvocations(FakeStream(guest.script, guest.error))
        handle, call = make_call(invocations, "chat", stream=stream)
        with pytest.raises(expected):
            await handle(call)
        assert len(invocations.left) == 1
        assert not call.service.quotas.held("streams")

    asyncio.run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_a_deleted_model_is_not_found_and_looked_up_again(stream):
    async def story():
        handle, call = make_call(FakeInvocations(refusal=NotFound("gone")), "chat", stream=stream)
        with pytest.raises(ModelNotFound):
            await handle(call)
        assert call.service.models.known(7, "m") is None

    asyncio.run(story())


def test_embeddings_are_a_vector_for_each_text():
    found = answer([FakeStream([HEADER, b'{"embedding":[1,2]}\n{"embedding":[3,4]}\n'])], "embedding")
    assert [each["embedding"] for each in found["data"]] == [[1.0, 2.0], [3.0, 4.0]]
    assert found["usage"]["prompt_tokens"] == 9


@pytest.mark.parametrize(
    "chunks",
    [
        [b"[1,2]"],
        [HEADER, b'{"embedding":[1]}\n'],
        [HEADER, b'{"embedding":[1]}\n{"embedding":[1,2]}\n'],
        [HEADER, b'{"embedding":[1]}\n' * 3],
    ],
)
def test_other_output_is_an_invalid_embedding(chunks):
    with pytest.raises(ModelOutputInvalid):
        answer([FakeStream(chunks)], "embedding")
