"""The primary's side of links to fronts that end in the middle of something."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, asynccontextmanager

from tensorwasm.server.serving import raise_file_limit
from tensorwasm.service.fleet.link import Link
from tensorwasm.service.fleet.messages import Changed, Done, Hello, Settle
from tensorwasm.service.fleet.primary import ROUND_S, Fronts

WAIT_S = 5.0
MANY = 1100
"""Descriptors; select(2) knows those up to 1023 only."""

CHANGED = Changed(identities=True)


class Front:
    """A front that is a process that does nothing, and a link that is this test's."""

    def __init__(self, path):
        self._path = path
        self.process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
        self.told = []
        self.answer = self._acknowledge

    async def join(self):
        reader, writer = await asyncio.open_unix_connection(self._path)
        self.link = Link(reader, writer, self._take)
        self._running = asyncio.ensure_future(self.link.run())
        await self.link.ask(Hello(self.process.pid))

    def die(self):
        self.process.kill()
        self.process.wait()
        self.link.close()

    async def _take(self, message):
        self.told.append(message)
        return await self.answer()

    async def _acknowledge(self):
        return Done()

    async def end(self):
        self.link.close()
        await asyncio.gather(self._running, return_exceptions=True)
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


@asynccontextmanager
async def one_front(tmp_path):
    """Fronts with one that is connected."""
    path = str(tmp_path / "control")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    listening.setblocking(False)
    fronts, front = Fronts(lambda _report: None, None), Front(path)
    await fronts.listen(listening)
    await front.join()
    try:
        yield fronts, front
    finally:
        await front.end()
        await fronts.close()


def test_a_front_that_dies_while_it_is_told_keeps_no_change_from_being_acknowledged(tmp_path):
    async def main():
        async with one_front(tmp_path) as (fronts, front):

            async def die():
                front.die()
                return Done()

            front.answer = die
            await fronts.tell(CHANGED)
            assert len(fronts) == 0

    asyncio.run(main())


def test_a_front_whose_link_ends_while_it_is_told_is_told_again_over_its_next_one(tmp_path):
    async def main():
        async with one_front(tmp_path) as (fronts, front):

            async def again():
                front.answer = front._acknowledge
                front.link.close()
                return Done()

            front.answer = again
            telling = asyncio.ensure_future(fronts.tell(CHANGED))
            await fronts.wait_left(WAIT_S)
            await front.join()
            await telling
            assert front.told == [CHANGED, CHANGED]
            assert front.process.poll() is None

    asyncio.run(main())


def test_all_who_ask_at_once_wait_for_one_round_that_begins_behind_them(tmp_path):
    async def main():
        async with one_front(tmp_path) as (fronts, front):
            asked, may = asyncio.Event(), asyncio.Event()

            async def slowly():
                asked.set()
                await may.wait()
                return Done()

            front.answer = slowly
            first = asyncio.ensure_future(fronts.settle())
            await asked.wait()
            later = [asyncio.ensure_future(fronts.settle()) for _ in range(100)]
            front.answer = front._acknowledge
            may.set()
            await asyncio.gather(first, *later)
            assert front.told == [Settle()] * 2
            began_s = asyncio.get_running_loop().time()
            for _ in range(5):
                await fronts.settle()
            assert asyncio.get_running_loop().time() - began_s >= 4 * ROUND_S
            assert len(front.told) == 7

    asyncio.run(main())


def test_who_leaves_ends_no_round_of_others(tmp_path):
    async def main():
        async with one_front(tmp_path) as (fronts, _):
            leaving, other = (asyncio.ensure_future(fronts.settle()) for _ in range(2))
            await asyncio.sleep(0)
            leaving.cancel()
            await other

    asyncio.run(main())


def test_fronts_are_watched_by_a_process_with_thousands_of_descriptors(tmp_path):
    async def main():
        with ExitStack() as stack:
            assert raise_file_limit() > MANY + 100
            for _ in range(MANY):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
            async with one_front(tmp_path) as (fronts, front):
                front.link.close()
                telling = asyncio.ensure_future(fronts.tell(CHANGED))
                await fronts.wait_left(WAIT_S)
                front.die()
                await telling

    asyncio.run(main())
