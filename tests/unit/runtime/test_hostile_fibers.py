"""Submitted guests that give the device all they can behind work that does not end, beside one that wants little."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest
from wasmtime import wat2wasm

import tensorwasm.gpu.resources.device_resources
from tensorwasm import Runtime
from tensorwasm.bench.device.waiting import GatedHost
from tensorwasm.gpu.emulator.streams import queues
from tensorwasm.gpu.limits import queue_credits
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.values import Limits

pytestmark = pytest.mark.skipif(not may_have_fibers(), reason="NO FIBERS: they need Linux and Numba")

SOON_S = 60.0
PTX = ".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry nothing() { ret; }\\n"
DEVICE = "wasi:cuda/host@0.3.0"
IMPORTS = {
    "load_ptx": "(param i32 i32 i32 i32) (result i64)",
    "launch": "(param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)",
    "launch_async": "(param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64) (result i32)",
    "alloc": "(param i32 i32) (result i64)",
    "memcpy_h2d": "(param i32 i32 i32 i32) (result i32)",
    "memcpy_d2h": "(param i32 i32 i32 i32) (result i32)",
    "memcpy_h2d_async": "(param i64 i64 i32 i32 i64) (result i32)",
    "sync": "(result i32)",
    "stream_create": "(result i64)",
    "stream_wait_event": "(param i64 i64) (result i32)",
    "event_create": "(result i64)",
    "event_record": "(param i64 i64) (result i32)",
    "event_sync": "(param i64) (result i32)",
    "graph_begin": "(param i64) (result i32)",
    "graph_end": "(param i64) (result i64)",
    "graph_launch": "(param i64 i64) (result i32)",
}
START = """(call $launch_async (local.get $kernel) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1)
  (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0))"""
LOOPS = {
    "launch_async": START,
    "copy_async": "(call $memcpy_h2d_async (local.get $buffer) (i64.const 0) "
    "(i32.const 0) (i32.const 4) (i64.const 0))",
    "event_record": "(call $event_record (local.get $event) (i64.const 0))",
    "wait_event": f"(i32.or {START} (call $stream_wait_event (local.get $stream) (local.get $event)))",
    "graph_launch": "(call $graph_launch (local.get $graph) (i64.const 0))",
    "alloc": "(i32.eqz (i32.wrap_i64 (call $alloc (i32.const 64) (i32.const 0))))",
    "sync": f"(i32.or {START} (call $sync))",
    "event_sync": f"(i32.or {START} (i32.or (call $event_record (local.get $event) (i64.const 0)) "
    "(call $event_sync (local.get $event))))",
    "grow_copy": "(i32.or (i32.eqz (memory.grow (i32.const 1))) (call $memcpy_h2d_async (local.get $buffer) "
    "(i64.const 0) (i32.const 0) (i32.const 4) (i64.const 0)))",
    "grow": f"(i32.or {START} (i32.eqz (memory.grow (i32.const 1))))",
}
GUEST = f"""(module
  {"".join(f'(import "{DEVICE}" "wasi_cuda_{name}" (func ${name} {kind}))' for name, kind in IMPORTS.items())}
  (memory (export "memory") 1)
  (data (i32.const 1024) "nothing") (data (i32.const 2048) "{PTX}")
  (func $load (result i64)
    (call $load_ptx (i32.const 2048) (i32.const {len(PTX.replace(chr(92) + "n", " "))}) (i32.const 1024) (i32.const 7)))
  (func (export "little") (param i32) (result i32) (local $kernel i64) (local $buffer i32) (local $failed i32)
    (i32.store (i32.const 0) (local.get 0))
    (local.set $kernel (call $load))
    (local.set $buffer (i32.wrap_i64 (call $alloc (i32.const 64) (i32.const 0))))
    (local.set $failed (call $memcpy_h2d (local.get $buffer) (i32.const 0) (i32.const 0) (i32.const 4)))
    (local.set $failed (i32.or (local.get $failed) (call $launch (local.get $kernel) (i32.const 1) (i32.const 1)
      (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0))))
    (local.set $failed (i32.or (local.get $failed) {START}))
    (local.set $failed (i32.or (local.get $failed) (call $sync)))
    (local.set $failed (i32.or (local.get $failed)
      (call $memcpy_d2h (i32.const 8) (local.get $buffer) (i32.const 0) (i32.const 4))))
    (if (local.get $failed) (then (return (local.get $failed))))
    (i32.add (i32.load (i32.const 8)) (i32.const 1)))
  {
    "".join(
        f'''(func (export "{name}") (result i32)
      (local $kernel i64) (local $buffer i64) (local $event i64) (local $stream i64) (local $graph i64)
      (local $failed i32)
      (local.set $kernel (call $load)) (local.set $buffer (call $alloc (i32.const 64) (i32.const 0)))
      (local.set $event (call $event_create)) (local.set $stream (call $stream_create))
      (drop (call $graph_begin (i64.const 0))) (drop {START}) (drop {START})
      (local.set $graph (call $graph_end (i64.const 0)))
      (loop $again (local.set $failed {call}) (br_if $again (i32.eqz (local.get $failed))))
      (local.get $failed))'''
        for name, call in LOOPS.items()
    )
})"""


@pytest.fixture
def host(monkeypatch):
    """A runtime on whose device all who come find a place, and a thread for their work."""
    monkeypatch.setattr(queues, "THREADS", 1000)
    monkeypatch.setattr(
        tensorwasm.gpu.resources.device_resources, "QueueCapacity", lambda: queue_credits.QueueCapacity(shares=1000)
    )
    with Runtime("emulator", limits=Limits(wall_s=4 * SOON_S), slots=400) as runtime:
        host = GatedHost(runtime)
        device = host.share().device
        host.share().close()
        host._shared = SharedDevice(device, gate=Gate(1000))
        yield host
        host.share().close()


def load(host):
    wasm = bytes(wat2wasm(GUEST))
    return Function(host, "guest", wasm, host._runtime.load(wasm, "guest").form(Form()))


def settle(host, arrived):
    ends = time.monotonic() + SOON_S
    while not arrived(host.fibers.statistics()):
        assert time.monotonic() < ends, host.fibers.statistics()
        threading.Event().wait(0.005)


def besiege(host, names):
    """Have guests give all they can, behind a gate, and one that wants little run beside them."""
    function = load(host)
    function.submit("little", (1,), grants=("cuda",)).result(SOON_S)
    with closing(host.close_gate()) as gate:
        hostile = [function.submit(name, grants=("cuda",)) for name in names]
        settle(host, lambda seen: seen.on_device + seen.in_line == len(hostile))
        # What comes now is not behind the gate, as a stream that has served a recording already is.
        host.share().device._gate = None
        host.share()._resources.streams._idle.clear()
        assert function.submit("little", (41,), grants=("cuda",)).result(SOON_S).values == (42,)
        gate.open()
        for one in hostile:
            one.cancel()
        settle(host, lambda seen: seen.waiting + seen.orphans == 0)


@pytest.mark.parametrize("name", LOOPS)
def test_a_guest_that_floods_the_device_delays_no_other_guest(host, name):
    besiege(host, [name])


def test_three_hundred_flooding_guests_delay_no_other_guest(host):
    besiege(host, (list(LOOPS) * 34)[:300])
