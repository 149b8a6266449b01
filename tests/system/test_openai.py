"""The OpenAI routes of a real server, through OpenAI's own client."""

import base64
import json

import httpx
import openai
import pytest
from wasmtime import wat2wasm

MESSAGES = [{"role": "user", "content": "Say hello"}]
LINES = b'{"tensorwasm":1,"usage":{"prompt_tokens":11}}\n'


def _literal(data):
    return "".join(f"\\{byte:02x}" for byte in data)


def speaker(*chunks, end=""):
    """A guest that sends some chunks, and then does what `end` says."""
    calls, at = [], 0
    for chunk in chunks:
        calls.append(f"(drop (call $emit (i32.const {at}) (i32.const {len(chunk)})))")
        at += len(chunk)
    return wat2wasm(
        f"""(module (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
        (memory (export "memory") {at // 65536 + 1}) (data (i32.const 0) "{_literal(b"".join(chunks))}")
        (func (export "_start") {"".join(calls)} {end}))"""
    )


ECHO = wat2wasm(
    """(module
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (import "wasi:tensor/host@0.1.0" "input-len" (func $length (result i32)))
  (import "wasi:tensor/host@0.1.0" "read-input" (func $read (param i32 i32) (result i32)))
  (memory (export "memory") 2) (data (i32.const 0) " ")
  (func (export "_start") (drop (call $emit (i32.const 0) (i32.const 1)))
    (drop (call $emit (i32.const 1) (call $read (i32.const 1) (call $length))))))"""
)
"""A guest that answers with what it was given, as text."""

TOOL = b"".join(
    json.dumps({"tool_calls": [{"index": 0, **part}]}).encode() + b"\n"
    for part in (
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}},
        {"function": {"arguments": '{"city":'}},
        {"function": {"arguments": '"Bonn"}'}},
    )
)
TOKENS = b"".join(
    json.dumps({"delta": text, "logprobs": [{"token": text, "logprob": -0.25, "top_logprobs": []}]}).encode() + b"\n"
    for text in ("Hel", "lo ", "wor", "ld")
)

GUESTS = {
    "echo": ECHO,
    "plain": speaker(b"Hello", b" ", b"w\xc3", b"\xb6rld", b"!"),
    "lines": speaker(LINES + TOKENS[:30], TOKENS[30:]),
    "tools": speaker(LINES, TOOL),
    "vectors": speaker(LINES, b'{"embedding":[0.5,-1]}\n{"embedding":[2,3]}\n'),
    "refusing": speaker(LINES, b'{"error":"the prompt is too long"}\n'),
    "trapping": speaker(b"Hel", end="unreachable"),
    "broken": speaker(end="unreachable"),
    "nonsense": speaker(LINES, b"what?\n"),
    "endless": speaker(b"Hi", end="(loop $on (drop (call $emit (i32.const 0) (i32.const 2))) (br $on))"),
    "silent": speaker(end="(loop $on (br $on))"),
}


@pytest.fixture(scope="module")
def functions(server):
    with server.client() as client:
        return {
            name: client.post("/functions", json={"name": name, "wasm_b64": base64.b64encode(wasm).decode()}).json()[
                "id"
            ]
            for name, wasm in GUESTS.items()
        }


@pytest.fixture
def ai(server, functions):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.token, max_retries=0, timeout=20) as client:
        yield client


def chat(ai, model, **more):
    return ai.chat.completions.create(model=model, messages=more.pop("messages", MESSAGES), **more)


def test_models_are_functions(ai, functions, server, client):
    assert {each.id for each in ai.models.list()} >= set(GUESTS)
    assert ai.models.retrieve("plain").object == "model"
    client.put(f"/functions/{functions['plain']}/aliases/live", json={"version": 1})
    for name in ("plain", "plain@live", "plain@1", functions["plain"]):
        assert chat(ai, name).choices[0].message.content == "Hello wörld!"


