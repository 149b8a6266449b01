"""A kernel that breaks a rule takes the GPU from its own worker process, and from no other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from tensorwasm.errors import DeviceFault
from tensorwasm.runtime import Grants
from tensorwasm.runtime.request import Request
from tensorwasm.runtime.workers.pool import WorkerExecutor

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

SOON_S = 300
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
VECTOR_ADD = (EXAMPLES / "vector_add" / "vector_add.wasm").read_bytes()

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k()"
NOTHING = HEAD + " { ret; }\n"
ILLEGAL = HEAD + " { .reg .u64 %a; mov.u64 %a, 16; st.global.u64 [%a], %a; ret; }\n"


def escape(text):
    return "".join(f"\\{byte:02x}" for byte in text.encode())


GUEST = bytes(
    wat2wasm(f"""(module
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_launch"
    (func $launch (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_sync" (func $sync (result i32)))
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "k")
  (data (i32.const 1024) "{escape(NOTHING)}")
  (data (i32.const 2048) "{escape(ILLEGAL)}")
  (func $run (param $kernel i64) (result i32)
    (call $launch (local.get $kernel) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1)
      (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)))
  (func (export "once") (result i32)
    (call $run (call $load (i32.const 1024) (i32.const {len(NOTHING)}) (i32.const 0) (i32.const 1))))
  (func (export "work") (result i32) (local $kernel i64) (local $code i32)
    (local.set $kernel (call $load (i32.const 1024) (i32.const {len(NOTHING)}) (i32.const 0) (i32.const 1)))
    (local.set $code (call $run (local.get $kernel)))
    (drop (call $emit (i32.const 0) (i32.const 1)))
    (loop $again
      (if (i32.eqz (local.get $code)) (then (local.set $code (call $run (local.get $kernel))) (br $again))))
    (local.get $code))
  (func (export "fault") (result i32)
    (drop (call $run (call $load (i32.const 2048) (i32.const {len(ILLEGAL)}) (i32.const 0) (i32.const 1))))
    (call $sync)))""")
)


@pytest.fixture
def executor():
    with WorkerExecutor("cuda:0") as executor:
        yield executor


def call(executor, export, tenant, listener=None):
    request = Request(module=GUEST, export=export, tenant=tenant, grants=Grants(cuda=True))
    return executor.submit(request, listener)


def add(executor, tenant):
    return executor.submit(Request(module=VECTOR_ADD, name="vector_add", tenant=tenant, grants=Grants(cuda=True)))


def starts(executor):
    return {worker.tenant: worker.starts for worker in executor.workers()}


def test_a_worker_killed_by_a_planted_fault_while_another_serves(executor):
    assert add(executor, "bob").result(SOON_S).exit_code == 0
    begun = threading.Event()
    working = call(executor, "work", "ann", lambda *_: begun.set() or True)
    assert begun.wait(SOON_S)

    outcomes = []
    done = threading.Event()

    def serve():
        while not done.is_set():
            outcomes.append(add(executor, "bob").result(SOON_S))

    neighbour = threading.Thread(target=serve)
    neighbour.start()
    try:
        faulting = call(executor, "fault", "ann")
        for ticket in (working, faulting):
            with pytest.raises(DeviceFault, match="tried again") as fault:
                ticket.result(SOON_S)
            assert fault.value.kind == "device_lost"
            assert fault.value.retryable
        assert call(executor, "once", "ann").result(SOON_S).values == (0,)
        assert add(executor, "ann").result(SOON_S).exit_code == 0
    finally:
        done.set()
        neighbour.join(SOON_S)
    assert outcomes
    assert all(outcome.exit_code == 0 and b"verified" in outcome.stdout for outcome in outcomes)
    assert starts(executor) == {"ann": 2, "bob": 1}


def test_fault_after_fault_the_worker_comes_back_and_nothing_stays_charged(executor):
    for _ in range(3):
        with pytest.raises(DeviceFault, match="tried again"):
            call(executor, "fault", "ann").result(SOON_S)
        assert call(executor, "once", "ann").result(SOON_S).values == (0,)
    assert starts(executor) == {"ann": 4}
    executor.drain()
    assert executor.statistics().tenants == ()


def test_without_being_asked_no_worker_joins_a_daemon_of_mps(executor):
    assert call(executor, "once", "ann").result(SOON_S).values == (0,)
    (worker,) = executor.workers()
    variables = Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_MPS_PIPE_DIRECTORY=/dev/null" in variables
    assert worker.info.kind == "cuda"


def test_every_gpu_is_found_by_its_ordinal():
    with WorkerExecutor("cuda", isolation="shared") as executor:
        assert call(executor, "once", "ann").result(SOON_S).values == (0,)
        assert executor.workers()[0].device == "cuda:0"
