"""Worker processes behind the service: kernels of functions that are deployed."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from fakes.services import GUEST, opened
from tensorwasm import Runtime, settings
from tensorwasm.database.functions import FunctionOptions
from tensorwasm.errors import DeviceUnavailable, NotReady
from tensorwasm.service.invocations import workers as module_under_test
from tensorwasm.service.invocations.workers import Workers

CUDA = FunctionOptions(grants=("cuda",))
LIMIT_S = 60


class Executor:
    """Notes what it is to prepare."""

    prepared = 3

    def __init__(self, error=None):
        self.error = error
        self.taken = []
        self.go = threading.Event()
        self.go.set()
        self.changed = threading.Condition()
        self.begun = threading.Event()

    def begin(self):
        self.begun.set()

    def read_on(self, reader):
        """No process says anything."""

    def prepare(self, *given):
        assert self.go.wait(LIMIT_S)
        with self.changed:
            self.taken.append(given)
            self.changed.notify_all()
        if self.error is not None:
            raise self.error

    def wait(self, number):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.taken) >= number, LIMIT_S)


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator") as runtime:
        yield runtime


def test_the_kernels_of_a_function_that_is_deployed_are_prepared(tmp_path, runtime):
    executor = Executor()

    async def story():
        async with opened(tmp_path, runtime=runtime, workers=Workers(lambda: executor)) as service:
            await service.functions.deploy(1, "without", GUEST)
            assert not executor.taken
            await service.functions.deploy(1, "with", GUEST, CUDA)
            await asyncio.to_thread(executor.wait, 1)
            assert executor.taken == [("1", GUEST, None)]
            assert service.invocations.workers.prepared == 3

    asyncio.run(story())


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "auto", "emulator"])
def test_workers_of_a_gpu_that_was_chosen_by_name_are_started_with_the_service(tmp_path, runtime, monkeypatch, device):
    executor = Executor()
    chosen = replace(settings.current(), device=device)
    monkeypatch.setattr(settings, "current", lambda: chosen)
    workers = Workers.from_settings("")
    workers._open_executor = lambda: executor

    async def story():
        async with opened(tmp_path, runtime=runtime, workers=workers) as service:
            if device.startswith("cuda"):
                assert await asyncio.to_thread(executor.begun.wait, LIMIT_S)
            else:
                await service.functions.deploy(1, "with", GUEST, CUDA)
                await asyncio.to_thread(executor.wait, 1)
                assert not executor.begun.is_set()

    asyncio.run(story())


@pytest.mark.parametrize("error", [DeviceUnavailable("there is no GPU"), ValueError("a bug")])
def test_a_deploy_succeeds_whatever_comes_of_its_kernels(tmp_path, runtime, error):
    executor = Executor(error)

    async def story():
        async with opened(tmp_path, runtime=runtime, workers=Workers(lambda: executor)) as service:
            assert (await service.functions.deploy(1, "one", GUEST, CUDA)).current == 1
            await asyncio.to_thread(executor.wait, 1)

    asyncio.run(story())


def test_a_deploy_does_not_wait_for_its_kernels(tmp_path, runtime):
    executor = Executor()
    executor.go.clear()

    async def story():
        async with opened(tmp_path, runtime=runtime, workers=Workers(lambda: executor)) as service:
            assert (await service.functions.deploy(1, "one", GUEST, CUDA)).current == 1
            executor.go.set()

    asyncio.run(story())


def test_executors_that_cannot_be_opened_harm_nobody():
    def fail():
        raise DeviceUnavailable("there is no GPU")

    async def story():
        workers = Workers(fail)
        workers.prepare("1", b"", None)
        await workers.close()
        assert workers.prepared == 0
        workers.prepare("1", b"", None)

    asyncio.run(story())


def test_what_is_looked_at_is_bounded(monkeypatch):
    monkeypatch.setattr(module_under_test, "_MAX_PREPARING", 2)
    executor = Executor()
    executor.go.clear()

    async def story():
        workers = Workers(lambda: executor)
        for number in range(5):
            workers.prepare("1", b"%d" % number, None)
        executor.go.set()
        await asyncio.to_thread(executor.wait, 2)
        await workers.close()

    asyncio.run(story())
    assert {module for _, module, _ in executor.taken} == {b"0", b"1"}


def test_a_call_while_the_broker_is_away_may_be_tried_again(monkeypatch, tmp_path):
    monkeypatch.setattr(module_under_test, "JOIN_S", 0.0)

    async def story():
        workers = Workers.from_settings("", str(tmp_path / "broker"))
        with pytest.raises(NotReady, match="no broker answers") as found:
            await workers.open()
        assert found.value.retryable
        await workers.close()

    asyncio.run(story())
