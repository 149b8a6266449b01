"""JSON of requests: which counts, how much, and what a route does not take."""

import asyncio
import base64
import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwasm.errors import BodyTooLarge, InvalidBase64, InvalidJson, UnknownField, UnsupportedMediaType
from tensorwasm.server.http import decoding
from tensorwasm.server.http.decoding import JSON, decode_base64, decoder
from tensorwasm.server.http.routing import Route


class Body(msgspec.Struct):
    name: str = "usual"
    args: tuple[Any, ...] = ()


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    export: str = ""
    args: tuple[str, ...] = ()
    inner: Inner | None = None
    all: tuple[Inner, ...] = ()


def route(**more):
    return Route("POST", "/x", lambda call: None, "s", "g", None, **({"request": Body} | more))


DEEP = 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"nonsense",
        b'{"name":1}',
        b'{"args":{}}',
        b'{"args":[NaN]}',
        b'{"args":[Infinity]}',
        b'{"args":[1e999]}',
        b'{"args":[' + b"9" * 5000 + b"]}",
        b'{"name":"\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"name":"\\ud800"}',
        b'{"args":' + b"[" * DEEP,
        b'{"args":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"x":' * DEEP,
        b'{"x":' * DEEP + b"1" + b"}" * DEEP,
        b'{"args":[' + b'{"a":[' * DEEP,
        b"[" * DEEP,
    ],
    ids=lambda body: repr(body[:20]),
)
def test_json_of_another_type_is_refused(body):
    with pytest.raises(InvalidJson) as refused:
        decoder(route())(body, "application/json")
    assert len(refused.value.message) < 1000


FEW, MANY = decoding.VALUES // 4, decoding.VALUES


@pytest.mark.parametrize(
    "body",
    [
        b'{"args":[' + b"[]," * MANY + b"0]}",
        b'{"args":[' + b"[[[[[[[[[[]]]]]]]]]]," * (MANY // 8) + b"0]}",
        b'{"args":[' + b"[]," * MANY + b'0],"args":[]}',
        b'{"what":[' + b"[]," * MANY + b'0],"name":"' + b"," * MANY + b'"}',
    ],
    ids=["list", "nests", "twice", "beside a text"],
)
def test_a_body_of_too_many_values_is_refused_before_decoding(body):
    with pytest.raises(BodyTooLarge):
        decoder(route())(body, "application/json")


def test_commas_and_brackets_in_texts_do_not_count_as_values():
    text = b"a,[{" * MANY
    read = decoder(route())
    assert read(b'{"args":[' + b"1," * FEW + b'0],"name":"' + text + b'"}', JSON).name == text.decode()
    with pytest.raises(InvalidJson):
        read(b'{"name":"' + text, JSON)


def test_the_last_of_two_fields_of_one_name_counts():
    assert decoder(route())(b'{"name":"a","name":"b"}', JSON).name == "b"


def test_unknown_fields_are_ignored_where_a_type_allows_them():
    assert decoder(route())(b'{"what":[{}],"name":"a"}', JSON).name == "a"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"exprot":"add"}', "'exprot'; did you mean 'export'?"),
        (b'{"args":["1"],"qqq":1}', "'qqq'"),
        (b'{"inner":{"nmae":1}}', "'nmae'; did you mean 'name'?"),
        (b'{"all":[{},{"nam":1}]}', "'nam'; did you mean 'name'?"),
        (b'{"a`b":1}', "'a`b'"),
        (b'{"\\u001b[2J\\r\\n":1}', r"'\x1b[2J\r\n'"),
        (b'{"' + b"x" * 100_000 + b'":1}', "'" + "x" * 64 + "'"),
    ],
    ids=lambda each: each[:20],
)
def test_an_unknown_field_is_refused_by_name(body, told):
    with pytest.raises(UnknownField) as refused:
        decoder(route(request=Outer))(body, JSON)
    assert refused.value.message == f"there is no field {told}"


@given(st.dictionaries(st.text(max_size=8), st.integers(), max_size=3))
def test_a_field_of_any_name_is_known_or_refused(given):
    names = {each.encode_name for each in msgspec.structs.fields(Outer)}
    with contextlib.ExitStack() as stack:
        if given and not given.keys() & names:
            stack.enter_context(pytest.raises(UnknownField))
        elif given:
            stack.enter_context(pytest.raises(InvalidJson))
        decoder(route(request=Outer))(msgspec.json.encode(given), JSON)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(body):
    try:
        assert isinstance(decoder(route())(body, JSON), Body)
    except InvalidJson:
        return


@pytest.mark.parametrize("kind", [JSON, "text/plain", None])
def test_an_empty_optional_body_means_the_defaults(kind):
    assert decoder(route(optional_body=True))(b"", kind) == Body()


OTHERS = [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "application/cbor+json"]


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("kind", [*OTHERS, "application/json; charset=utf-16", 'application/json;charset="latin-1"'])
def test_a_body_without_the_content_type_of_json_is_refused(kind, optional):
    read = decoder(route(optional_body=optional))
    for body in (b'{"name":"a"}', b"junk", b" "):
        with pytest.raises(UnsupportedMediaType, match=r"application/json|UTF-8"):
            read(body, kind)


@pytest.mark.parametrize(
    "kind", [JSON, "Application/JSON; charset=utf-8", "application/json;x", JSON + ';charset="UTF-8"']
)
def test_an_optional_body_of_json_is_decoded(kind):
    read = decoder(route(optional_body=True))
    assert read(b'{"name":"a"}', kind).name == "a"
    with pytest.raises(InvalidJson):
        read(b"junk", kind)


def test_an_upload_is_not_decoded():
    read = decoder(route(uploads=("application/wasm",)))
    assert read(b"\0asm", "Application/Wasm; x=y") is None
    assert read(b"{}", JSON) == Body()
    with pytest.raises(UnsupportedMediaType, match="application/json, application/wasm"):
        read(b"{}", "text/plain")


def test_a_binary_body_is_not_decoded():
    read = decoder(route(request=bytes))
    for kind in (None, "application/octet-stream", "Application/Octet-Stream; x=y"):
        assert read(b"x", kind) == b"x"
    with pytest.raises(UnsupportedMediaType, match="application/octet-stream"):
        read(b"x", JSON)


@pytest.mark.parametrize("text", ["*", "abc", "YQ", "YQ==\n", "YQ==YQ==", "ä", "Y Q=="])
def test_invalid_base64_is_refused(text):
    with pytest.raises(InvalidBase64):
        asyncio.run(decode_base64(text))


def test_base64_of_any_length_is_decoded(monkeypatch):
    assert asyncio.run(decode_base64("YQ==")) == b"a"
    monkeypatch.setattr(decoding, "INLINE_BYTES", 1)
    assert asyncio.run(decode_base64("YQ==")) == b"a"


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(1, 9))
def test_base64_decoded_in_pieces_is_whole(data, quads):
    text = base64.b64encode(data).decode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_PIECE_BYTES", 4 * quads)
        for given_as in (text, memoryview(text.encode())):
            assert asyncio.run(decode_base64(given_as)) == data
        for wrong in (text + "YQ==YQ==", "YQ==" + (text or "YQ=="), text + "*"):
            with pytest.raises(InvalidBase64):
                asyncio.run(decode_base64(wrong))
