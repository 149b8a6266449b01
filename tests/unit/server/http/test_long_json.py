"""Long base64 texts in JSON bodies: cut out where that is safe, and decoded at once everywhere else."""

import asyncio
import base64
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwasm.errors import InvalidJson
from tensorwasm.server.http import long_json
from tensorwasm.server.http.decoding import JSON, JsonDecoder, decode_base64
from tensorwasm.server.http.long_json import LONG_BYTES, decode_long

MODULE = base64.b64encode(bytes(range(256)) * 1024).decode()


class Body(msgspec.Struct):
    """What a route takes."""

    name: str = ""
    wasm_b64: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)


def read(body, kind=JSON):
    """Return what is decoded, and how long the text was that the decoder got."""
    seen = []

    def decode(text, _kind):
        seen.append(len(text))
        return JsonDecoder(Body).read(text)

    return asyncio.run(decode_long(decode, body, kind)), seen[0]


@pytest.mark.parametrize(
    "form", ['{"name": "x", "wasm_b64": "%s"}', '{\n "wasm_b64" : "%s",\n"name":"x", "env": {"a": "b"}}']
)
def test_a_long_text_is_cut_out_and_comes_back_whole(form):
    found, decoded_bytes = read((form % MODULE).encode())
    assert decoded_bytes < 200
    assert found.name == "x"
    assert asyncio.run(decode_base64(found.wasm_b64)) == base64.b64decode(MODULE)


@pytest.mark.parametrize(
    "form",
    [
        '{"name": "%s"}',  # no base64
        '{"env": {"wasm_b64": "%s"}}',  # within another object
        '{"a\\"wasm_b64": "%s"}',  # the name of the field is longer
        '{"name": "\\\\", "wasm_b64": "%s"}',  # escapes
        '{"wasm_b64": "%s\\/"}',
    ],
)
def test_what_is_not_plain_is_decoded_at_once(form):
    body = (form % MODULE).encode()
    found, decoded_bytes = read(body)
    assert decoded_bytes == len(body)
    assert found == JsonDecoder(Body).read(body)


def test_other_content_types_are_left_to_the_decoder():
    body = json.dumps({"wasm_b64": MODULE}).encode()
    assert read(body, "application/wasm")[1] == len(body)


@pytest.mark.parametrize(
    "form", ['{"wasm_b64": "%s"', '{"wasm_b64": "%s" x}', '["wasm_b64", "%s"]', '{"wasm_b64": "%s']
)
def test_malformed_json_stays_malformed(form):
    with pytest.raises(InvalidJson):
        read((form % MODULE).encode())


def test_of_a_repeated_field_the_last_one_counts():
    assert read(b'{"wasm_b64": "%s", "wasm_b64": "YQ=="}' % MODULE.encode())[0].wasm_b64 == "YQ=="
    found = read(b'{"wasm_b64": "YQ==", "wasm_b64": "%s"}' % MODULE.encode())[0]
    assert bytes(found.wasm_b64) == MODULE.encode()


TEXTS = st.text(st.sampled_from('ab"\\{}[],: é\n'), max_size=12)


@settings(deadline=None)
@given(
    TEXTS,
    st.none() | st.text(st.sampled_from("aQ=-0"), max_size=40),
    st.dictionaries(TEXTS, TEXTS, max_size=4),
    st.booleans(),
)
def test_any_body_means_the_same(name, wasm, env, wasm_first):
    fields = {"name": name, "wasm_b64": wasm, "env": env}
    order = sorted(fields, reverse=wasm_first)
    body = json.dumps({key: fields[key] for key in order}).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_json, "LONG_BYTES", 5)
        found, _ = read(body)
    if isinstance(found.wasm_b64, memoryview):
        found.wasm_b64 = bytes(found.wasm_b64).decode()
    assert found == JsonDecoder(Body).read(body)


def test_a_body_of_many_strings_is_decoded_at_once():
    body = json.dumps({"env": {str(index): "" for index in range(long_json.MOST_STRINGS)}, "wasm_b64": MODULE}).encode()
    assert len(body) > LONG_BYTES
    assert read(body)[1] == len(body)
