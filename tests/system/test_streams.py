"""Streams of a real server, as clients see them on their sockets."""

import asyncio
import base64
import contextlib
import json
import os
import socket
import struct
import subprocess
import time

import h11
import httpx
import pytest
import websockets
from wasmtime import wat2wasm
from websockets.sync.client import connect

from oracles.sse import read_chunks, read_events

GUEST = wat2wasm(
    """(module
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (import "wasi:tensor/host@0.1.0" "input-len" (func $length (result i32)))
  (import "wasi:tensor/host@0.1.0" "read-input" (func $read (param i32 i32) (result i32)))
  (memory (export "memory") 3)
  (func (export "main") (result i32)
    (drop (call $read (i32.const 0) (call $length))) (drop (call $emit (i32.const 0) (call $length))) (i32.const 7))
  (func $pieces (export "pieces") (param $size i32) (local $at i32)
    (drop (call $read (i32.const 0) (call $length)))
    (loop $again
      (drop (call $emit (local.get $at) (local.get $size)))
      (local.set $at (i32.add (local.get $at) (local.get $size)))
      (br_if $again (i32.lt_u (local.get $at) (call $length)))))
  (func (export "fail") (param $size i32) (call $pieces (local.get $size)) unreachable)
  (func (export "spin") (drop (call $emit (i32.const 0) (i32.const 1))) (loop br 0))
  (func (export "silent") (loop br 0))
  (func (export "flood") (result i32) (local $sent i32)
    (loop $again
      (i32.store (i32.const 0) (local.get $sent))
      (if (call $emit (i32.const 0) (i32.const 65536)) (then (return (local.get $sent))))
      (local.set $sent (i32.add (local.get $sent) (i32.const 1)))
      (br $again))
    (local.get $sent)))"""
)
"""``pieces`` sends its input in chunks of one size; ``flood`` sends 64 KiB a time until it is refused."""

EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def function(server):
    with server.client() as client:
        body = {"name": "streams", "wasm_b64": base64.b64encode(GUEST).decode()}
        return client.post("/functions", json=body).json()["id"]


def ask(export, *args, given=b"", **more):
    return {"export": export, "args": args, "input_b64": base64.b64encode(given).decode(), **more}


@contextlib.contextmanager
def request(server, function, body, **headers):
    """Send a request on a socket of its own, which is given back before the answer is read."""
    text = json.dumps(body).encode()
    fields = (
        {"Host": "x", "Connection": "close", "Content-Type": "application/json", "Content-Length": len(text)}
        | server.headers
        | headers
    )
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(f"POST /functions/{function}/invoke-stream HTTP/1.1\r\n{head}\r\n".encode() + text)
        yield client


def read_all(client):
    came = []
    while data := client.recv(1 << 20):
        came.append(data)
    return b"".join(came)