@pytest.mark.parametrize("name", ["absent", "plain@absent", "plain@9", "", "../plain"])
def test_an_unknown_model_is_told_as_openai_tells_it(ai, name):
    with pytest.raises(openai.NotFoundError) as raised:
        chat(ai, name)
    assert raised.value.code == "model_not_found"
    assert raised.value.param == "model"
    assert raised.value.type == "invalid_request_error"


def test_the_prompt_reaches_the_guest(ai):
    tools = [{"type": "function", "function": {"name": "f"}}]
    document = json.loads(chat(ai, "echo", temperature=0.5, seed=9, tools=tools).choices[0].message.content)
    assert document["messages"] == MESSAGES
    assert (document["kind"], document["temperature"], document["seed"]) == ("chat", 0.5, 9)
    assert document["tools"][0]["function"]["name"] == "f"
    assert json.loads(ai.completions.create(model="echo", prompt="é").choices[0].text)["prompt"] == "é"


def test_usage_counts(ai):
    plain, lines = chat(ai, "plain").usage, chat(ai, "lines").usage
    assert (plain.prompt_tokens, plain.completion_tokens, plain.total_tokens) == (3, 5, 8)
    assert (lines.prompt_tokens, lines.completion_tokens, lines.total_tokens) == (11, 4, 15)


@pytest.mark.parametrize("model", ["plain", "lines"])
def test_a_stream_is_the_whole_answer_in_parts(ai, model):
    whole = chat(ai, model)
    parts = list(chat(ai, model, stream=True, stream_options={"include_usage": True}))
    texts = [part.choices[0].delta.content or "" for part in parts if part.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-2].choices[0].finish_reason == "stop"
    assert parts[-1].usage == whole.usage
    assert len({part.id for part in parts}) == 1


def test_completions(ai):
    found = ai.completions.create(model="plain", prompt=["a", "b"], n=2, echo=True)
    assert [each.text for each in found.choices] == [f"{prompt}Hello wörld!" for prompt in "aabb"]
    parts = list(ai.completions.create(model="plain", prompt="a", stream=True))
    assert "".join(part.choices[0].text for part in parts) == "Hello wörld!"


def test_log_probabilities(ai):
    content = chat(ai, "lines", logprobs=True).choices[0].logprobs.content
    assert [(each.token, each.logprob) for each in content] == [(text, -0.25) for text in ("Hel", "lo ", "wor", "ld")]
    found = ai.completions.create(model="lines", prompt="a", logprobs=1).choices[0].logprobs
    assert (found.tokens, found.text_offset) == (["Hel", "lo ", "wor", "ld"], [0, 3, 6, 9])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "options", "text", "reason"),
    [
        ("plain", {"stop": "ö"}, "Hello w", "stop"),
        ("plain", {"stop": ["rld", "lo w"]}, "Hel", "stop"),
        ("plain", {"stop": ["nothing", "!!"]}, "Hello wörld!", "stop"),
        ("plain", {"max_tokens": 2}, "Hello ", "length"),
        ("lines", {"max_completion_tokens": 3}, "Hello wor", "length"),
        ("lines", {"stop": "lo w"}, "Hel", "stop"),
        ("endless", {"max_tokens": 3}, "HiHiHi", "length"),
        ("endless", {"stop": "HiHiH"}, "", "stop"),
    ],
)
def test_an_answer_ends_where_the_client_said(ai, model, options, text, reason, stream):
    found = chat(ai, model, stream=stream, **options)
    if stream:
        parts = list(found)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == text
        assert parts[-1].choices[0].finish_reason == reason
    else:
        assert found.choices[0].message.content == text
        assert found.choices[0].finish_reason == reason


def test_tool_calls(ai):
    (choice,) = chat(ai, "tools").choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.id, call.function.name, json.loads(call.function.arguments)) == ("call_1", "weather", {"city": "Bonn"})
    parts = [part.choices[0].delta for part in chat(ai, "tools", stream=True)]
    pieces = [each.function.arguments for delta in parts for each in delta.tool_calls or ()]
    assert json.loads("".join(pieces)) == {"city": "Bonn"}


