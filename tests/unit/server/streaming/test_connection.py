"""The client's connection is found among all descriptors, and used beside the server."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tensorwasm.server.streaming.connection import Connection, parse_address


def address_of(of, *, peer):
    host, port = (of.getpeername() if peer else of.getsockname())[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connect(stack, family=socket.AF_INET):
    """Return both ends of a connection: the client's, and the server's, which does not block."""
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as listener:
        client = stack.enter_context(socket.create_connection(listener.getsockname()[:2], timeout=10))
        accepted = stack.enter_context(listener.accept()[0])
    accepted.setblocking(False)
    return client, accepted


def count_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def find(accepted):
    return await Connection.find(address_of(accepted, peer=True), address_of(accepted, peer=False))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_sent_bytes_reach_the_client_of_that_address(family):
    async def story():
        with ExitStack() as stack:
            ends = [connect(stack, family) for _ in range(20)]
            for at, (client, accepted) in enumerate(ends):
                with await find(accepted) as connection:
                    assert await connection.send(b"%d" % at)
                assert client.recv(10) == b"%d" % at
                accepted.send(b"still the server's")
                assert client.recv(100) == b"still the server's"

    asyncio.run(story())


def test_no_descriptor_is_kept():
    async def story():
        with ExitStack() as stack:
            _, accepted = connect(stack)
            before = count_descriptors()
            for _ in range(3):
                with await find(accepted):
                    pass
                assert await Connection.find("127.0.0.1:1", "127.0.0.1:2") is None
            assert count_descriptors() == before

    asyncio.run(story())


@pytest.mark.parametrize("client", ["", "unix:", "/run/x.sock", "127.0.0.1", "127.0.0.1:x", "uds:1.2"])
def test_a_peer_that_is_not_an_address_gives_no_connection(client):
    assert asyncio.run(Connection.find(client, "127.0.0.1:80")) is None


def test_a_number_that_went_to_another_is_not_taken_for_the_connection():
    async def story():
        with ExitStack() as stack:
            client, accepted = connect(stack)
            wanted = address_of(accepted, peer=True), address_of(accepted, peer=False)
            with await find(accepted):
                pass
            number = accepted.detach()
            os.close(number)
            client.close()
            _, other = connect(stack)
            assert await Connection.find(*wanted) is None
            assert other.fileno() >= 0

    asyncio.run(story())


def test_the_clients_own_end_is_not_taken_for_the_servers():
    async def story():
        with ExitStack() as stack:
            client, accepted = connect(stack)
            with await find(accepted) as connection:
                await connection.send(b"x")
            assert client.recv(1) == b"x"

    asyncio.run(story())


def test_a_slow_client_is_waited_for():
    async def story():
        with ExitStack() as stack:
            client, accepted = connect(stack)
            data = os.urandom(8 << 20)
            with await find(accepted) as connection:
                sending = asyncio.ensure_future(connection.send(data))
                await asyncio.sleep(0)
                assert not sending.done()
                came = await asyncio.to_thread(read_exactly, client, len(data))
                assert await sending
            assert came == data

    asyncio.run(story())


def test_the_kernel_knows_what_was_written_taken_or_not():
    async def story():
        with ExitStack() as stack:
            client, accepted = connect(stack)
            with await find(accepted) as connection:
                before = connection.written_bytes()
                accepted.send(bytes(1000))
                assert connection.written_bytes() - before == 1000
                read_exactly(client, 1000)
                accepted.send(bytes(5))
                assert connection.written_bytes() - before == 1005
            assert connection.written_bytes() == 0  # closed

    asyncio.run(story())


def test_a_client_that_takes_nothing_is_given_up():
    async def story():
        with ExitStack() as stack:
            _, accepted = connect(stack)
            with await find(accepted) as connection:
                connection._stall_s = 0.01
                assert not await connection.send(bytes(32 << 20))

    asyncio.run(story())


def test_a_client_that_left_is_known_to_have():
    async def story():
        with ExitStack() as stack:
            client, accepted = connect(stack)
            with await find(accepted) as connection:
                client.close()
                assert False in [await connection.send(bytes(1 << 20)) for _ in range(20)]
                connection.finish()
                connection.reset()

    asyncio.run(story())


def test_after_its_end_the_server_writes_nothing_more():
    async def story():
        with ExitStack() as stack:
            client, accepted = connect(stack)
            with await find(accepted) as connection:
                await connection.send(b"all")
                connection.finish()
            with pytest.raises(OSError, match="pipe"):
                accepted.send(b"more")
            assert client.recv(10) == b"all"
            assert client.recv(10) == b""

    asyncio.run(story())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.2.3.4:5", ("1.2.3.4", 5)),
        ("[::1]:80", ("::1", 80)),
        ("[fe80::1%2]:80", ("fe80::1", 80)),
        ("host", None),
        (":", None),
        ("a:\u0663", None),
    ],
)
def test_addresses_are_read_as_the_server_writes_them(text, expected):
    assert parse_address(text) == expected


def read_exactly(client, count):
    data = b""
    while len(data) < count:
        data += client.recv(count - len(data))
    return data
