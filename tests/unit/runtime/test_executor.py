import gc
import os
import re
import sys
import threading
import weakref
from concurrent.futures import CancelledError

import pytest
from hypothesis import given
from wasmtime import wat2wasm

from neighbours import until
from strategies.requests import nearly_requests
from tensorwasm import Limits, Runtime
from tensorwasm.errors import (
    CapacityExhausted,
    GuestTrap,
    InvalidArgs,
    InvalidWasm,
    InvokeTimeout,
    OutputClosed,
    StdinTooLarge,
    TensorWasmError,
)
from tensorwasm.guest.engine.compiler import Compiler
from tensorwasm.runtime.executor.local import LocalExecutor
from tensorwasm.runtime.executor.request import Request, check_request
from tensorwasm.runtime.invoke.invocation import PendingInvocation
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.values import Deadline
from tensorwasm.yielding import NICE

SOON_S = 60
GUEST = bytes(
    wat2wasm("""(module
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "\\40\\00\\00\\00\\05\\00\\00\\00")
  (data (i32.const 64) "hello")
  (func (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1)))
  (func (export "say") (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 32))))
  (func (export "emit") (result i32) (call $emit (i32.const 64) (i32.const 5)))
  (func (export "crash") unreachable)
  (func (export "emit_and_spin") (drop (call $emit (i32.const 64) (i32.const 5))) (loop (br 0)))
  (func (export "sob") (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 32))) unreachable)
  (func (export "leave") (call $exit (i32.const 7)))
  (func (export "wide") (param i64 f64) (result i64 f64) (local.get 0) (local.get 1))
  (func (export "spin") (loop (br 0))))""")
)


@pytest.fixture(scope="module")
def executor():
    with Runtime(device="emulator", limits=Limits(wall_s=20)) as runtime:
        executor = LocalExecutor(runtime, places=2)
        yield executor
        executor.close()


def submit(executor, export, *args, listener=None, **fields):
    return executor.submit(Request(module=GUEST, export=export, args=args, **fields), listener)


def test_an_outcome_is_the_tickets(executor):
    assert submit(executor, "add", 2, 3).result(SOON_S).values == (5,)
    with pytest.raises(GuestTrap):
        submit(executor, "crash").result(SOON_S)
    with pytest.raises(InvalidArgs):
        submit(executor, "add").result(SOON_S)
    with pytest.raises(InvalidWasm):
        executor.submit(Request(module=b"none")).result(SOON_S)


def test_a_deadline_and_limits_are_the_requests_own(executor):
    with pytest.raises(InvokeTimeout):
        submit(executor, "spin", deadline_s=0.05).result(SOON_S)
    with pytest.raises(InvokeTimeout):
        submit(executor, "spin", limits=Limits(wall_s=0.05)).result(SOON_S)


def test_output_is_collected_or_heard(executor):
    assert submit(executor, "say").result(SOON_S).stdout == b"hello"
    heard = []
    outcome = submit(executor, "say", listener=lambda *part: heard.append(part) or True).result(SOON_S)
    assert (outcome.stdout, heard) == (b"", [("stdout", b"hello")])


def test_a_guest_learns_that_its_listener_has_gone(executor):
    assert submit(executor, "emit", listener=lambda *_: False).result(SOON_S).values == (-3,)
    with pytest.raises(OutputClosed):
        submit(executor, "say", listener=lambda *_: False).result(SOON_S)


def test_waiting_calls_can_be_cancelled_and_statistics_count_running_ones(executor):
    begun, go_on = threading.Barrier(3), threading.Event()

    def block(*_):
        begun.wait(SOON_S)
        return go_on.wait(SOON_S)

    running = [submit(executor, "say", listener=block, tenant="ann") for _ in range(2)]
    begun.wait(SOON_S)
    waiting = submit(executor, "add", 1, 1, tenant="bob")
    assert {each.tenant: each.in_flight for each in executor.statistics().tenants} == {"ann": 2, "bob": 1}
    assert waiting.cancel()
    go_on.set()
    assert [ticket.result(SOON_S).export for ticket in running] == ["say", "say"]
    with pytest.raises(CancelledError):
        waiting.result(0)


def test_cancelling_ends_a_guest_without_a_device_that_runs(executor):
    begun = threading.Event()
    ticket = submit(executor, "emit_and_spin", listener=lambda *_: begun.set() or True, limits=Limits(wall_s=3600))
    assert begun.wait(SOON_S)
    assert ticket.cancel()
    with pytest.raises(CancelledError):
        ticket.result(0)
    # Both places are free: had the guest gone on, one of two calls that wait for each other would never begin.
    both = threading.Barrier(2)
    pair = [submit(executor, "say", listener=lambda *_: both.wait(SOON_S) is not None) for _ in range(2)]
    assert [each.result(SOON_S).export for each in pair] == ["say", "say"]


STARTING = bytes(
    wat2wasm("""(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "\\40\\00\\00\\00\\05\\00\\00\\00")
  (data (i32.const 64) "hello")
  (func $start (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 32))) (loop (br 0)))
  (func (export "main"))
  (start $start))""")
)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux")
def test_a_guest_that_computes_has_less_weight_than_the_threads_that_read_calls(executor):
    assert submit(executor, "add", 2, 3).result(SOON_S).values == (5,)
    pool = [each.native_id for each in threading.enumerate() if each.name.startswith("tensorwasm-call")]
    usual = os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert {os.getpriority(os.PRIO_PROCESS, each) for each in pool} == {min(usual + NICE, 19)}


