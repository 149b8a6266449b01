"""A server that could not be opened at once: it says why, and stops when it is told to."""

from __future__ import annotations

import asyncio
import os
import signal

from tensorwasm.errors import StorageFull
from tensorwasm.server.process.address import ListenAddress, listen
from tensorwasm.server.serving import serve_degraded


class Opened:
    closed = False

    async def close(self):
        self.closed = True


def degraded(attempt, listening=None):
    with listening or listen(ListenAddress("127.0.0.1", 0))[1] as used:
        return asyncio.run(serve_degraded(StorageFull("full"), used, attempt, lambda: None))


def test_what_was_opened_at_last_is_returned(monkeypatch):
    monkeypatch.setattr("tensorwasm.server.serving.AGAIN_S", 0.001)
    opened, tries = Opened(), iter((None, None))

    async def attempt():
        return next(tries, opened)

    assert degraded(attempt) is opened
    assert not opened.closed


def test_a_signal_while_it_is_opened_is_not_lost(monkeypatch):
    monkeypatch.setattr("tensorwasm.server.serving.AGAIN_S", 0.001)
    opened = Opened()

    async def attempt():
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(10):
            await asyncio.sleep(0)
        return opened

    assert degraded(attempt) is None
    assert opened.closed


def test_a_process_that_leaves_closes_its_socket_at_once(monkeypatch):
    monkeypatch.setattr("tensorwasm.server.serving.AGAIN_S", 0.001)
    address, listening = listen(ListenAddress("127.0.0.1", 0))
    taken = []

    async def attempt():
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(10):
            await asyncio.sleep(0)
        taken.append(listen(address)[1])

    assert degraded(attempt, listening) is None
    taken[0].close()
