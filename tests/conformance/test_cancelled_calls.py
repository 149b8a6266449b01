"""A call that is cancelled ends with its kernels, long before its deadline, however it is made."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError

import pytest
from wasmtime import wat2wasm

from fakes.emulation import kernel
from tensorwasm.errors import GuestTrap, InvokeTimeout, TensorWasmError
from tensorwasm.runtime import Grants, Runtime
from tensorwasm.runtime.executor.local import LocalExecutor
from tensorwasm.runtime.executor.request import Request
from tensorwasm.values import Deadline, Limits

WALL_S = 100.0
SOON_S = 50.0


def data(at, text):
    return f'(data (i32.const {at}) "{"".join(f"{chr(92)}{byte:02x}" for byte in text)}")'


ENDLESS = kernel("AGAIN: bra AGAIN;", params=0).encode()
SHORT = kernel("ret;", params=0).encode()
LAUNCH = "(param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32"
ONE = " ".join(["(i32.const 1)"] * 6 + ["(i32.const 0)"] * 3)
GUEST = bytes(
    wat2wasm(f"""(module
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_launch" (func $launch {LAUNCH}) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_launch_async" (func $start {LAUNCH} i64) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_graph_begin" (func $record (param i64) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_graph_end" (func $recorded (param i64) (result i64)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_graph_launch" (func $replay (param i64 i64) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_sync" (func $sync (result i32)))
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  {data(0, b"k")} {data(1024, ENDLESS)} {data(4096, SHORT)}
  (func $begun (result i64)
    (call $load (i32.const 1024) (i32.const {len(ENDLESS)}) (i32.const 0) (i32.const 1))
    (drop (call $emit (i32.const 0) (i32.const 1))))
  (func (export "launch") (result i32) (call $launch (call $begun) {ONE}))
  (func (export "start") (result i32) (drop (call $start (call $begun) {ONE} (i64.const 0))) (call $sync))
  (func (export "leave") (drop (call $start (call $begun) {ONE} (i64.const 0))))
  (func (export "replay") (result i32) (local $kernel i64)
    (local.set $kernel (call $load (i32.const 4096) (i32.const {len(SHORT)}) (i32.const 0) (i32.const 1)))
    (drop (call $record (i64.const 0)))
    (drop (call $start (local.get $kernel) {ONE} (i64.const 0)))
    (drop (call $replay (call $recorded (i64.const 0)) (i64.const 0)))
    (call $sync))
  (func (export "short") (result i32)
    (call $launch (call $load (i32.const 4096) (i32.const {len(SHORT)}) (i32.const 0) (i32.const 1)) {ONE})))""")
)
CUDA = Grants(cuda=True)


@pytest.fixture(scope="module")
def runtime(device):
    if not device.windows.available:
        pytest.skip("this device has no windows of addresses")
    with Runtime(device.info.kind, isolation="guarded", limits=Limits(wall_s=WALL_S)) as runtime:
        yield runtime


def heard(begun):
    """Return a listener that sets an event."""
    return lambda *_: begun.set() or True


@pytest.mark.parametrize("export", ["launch", "start"])
@pytest.mark.parametrize("memory", ["pinned", "staged"])
@pytest.mark.parametrize("way", ["stop", "cancel"])
def test_a_request_whose_output_is_sent_ends_with_its_kernels(runtime, export, memory, way):
    executor, begun = LocalExecutor(runtime), threading.Event()
    request = Request(module=GUEST, export=export, grants=CUDA, memory_kind=memory, limits=Limits(wall_s=WALL_S))
    ticket = executor.submit(request, heard(begun))
    assert begun.wait(SOON_S)
    getattr(ticket, way)()
    with pytest.raises((GuestTrap, InvokeTimeout, CancelledError)):
        ticket.result(SOON_S)
    began_s = time.monotonic()
    executor.close()  # waits for the guest
    assert time.monotonic() - began_s < SOON_S
    assert executor.charges() == {}


@pytest.mark.parametrize("export", ["launch", "start"])
def test_a_live_sandbox_that_is_cancelled_ends_its_kernels(runtime, export):
    begun, outcomes = threading.Event(), []
    function = runtime.load(GUEST)
    with function.open(grants=CUDA) as live:

        def call():
            with pytest.raises(TensorWasmError) as failure:
                live.call(export, on_chunk=lambda _: begun.set() or True)
            outcomes.append(failure.value)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        assert begun.wait(SOON_S)
        live.cancel()
        thread.join(SOON_S)
        (failure,) = outcomes
        assert isinstance(failure, GuestTrap)
        assert failure.trap == "cancelled"


@pytest.mark.parametrize("export", ["launch", "start", "leave"])
def test_a_cancel_is_kept_until_the_call_has_ended_with_its_kernels(runtime, export):
    begun = threading.Event()
    with runtime.load(GUEST).open(grants=CUDA) as live:

        def call():
            with pytest.raises(TensorWasmError):
                live.call(export, on_chunk=lambda _: begun.set() or True)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        assert begun.wait(SOON_S)
        live.cancel()
        live.resume()  # waits for the call
        thread.join(SOON_S)
        assert not thread.is_alive()


def test_the_deadline_of_a_replay_that_has_ended_ends_nothing_that_comes_later(runtime):
    with runtime.load(GUEST).open(grants=CUDA) as live:
        assert live.call("replay").values == (0,)  # a GPU compiles the kernel first
        now = Deadline.after(0.2)
        assert live.call("replay", deadline=now).values == (0,)
        while not now.expired():
            pass
        assert live.call("short").values == (0,)


def test_a_live_sandbox_that_was_cancelled_launches_again_once_it_is_resumed(runtime):
    with runtime.load(GUEST).open(grants=CUDA) as live:
        assert live.call("short").values == (0,)
        live.cancel()
        live.resume()
        assert live.call("short").values == (0,)
