"""Submitted guests at a full gate: they stand in line, hold no thread, and keep nobody from what needs no place."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import wait

import pytest
from wasmtime import wat2wasm

import tensorwasm.gpu.limits.gate
import tensorwasm.runtime.invoke.dispatch
from fakes.gate import Sitter
from tensorwasm import Runtime
from tensorwasm.bench.device.waiting import GatedHost
from tensorwasm.errors import InvokeTimeout
from tensorwasm.gpu.limits.gate import Gate, patience
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.guest.reactor.threads import THREADS
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.runtime.invoke import dispatch
from tensorwasm.values import NEVER, Deadline, Limits

pytestmark = pytest.mark.skipif(not may_have_fibers(), reason="NO FIBERS: they need Linux and Numba")

SOON_S = 60.0
PTX = ".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry nothing() { ret; }\\n"
GUEST = f"""(module
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_load_ptx" (func $load_ptx (param i32 i32 i32 i32) (result i64)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_launch"
    (func $launch (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_launch_async"
    (func $launch_async (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_alloc" (func $alloc (param i32 i32) (result i64)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_memcpy_h2d_async"
    (func $in (param i64 i64 i32 i32 i64) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_memcpy_d2h_async"
    (func $out (param i32 i64 i64 i32 i64) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_sync" (func $sync (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_graph_begin" (func $graph_begin (param i64) (result i32)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_graph_end" (func $graph_end (param i64) (result i64)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_graph_launch" (func $replay (param i64 i64) (result i32)))
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 1024) "nothing") (data (i32.const 2048) "{PTX}")
  (func $load (result i64)
    (call $load_ptx (i32.const 2048) (i32.const {len(PTX.replace(chr(92) + "n", " "))}) (i32.const 1024) (i32.const 7)))
  (func $run (param i64 i32) (result i32)
    (call $launch (local.get 0) (local.get 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1)
      (i32.const 0) (i32.const 0) (i32.const 0)))
  (func $start (param i64 i32) (result i32)
    (call $launch_async (local.get 0) (local.get 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1)
      (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0)))
  (func $copy_in (param i64) (result i32)
    (call $in (local.get 0) (i64.const 0) (i32.const 0) (i32.const 4) (i64.const 0)))
  (func $copy_out (param i64) (result i32)
    (call $out (i32.const 8) (local.get 0) (i64.const 0) (i32.const 4) (i64.const 0)))
  (func $buffer (result i64) (call $alloc (i32.const 64) (i32.const 0)))
  (func $graph (result i64) (drop (call $graph_begin (i64.const 0))) (call $graph_end (i64.const 0)))

  (func (export "work") (param i32) (result i32) (local $kernel i64) (local $buffer i64) (local $failed i32)
    (i32.store (i32.const 0) (local.get 0))
    (local.set $kernel (call $load)) (local.set $buffer (call $buffer))
    (local.set $failed (call $copy_in (local.get $buffer)))
    (local.set $failed (i32.or (local.get $failed) (call $start (local.get $kernel) (i32.const 1))))
    (local.set $failed (i32.or (local.get $failed) (call $run (local.get $kernel) (i32.const 1))))
    (local.set $failed (i32.or (local.get $failed) (call $copy_out (local.get $buffer))))
    (local.set $failed (i32.or (local.get $failed) (call $sync)))
    (if (local.get $failed) (then (return (local.get $failed))))
    (i32.add (i32.load (i32.const 8)) (i32.const 1)))

  (func (export "keep") (param i32) (result i32) (local $kernel i64) (local $buffer i64) (local $failed i32)
    (i32.store (i32.const 0) (local.get 0))
    (local.set $kernel (call $load))
    (local.set $failed (call $start (local.get $kernel) (i32.const 1)))
    (loop $again (br_if $again (i32.eqz (call $emit (i32.const 1024) (i32.const 3)))))
    (local.set $kernel (call $load)) (local.set $buffer (call $buffer))
    (local.set $failed (i32.or (local.get $failed) (call $start (local.get $kernel) (i32.const 1))))
    (local.set $failed (i32.or (local.get $failed) (call $copy_in (local.get $buffer))))
    (local.set $failed (i32.or (local.get $failed) (call $copy_out (local.get $buffer))))
    (drop (call $emit (i32.const 1024) (i32.const 7)))
    (local.set $failed (i32.or (local.get $failed) (call $sync)))
    (i32.add (local.get $failed) (i32.load (i32.const 8))))

  (func (export "launch") (param i32) (result i32) (call $run (call $load) (local.get 0)))
  (func (export "launch_async") (param i32) (result i32) (call $start (call $load) (local.get 0)))
  (func (export "copy_in") (param i32) (result i32) (call $copy_in (call $buffer)))
  (func (export "copy_out") (param i32) (result i32) (call $copy_out (call $buffer)))
  (func (export "replay") (param i32) (result i32) (call $replay (call $graph) (i64.const 0)))
  (func (export "record") (param i32) (result i32) (local $kernel i64)
    (local.set $kernel (call $load)) (drop (call $graph_begin (i64.const 0)))
    (call $start (local.get $kernel) (i32.const 1))))"""
STARTS = ["launch", "launch_async", "copy_in", "copy_out", "replay"]


class World:
    """A runtime whose device has a gate of its own for guests, and one for their work."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.host = GatedHost(runtime)
        self.gate = Gate(0)

    def open(self, capacity: int) -> Gate:
        """Let so many guests have work on the device; return the gate, through which nobody has gone."""
        device = self.host.share().device
        self.host.share().close()
        self.gate = Gate(capacity)
        self.host._shared = SharedDevice(device, gate=self.gate)
        wasm = bytes(wat2wasm(GUEST))
        self.function = Function(self.host, "guest", wasm, self.runtime.load(wasm, "guest").form(Form()))
        return self.gate

    def submit(self, export, *args, **options):
        return self.function.submit(export, args or (1,), grants=("cuda",), **options)

    @property
    def statistics(self):
        return self.runtime.fibers.statistics()


@pytest.fixture(params=["python", "compiled"])
def world(request, monkeypatch):
    native = request.param == "compiled"  # of fibers alone: one-shot sandboxes are kept, and their permits with them
    monkeypatch.setattr(dispatch, "_fiber_form", lambda _module, _shared, _memory: Form(native, fibers=True))
    with Runtime("emulator", limits=Limits(wall_s=SOON_S), slots=400) as runtime:
        world = World(runtime)
        yield world
        settle(lambda: world.gate.in_use == 0)
        assert world.gate.waiting == 0
        world.host.share().close()


def settle(arrived):
    ends = time.monotonic() + SOON_S
    while not arrived():
        assert time.monotonic() < ends
        threading.Event().wait(0.002)


def test_a_guest_with_a_place_loads_and_copies_while_more_wait_than_there_are_threads(world):
    gate = world.open(1)
    goes_on, chunks = threading.Event(), []

    def hear(chunk):
        chunks.append(bytes(chunk))
        return not goes_on.is_set()

    assert world.submit("work").result(SOON_S).values == (2,)
    shut = world.host.close_gate()
    keeper = world.submit("keep", 41, on_chunk=hear)
    settle(lambda: chunks)
    others = [world.submit("work", number) for number in range(2 * THREADS)]
    settle(lambda: gate.waiting == world.statistics.in_line == len(others))
    goes_on.set()
    settle(lambda: b"nothing" in chunks)
    assert gate.waiting == len(others)
    shut.open()
    assert keeper.result(SOON_S).values == (41,)
    assert [future.result(SOON_S).values for future in others] == [(number + 1,) for number in range(len(others))]
    shut.close()


def test_two_hundred_guests_go_through_a_gate_for_four_on_no_threads_of_their_own(world):
    gate = world.open(4)
    assert world.submit("work").result(SOON_S).values == (2,)
    shut, before = world.host.close_gate(), set(threading.enumerate())
    futures = [world.submit("work", number) for number in range(200)]
    settle(lambda: gate.waiting == world.statistics.in_line == 196)
    threads = [thread.name for thread in threading.enumerate() if thread not in before]
    assert threads.count("tensorwasm-gate") == 1
    assert len(threads) <= 2 * THREADS + 1
    shut.open()
    outcomes = [future.result(SOON_S) for future in futures]
    assert [outcome.values for outcome in outcomes] == [(number + 1,) for number in range(200)]
    assert sum(outcome.gpu.back_pressure_rejections for outcome in outcomes) == 0
    shut.close()


@pytest.mark.parametrize("start", STARTS)
def test_at_the_limit_a_guest_is_refused_and_goes_on(world, start, monkeypatch):
    monkeypatch.setattr(tensorwasm.gpu.limits.gate, "DEADLINE_NEAR_S", SOON_S)  # to go on in, on a machine that is busy
    gate, sitter = world.open(1), Sitter()
    gate.enter(NEVER, sitter)
    deadline = Deadline.after(SOON_S + 0.4)
    outcome = world.submit(start, deadline=deadline).result(SOON_S)
    assert outcome.values == (-6,)
    assert outcome.gpu.back_pressure_rejections == 1
    assert (gate.in_use, gate.waiting) == (1, 0)
    gate.leave(sitter)


def test_a_wait_at_the_gate_counts_as_one_for_the_device(world):
    gate, sitter = world.open(1), Sitter()
    gate.enter(NEVER, sitter)
    future = world.submit("launch")
    settle(lambda: world.statistics.in_line == 1)
    began_s = time.monotonic()
    settle(lambda: sitter.asked > 3)
    waited_s = time.monotonic() - began_s
    gate.leave(sitter)
    outcome = future.result(SOON_S)
    assert (outcome.values, gate.waiting) == ((0,), 0)
    assert waited_s < outcome.device_s < outcome.elapsed_s


def test_a_start_refused_for_another_reason_does_not_wait_at_the_gate(world):
    gate, sitter = world.open(1), Sitter()
    gate.enter(NEVER, sitter)
    for start in ("launch", "launch_async"):
        assert world.submit(start, 0).result(SOON_S).values == (-8,)
    assert world.submit("record").result(SOON_S).values == (0,)
    gate.leave(sitter)


@pytest.mark.parametrize("start", STARTS)
def test_a_notified_guest_has_its_place_in_the_gate(world, start):
    gate, sitter = world.open(1), Sitter()
    gate.enter(NEVER, sitter)
    future = world.submit(start)
    settle(lambda: gate.waiting == 1)
    gate.leave(sitter)
    assert future.result(SOON_S).values == (0,)
    assert future.result().gpu.back_pressure_rejections == 0


def test_a_guest_that_is_cancelled_leaves_the_line(world):
    gate, sitter = world.open(1), Sitter()
    gate.enter(NEVER, sitter)
    futures = []
    for number in range(3):
        futures.append(world.submit("work", number))
        settle(lambda: gate.waiting == len(futures))
    assert futures[1].cancel()
    settle(lambda: gate.waiting == 2)
    gate.leave(sitter)
    assert [future.result(SOON_S).values for future in (futures[0], futures[2])] == [(1,), (3,)]


def test_places_freed_while_guests_give_up_are_not_lost(world):
    gate, sitter = world.open(1), Sitter()
    gate.enter(NEVER, sitter)
    limit = Deadline.after(0.3)
    futures = [world.submit("work", 5, deadline=limit) for _ in range(12)]
    settle(lambda: patience(limit).expired())
    gate.leave(sitter)
    wait(futures, timeout=SOON_S)
    assert {type(future.exception()) for future in futures} <= {type(None), InvokeTimeout}
    assert {future.result().values for future in futures if future.exception() is None} <= {(-6,), (6,)}
    assert world.submit("work").result(SOON_S).values == (2,)


def test_guests_that_are_cancelled_at_any_moment_lose_no_place(world):
    gate, choose = world.open(2), random.Random(7)
    futures = [world.submit("work", number) for number in range(120)]
    cancelled = set()
    for number in choose.sample(range(120), 60):
        threading.Event().wait(choose.choice([0.0, 0.0005]))
        if futures[number].cancel():
            cancelled.add(number)
    for number, future in enumerate(futures):
        if number not in cancelled:
            assert future.result(SOON_S).values == (number + 1,)
    settle(lambda: gate.in_use == 0)


def test_threads_and_fibers_stand_in_one_line(world):
    gate, sitter, done = world.open(1), Sitter(), []
    gate.enter(NEVER, sitter)
    first = world.submit("work", 1)
    first.add_done_callback(lambda _: done.append("fiber"))
    settle(lambda: gate.waiting == 1)

    def invoke():
        assert world.function.invoke("launch", (1,), grants=("cuda",)).values == (0,)
        done.append("thread")

    thread = threading.Thread(target=invoke)
    thread.start()
    settle(lambda: gate.waiting == 2)
    gate.leave(sitter)
    thread.join(SOON_S)
    assert first.result(SOON_S).values == (2,)
    assert sorted(done) == ["fiber", "thread"]
