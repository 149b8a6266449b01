"""The OpenAI routes of a real server, through OpenAI's own client."""

import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import openai
import pytest
from wasmtime import wat2wasm

from neighbours import deploy

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
    guests = GUESTS | {"function": ECHO}
    with server.client() as client:
        return {name: deploy(client, wasm, name, model=name != "function") for name, wasm in guests.items()}


@pytest.fixture
def ai(server, functions):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.token, max_retries=0, timeout=20) as client:
        yield client


def chat(ai, model, **more):
    return ai.chat.completions.create(model=model, messages=more.pop("messages", MESSAGES), **more)


def test_models_are_functions_that_say_so(ai, functions, server, client):
    assert {each.id for each in ai.models.list()} == set(GUESTS)
    for name in ("function", functions["function"], "function@1"):
        with pytest.raises(openai.NotFoundError):
            chat(ai, name)
    assert ai.models.retrieve("plain").object == "model"
    client.put(f"/functions/{functions['plain']}/aliases/live", json={"version": 1})
    for name in ("plain", "plain@live", "plain@1", functions["plain"]):
        assert chat(ai, name).choices[0].message.content == "Hello wörld!"


@pytest.mark.parametrize("name", ["absent", "plain@absent", "plain@9", "", "../plain"])
def test_an_unknown_model_is_answered_as_openai_answers(ai, name):
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


def test_a_response_is_a_chat_by_another_name(ai):
    found = ai.responses.create(model="plain", input="Say hello", instructions="Be brief", metadata={"a": "b"})
    assert (found.status, found.output_text, found.metadata) == ("completed", "Hello wörld!", {"a": "b"})
    assert (found.usage.input_tokens, found.usage.output_tokens) == (5, 5)
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "How is "}, {"type": "input_text", "text": "it?"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "fine"},
    ]
    echoed = ai.responses.create(
        model="echo", input=items, tools=tools, max_output_tokens=7, reasoning={"effort": "low"}
    )
    document = json.loads(echoed.output_text)
    assert document["messages"] == [
        {"role": "user", "content": "How is it?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "fine", "tool_call_id": "c1"},
    ]
    assert document["tools"][0]["function"]["name"] == "weather"
    assert (document["kind"], document["max_tokens"], document["reasoning_effort"]) == ("chat", 7, "low")
    cut = ai.responses.create(model="endless", input="x", max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason, cut.output_text) == ("incomplete", "max_output_tokens", "HiHi")
    (call,) = ai.responses.create(model="tools", input="x").output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Bonn"})


@pytest.mark.parametrize("model", ["plain", "lines", "tools"])
def test_the_events_of_a_response_build_the_whole_one(ai, model):
    def told(response):
        return [
            {**item.to_dict(), "id": ""} | ({"call_id": ""} if item.type == "function_call" else {})
            for item in response.output
        ]

    whole = ai.responses.create(model=model, input="x")
    events = list(ai.responses.create(model=model, input="x", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert told(events[-1].response) == told(whole)
    deltas = "".join(each.delta for each in events if each.type == "response.output_text.delta")
    assert deltas == whole.output_text
    with ai.responses.stream(model=model, input="x") as stream:  # the client checks each event against its own state
        assert stream.get_final_response().output_text == whole.output_text


def test_a_response_that_fails_on_its_way_says_so(ai):
    events = list(ai.responses.create(model="trapping", input="x", stream=True))
    assert events[-1].type == "response.failed"
    assert (events[-1].response.status, events[-1].response.error.code) == ("failed", "wasmtime")
    with pytest.raises(openai.InternalServerError):
        ai.responses.create(model="broken", input="x", stream=True)


@pytest.mark.parametrize(
    "asked",
    [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"input": [{"type": "reasoning", "summary": []}]},
        {"input": [{"type": "function_call", "name": "x"}]},
        {"input": []},
        {"max_output_tokens": 0},
    ],
)
def test_parameters_without_support_are_refused_by_name(ai, asked):
    with pytest.raises(openai.BadRequestError):
        ai.responses.create(**{"model": "plain", "input": "x", **asked})


def test_tokens_reach_the_guest_as_they_are(ai, client):
    assert json.loads(ai.completions.create(model="echo", prompt=[5, 7]).choices[0].text)["prompt_tokens"] == [5, 7]
    found = ai.completions.create(model="echo", prompt=[[1], [2, 3]])
    assert [json.loads(each.text)["prompt_tokens"] for each in found.choices] == [[1], [2, 3]]
    assert found.usage.prompt_tokens == 3
    assert len(ai.embeddings.create(model="vectors", input=[[1, 2], [3]]).data) == 2
    for prompt in ([[]], [1, "a"], [[1], "a"], [-1], [1.5], [True], [1 << 53], [[1] * 3] * 17):
        with pytest.raises(openai.BadRequestError):
            ai.completions.create(model="echo", prompt=prompt)
    with pytest.raises(openai.BadRequestError, match="echo"):
        ai.completions.create(model="echo", prompt=[1], echo=True)


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
def test_content_that_is_not_text_is_refused_and_not_dropped(ai, part):
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
        assert [each.id for each in ai.models.list()] == ["org/small:1"]
        assert chat(ai, "org/small:1").choices[0].message.content == "Hello wörld!"


TALKER = wat2wasm(
    """(module (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
    (memory (export "memory") 1) (data (i32.const 0) "{\\22tensorwasm\\22:1}\\0a")
    (func (export "_start") (local $at i32) (local $sent i32)
      (local.set $at (i32.const 32))
      (loop $fill (i32.store (local.get $at) (i32.const 0x0a7d7b))
        (br_if $fill (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 3))) (i32.const 60032))))
      (drop (call $emit (i32.const 0) (i32.const 17)))
      (loop $send (drop (call $emit (i32.const 32) (i32.const 60000)))
        (br_if $send (i32.lt_u (local.tee $sent (i32.add (local.get $sent) (i32.const 1))) (i32.const 100))))))"""
)
"""A guest that answers with two million lines, which say nothing."""


@pytest.mark.parametrize("bounds", [{}, {"max_tokens": 9}, {"stream": True}])
def test_other_requests_do_not_wait_while_an_answer_of_very_many_lines_is_read(server, bounds):
    with server.client() as client, ThreadPoolExecutor(1) as thread:
        deploy(client, TALKER, "talker", model=True)
        asked = thread.submit(ask_and_leave, server, {"model": "talker", "prompt": "?", **bounds})
        times_s = []
        while not asked.done():
            begun_s = time.monotonic()
            assert client.get("/livez").status_code == 200
            times_s.append(time.monotonic() - begun_s)
            time.sleep(0.02)
        asked.result()
        assert max(times_s) < 0.75


def ask_and_leave(server, question):
    """Ask a model, and hang up before it has answered."""
    with server.client(timeout=1.5) as client, suppress(httpx.ReadTimeout):
        assert client.post("/v1/completions", json=question).status_code == 200
