"""A task ends with its client, and with nothing else."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace

import pytest

from tensorwasm.server.exchange import DisconnectWatcher


def story(told):
    """Run a task that watches for its client; return what became of it and of the departure."""

    async def run():
        leaving = asyncio.get_running_loop().create_future()
        departure = DisconnectWatcher(SimpleNamespace(client_disconnect=lambda: leaving), asyncio.current_task())
        try:
            await told(leaving, departure)
        except asyncio.CancelledError:
            return "cancelled", departure.left
        return "went on", departure.left

    return asyncio.run(run())


def test_a_client_that_leaves_ends_the_task():
    async def told(leaving, departure):
        leaving.set_result(None)
        await asyncio.Event().wait()

    assert story(told) == ("cancelled", True)


@pytest.mark.parametrize("leaves", [False, True])
def test_whoever_watches_no_longer_goes_on(leaves):
    async def told(leaving, departure):
        departure.close()  # cancels what it waited for, which is then done too
        if leaves and not leaving.done():
            leaving.set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)

    assert story(told) == ("went on", False)


def test_a_client_that_has_left_already_ends_the_task_at_once():
    class Left:
        """What the server gives where there is nothing to wait for: it takes no callbacks."""

    async def run():
        departure = DisconnectWatcher(SimpleNamespace(client_disconnect=Left), asyncio.current_task())
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        departure.close()
        return departure.left

    assert asyncio.run(run())


class Kept:
    """A future as the server's are: it keeps its callback when it has ended, and the collector does not see into it."""

    def add_done_callback(self, callback, *, context):
        self.callback = callback

    def cancel(self):
        self.cancelled = True


def test_an_awaited_exchange_leaves_no_reference_cycle():
    async def run():
        departure = DisconnectWatcher(SimpleNamespace(client_disconnect=Kept), asyncio.current_task())
        waited_for = weakref.ref(departure._leaving)
        departure.close()
        return waited_for

    gc.disable()
    try:
        assert asyncio.run(run())() is None
    finally:
        gc.enable()
