"""JSON of requests: which counts, how much, and what a route does not take."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import BodyTooLarge, InvalidJson, UnknownField, UnsupportedMediaType
from tensorwasm.server import decoding
from tensorwasm.server.decoding import JSON, decoder
from tensorwasm.server.routing import Route


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
def test_what_is_not_the_routes_json_is_refused_and_nothing_breaks(body):
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
def test_a_body_of_too_many_values_is_refused_before_they_are_made(body):
    with pytest.raises(BodyTooLarge):
        decoder(route())(body, "application/json")


def test_a_long_body_is_read_whatever_its_texts_have():
    text = b"a,[{" * MANY
    read = decoder(route())
    assert read(b'{"args":[' + b"1," * FEW + b'0],"name":"' + text + b'"}', JSON).name == text.decode()
    with pytest.raises(InvalidJson):
        read(b'{"name":"' + text, JSON)


def test_of_two_fields_of_a_name_the_last_counts():
    assert decoder(route())(b'{"name":"a","name":"b"}', JSON).name == "b"


def test_unknown_fields_are_ignored_where_a_type_says_so():
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
def test_a_field_that_a_route_does_not_take_is_refused_by_name(body, told):
    with pytest.raises(UnknownField) as refused:
        decoder(route(request=Outer))(body, JSON)
    assert refused.value.message == f"there is no field {told}"


@given(st.dictionaries(st.text(max_size=8), st.integers(), max_size=3))
def test_whatever_a_field_is_called_it_is_known_or_refused(given):
    names = {each.encode_name for each in msgspec.structs.fields(Outer)}
    with contextlib.ExitStack() as stack:
        if given and not given.keys() & names:
            stack.enter_context(pytest.raises(UnknownField))
        elif given:
            stack.enter_context(pytest.raises(InvalidJson))
        decoder(route(request=Outer))(msgspec.json.encode(given), JSON)


@given(st.binary(max_size=200))
def test_any_bytes_are_either_the_type_or_refused(body):
    try:
        assert isinstance(decoder(route())(body, JSON), Body)
    except InvalidJson:
        return


@pytest.mark.parametrize("kind", [JSON, "text/plain", None])
def test_an_optional_body_that_is_empty_is_the_usual_one(kind):
    assert decoder(route(optional_body=True))(b"", kind) == Body()


OTHERS = [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "application/cbor+json"]


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("kind", [*OTHERS, "application/json; charset=utf-16", 'application/json;charset="latin-1"'])
def test_a_body_that_does_not_say_that_it_is_json_is_refused(kind, optional):
    read = decoder(route(optional_body=optional))
    for body in (b'{"name":"a"}', b"junk", b" "):
        with pytest.raises(UnsupportedMediaType, match=r"application/json|UTF-8"):
            read(body, kind)


@pytest.mark.parametrize(
    "kind", [JSON, "Application/JSON; charset=utf-8", "application/json;x", JSON + ';charset="UTF-8"']
)
def test_an_optional_body_that_is_json_counts(kind):
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


def test_bytes_are_taken_as_such():
    read = decoder(route(request=bytes))
    for kind in (None, "application/octet-stream", "Application/Octet-Stream; x=y"):
        assert read(b"x", kind) == b"x"
    with pytest.raises(UnsupportedMediaType, match="application/octet-stream"):
        read(b"x", JSON)