@pytest.mark.parametrize("listener", [None, lambda *_: True])
@pytest.mark.parametrize("export", ["say", "sob"])
def test_what_a_call_wrote_is_released_without_a_collection_of_cycles(executor, export, listener):
    gc.disable()
    try:
        ticket = submit(executor, export, listener=listener)
        ticket.exception(SOON_S)
        kept = weakref.ref(ticket)
        del ticket
        until(lambda: kept() is None)  # a thread may just be about to forget it
    finally:
        gc.enable()


def test_stopping_ends_a_start_function_without_a_device(executor):
    begun = threading.Event()
    request = Request(module=STARTING, limits=Limits(wall_s=20))
    ticket = executor.submit(request, lambda *_: begun.set() or True)
    assert begun.wait(SOON_S)
    ticket.stop()
    with pytest.raises(GuestTrap) as stopped:
        ticket.result(SOON_S)
    assert stopped.value.trap == "cancelled"


def test_a_guest_without_a_device_that_is_stopped_says_so_and_keeps_what_it_wrote(executor):
    begun = threading.Event()
    ticket = submit(executor, "emit_and_spin", listener=lambda *_: begun.set() or True, limits=Limits(wall_s=3600))
    assert begun.wait(SOON_S)
    ticket.stop()
    with pytest.raises(GuestTrap) as stopped:
        ticket.result(SOON_S)
    assert stopped.value.trap == "cancelled"


def test_stopping_an_ended_call_has_no_effect(executor):
    ticket = submit(executor, "add", 1, 2)
    assert ticket.result(SOON_S).values == (3,)
    ticket.stop()
    assert not ticket.cancel()
    assert submit(executor, "add", 1, 2).result(SOON_S).values == (3,)


def describe(call):
    """Return what comes of a call, but for how long it took."""
    try:
        return call()._replace(elapsed_s=0)
    except TensorWasmError as error:
        return type(error), re.sub(r"[0-9.]+ s$", "", error.message), getattr(error, "stdout", None)


@pytest.mark.parametrize(
    "fields",
    [
        {"export": "add", "args": (1, 2)},
        {"export": "wide", "args": ((1 << 64) - 1, -0.0)},
        {"export": "say"},
        {"export": "emit"},
        {"export": "leave"},
        {"export": "crash"},
        {"export": "sob"},
        {"export": "none"},
        {"export": "add", "args": (1,)},
        {"export": "say", "argv": ("a", "b"), "env": (("A", "1"), ("A", "2"))},
        {"export": "spin", "deadline_s": 0.05},
    ],
    ids=lambda fields: fields["export"],
)
def test_an_outcome_is_that_of_invoke(executor, fields):
    """What a place does so that it can be stopped is what `Function.invoke` does."""
    request = Request(module=GUEST, **fields)
    function = executor._runtime.load(GUEST)

    def invoke():
        keywords = {"argv": request.argv, "env": dict(request.env), "deadline": Deadline.after(request.deadline_s)}
        return function.invoke(request.export, request.args, **keywords)

    assert describe(executor.submit(request).result) == describe(invoke)


@given(nearly_requests())
def test_every_executor_refuses_an_invalid_request_at_once(executor, request_):
    try:
        check_request(request_)
    except (InvalidArgs, StdinTooLarge) as refused:
        with WorkerExecutor("emulator") as workers:
            for each in (executor, workers):
                with pytest.raises(type(refused), match=re.escape(refused.message)):
                    each.submit(request_)
            assert workers.workers() == ()


@pytest.mark.rule("8-modules")
def test_many_at_once_compile_a_module_once(executor, monkeypatch):
    compiled = []
    real = Compiler.compile

    def count(self, wasm, *rest):
        compiled.append(wasm)
        return real(self, wasm, *rest)

    monkeypatch.setattr(Compiler, "compile", count)
    module = GUEST + b"\0\2\1x"  # another module: a custom section more
    tickets = [executor.submit(Request(module=module, export="add", args=(number, 1))) for number in range(20)]
    assert [ticket.result(SOON_S).values for ticket in tickets] == [(number + 1,) for number in range(20)]
    assert len(compiled) == 1
    executor.submit(Request(module=module, export="add", args=(1, 1), tenant="other")).result(SOON_S)
    assert len(compiled) == 2, "what one tenant compiled must not be found by another"


def test_a_closed_executor_takes_nothing():
    with Runtime(device="emulator") as runtime:
        executor = LocalExecutor(runtime)
        ticket = submit(executor, "add", 1, 2)
        executor.close()
        assert ticket.result(0).values == (3,)
        with pytest.raises(CapacityExhausted):
            submit(executor, "add", 1, 2)


def test_a_call_that_gets_no_thread_is_refused_and_counted_nowhere(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    with Runtime(device="emulator") as runtime:
        executor = LocalExecutor(runtime)
        with monkeypatch.context() as patch:
            patch.setattr(executor._pool, "submit", refuse)
            with pytest.raises(CapacityExhausted, match="no thread"):
                submit(executor, "add", 1, 2)
        assert executor.statistics().in_flight == 0
        assert submit(executor, "add", 1, 2).result(SOON_S).values == (3,)
        executor.close()


def test_of_several_outcomes_the_first_counts():
    ticket = PendingInvocation()
    ticket.settle(GuestTrap("first"))
    ticket.settle(GuestTrap("second"))
    assert ticket.exception(0).message == "first"
    assert not ticket.cancel()


def test_cancelling_stops_the_work_once():
    stopped = []
    ticket = PendingInvocation()
    ticket.stop_with(lambda: stopped.append(1))
    assert ticket.cancel()
    assert ticket.cancel()
    ticket.settle(GuestTrap("too late"))
    assert stopped == [1]
    assert ticket.cancelled()
