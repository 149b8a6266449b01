"""Connections that come at once are taken within a few turns of the event loop, however long each turn takes."""

import asyncio
import errno
import socket

import pytest
import uvloop

from tensorwasm.server.connection import listener as listener_module
from tensorwasm.server.connection.listener import MOST_ACCEPTED, Listener
from tensorwasm.server.process.address import ListenAddress, listen

COUNT = 4 * MOST_ACCEPTED
"""Connections; each takes a turn to be accepted and some to be made."""


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_connections_that_wait_are_taken_many_in_a_turn(run):
    async def story():
        address, listening = listen(ListenAddress("127.0.0.1", 0))
        clients = [socket.create_connection((address.host, address.port)) for _ in range(COUNT)]
        listener = Listener(lambda wire: wire.answer(200, [], b"hello"), 2 * COUNT, 10.0)
        await listener.listen(listening)
        turns = 0
        while len(listener._connections) < COUNT:
            await asyncio.sleep(0)
            turns += 1
        for client in clients:
            client.close()
        await listener.close(1.0)
        assert turns < COUNT // 4

    run(story())


def test_a_process_that_shares_its_socket_leaves_connections_to_the_others():
    async def story():
        address, listening = listen(ListenAddress("127.0.0.1", 0))
        clients = [socket.create_connection((address.host, address.port)) for _ in range(20)]
        listeners = [Listener(lambda wire: wire.answer(200, [], b""), 99, 10.0, shared=True) for _ in range(2)]
        for listener in listeners:
            await listener.listen(listening.dup())
        while sum(len(each._connections) for each in listeners) < len(clients):  # noqa: ASYNC110 - turns are the clock
            await asyncio.sleep(0)
        taken = [len(listener._connections) for listener in listeners]
        for client in clients:
            client.close()
        for listener in listeners:
            await listener.close(1.0)
        listening.close()
        assert min(taken) >= len(clients) // 4

    asyncio.run(story())


class ShortOfFiles:
    """A socket that listens, with no descriptor for the first connection."""

    def __init__(self, listening):
        self._listening, self.refused = listening, 0

    def fileno(self):
        return self._listening.fileno()

    def setblocking(self, flag):
        self._listening.setblocking(flag)

    def accept(self):
        if not self.refused:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listening.accept()

    def close(self):
        self._listening.close()


def test_a_connection_that_there_is_no_descriptor_for_is_taken_later(monkeypatch, caplog):
    monkeypatch.setattr(listener_module, "SWEEP_S", 0.01)

    async def story():
        address, listening = listen(ListenAddress("127.0.0.1", 0))
        listener = Listener(lambda wire: wire.answer(200, [], b"hello"), 10, 10.0)
        await listener.listen(ShortOfFiles(listening))
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"hello")
        writer.close()
        await listener.close(1.0)

    asyncio.run(story())
    assert "Too many open files" in caplog.text
