"""Where a server listens."""

import socket

import pytest

from tensorwasm.errors import InvalidArgs
from tensorwasm.server.process.address import ListenAddress, clear, parse_address, reserve


def test_addresses_are_parsed(tmp_path):
    assert parse_address("127.0.0.1:8080").url == "http://127.0.0.1:8080"
    assert parse_address("[::1]:8080").url == "http://[::1]:8080"
    assert parse_address(":8080").host == "127.0.0.1"
    assert parse_address("localhost:0").host in {"127.0.0.1", "::1"}
    assert parse_address(f"unix:{tmp_path}/s").path == f"{tmp_path}/s"


@pytest.mark.parametrize("text", ["", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", "unix:/no/such/s"])
def test_invalid_addresses_are_refused(text):
    with pytest.raises(InvalidArgs):
        parse_address(text)


def test_a_reserved_port_is_shared_and_refused_to_a_second_server():
    address, holder = reserve(ListenAddress("127.0.0.1", 0))
    with holder, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind((address.host, address.port))
        server.listen()
        with socket.create_connection((address.host, address.port), 5) as client:
            server.settimeout(5)
            accepted, peer = server.accept()
            accepted.close()
            assert peer == client.getsockname()  # what is held takes no connections
        with pytest.raises(InvalidArgs, match="cannot be listened on"):
            reserve(address)


def test_a_unix_socket_needs_no_reservation():
    assert reserve(ListenAddress(path="/tmp/s")) == (ListenAddress(path="/tmp/s"), None)


def test_only_the_unix_socket_of_a_dead_server_is_deleted(tmp_path):
    path = tmp_path / "s"
    clear(ListenAddress(path=str(path)))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(InvalidArgs, match="another process does"):
            clear(ListenAddress(path=str(path)))
    clear(ListenAddress(path=str(path)))
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(InvalidArgs, match="is not a socket"):
        clear(ListenAddress(path=str(path)))
    assert path.read_text() == "mine"
