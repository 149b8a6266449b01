"""Where a server listens."""

import socket

import pytest

from tensorwasm.errors import InvalidArgs
from tensorwasm.server.address import Address, clear, parse_address, reserve


def test_addresses_are_read(tmp_path):
    assert parse_address("127.0.0.1:8080").url == "http://127.0.0.1:8080"
    assert parse_address("[::1]:8080").url == "http://[::1]:8080"
    assert parse_address(":8080").host == "127.0.0.1"
    assert parse_address("localhost:0").host in {"127.0.0.1", "::1"}
    assert parse_address(f"unix:{tmp_path}/s").path == f"{tmp_path}/s"


@pytest.mark.parametrize("text", ["", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", "unix:/no/such/s"])
def test_others_are_refused(text):
    with pytest.raises(InvalidArgs):
        parse_address(text)


def test_a_port_is_held_for_who_shares_it_and_a_second_server_is_refused():
    address, holder = reserve(Address("127.0.0.1", 0))
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


def test_a_socket_in_the_file_system_needs_no_port():
    assert reserve(Address(path="/tmp/s")) == (Address(path="/tmp/s"), None)


def test_a_socket_that_a_dead_server_left_goes_and_nothing_else(tmp_path):
    path = tmp_path / "s"
    clear(Address(path=str(path)))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(InvalidArgs, match="somebody does"):
            clear(Address(path=str(path)))
    clear(Address(path=str(path)))
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(InvalidArgs, match="something else"):
        clear(Address(path=str(path)))
    assert path.read_text() == "mine"
