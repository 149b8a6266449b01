"""A server that cannot open its service at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tensorwasm.errors import DatabaseOwned, DatabaseUnavailable
from tensorwasm.server.process import starting
from tensorwasm.server.process.address import ListenAddress, listen
from tensorwasm.server.process.fleet import REFUSED
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.telemetry.metrics import Metrics


@dataclass
class Start:
    """As much of what a process begins with as opening needs."""

    settings: ServiceSettings
    notice: Callable[[], None]
    metrics: Metrics = field(default_factory=Metrics)


class Opened:
    async def close(self):
        """Nothing is open."""


@pytest.fixture
def opens(monkeypatch, tmp_path):
    """Return a function that opens a service whose attempts have these outcomes, and says whether it was degraded."""
    monkeypatch.setattr(starting, "OWNED_AGAIN_S", 0.001)
    monkeypatch.setattr("tensorwasm.server.serving.AGAIN_S", 0.001)
    settings = ServiceSettings.from_environment(
        {"TENSOR_WASM_DATA": str(tmp_path), "TENSOR_WASM_API_DISK_RESERVE": "0"}
    )

    def opens(*outcomes):
        left, told = list(outcomes), []

        async def attempt(_settings, **_):
            found = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(found, Exception):
                raise found
            return found

        async def story():
            with listen(ListenAddress("127.0.0.1", 0))[1] as listening:
                start = Start(settings, lambda: told.append(True))
                return await starting._open_owner(start, None, listening, None)

        monkeypatch.setattr(starting, "open_service", attempt)
        return asyncio.run(story()), bool(told)

    return opens


OWNED = DatabaseOwned("another server has the file of the database")


def test_a_database_that_is_free_soon_is_waited_for_without_a_word_to_clients(opens):
    opened = Opened()
    assert opens(OWNED, OWNED, OWNED, opened) == (opened, False)


def test_clients_are_told_of_one_that_takes_longer(opens, monkeypatch, caplog):
    monkeypatch.setattr(starting, "QUIET_S", 0.0)
    opened = Opened()
    assert opens(OWNED, OWNED, OWNED, opened) == (opened, True)
    assert caplog.text.count("another server has the file of the database") == 1


def test_one_that_is_never_free_is_a_mistake_of_the_operator(opens, monkeypatch):
    monkeypatch.setattr(starting, "OWNED_S", 0.0)
    with pytest.raises(DatabaseOwned) as caught:
        opens(OWNED)
    assert caught.value.exit_code in REFUSED, "another process is not tried"


def test_a_database_that_does_not_answer_is_not_waited_for(opens):
    with pytest.raises(DatabaseUnavailable):
        opens(DatabaseUnavailable("it is damaged"), Opened())
