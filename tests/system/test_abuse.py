"""Clients of HTTP/1.1 that keep to no rule: each is told so in the documented way, and nobody beside them notices.

What is no HTTP at all the server's parser answers itself: 400, or 431 for a head that is too long, without a body.
"""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fakes.services import ADD, GUEST
from neighbours import (
    connect,
    deploy,
    head,
    hear,
    is_idle,
    kind_of,
    memory_bytes,
    polite_neighbour,
    statuses,
    talk,
    until,
)
from servers import running_server
from tensorwasm.values import MIB

TIMEOUT_S = 2.0
ENVIRONMENT = {
    "TENSOR_WASM_API_TENANT_CAPS": "qps=100000,burst=100000",
    "TENSOR_WASM_API_REQUEST_TIMEOUT": f"{TIMEOUT_S:g}",
}
CLOSE = b"Connection: close"
JSON = b"Content-Type: application/json"
CHUNKED = b"Transfer-Encoding: chunked"
HIDDEN = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
DEEP = 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("abuse") / "data"
    with running_server(data, environment=ENVIRONMENT) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def neighbour(server):
    with polite_neighbour(server) as neighbour:
        yield neighbour


@pytest.fixture(scope="module")
def function(server):
    with server.client() as client:
        return deploy(client, ADD).encode()


@pytest.fixture(scope="module")
def guest(server):
    with server.client() as client:
        return deploy(client, GUEST, "guest").encode()


def length(size_bytes):
    return b"Content-Length: %d" % size_bytes


def answer_of(heard):
    """Return the status and kind of the only answer."""
    (status,) = statuses(heard)
    return status, kind_of(heard)


def post(server, path, body, *fields):
    return talk(server, head(server, b"POST", path, JSON, CLOSE, length(len(body)), *fields), body)


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "path",
    [
        b"/functions/%2f",
        b"/functions/..%2f..",
        b"/functions/../tokens",
        b"/functions/%2e%2e/tokens",
        b"/./functions",
        b"//functions",
        b"/functions/",
        b"/functions//invoke",
        b"/functions/%00",
        b"/functions/a%00b",
        b"/functions/%ff%fe",
        b"/functions/%0d%0aX-Injected:%201",
        b"/functions/%e2%80%ae",
        b"/functions/" + b"a" * 257,
        b"/functions/" + b"a" * 30_000,
        b"/functions/" + b"a/" * 1000,
        b"/functions;x",
        b"/FUNCTIONS",
        b"*",
        b"/%",
    ],
)
def test_a_path_that_is_no_route_s_is_not_found(server, path):
    heard = talk(server, head(server, b"GET", path, CLOSE))
    assert answer_of(heard) == (404, "not_found")
    assert b"x-injected" not in heard.lower()


@pytest.mark.parametrize("name", [b"%", b"%zz", b"%252f", b"a@..", b"ID@9999999999999999999999", b"'%20OR%201=1--"])
def test_an_unknown_function_id_is_not_found(server, function, name):
    name = name.replace(b"ID", function)
    heard = talk(server, head(server, b"GET", b"/functions/" + name, CLOSE))
    assert answer_of(heard) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/functions/" + b"a" * 100_000, 431),
        (b"/functions/\xff\xfe", 400),
        (b"/functions/a b", 400),
        (b"functions", 400),
        (b"/functions/\0", 400),
    ],
)
def test_a_path_that_is_none_is_refused_by_the_parser(server, path, expected):
    assert statuses(talk(server, head(server, b"GET", path, CLOSE))) == [expected]


# ---------------------------------------------------------------- heads


@pytest.mark.parametrize("flood", [[b"X-%d: a" % each for each in range(5000)], [b"X: " + b"a" * 70_000]])
@pytest.mark.parametrize("token", [True, False])
def test_a_flood_of_headers_is_cut(server, flood, token):
    assert statuses(talk(server, head(server, b"GET", b"/functions", *flood, token=token))) == [431]


def test_headers_without_end_are_cut(server):
    with connect(server) as connection:
        try:
            for _ in range(1000):
                connection.sendall(b"GET /livez HTTP/1.1\r\nX: " + b"a" * 100_000)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            pytest.fail("100 MB of headers were taken")


@pytest.mark.parametrize("field", [b"X: a\rb", b"X: a\0b", b"X: a\r\n b", b"X : a", b": a", b"X\xff: a"])
def test_a_field_that_is_none_is_refused(server, field):
    assert statuses(talk(server, head(server, b"GET", b"/livez", field, CLOSE))) == [400]


@pytest.mark.parametrize(
    "said", [b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 9 + b"?\r\n\r\n"]
)
def test_bytes_that_are_not_http_are_refused(server, said):
    assert statuses(talk(server, said)) == [400]


