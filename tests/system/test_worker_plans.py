"""Plans of loops for worker processes: the parent makes and keeps them, so that a worker that is replaced has them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from loops import compile_c
from tensorwasm.errors import DeviceFault
from tensorwasm.runtime.deploy import kernel_folder
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.kernels.plans import WorkerPlans
from tensorwasm.runtime.workers.pool import WorkerExecutor

if sys.platform == "win32":
    pytest.skip("workers need Linux or macOS", allow_module_level=True)

PROGRAM = """
static double x[256];
int __attribute__((export_name("last"))) last(int n) {
  int at = 0;
  for (int i = 0; i < n; i++) { x[i] += 3; at = 5 * i; }
  return at;
}
"""
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def _disk(monkeypatch):
    """Keep plans for one test."""
    kept = {}
    store = SimpleNamespace(get=kept.get, put=kept.__setitem__)
    monkeypatch.setattr(kernel_folder, "open_kernel_folder", lambda: store)


@pytest.fixture
def answered(monkeypatch):
    """Return a semaphore that each answer to a worker that wants a plan releases."""
    answers, submit = threading.Semaphore(0), WorkerPlans.submit

    def watch(plans, tenant, job, done):
        submit(plans, tenant, job, lambda outcome: (done(outcome), answers.release()))

    monkeypatch.setattr(WorkerPlans, "submit", watch)
    return answers


def call_until_taken(executor, module, answered):
    """Call, now and then until the worker has been given a plan, until the loop runs elsewhere."""
    request, until_s = Request(module, "last", (200,), offload="gpu"), time.monotonic() + LIMIT_S
    waits = True
    while time.monotonic() < until_s:
        outcome = executor.submit(request).result(LIMIT_S)
        assert outcome.values == (995,)
        if outcome.offload is not None and outcome.offload.taken:
            return True
        waits = waits and not answered.acquire(timeout=0.1)
    return False


def test_a_worker_that_is_replaced_finds_the_plans_of_the_one_before(answered):
    module = compile_c(PROGRAM, "-O2")
    with WorkerExecutor("emulator") as executor:
        assert call_until_taken(executor, module, answered)
        plans = executor._plans._compiler.plans
        made = plans.made
        assert (made > 0, plans.kept) == (True, 0)
        (worker,) = executor.workers()
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(DeviceFault):
            executor.submit(Request(module, "last", (200,))).result(LIMIT_S)
        assert call_until_taken(executor, module, answered)
        assert (plans.made, plans.kept > 0) == (made, True)


def test_a_server_that_is_started_again_makes_no_plan_again(answered):
    module = compile_c(PROGRAM, "-O2")
    made = []
    for _ in range(2):
        with WorkerExecutor("emulator") as executor:
            assert call_until_taken(executor, module, answered)
            made.append(executor._plans._compiler.plans.made)
    assert (made[0] > 0, made[1]) == (True, 0)
