"""Whether the database answers is asked once, however many want to know."""

import asyncio
import threading
from functools import partial

import pytest

from tensorwasm.errors import DatabaseUnavailable, NotReady
from tensorwasm.service import readiness
from tensorwasm.service.readiness import Readiness


class Desk:
    """A desk whose answers wait until they are given."""

    def __init__(self):
        self.asked = []

    async def read(self, _function):
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


async def _ask(checking, times):
    asking = [asyncio.ensure_future(checking.require()) for _ in range(times)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return asking


def test_a_thousand_who_ask_at_once_are_one_question():
    async def story():
        desk = Desk()
        checking = Readiness({"database": partial(desk.read, None)})
        asking = await _ask(checking, 1000)
        asking[0].cancel()  # who leaves takes the answer from nobody
        desk.asked[0].set_result(1)
        assert await asyncio.gather(*asking[1:]) == [None] * 999
        assert len(desk.asked) == 1
        again = await _ask(checking, 1)
        desk.asked[1].set_exception(DatabaseUnavailable("it is gone"))
        with pytest.raises(DatabaseUnavailable, match="gone"):
            await again[0]
        later = await _ask(checking, 1)
        desk.asked[2].set_result(1)
        await later[0]

    asyncio.run(story())


def test_a_database_that_does_not_answer_is_not_asked_again_and_again(monkeypatch):
    monkeypatch.setattr(readiness, "READY_S", 0.01)

    async def story():
        desk = Desk()
        checking = Readiness({"database": partial(desk.read, None)})
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable, match="in time"):
                await checking.require()
        assert len(desk.asked) == 1
        desk.asked[0].set_exception(DatabaseUnavailable("it never was there"))

    asyncio.run(story())


def test_it_is_not_ready_before_what_requests_need_is_loaded():
    async def story():
        desk, loaded = Desk(), threading.Event()
        checking = Readiness({"database": partial(desk.read, None)})
        checking.load(lambda: loaded.wait(20) and None)
        with pytest.raises(NotReady):
            await checking.require()
        assert not desk.asked
        loaded.set()
        await asyncio.to_thread(checking._loading.join, 20)
        asking = await _ask(checking, 1)
        desk.asked[0].set_result(1)
        assert await asyncio.gather(*asking) == [None]

    asyncio.run(story())