def test_two_tenants_in_one_request_are_none(server):
    twice = (b"X-TensorWasm-Tenant: 1", b"X-TensorWasm-Tenant: 2")
    assert answer_of(talk(server, head(server, b"GET", b"/functions", *twice, CLOSE))) == (400, "missing_tenant")


# ---------------------------------------------------------------- smuggling


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ([length(5), CHUNKED], b"0\r\n\r\n" + HIDDEN),
        ([CHUNKED, length(5 + len(HIDDEN))], b"0\r\n\r\n" + HIDDEN),
        ([length(2), length(3)], b"{}" + HIDDEN),
        ([b"Content-Length: 2, 3"], b"{}" + HIDDEN),
        ([b"Content-Length: +2"], b"{}" + HIDDEN),
        ([b"Content-Length: -1"], b"{}" + HIDDEN),
        ([b"Content-Length: 0x2"], b"{}" + HIDDEN),
        ([b"Content-Length: 99999999999999999999999"], b"{}" + HIDDEN),
        ([b"Content-Length : 2"], b"{}" + HIDDEN),
        ([b"X: a\r\n " + length(2)], b"{}" + HIDDEN),
        ([b"Transfer-Encoding: xchunked"], b"0\r\n\r\n" + HIDDEN),
        ([b"Transfer-Encoding: chunked, identity"], b"0\r\n\r\n" + HIDDEN),
        ([b"Transfer-Encoding:\tchunked", length(3)], b"0\r\n\r\n" + HIDDEN),
        ([CHUNKED], b"-1\r\n{}\r\n0\r\n\r\n" + HIDDEN),
        ([CHUNKED], b"ffffffffffffffffff\r\n{}\r\n0\r\n\r\n" + HIDDEN),
        ([CHUNKED], b"2\n{}\r\n0\r\n\r\n" + HIDDEN),
        ([CHUNKED], b"2;" + b"a" * MIB + b"\r\n{}\r\n0\r\n\r\n" + HIDDEN),
        ([CHUNKED], b"2\r\n{}\r\n0\r\n" + b"X: aaaaaaaaaaaaaaa\r\n" * 50_000 + b"\r\n" + HIDDEN),
    ],
)
def test_no_second_request_hides_in_a_body(server, function, fields, body):
    heard = talk(server, head(server, b"POST", b"/functions/" + function + b"/invoke", JSON, *fields), body)
    (status,) = statuses(heard)
    assert status in {400, 408, 413, 501}


def test_a_chunked_body_that_broke_off_is_not_carried_out(server):
    """The beginning of a module is a module, too."""
    upload = b"Content-Type: application/wasm"
    chunk = b"%x\r\n%b\r\n" % (len(ADD), ADD)
    with server.client() as client:
        before = client.get("/functions?limit=1000").json()["functions"]
        for fields, body in (
            ([CHUNKED], chunk),
            ([length(len(ADD) + 1)], ADD),
            ([length(100_000)], ADD),
        ):
            said = head(server, b"POST", b"/functions?name=half", upload, *fields)
            assert answer_of(talk(server, said, body, half=True)) == (408, "request_timeout")
        said = head(server, b"POST", b"/functions?name=half", upload, CHUNKED)
        assert answer_of(talk(server, said, chunk + b"zz\r\n")) == (400, "invalid_request")
        assert client.get("/functions?limit=1000").json()["functions"] == before


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize("said", [b"", b"x" * MIB])
def test_a_body_that_says_that_it_is_too_long_is_refused_at_once(server, said):
    begun_s = time.monotonic()
    with connect(server) as connection:
        connection.sendall(head(server, b"POST", b"/functions", JSON, length(64 * MIB + 1)) + said)
        first = connection.recv(1 << 16)
        assert time.monotonic() - begun_s < TIMEOUT_S
        assert answer_of(first) == (413, "body_too_large")
        assert hear(connection) == b""  # and the connection is not kept for what will not come


def test_a_body_that_is_too_long_and_does_not_say_so_is_refused_when_it_is(server):
    piece = b"100000\r\n" + bytes(MIB) + b"\r\n"
    heard = talk(server, head(server, b"POST", b"/functions", JSON, CHUNKED), *[piece] * 64, b"1\r\n \r\n")
    assert answer_of(heard) == (413, "body_too_large")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b'{"args":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"unknown":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"unknown":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
        b'{"args":[' + b"9" * DEEP + b"]}",
        b'{"args":[1e999]}',
        b'{"args":[NaN]}',
        b'{"export":"\\ud800"}',
        b'{"export":"\xff"}',
        b"\xef\xbb\xbf{}",
        b"\0" * 20_000,
    ],
)
def test_json_that_is_nested_too_deeply_or_none_is_refused(server, function, body):
    heard = post(server, b"/functions/" + function + b"/invoke", body)
    unknown = body.startswith((b'{"a":', b'{"unknown":'))  # what an unknown field has in it is not looked at
    assert answer_of(heard) == (400, "unknown_field" if unknown else "invalid_json")


