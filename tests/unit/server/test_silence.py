"""Silent connections of one port are ended, and no others."""

import socket
import sys
from contextlib import ExitStack

import pytest

from tensorwasm.server.silence import FIRST_BYTES, end_silent

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="LINUX ONLY: silent connections are found through its socket diagnosis"
)


def make_pair(stack, host="127.0.0.1"):
    """Return both ends of a connection, and the port that it leads to."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = stack.enter_context(socket.create_server((host, 0), family=family))
    client = stack.enter_context(socket.create_connection(listener.getsockname()[:2], timeout=10))
    server = stack.enter_context(listener.accept()[0])
    server.settimeout(10)
    return client, server, listener.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("said", [b"", b"G", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"])
def test_a_connection_that_sends_too_little_is_closed(host, said):
    with ExitStack() as stack:
        client, server, port = make_pair(stack, host)
        client.sendall(said)
        assert server.recv(100, socket.MSG_PEEK) == said if said else True
        assert end_silent(port, 0) == 1
        assert client.recv(1) == b""
        assert end_silent(port, 0) == 0


def test_only_silent_late_connections_of_the_server_are_closed():
    with ExitStack() as stack:
        client, server, port = make_pair(stack)
        assert end_silent(port, 60_000) == 0
        assert end_silent(port + 1, 0) == 0
        client.sendall(b"x" * FIRST_BYTES)
        assert server.recv(100) == b"x" * FIRST_BYTES
        assert end_silent(port, 0) == 0
        server.sendall(b"y")
        assert client.recv(1) == b"y"
