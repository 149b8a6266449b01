"""Whether the database answers is asked once, however many want to know."""

import asyncio
import threading
from functools import partial

import pytest

from tensorwasm.errors import DatabaseUnavailable, NotReady
from tensorwasm.service import readiness
from tensorwasm.service.readiness import Readiness


class SlowDatabase:
    """A database executor whose answers wait until they are given."""

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


def test_concurrent_requests_share_one_check():
    async def story():
        database = SlowDatabase()
        checking = Readiness({"database": partial(database.read, None)})
        asking = await _ask(checking, 1000)
        asking[0].cancel()  # who leaves takes the answer from nobody
        database.asked[0].set_result(1)
        assert await asyncio.gather(*asking[1:]) == [None] * 999
        assert len(database.asked) == 1
        again = await _ask(checking, 1)
        database.asked[1].set_exception(DatabaseUnavailable("it is gone"))
        with pytest.raises(DatabaseUnavailable, match="gone"):
            await again[0]
        later = await _ask(checking, 1)
        database.asked[2].set_result(1)
        await later[0]

    asyncio.run(story())


def test_a_check_that_hangs_is_not_repeated(monkeypatch):
    monkeypatch.setattr(readiness, "READY_S", 0.01)

    async def story():
        database = SlowDatabase()
        checking = Readiness({"database": partial(database.read, None)})
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable, match="in time"):
                await checking.require()
        assert len(database.asked) == 1
        database.asked[0].set_exception(DatabaseUnavailable("it never was there"))

    asyncio.run(story())


def test_a_server_is_not_ready_before_loading_has_ended():
    async def story():
        database, loaded = SlowDatabase(), threading.Event()
        checking = Readiness({"database": partial(database.read, None)})
        checking.load(lambda: loaded.wait(20) and None)
        with pytest.raises(NotReady):
            await checking.require()
        assert not database.asked
        loaded.set()
        await asyncio.to_thread(checking._loading.join, 20)
        asking = await _ask(checking, 1)
        database.asked[0].set_result(1)
        assert await asyncio.gather(*asking) == [None]

    asyncio.run(story())
