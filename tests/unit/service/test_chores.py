"""Chores that go wrong."""

import asyncio
import logging

import pytest

from tensorwasm.errors import DatabaseUnavailable
from tensorwasm.service.maintenance import do


@pytest.mark.parametrize("error", [DatabaseUnavailable("no"), ValueError("a bug")])
def test_what_goes_wrong_is_said_and_ends_nothing(error, caplog):
    async def chore():
        raise error

    asyncio.run(do(chore, "it cannot be done", logging.getLogger(__name__)))
    assert "it cannot be done" in caplog.text
    assert ("ValueError" in caplog.text) == isinstance(error, ValueError)
