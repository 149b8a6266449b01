"""Where a server listens."""

import socket

import pytest

from tensorwasm.errors import InvalidArgs
from tensorwasm.server.process.address import ListenAddress, listen, parse_address


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


def test_a_port_is_taken_and_refused_to_a_second_server():
    address, listening = listen(ListenAddress("127.0.0.1", 0))
    with listening:
        assert address.port == listening.getsockname()[1]
        with socket.create_connection((address.host, address.port), 5):
            pass
        with pytest.raises(InvalidArgs, match="cannot be listened on"):
            listen(address)
    listen(address)[1].close()


def test_only_the_unix_socket_of_a_dead_server_is_deleted(tmp_path):
    path = tmp_path / "s"
    address = ListenAddress(path=str(path))
    with listen(address)[1], pytest.raises(InvalidArgs, match="another process does"):
        listen(address)
    assert path.stat().st_mode & 0o077 == 0
    listen(address)[1].close()
    path.unlink()
    path.write_text("mine")
    with pytest.raises(InvalidArgs, match="is not a socket"):
        listen(address)
    assert path.read_text() == "mine"


def test_the_unix_socket_of_a_server_that_is_being_replaced_is_not_deleted(tmp_path):
    """Found by review: where nobody accepts, and the queue is full, connecting fails at once."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(str(path))
        with pytest.raises(InvalidArgs, match="another process does"):
            listen(ListenAddress(path=str(path)))
        assert path.is_socket()
        for each in waiting:
            each.close()