def parse(came):
    """Return status, body and trailers as an HTTP library reads them."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(came)
    reader.receive_data(b"")
    head, body = reader.next_event(), []
    while type(event := reader.next_event()) is h11.Data:
        body.append(bytes(event.data))
    names = [name for name, _ in head.headers]
    assert len(names) == len(set(names)), f"a field is there twice: {head.headers}"
    return head.status_code, b"".join(body), sorted(event.headers)


CONTENTS = [
    "é€𝄞 text".encode(),
    b"a\r\nb\rc\n\n",
    bytes(range(256)),
    b"\xed\xa0\x80\x00",
    b": data:\n\nevent: done\n\n",
]


@pytest.mark.parametrize("given", CONTENTS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_carry_what_the_guest_sent_exactly(server, function, given, size):
    size = min(size, len(given))
    with server.client() as client:
        answer = client.post(
            f"/functions/{function}/invoke-stream", json=ask("pieces", size, given=given), headers=EVENTS
        )
    chunks = read_chunks(answer.content)
    assert b"".join(chunks)[: len(given)] == given
    assert all(len(each) == size for each in chunks)
    last = read_events(answer.content)[-1]
    assert last.name == "done"
    assert json.loads(last.data) == {"status": "ok", "function_id": function, "result": "ok"}


def test_raw_bytes_come_verbatim_and_a_trailer_says_how_it_ended(server, client, function):
    given = os.urandom(50_000)
    with request(server, function, ask("main", given=given)) as sock:
        status, body, trailers = parse(read_all(sock))
    assert (status, body) == (200, given)
    assert trailers == [(b"x-tensorwasm-outcome", b"done")]


def test_a_failure_cuts_off_a_client_that_reads_no_trailers(server, function):
    with request(server, function, ask("fail", 4, given=b"12345678")) as sock:
        came = read_all(sock)
    assert came.endswith(b"4\r\n1234\r\n4\r\n5678\r\n")
    with pytest.raises(h11.RemoteProtocolError):
        parse(came)


def test_ordinary_clients_see_that(server, client, function):
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(f"/functions/{function}/invoke-stream", json=ask("fail", 4, given=b"12345678"))
    curl = subprocess.run(
        ["curl", "-sS", "-o", "/dev/null", "-X", "POST", "-H", f"Authorization: Bearer {server.token}", "-H",
         "Content-Type: application/json", "-d", json.dumps(ask("fail", 4, given=b"12345678")),
         f"{server.url}/functions/{function}/invoke-stream"],
        check=False,
    )  # fmt: skip
    assert curl.returncode == 18  # a partial file


def test_a_failure_is_in_the_trailers_of_a_client_that_reads_them(server, function):
    with request(server, function, ask("fail", 4, given=b"12345678"), TE="trailers") as sock:
        status, body, trailers = parse(read_all(sock))
    assert (status, body) == (200, b"12345678")
    assert trailers == [(b"x-tensorwasm-outcome", b"error"), (b"x-tensorwasm-reason", b"wasm_error")]


def test_raw_bytes_over_http_1_0_are_refused(server, function):
    """Their end could not be told from a failure."""
    text = json.dumps(ask("main", given=b"x")).encode()
    fields = {"Content-Type": "application/json", "Content-Length": len(text)} | server.headers
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(f"POST /functions/{function}/invoke-stream HTTP/1.0\r\n{head}\r\n".encode() + text)
        came = read_all(client)
    assert came.startswith(b"HTTP/1.1 400 ")
    assert b"invalid_request" in came


def test_a_stream_leaves_its_connection_open(server, function):
    with server.client() as client:
        for _ in range(3):
            answer = client.post(f"/functions/{function}/invoke-stream", json=ask("main", given=b"x"))
            assert (answer.content, answer.headers.get("connection")) == (b"x", None)


def test_how_it_ended_can_be_asked_for_later(server, client, function):
    answer = client.post(f"/functions/{function}/invoke-stream", json=ask("fail", 1, given=b"x"), headers=EVENTS)
    name = answer.headers["x-request-id"]
    found = client.get(f"/streams/{name}").json()
    assert found["status"] == "error"
    assert found["reason"] == "wasm_error"
    other = client.get(f"/streams/{name}", headers={"X-TensorWasm-Tenant": "99"})
    assert other.status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (ask("nope"), 400, "missing_export"),
        (ask("pieces"), 400, "invalid_args"),
        ({"export": "silent", "deadline_ms": 50}, 504, "invoke_timeout"),
        ({"args": 1}, 400, "invalid_json"),
    ],
)
def test_a_failure_before_the_first_chunk_is_an_ordinary_error(client, function, body, status, kind):
    answer = client.post(f"/functions/{function}/invoke-stream", json=body, headers=EVENTS)
    assert (answer.status_code, answer.json()["error"]["kind"]) == (status, kind)


def test_a_deadline_later_than_that_is_an_event(client, function):
    answer = client.post(
        f"/functions/{function}/invoke-stream", json={"export": "spin", "deadline_ms": 100}, headers=EVENTS
    )
    assert [each.name for each in read_events(answer.content)] == ["chunk-base64", "error"]
    assert json.loads(read_events(answer.content)[-1].data)["reason"] == "deadline_elapsed"


@pytest.mark.parametrize("export", ["spin", "silent", "flood"])
def test_a_client_that_leaves_ends_its_guest(server, client, function, export):
    with request(server, function, {"export": export}, Accept="text/event-stream", **{"X-Request-Id": "x"}) as sock:
        head = sock.recv(1000)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        name = head.partition(b"x-request-id: ")[2].partition(b"\r\n")[0].decode()
        assert client.get(f"/streams/{name}").json()["status"] == "running"
    until(lambda: client.get(f"/streams/{name}").json()["reason"] == "client_gone")


def test_a_slow_client_delays_only_its_own_guest(server, client, function):
    before = memory_bytes(server)
    with request(server, function, {"export": "flood"}) as sock:
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
        for _ in range(20):
            assert client.post(f"/functions/{function}/invoke", json=ask("main", given=b"x")).status_code == 200
        assert memory_bytes(server) < before + (16 << 20)  # of the 64 MiB that the guest would send


def test_sixty_four_mebibytes_arrive(server, function):
    with request(server, function, {"export": "flood"}) as sock:
        status, body, _ = parse(read_all(sock))
    assert status == 200
    assert len(body) == 64 << 20
    assert [struct.unpack_from("<I", body, at)[0] for at in range(0, len(body), 65536)] == list(range(1024))


def memory_bytes(server):
    with open(f"/proc/{server.child()}/statm") as file:  # noqa: PTH123 - of the kernel's
        return int(file.read().split()[1]) * 4096


def until(holds, times=1):
    """Wait until something holds so many times in a row."""
    ends_s, count = time.monotonic() + 20, 0
    while count < times:
        assert time.monotonic() < ends_s
        count = count + 1 if holds() else 0
        time.sleep(0.02)


# -------------------------------------------------------------------------------------------------- WebSockets


def address(server, function):
    return f"ws://127.0.0.1:{server.port}/functions/{function}/invoke-ws"


@pytest.fixture
def talk(server, function):
    with connect(address(server, function), additional_headers=server.headers) as socket_:
        yield socket_


def test_calls_follow_one_another_on_a_socket(talk, function):
    for given in CONTENTS:
        talk.send(given[:3])
        talk.send(given[3:])
        talk.send('{"export":"main"}')
        assert talk.recv() == given
        assert json.loads(talk.recv()) == {"done": {"status": "ok", "function_id": function, "result": [7]}}


def test_a_call_is_ended_by_a_message(talk):
    talk.send('{"export":"spin"}')
    assert talk.recv() == b"\0"
    talk.send('{"cancel":true}')
    assert json.loads(talk.recv())["error"]["reason"] == "cancelled"
    talk.send('{"export":"nope"}')
    assert json.loads(talk.recv())["error"]["reason"] == "missing_export"


def test_a_flood_waits_for_a_client_that_reads_later(talk):
    talk.send('{"export":"flood"}')
    for at in range(1024):
        assert talk.recv()[:4] == struct.pack("<I", at)
    assert json.loads(talk.recv())["done"]["result"] == [1024]


@pytest.mark.rule("14-origin")
@pytest.mark.parametrize(
    ("headers", "origin", "status"),
    [({}, None, 401), ({"Authorization": "Bearer no"}, None, 401), (None, "http://elsewhere.example", 403)],
)
def test_a_refused_socket_is_answered_with_the_error(server, function, headers, origin, status):
    given = server.headers if headers is None else headers
    with pytest.raises(websockets.exceptions.InvalidStatus) as raised:
        connect(address(server, function), additional_headers=given, origin=origin)
    assert raised.value.response.status_code == status


def test_a_token_may_be_a_subprotocol(server, function):
    offered = ["tensorwasm.v1", f"bearer.{server.token}"]
    with connect(address(server, function), subprotocols=offered) as talk:
        assert talk.subprotocol == "tensorwasm.v1"
        talk.send(b"x")
        talk.send("{}")
        assert talk.recv() == b"x"


def test_a_token_that_is_revoked_ends_the_socket(server, client, function):
    made = client.post("/tokens", json={"name": "short", "tenants": [0], "scopes": ["invoke"]}).json()
    with connect(address(server, function), additional_headers={"Authorization": f"Bearer {made['token']}"}) as talk:
        talk.send("{}")
        assert "done" in json.loads(talk.recv())
        assert client.delete(f"/tokens/{made['id']}").status_code == 204
        talk.send("{}")
        assert json.loads(talk.recv())["error"]["reason"] == "unauthorized"


def test_many_streams_at_a_time(server, function):
    async def one(client, at):
        answer = await client.post(
            f"/functions/{function}/invoke-stream", json=ask("pieces", 2, given=b"%04d" % at), headers=EVENTS
        )
        return b"".join(read_chunks(answer.content))

    async def all_of_them():
        async with httpx.AsyncClient(base_url=server.url, headers=server.headers, timeout=30) as client:
            return await asyncio.gather(*(one(client, at) for at in range(100)))

    assert asyncio.run(all_of_them()) == [b"%04d" % at for at in range(100)]
