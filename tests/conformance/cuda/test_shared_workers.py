"""A broker's worker on a GPU: fronts share its context, and the end of one, or of the process, costs no other front."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from tensorwasm.errors import DeviceFault, InvokeTimeout
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.broker import WorkerBroker
from tensorwasm.runtime.workers.pool import WorkerExecutor

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

SOON_S = 60
CALLS = 20
BLOCKS = 1 << 24
TIMEOUT, BUSY = -5, -6
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
VECTOR_ADD = (EXAMPLES / "vector_add" / "vector_add.wasm").read_bytes()
ENDLESS = r".version 7.0\0a.target sm_70\0a.address_size 64\0a.visible .entry k() { again: bra again; }\0a"
ENDLESS_BYTES = len(ENDLESS.replace(r"\0a", " "))
NOTHING = r".version 7.0\0a.target sm_70\0a.address_size 64\0a.visible .entry k() { ret; }\0a"
NOTHING_BYTES = len(NOTHING.replace(r"\0a", " "))
GUEST = bytes(
    wat2wasm(f"""(module
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_launch"
    (func $launch (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_launch_async"
    (func $launch_async (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64) (result i32)))
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "k")
  (data (i32.const 1024) "{ENDLESS}")
  (data (i32.const 2048) "{NOTHING}")
  (func (export "flood") (result i32) (local $kernel i64) (local $code i32)
    (local.set $kernel (call $load (i32.const 2048) (i32.const {NOTHING_BYTES}) (i32.const 0) (i32.const 1)))
    (loop $more
      (local.set $code (call $launch_async (local.get $kernel) (i32.const {BLOCKS}) (i32.const 1)
        (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)
        (i64.const 0)))
      (br_if $more (i32.eqz (local.get $code))))
    (local.get $code))
  (func (export "run") (result i32) (local $kernel i64)
    (local.set $kernel (call $load (i32.const 1024) (i32.const {ENDLESS_BYTES}) (i32.const 0) (i32.const 1)))
    (drop (call $emit (i32.const 0) (i32.const 1)))
    (call $launch (local.get $kernel) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1)
      (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0))))""")
)


@pytest.fixture
def owner():
    with WorkerExecutor("cuda:0", isolation="guarded") as executor:
        yield executor


@pytest.fixture
def path(owner, tmp_path):
    with WorkerBroker(owner, tmp_path / "broker.sock"):
        yield tmp_path / "broker.sock"


@pytest.fixture
def fronts(path):
    with WorkerExecutor(broker=path) as first, WorkerExecutor(broker=path) as second:
        yield first, second


def add(front, tenant):
    """Have a kernel add two vectors, and the guest check the sums."""
    outcome = front.submit(Request(module=VECTOR_ADD, name="vector_add", tenant=tenant, grants=Grants(cuda=True)))
    return b"verified" in outcome.result(SOON_S).stdout


def run_endless(front, tenant, **fields):
    """Have a guest launch a kernel that does not end by itself; return its ticket once the guest is about to."""
    begun = threading.Event()
    request = Request(module=GUEST, export="run", tenant=tenant, grants=Grants(cuda=True), **fields)
    ticket = front.submit(request, lambda *_: begun.set() or True)
    assert begun.wait(SOON_S)
    return ticket


@contextmanager
def serving(front, tenant):
    """Make one call after the other meanwhile; all of them have to succeed."""
    done = threading.Event()

    def serve():
        made = 0
        while not done.is_set() or not made:
            assert add(front, tenant)
            made += 1
        return made

    with ThreadPoolExecutor(1) as threads:
        served = threads.submit(serve)
        try:
            yield
        finally:
            done.set()
        assert served.result(SOON_S)


def pid_of(owner):
    (worker,) = owner.workers()
    return worker.pid


def test_fronts_share_one_context(owner, fronts):
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(add, fronts[at % 2], f"tenant-{at}") for at in range(CALLS)]
        assert all(call.result(SOON_S) for call in calls)
    assert [worker.starts for worker in owner.workers()] == [1]


def test_the_deadline_of_a_kernel_is_kept_beside_another_front(fronts):
    with serving(fronts[1], "bob"), pytest.raises(InvokeTimeout):
        run_endless(fronts[0], "ann", deadline_s=3.0).result(SOON_S)
    assert add(fronts[0], "ann")


def test_a_guest_that_starts_as_much_as_it_can_costs_no_neighbour_the_device(owner, fronts):
    assert add(fronts[1], "bob")
    before = pid_of(owner)
    flood = Request(module=GUEST, export="flood", tenant="ann", grants=Grants(cuda=True), deadline_s=2.0)
    with serving(fronts[1], "bob"), suppress(InvokeTimeout):
        assert fronts[0].submit(flood).result(SOON_S).values in {(TIMEOUT,), (BUSY,)}
    assert add(fronts[0], "ann")
    assert before in {worker.pid for worker in owner.workers()}, "there may be another, for long kernels"


def test_the_kernels_of_a_front_end_with_it(owner, path):
    with WorkerExecutor(broker=path) as stays:
        assert add(stays, "bob")
        before = pid_of(owner)
        with serving(stays, "bob"), WorkerExecutor(broker=path) as leaves:
            ticket = run_endless(leaves, "ann")
            leaves.close()
            assert ticket.exception(SOON_S) is not None
        with WorkerExecutor(broker=path) as comes:
            assert add(comes, "ann")
        assert pid_of(owner) == before


def test_a_process_that_is_killed_is_replaced_for_all_fronts(owner, fronts):
    assert add(fronts[1], "bob")
    before = pid_of(owner)
    ticket = run_endless(fronts[0], "ann")
    os.kill(before, signal.SIGKILL)
    assert isinstance(ticket.exception(SOON_S), DeviceFault)
    assert add(fronts[1], "carl")
    assert pid_of(owner) != before