@pytest.mark.parametrize("size_bytes", [100, 200_000])
def test_a_client_that_sends_a_byte_a_second_gets_408(server, function, size_bytes):
    """One that sends slowly enough never pauses for long: only the whole body's time counts."""
    said = head(server, b"POST", b"/functions/" + function + b"/invoke", JSON, length(size_bytes))
    begun_s, pausing = time.monotonic(), threading.Event()
    with connect(server) as connection:
        connection.sendall(said)
        connection.settimeout(0.2)
        heard = b""
        while not heard:
            assert time.monotonic() < begun_s + 20
            connection.sendall(b" ")
            try:
                heard = connection.recv(1 << 16)
            except TimeoutError:
                pausing.wait(0.1)
        took_s = time.monotonic() - begun_s
        connection.settimeout(30)
        assert answer_of(heard + hear(connection)) == (408, "request_timeout")
    assert TIMEOUT_S <= took_s < TIMEOUT_S + 10


def test_a_client_that_expects_100_continue_is_answered_before_it_sends(server, function):
    path, ask = b"/functions/" + function + b"/invoke", b"Expect: 100-continue"
    body = b'{"export": "add", "args": [2, 3]}'
    with connect(server) as connection:
        connection.sendall(head(server, b"POST", path, JSON, ask, length(len(body)), CLOSE))
        assert statuses(connection.recv(1 << 16)) == [100]
        connection.sendall(body)
        assert statuses(hear(connection)) == [200]
    refused = (
        head(server, b"POST", path, JSON, ask, length(65 * MIB), CLOSE),
        head(server, b"POST", path, JSON, ask, length(MIB), CLOSE, token=False),
    )
    with ThreadPoolExecutor(2) as threads:  # the server waits a while for each body
        heard = threads.map(lambda said: talk(server, said), refused)
    assert list(map(answer_of, heard)) == [(413, "body_too_large"), (401, "unauthorized")]


# ---------------------------------------------------------------- connections


def test_requests_that_come_at_once_are_answered_in_order(server, function):
    path = b"/functions/" + function + b"/invoke"
    said = b""
    for number in range(200):
        body = json.dumps({"export": "add", "args": [number, 1]}).encode()
        said += head(server, b"POST", path, JSON, length(len(body))) + body
    heard = talk(server, said + head(server, b"GET", b"/livez", CLOSE))
    assert statuses(heard) == [200] * 201
    results = [int(each.partition(b"]")[0]) for each in heard.split(b'"result":[')[1:]]
    assert results == list(range(1, 201))


@pytest.mark.parametrize("export", ["spin", "count", "say"])
@pytest.mark.parametrize("route", ["invoke", "invoke-stream"])
def test_clients_that_hang_up_leave_nothing_running(server, guest, export, route):
    """At every stage: within the head, the body, while the guest runs, while it sends."""
    body = json.dumps({"export": export, "args": [1 << 30] if export == "count" else []}).encode()
    path = b"/functions/" + guest + b"/" + route.encode()
    said = head(server, b"POST", path, JSON, length(len(body))) + body
    stages = [1, len(said) // 2, len(said) - len(body), len(said) - 1, len(said)]
    for stage in stages:
        for reads in (False, True):
            with connect(server) as connection:
                connection.sendall(said[:stage])
                if reads and stage == len(said) and export == "count" and route == "invoke-stream":
                    assert connection.recv(100)
    with server.client() as client:
        until(lambda: is_idle(client))


def test_a_client_that_does_not_read_delays_only_its_own_guest(server, guest):
    """A guest that emits without end waits for its client; what waits is bounded, and goes when the client does."""
    body = b'{"export": "count", "args": [1073741824]}'
    path = b"/functions/" + guest + b"/invoke-stream"
    before = memory_bytes(server)
    with connect(server) as slow:
        slow.sendall(head(server, b"POST", path, JSON, length(len(body))) + body)
        assert slow.recv(64)
        with server.client() as client:
            call = {"export": "say"}
            for _ in range(100):
                assert client.post(f"/functions/{guest.decode()}/invoke", json=call).status_code == 200
        assert memory_bytes(server) - before < 64 * MIB
    with server.client() as client:
        until(lambda: is_idle(client))