def test_embeddings(ai):
    for encoding in ("float", "base64"):
        found = ai.embeddings.create(model="vectors", input=["a", "b"], encoding_format=encoding)
        vectors = [each.embedding for each in found.data]
        assert encoding == "base64" or vectors == [[0.5, -1.0], [2.0, 3.0]]
        assert found.usage.prompt_tokens == 11
    assert [each.embedding for each in ai.embeddings.create(model="vectors", input=["a", "b"]).data] == [
        [0.5, -1],
        [2, 3],
    ]


@pytest.mark.parametrize(
    ("model", "error", "code", "message"),
    [
        ("refusing", openai.BadRequestError, "openai_invalid_request", "the prompt is too long"),
        ("broken", openai.InternalServerError, "wasmtime", "unreachable"),
        ("nonsense", openai.InternalServerError, "model_output_invalid", "protocol"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_any_answer_is_an_error(ai, model, error, code, message, stream):
    with pytest.raises(error, match=message) as raised:
        chat(ai, model, stream=stream)
    assert raised.value.code == code


def test_a_failure_in_a_stream_is_raised_by_the_client(ai):
    seen = []
    with pytest.raises(openai.APIError, match="unreachable"):
        seen.extend(part.choices[0].delta.content for part in chat(ai, "trapping", stream=True))
    assert "".join(seen) == "Hel"


def test_a_deadline_is_an_error(ai):
    with pytest.raises(openai.InternalServerError) as raised:
        chat(ai, "silent", extra_headers={"X-TensorWasm-Deadline-Ms": "50"})
    assert (raised.value.status_code, raised.value.code) == (504, "invoke_timeout")


def test_a_client_that_leaves_ends_the_guest(ai, client):
    stream = chat(ai, "endless", stream=True)
    assert next(iter(stream)).choices
    stream.close()
    for _ in range(5):
        assert chat(ai, "plain").choices[0].message.content == "Hello wörld!"


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}, {"type": "input_audio", "input_audio": {}}]
)
def test_what_is_no_text_is_refused_and_not_dropped(ai, part):
    with pytest.raises(openai.BadRequestError, match=part["type"]):
        chat(ai, "plain", messages=[{"role": "user", "content": [{"type": "text", "text": "look"}, part]}])


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"model":"plain","messages":[]}', b'{"model":1}'])
def test_bodies_that_make_no_sense_have_openais_shape(server, functions, body):
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", content=body, headers=server.headers | {"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answer.json()["error"]["code"] == "openai_invalid_request"


@pytest.mark.parametrize("path", ["models", "models/plain", "nothing"])
def test_every_error_below_v1_has_openais_shape(server, path):
    answer = httpx.get(f"{server.url}/v1/{path}")
    assert answer.status_code in {401, 404}
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


def test_a_bad_key_is_an_authentication_error(server):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="tw_nobody", max_retries=0).models.list()


def test_the_tenant_is_the_tokens(server, client, functions):
    made = client.post("/tokens", json={"name": "other", "tenants": [77], "scopes": ["invoke"]}).json()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=made["token"], max_retries=0) as other:
        assert list(other.models.list()) == []
        with pytest.raises(openai.NotFoundError):
            chat(other, "plain")
        with pytest.raises(openai.NotFoundError):
            chat(other, functions["plain"])


def test_models_by_the_operators_names(start_server):
    with start_server() as server:
        with server.client() as client:
            wasm = base64.b64encode(GUESTS["plain"]).decode()
            function = client.post("/functions", json={"name": "f", "wasm_b64": wasm}).json()["id"]
        token = server.token
        server.stop()
    named = {"TENSOR_WASM_API_OPENAI_MODEL_MAP": f"org/small:1:{function}"}
    with start_server(environment=named, token=token) as server:
        ai = openai.OpenAI(base_url=f"{server.url}/v1", api_key=token, max_retries=0)
        assert [each.id for each in ai.models.list()] == ["org/small:1", "f"]
        assert chat(ai, "org/small:1").choices[0].message.content == "Hello wörld!"
