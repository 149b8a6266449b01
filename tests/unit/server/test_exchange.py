"""A task ends with its client, and with nothing else."""

from __future__ import annotations

import asyncio

import pytest

from fakes.wire import FakeWire
from tensorwasm.server.exchange import DisconnectWatcher


def story(told):
    """Run a task that watches for its client; return what became of it and of the departure."""

    async def run():
        wire = FakeWire()
        departure = DisconnectWatcher(wire, asyncio.current_task())
        try:
            await told(wire, departure)
        except asyncio.CancelledError:
            return "cancelled", departure.left
        return "went on", departure.left

    return asyncio.run(run())


def test_a_client_that_leaves_ends_the_task():
    async def told(wire, departure):
        wire.leave()
        await asyncio.Event().wait()

    assert story(told) == ("cancelled", True)


def test_a_task_that_is_watched_no_longer_goes_on():
    async def told(wire, departure):
        departure.close()
        wire.leave()
        for _ in range(3):
            await asyncio.sleep(0)

    assert story(told) == ("went on", False)


def test_a_client_that_has_left_already_ends_the_task_at_once():
    async def run():
        wire = FakeWire()
        wire.leave()
        departure = DisconnectWatcher(wire, asyncio.current_task())
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        departure.close()
        return departure.left

    assert asyncio.run(run())


def test_nothing_is_watched_for_afterwards():
    async def told(wire, departure):
        departure.close()
        assert not wire.leaving

    assert story(told) == ("went on", False)
