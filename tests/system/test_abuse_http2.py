"""Clients of HTTP/2 and WebSockets that keep to no rule: the connection is theirs to lose, and nobody else's."""

import base64
import json
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

import h2.config
import h2.connection
import h2.errors
import h2.events
import pytest

from fakes.services import ADD, GUEST
from neighbours import connect, deploy, head, hear, is_idle, memory_bytes, polite_neighbour, statuses, until
from servers import running_server
from tensorwasm.values import MIB

ENVIRONMENT = {"TENSOR_WASM_API_TENANT_CAPS": "qps=100000,burst=100000"}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("abuse2") / "data"
    with running_server(data, environment=ENVIRONMENT) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def neighbour(server):
    with polite_neighbour(server) as neighbour:
        yield neighbour


@pytest.fixture(scope="module")
def functions(server):
    with server.client() as client:
        return {"add": deploy(client, ADD), "guest": deploy(client, GUEST, "guest")}


def frame(kind, flags, stream, payload=b""):
    """Source: RFC 9113 4.1."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


class Raw:
    """A connection of HTTP/2 on which anything can be said."""

    def __init__(self, server):
        self._server = server
        self.socket = connect(server)
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.http.initiate_connection()
        self.socket.sendall(self.http.data_to_send())

    def fields(self, path, method="POST"):
        return [
            (":method", method),
            (":path", path),
            (":scheme", "http"),
            (":authority", "localhost"),
            ("authorization", f"Bearer {self._server.token}"),
            ("content-type", "application/json"),
        ]

    def take(self, limit_s=30.0):
        """Return the events of what comes next; None once the server has closed."""
        self.socket.settimeout(limit_s)
        try:
            came = self.socket.recv(1 << 16)
        except ConnectionResetError:
            return None
        if not came:
            return None
        events = self.http.receive_data(came)
        push(self.socket, self.http.data_to_send())
        return events

    def ends(self):
        """Wait for what comes next; return whether the server has ended the connection with it."""
        events = self.take()
        return events is None or any(isinstance(each, h2.events.ConnectionTerminated) for each in events)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def push(connection, data):
    """Send, until the server has had enough; return whether it took all."""
    try:
        connection.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def test_streams_that_are_begun_and_reset_at_once_cost_their_connection(server, functions):
    """CVE-2023-44487: resets come faster than requests can be ended. Each would run a guest for ever."""
    body = json.dumps({"export": "spin"}).encode()
    path, ended = f"/functions/{functions['guest']}/invoke", False
    with Raw(server) as raw:
        for stream in range(1, 20_001, 2):
            while not ended and raw.http.outbound_flow_control_window < len(body):
                ended = raw.ends()
            if ended:
                break
            raw.http.send_headers(stream, raw.fields(path))
            raw.http.send_data(stream, body, end_stream=True)
            raw.http.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
            ended = not push(raw.socket, raw.http.data_to_send())
        while not ended:
            ended = raw.ends()
    with server.client() as client:
        until(lambda: is_idle(client), 60)


def test_a_head_that_goes_on_and_on_is_cut(server):
    """CVE-2024-27316: frames of CONTINUATION without an end."""
    with connect(server) as connection:
        begun = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_STREAM, 1, b"\x82\x84\x86\x41\x01x")
        assert push(connection, begun)
        piece = frame(CONTINUATION, 0, 1, (b"\x00\x01x\x7f\xf0\x01" + b"a" * 367) * 40)
        taken = sum(push(connection, piece) for _ in range(4000))
        hear(connection)
    assert taken < 4000


def test_a_head_that_unpacks_to_much_is_cut(server):
    """Source: RFC 7541 7.3: one long field, said again and again by a byte."""
    with connect(server) as connection:
        long = b"\x40\x01x\x7f" + b"\xa1\x1e" + b"a" * 4000  # a literal of 4000 bytes that is remembered
        block = b"\x82\x84\x86\x41\x01x" + long + b"\xbe" * 8000  # and 8000 times more: 32 MB
        assert len(block) < 1 << 14
        push(connection, PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_STREAM | END_HEADERS, 1, block))
        push(connection, frame(PING, 0, 0, bytes(8)))
        with suppress(OSError):  # it has been cut off
            connection.shutdown(socket.SHUT_WR)
        heard = hear(connection)
    assert heard
    assert b"not_found" not in heard  # which is what the path would have been answered


@pytest.mark.parametrize("kind", ["settings", "ping", "windows"])
def test_a_flood_of_control_frames_is_its_sender_s_problem(server, kind, neighbour):
    flood = {
        "settings": frame(SETTINGS, 0, 0),
        "ping": frame(PING, 0, 0, bytes(8)),
        "windows": frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)),
    }[kind]
    before, calls = memory_bytes(server), len(neighbour.times_s)
    with connect(server) as connection:
        assert push(connection, PREFACE + frame(SETTINGS, 0, 0))
        connection.settimeout(5)  # what is answered is not read: who floods waits for that at last, or is cut off
        try:
            for _ in range(200):
                if not push(connection, flood * 1000):
                    break
        except TimeoutError:
            pass
        until(lambda: len(neighbour.times_s) > calls + 5)
        assert memory_bytes(server) - before < 64 * MIB


def test_a_body_of_http_2_that_is_broken_off_is_not_carried_out(server):
    with server.client() as client:
        before = client.get("/functions?limit=1000").json()["functions"]
        with Raw(server) as raw:
            fields = raw.fields("/functions?name=half")
            fields[-1] = ("content-type", "application/wasm")
            raw.http.send_headers(1, fields)
            raw.http.send_data(1, ADD)
            raw.socket.sendall(raw.http.data_to_send())
            raw.http.reset_stream(1, h2.errors.ErrorCodes.CANCEL)
            raw.socket.sendall(raw.http.data_to_send())
            raw.http.send_headers(3, raw.fields("/livez", "GET"), end_stream=True)
            raw.socket.sendall(raw.http.data_to_send())
            answered = False
            while not answered:
                answered = any(isinstance(each, h2.events.ResponseReceived) for each in raw.take() or [])
        assert client.get("/functions?limit=1000").json()["functions"] == before


# ---------------------------------------------------------------- WebSockets


def upgrade(server, function, *fields, token=True):
    key = base64.b64encode(os.urandom(16))
    more = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: " + key)
    return head(server, b"GET", f"/functions/{function}/invoke-ws".encode(), *more, *fields, token=token)


def message(opcode, payload, *, masked=True, claims=None):
    """Source: RFC 6455 5.2."""
    size = len(payload) if claims is None else claims
    mask = 0x80 if masked else 0
    head = bytes([0x80 | opcode])
    if size < 126:
        head += bytes([mask | size])
    elif size < 1 << 16:
        head += bytes([mask | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([mask | 127]) + size.to_bytes(8, "big")
    return head + (bytes(4) if masked else b"") + payload


@pytest.mark.parametrize(
    ("fields", "token", "status"),
    [
        ((b"Origin: https://evil.example",), True, 403),
        ((), False, 401),
        ((b"Sec-WebSocket-Protocol: bearer.nothing",), False, 401),
    ],
)
def test_a_socket_that_may_not_be_opened_is_not(server, functions, fields, token, status):
    with connect(server) as connection:
        connection.sendall(upgrade(server, functions["guest"], *fields, token=token))
        assert statuses(connection.recv(1 << 16)) == [status]


@pytest.mark.parametrize(
    "said",
    [
        message(2, b"", claims=1 << 62),
        message(2, bytes(1000), claims=1 << 40),
        message(1, b"{" * 100_000),
        message(1, b"[" * 100_000),
        message(1, b"\xff\xfe"),
        message(1, b'{"export":"say"}', masked=False),
        message(9, bytes(200)),
        message(3, b"x"),
        message(0, b"x"),
        b"\xf1" + message(1, b"{}")[1:],
    ],
)
def test_a_socket_on_which_a_rule_is_broken_is_closed(server, functions, said):
    with connect(server) as connection:
        connection.sendall(upgrade(server, functions["guest"]))
        assert statuses(connection.recv(1 << 16)) == [101]
        push(connection, said)
        with suppress(OSError):  # likewise
            connection.shutdown(socket.SHUT_WR)
        hear(connection)
    with server.client() as client:
        until(lambda: is_idle(client))


def test_sockets_that_are_left_without_a_word_leave_nothing(server, functions):
    before = None
    for export in ("spin", "count"):
        call = json.dumps({"export": export, "args": [1 << 30] if export == "count" else []}).encode()
        for _ in range(5):
            with connect(server) as connection:
                connection.sendall(upgrade(server, functions["guest"]))
                assert statuses(connection.recv(1 << 16)) == [101]
                connection.sendall(message(1, call))
        with server.client() as client:
            until(lambda: is_idle(client))
        descriptors = len(list(Path(f"/proc/{server.child()}/fd").iterdir()))
        before = descriptors if before is None else before
        assert descriptors <= before + 5


def test_input_over_the_limit_ends_a_socket_and_is_not_kept(server, functions):
    before = memory_bytes(server)
    with connect(server) as connection:
        connection.sendall(upgrade(server, functions["guest"]))
        assert statuses(connection.recv(1 << 16)) == [101]
        for _ in range(70):
            if not push(connection, message(2, bytes(MIB))):
                break
        assert b"body_too_large" in hear(connection)
    until(lambda: memory_bytes(server) - before < 128 * MIB)
