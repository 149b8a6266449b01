"""An event loop that reads connections: which thread reads, and what is left at the end."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading

import pytest

from tensorwasm.runtime.workers.conversation.loop_reader import LoopReader

if sys.platform == "win32":
    pytest.skip("workers need Linux or macOS", allow_module_level=True)

LIMIT_S = 60.0


class Reading:
    """Reads a connection until it ends."""

    def __init__(self, link):
        self.link, self.data, self.threads, self.ended = link, b"", set(), asyncio.Event()

    def read(self):
        self.threads.add(threading.get_ident())
        data = self.link.recv(1 << 16)
        self.data += data
        if not data:
            self.ended.set()
        return bool(data)


async def wait(event):
    await asyncio.wait_for(event.wait(), LIMIT_S)


def test_a_connection_is_read_on_the_loops_thread_until_it_ends():
    async def main():
        reader = LoopReader()
        ours, theirs = socket.socketpair()
        reading = Reading(theirs)
        with ours, theirs:
            assert await asyncio.to_thread(reader.watch, theirs, reading.read)
            ours.sendall(b"any")
            ours.shutdown(socket.SHUT_WR)
            await wait(reading.ended)
            assert (reading.data, reading.threads) == (b"any", {threading.get_ident()})
            assert not reader._links
        reader.close()

    asyncio.run(main())


def test_only_the_loops_thread_is_here_and_only_while_it_reads():
    async def main():
        reader = LoopReader()
        assert reader.here
        assert not await asyncio.to_thread(lambda: reader.here)
        reader.close()
        assert not reader.here

    asyncio.run(main())


def test_work_is_done_once_a_turn():
    async def main():
        reader, done = LoopReader(), []
        work = (lambda: done.append(1)), (lambda: done.append(2))
        for each in work * 3:
            reader.soon(each)
        assert not done
        await asyncio.sleep(0)
        assert done == [1, 2]
        reader.soon(work[0])
        await asyncio.sleep(0)
        assert done == [1, 2, 1]
        reader.close()

    asyncio.run(main())


def test_a_reader_that_is_closed_watches_nothing():
    async def main():
        reader = LoopReader()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            reading = Reading(theirs)
            reader.watch(theirs, reading.read)
            await asyncio.sleep(0)
            reader.close()
            late = Reading(theirs)
            reader.watch(theirs, late.read)
            ours.sendall(b"any")
            for _ in range(3):
                await asyncio.sleep(0)
            assert (reading.data, late.data) == (b"", b"")
        return reader

    reader = asyncio.run(main())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not reader.watch(theirs, list)
