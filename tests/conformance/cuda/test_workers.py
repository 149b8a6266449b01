"""A kernel that breaks a rule takes the GPU from its own worker process, and from no other."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from conformance.cuda.kernels import SMID
from fakes.argv import encode_argv
from tensorwasm import settings
from tensorwasm.errors import DeviceFault, DeviceUnavailable
from tensorwasm.gpu.cuda.assembler import find_assembler
from tensorwasm.gpu.cuda.driver.calls import load_driver
from tensorwasm.gpu.cuda.driver.versions import cuda_version
from tensorwasm.guest.imports.argv import WindowArg
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.pool import WorkerExecutor

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

SOON_S = 300
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
VECTOR_ADD = (EXAMPLES / "vector_add" / "vector_add.wasm").read_bytes()

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k()"
NOTHING = HEAD + " { ret; }\n"
ILLEGAL = HEAD + " { .reg .u64 %a; mov.u64 %a, 16; st.global.u64 [%a], %a; ret; }\n"


def escape(data):
    data = data.encode() if isinstance(data, str) else data
    return "".join(f"\\{byte:02x}" for byte in data)


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
    with WorkerExecutor("cuda:0", isolation="process") as executor:
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
    with WorkerExecutor("cuda", isolation="process") as executor:
        assert call(executor, "once", "ann").result(SOON_S).values == (0,)
        assert executor.workers()[0].device == "cuda:0"


def test_tenants_share_a_worker_only_where_ptxas_compiles_for_the_gpu(gpu):
    ptxas = find_assembler(settings.current().ptxas, os.environ)
    cuda = cuda_version(int(load_driver().call("cuDriverGetVersion")))
    with WorkerExecutor("cuda:0", isolation="stream") as executor:
        if ptxas is not None and ptxas.serves(gpu.info.compute_capability, cuda):
            outcomes = [call(executor, "once", tenant).result(SOON_S).values for tenant in ("ann", "bob")]
            assert outcomes == [(0,), (0,)]
            assert len(executor.workers()) == 1
        else:
            with pytest.raises(DeviceUnavailable, match=r"ptxas.*isolation='process'"):
                call(executor, "once", "ann").result(SOON_S)


# ------------------------------------------------------------------------------------------------------------- shares

BLOCKS = 1 << 14  # whose answers, 4 bytes each, are one chunk
ANSWERS_AT = 1 << 16
RECORDS = encode_argv([WindowArg(ANSWERS_AT, 4 * BLOCKS)])

WHERE = bytes(
    wat2wasm(f"""(module
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_launch"
    (func $launch (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "smid")
  (data (i32.const 64) "{escape(RECORDS)}")
  (data (i32.const 1024) "{escape(SMID)}")
  (func (export "where") (param $rounds i32) (result i32) (local $kernel i64) (local $code i32)
    (local.set $kernel (call $load (i32.const 1024) (i32.const {len(SMID)}) (i32.const 0) (i32.const 4)))
    (loop $again
      (local.set $code (call $launch (local.get $kernel) (i32.const {BLOCKS}) (i32.const 1) (i32.const 1)
        (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 64) (i32.const {len(RECORDS)})))
      (if (local.get $code) (then (return (local.get $code))))
      (local.set $code (call $emit (i32.const {ANSWERS_AT}) (i32.const {4 * BLOCKS})))
      (if (local.get $code) (then (return (local.get $code))))
      (local.set $rounds (i32.sub (local.get $rounds) (i32.const 1)))
      (br_if $again (local.get $rounds)))
    (i32.const 0)))""")
)
"""Launches many blocks again and again, and sends which multiprocessor each of them ran on."""


def multiprocessors_of(executor, tenant):
    """Return the multiprocessors that a tenant's blocks run on, and how many its worker says it has."""
    request = Request(module=WHERE, export="where", args=(5,), tenant=tenant, grants=Grants(cuda=True))
    outcome = executor.submit(request).result(SOON_S)
    assert outcome.values == (0,)
    (worker,) = [each for each in executor.workers() if each.tenant == tenant]
    return set(struct.unpack(f"<{5 * BLOCKS}I", b"".join(outcome.chunks))), worker.info.multiprocessors


@pytest.mark.parametrize(
    "shares",
    [{"ann": 16, "bob": 16, "carl": 16}, {"ann": 8, "bob": 24, "carl": 16}],
    ids=["equal", "of several groups"],
)
def test_workers_with_shares_of_one_gpu_run_on_multiprocessors_of_their_own(gpu, shares):
    if gpu.info.multiprocessors < 64:
        pytest.skip(f"three shares need 64 multiprocessors, the GPU has {gpu.info.multiprocessors}")
    taken = set()
    with WorkerExecutor("cuda:0", shares=shares) as executor:
        for tenant, asked in shares.items():
            own, told = multiprocessors_of(executor, tenant)
            assert asked <= told < gpu.info.multiprocessors
            assert 0 < len(own) <= told
            assert not own & taken
            taken |= own
        again, _ = multiprocessors_of(executor, "bob")
        first, _ = multiprocessors_of(executor, "ann")
        assert not again & first


def test_a_worker_with_a_share_comes_back_where_it_was(gpu):
    with WorkerExecutor("cuda:0", shares={"ann": 16, "bob": 16}) as executor:
        ann, _ = multiprocessors_of(executor, "ann")
        multiprocessors_of(executor, "bob")
        with pytest.raises(DeviceFault, match="tried again"):
            call(executor, "fault", "bob").result(SOON_S)
        bob, _ = multiprocessors_of(executor, "bob")
        assert starts(executor) == {"ann": 1, "bob": 2}
        assert not ann & bob


def test_shares_that_exceed_the_gpu_are_an_error_at_the_start(gpu):
    more_than_half = gpu.info.multiprocessors // 2 + 1
    with WorkerExecutor("cuda:0", shares={"ann": more_than_half, "bob": more_than_half}) as executor:
        assert call(executor, "once", "ann").result(SOON_S).values == (0,)
        with pytest.raises(DeviceUnavailable, match="the shares exceed the GPU"):
            call(executor, "once", "bob").result(SOON_S)
        assert call(executor, "once", "ann").result(SOON_S).values == (0,)
