"""How much of a call's time its guest waited for the device, however it waits and whatever runs it."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

import tensorwasm.runtime.invoke.fiber_runner
from fakes.napping import NAP_S, NAPPING, WAYS
from tensorwasm import Runtime, settings
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.pool import WorkerExecutor

SOON_S = 60.0
CUDA = {"grants": ("cuda",)}


@pytest.fixture(scope="module", params=["python", "compiled"])
def runtime(request):
    if request.param == "compiled":
        pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch, Runtime("emulator") as made:
        changed = dataclasses.replace(settings.current(), native="on" if request.param == "compiled" else "off")
        patch.setattr(settings, "current", lambda: changed)
        made.load(NAPPING).invoke("copy", **CUDA)  # from now on there are compiled code and device memory
        yield made


@pytest.fixture(params=["invoked", "submitted", "on a thread", "live"])
def call(request, runtime, monkeypatch):
    """Return a function that calls an export and returns its outcome."""
    function = runtime.load(NAPPING)
    if request.param == "invoked":
        yield lambda export: function.invoke(export, **CUDA)
        return
    if request.param == "live":
        with function.open(**CUDA) as live:
            yield live.call
        return
    if request.param == "on a thread":
        monkeypatch.setattr(tensorwasm.runtime.invoke.fiber_runner, "load_suspension_code", lambda: None)
    elif not may_have_fibers():
        pytest.skip("NO FIBERS: they need Linux and Numba")
    yield lambda export: function.submit(export, **CUDA).result(SOON_S)


def check(outcome):
    """Check that the kernel took the call's time, and nearly all of it."""
    assert outcome.values == (0,)
    assert 0.95 * NAP_S <= outcome.device_s <= outcome.elapsed_s
    assert outcome.device_s > outcome.elapsed_s / 2


@pytest.mark.parametrize("way", WAYS)
def test_a_wait_for_a_kernel_is_the_devices(call, way):
    check(call(way))


def test_a_call_knows_nothing_of_the_one_before(call):
    check(call("launch"))
    for _ in range(2):
        assert call("nothing").device_s == 0.0
    check(call("launch"))


def test_work_that_a_guest_leaves_behind_is_not_its_own_time(call):
    outcome = call("leave")
    assert 0 <= outcome.device_s <= outcome.elapsed_s < outcome.device_s + NAP_S / 2


def test_a_guest_that_computes_does_not_wait(call):
    outcome = call("compute")
    assert outcome.values == (0,)
    assert outcome.device_s < outcome.elapsed_s / 2


def test_a_call_without_a_device_waits_for_none(runtime):
    function = runtime.load(NAPPING)
    assert function.invoke("nothing").device_s == 0.0
    assert function.submit("nothing").result(SOON_S).device_s == 0.0


def test_a_worker_tells_it():
    with WorkerExecutor("emulator") as executor:
        ask = Request(NAPPING, export="launch", grants=Grants(cuda=True))
        executor.submit(ask).result(SOON_S)
        check(executor.submit(ask).result(SOON_S))
        assert executor.submit(msgspec.structs.replace(ask, export="nothing")).result(SOON_S).device_s == 0.0
