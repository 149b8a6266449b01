"""What clients may do to a real server: bodies, heads, paths, methods, protocols; and that others notice nothing."""

import base64
import gzip
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

ADD = (Path(__file__).parents[2] / "bench/guests/add.wasm").read_bytes()
MIB = 1 << 20


def deploy(client, module=ADD):
    made = client.post("/functions", json={"name": "f", "wasm_b64": base64.b64encode(module).decode()})
    assert made.status_code == 200, made.text
    return made.json()["id"]


def call(client, function):
    found = client.post(f"/functions/{function}/invoke", json={"export": "add", "args": [2, 3]})
    assert found.json().get("result") == [5], found.text


@pytest.fixture(scope="module")
def function(server):
    with server.client() as client:
        return deploy(client)


class Raw:
    """A connection on which anything can be said."""

    def __init__(self, server):
        self.socket = socket.create_connection(("127.0.0.1", server.port), 30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def say(self, data):
        self.socket.sendall(data)

    def head(self, server, method, path, *fields):
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {server.token}", *fields]
        self.say("\r\n".join(lines).encode() + b"\r\n\r\n")

    def answer(self):
        """Return status, headers and body of one answer."""
        reading = self.socket.makefile("rb")
        status = int(reading.readline().split()[1])
        headers = {}
        while (line := reading.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, reading.read(int(headers.get("content-length", 0)))

    def closed(self):
        """Return whether the server ends the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


def kind(body):
    return json.loads(body)["error"]["kind"]


def test_a_body_one_byte_over_the_cap_is_refused_at_once_and_its_sender_hears_it(server, client, function):
    with Raw(server) as raw:
        raw.head(server, "POST", "/functions", f"Content-Length: {64 * MIB + 1}", "Content-Type: application/wasm")
        status, _, body = raw.answer()
        assert (status, kind(body)) == (413, "body_too_large")
    found = client.post(
        "/functions?name=big", content=b"\0" * (64 * MIB + 1), headers={"Content-Type": "application/wasm"}
    )
    assert (found.status_code, found.json()["error"]["kind"]) == (413, "body_too_large")
    call(client, function)


def test_a_chunked_body_is_counted_while_it_comes(start_server):
    with start_server("--max-body-bytes", "100000") as server, server.client() as client:

        def chunks():
            for _ in range(11):
                yield b"\0" * 10_000

        found = client.post("/functions?name=big", content=chunks(), headers={"Content-Type": "application/wasm"})
        assert (found.status_code, found.json()["error"]["kind"]) == (413, "body_too_large")
        call(client, deploy(client))


@pytest.mark.parametrize("length", [100, 1 << 20])
def test_a_client_that_sends_too_slowly_gets_408(start_server, length):
    with start_server(environment={"TENSOR_WASM_API_REQUEST_TIMEOUT": "1"}) as server, Raw(server) as raw:
        raw.head(server, "POST", "/functions", f"Content-Length: {length}", "Content-Type: application/json")
        began_s = time.monotonic()
        raw.socket.settimeout(0.2)
        answer = b""
        while not answer and time.monotonic() - began_s < 20:
            raw.say(b" ")
            try:
                answer = raw.socket.recv(65536)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"request_timeout" in answer
        with server.client() as client:
            call(client, deploy(client))


def test_slow_clients_and_idle_connections_delay_no_other_client(server, client, function):
    slow = [Raw(server) for _ in range(300)]
    try:
        for each in slow[:150]:
            each.head(server, "POST", f"/functions/{function}/invoke", "Content-Length: 1000")
        began_s = time.monotonic()
        for _ in range(20):
            call(client, function)
        assert time.monotonic() - began_s < 10
    finally:
        for each in slow:
            each.__exit__()


def test_many_long_bodies_at_once_are_taken_or_sent_away_and_the_server_stays(server, client, function):
    def upload(_):
        with server.client(timeout=60.0) as uploading:
            found = uploading.post(
                "/functions?name=big", content=b"\0" * (20 * MIB), headers={"Content-Type": "application/wasm"}
            )
            return found.status_code, found.json()["error"]["kind"]

    with ThreadPoolExecutor(12) as pool:
        found = set(pool.map(upload, range(24)))
    assert found <= {(400, "invalid_wasm"), (503, "capacity_exhausted"), (429, "rate_limited")}
    call(client, function)


def test_a_head_that_is_a_flood_is_refused(server, client, function):
    with Raw(server) as raw:
        raw.say(
            b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % each for each in range(200)) + b"\r\n"
        )
        assert raw.answer()[0] == 431
    with Raw(server) as raw:
        try:
            raw.say(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (1 << 20))
            assert raw.answer()[0] == 431
        except (ConnectionError, IndexError):
            pass  # it was closed while it was still sent
    call(client, function)


@pytest.mark.parametrize(
    "path",
    [
        "/functions%2f..",
        "/functions/..%2fhealthz",
        "/functions/../healthz",
        "/./healthz",
        "//healthz",
        "/healthz/",
        "/healthz%00",
        "/%68ealthz%2f",
        "/healthz%0d%0aX:y",
        "/functions/%ff%fe",
        "/functions/%c0%af",
        "/functions/" + "a" * 5000,
        "/HEALTHZ",
        "/healthz;x",
    ],
)
def test_paths_that_are_tricks_lead_nowhere(server, path):
    with Raw(server) as raw:
        raw.head(server, "GET", path)
        status, headers, body = raw.answer()
        assert (status, kind(body)) == (404, "not_found")
        assert headers["x-tensorwasm-route"] == "none"


def test_methods_that_are_not_there_say_which_are(client, function):
    found = client.request("DELETE", "/healthz")
    assert (found.status_code, found.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert client.request("PROPFIND", "/healthz").status_code == 405
    assert client.request("BREW", "/healthz").status_code == 400  # no method of HTTP's
    found = client.head("/healthz")
    assert (found.status_code, found.content) == (200, b"")
    found = client.options(f"/functions/{function}")
    assert (found.status_code, found.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, PATCH, PUT")


def test_bodies_of_every_length_arrive(server, function):
    with server.client() as client:
        for _ in range(3):
            call(client, function)
        for size in (20_000, 262_144, 262_145, 4 * MIB):
            big = client.post("/functions?name=x", content=b"\0" * size, headers={"Content-Type": "application/wasm"})
            assert big.json()["error"]["kind"] == "invalid_wasm", size


@pytest.mark.parametrize("depth", [1000, 100_000, 1_000_000])
@pytest.mark.parametrize("shape", [b"[", b'{"a":', b'{"args":['])
def test_json_that_is_nested_deeply_is_refused(client, function, shape, depth):
    headers = {"Content-Type": "application/json"}
    for path in ("/functions", f"/functions/{function}/invoke"):
        found = client.post(path, content=shape * depth, headers=headers)
        assert found.status_code == 400
        assert found.json()["error"]["kind"] in {"invalid_json", "unknown_field"}  # whichever comes first
    call(client, function)


SPIN = base64.b64decode("AGFzbQEAAAABBAFgAAADAgEABwgBBHNwaW4AAAoJAQcAA0AMAAsL")


def test_a_client_that_leaves_frees_its_guest(server, client):
    spin = deploy(client, SPIN)
    with pytest.raises(httpx.TimeoutException):
        client.post(f"/functions/{spin}/invoke", json={"export": "spin"}, timeout=0.5)
    ends_s = time.monotonic() + 20
    while time.monotonic() < ends_s:
        text = httpx.get(f"{server.url}/metrics").text
        if 'route="/functions/:id/invoke",status="499"' in text:
            break
        time.sleep(0.05)
    assert 'route="/functions/:id/invoke",status="499"' in text
    assert "\ntensor_wasm_active_instances 0.0" in text


def test_a_deadline_ends_a_guest(client):
    spin = deploy(client, SPIN)
    began_s = time.monotonic()
    found = client.post(f"/functions/{spin}/invoke", json={"export": "spin", "deadline_ms": 100})
    assert (found.status_code, found.json()["error"]["kind"]) == (504, "invoke_timeout")
    assert time.monotonic() - began_s < 10


def test_metrics_are_for_this_machine_or_who_has_their_token(start_server, server):
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    assert httpx.get(f"{server.url}/metrics", headers={"X-Forwarded-For": "1.2.3.4"}).status_code == 401
    with start_server(environment={"TENSOR_WASM_API_METRICS_TOKEN": "metrics-token-000000"}) as other:
        assert httpx.get(f"{other.url}/metrics").status_code == 401
        assert httpx.get(f"{other.url}/metrics", headers={"Authorization": "Bearer x"}).status_code == 401
        good = {"Authorization": "Bearer metrics-token-000000"}
        assert httpx.get(f"{other.url}/metrics", headers=good).status_code == 200


@pytest.mark.parametrize(
    ("head", "named"),
    [
        (
            "GET /functions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nAuthorization: Bearer other",
            "authorization",
        ),
        (
            "GET /functions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer other\r\nAuthorization: Bearer {}",
            "authorization",
        ),
        ("GET /functions HTTP/1.1\r\nAuthorization: Bearer {}", "Host"),
        ("GET http://x/functions HTTP/1.1\r\nAuthorization: Bearer {}", "Host"),
        ("GET /functions HTTP/1.1\r\nHost: x\r\nHost: y\r\nAuthorization: Bearer {}", "host"),
        ("GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b", "authorization"),
    ],
)
def test_a_head_that_means_two_things_is_refused(server, head, named):
    with Raw(server) as raw:
        raw.say(head.format(server.token).encode() + b"\r\n\r\n")
        status, _, body = raw.answer()
        assert (status, kind(body)) == (400, "invalid_request")
        assert named in json.loads(body)["error"]["message"]


def test_http_1_0_needs_no_host(server):
    with Raw(server) as raw:
        raw.say(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert raw.answer()[0] == 200


def test_bodies_are_compressed_both_ways_and_no_field_of_an_answer_is_there_twice(server, function):
    call = json.dumps({"export": "add", "args": [2, 3]}).encode().ljust(100_000)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip", "X-Request-Id": "mine"}
    with server.client(headers={"Accept-Encoding": "gzip"}) as client:
        called = client.post(f"/functions/{function}/invoke", content=gzip.compress(call), headers=headers)
        assert called.json().get("result") == [5], called.text
        assert called.headers["x-request-id"] == "mine"
        bomb = client.post("/functions?name=x", content=gzip.compress(bytes(65 * MIB)), headers=headers)
        assert (bomb.status_code, bomb.json()["error"]["kind"]) == (413, "body_too_large")
        long = client.get("/openapi.json")
        assert (long.headers["content-encoding"], long.headers["vary"]) == ("gzip", "Accept-Encoding")
        assert long.json()["openapi"]
        again = client.get("/openapi.json", headers={"If-None-Match": long.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        head = client.head("/openapi.json")
        assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", long.headers["etag"])
        assert head.headers["content-length"] == long.headers["content-length"]
        missing = client.head("/functions/none")
        assert (missing.status_code, missing.content) == (404, b"")
        events = {"Accept": "text/event-stream"}
        stream = client.post(
            f"/functions/{function}/invoke-stream", json={"export": "add", "args": [1, 2]}, headers=events
        )
        assert (stream.status_code, "content-encoding" in stream.headers) == (200, False)
        refused = client.get("/functions/none")
        for each in (called, bomb, long, again, head, missing, stream, refused):
            names = [name.lower() for name, _ in each.headers.multi_items()]
            assert len(names) == len(set(names)), each.headers
