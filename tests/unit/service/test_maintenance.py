"""Failed rounds of periodic work."""

import asyncio
import logging

import pytest

from tensorwasm.errors import DatabaseUnavailable
from tensorwasm.service.clock import run_round


@pytest.mark.parametrize("error", [DatabaseUnavailable("no"), ValueError("a bug")])
def test_an_error_is_logged_and_not_raised(error, caplog):
    async def work():
        raise error

    asyncio.run(run_round(work, "it cannot be done", logging.getLogger(__name__)))
    assert "it cannot be done" in caplog.text
    assert ("ValueError" in caplog.text) == isinstance(error, ValueError)
