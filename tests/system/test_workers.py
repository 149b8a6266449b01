"""Worker processes as the service uses them: real processes, some of which misbehave."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from oracles.leftovers import Before
from tensorwasm.errors import (
    CapacityExhausted,
    DeviceFault,
    DeviceUnavailable,
    GuestTrap,
    InternalError,
    InvalidArgs,
    InvalidWasm,
    InvokeTimeout,
)
from tensorwasm.gpu.limits.turns import TURN_NS
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.local import PLACES
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers import pool
from tensorwasm.runtime.workers.lifecycle import Backoff, State
from tensorwasm.runtime.workers.options import WorkerOptions
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.runtime.workers.process import Patience
from tensorwasm.values import Limits
from victims import kill

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="workers are looked at through /proc")

ROOT = Path(__file__).resolve().parents[2]
VECTOR_ADD, MATMUL = ((ROOT / "examples" / name / f"{name}.wasm").read_bytes() for name in ("vector_add", "matmul"))
FAKE = str(ROOT / "tests" / "fakes" / "worker.py")
SOON_S = 60
QUICK = Backoff(first_s=0.01, longest_s=0.05, idle_ends=3)
GUEST = bytes(
    wat2wasm("""(module
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (import "wasi:tensor/host" "read-input" (func $read (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "\\40\\00\\00\\00\\05\\00\\00\\00")
  (data (i32.const 64) "hello")
  (func (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1)))
  (func (export "wide") (param i64 f64) (result i64 f64) (local.get 0) (local.get 1))
  (func (export "say") (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 32))))
  (func (export "sob") (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 32))) unreachable)
  (func (export "echo") (drop (call $read (i32.const 128) (i32.const 100)))
    (drop (call $emit (i32.const 128) (i32.const 4))) (drop (call $emit (i32.const 64) (i32.const 5))))
  (func (export "announce_and_spin")
    (drop (call $emit (i32.const 64) (i32.const 5))) (loop (br 0)))
  (func (export "chatter") (loop (br_if 0 (i32.eqz (call $emit (i32.const 64) (i32.const 5))))))
  (func (export "leave") (call $exit (i32.const 7)))
  (func (export "spin") (loop (br 0))))""")
)


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = Before()
    yield
    assert before.new(SOON_S) == {}


@pytest.fixture(scope="module")
def real():
    """A worker on the emulator, for the tests that do not end it."""
    with WorkerExecutor("emulator") as executor:
        call(executor, "add", 1, 1)
        yield executor


def options(what="puppet", **patience):
    return WorkerOptions(program=(FAKE, what), backoff=QUICK, patience=Patience(**{"beat_s": 0.05} | patience))


@pytest.fixture
def puppets():
    """An executor whose workers are puppets, one for each tenant."""
    with WorkerExecutor("emulator", isolation="process", options=options()) as executor:
        yield executor


def ask(executor, export, tenant="ann", listener=None, **fields):
    return executor.submit(Request(module=b"any", export=export, tenant=tenant, **fields), listener)


def call(executor, export, *args, **fields):
    return executor.submit(Request(module=GUEST, export=export, args=args, **fields)).result(SOON_S)


def hold(executor, tenant="ann", export="hold", **fields):
    """Return the ticket of a request that its worker has begun and does not answer."""
    begun = threading.Event()
    ticket = ask(executor, export, tenant, lambda *_: begun.set() or True, **fields)
    assert begun.wait(SOON_S)
    return ticket


def worker_of(executor, tenant):
    (found,) = [worker for worker in executor.workers() if worker.tenant == tenant]
    return found


def pid_of(executor, tenant="ann"):
    (pid,) = ask(executor, "pid", tenant).result(SOON_S).values
    return pid


def test_a_guest_launches_its_kernel_in_a_worker(real):
    request = Request(module=VECTOR_ADD, name="vector_add", grants=Grants(cuda=True))
    outcome = real.submit(request).result(SOON_S)
    assert outcome.exit_code == 0
    assert b"verified" in outcome.stdout
    assert outcome.gpu.kernels_launched == 1


def test_values_arrive_exactly(real):
    assert call(real, "add", 2, 3).values == (5,)
    assert call(real, "wide", (1 << 64) - 1, 0.1).values == (-1, 0.1)
    assert call(real, "wide", "-9223372036854775808", -0.0).values == (-(1 << 63), 0.0)


def test_output_arrives_with_the_result_or_as_it_is_written(real):
    assert call(real, "say").stdout == b"hello"
    assert call(real, "echo", input=b"echo").chunks == (b"echo", b"hello")
    heard = []
    ticket = real.submit(
        Request(module=GUEST, export="echo", input=b"more"), lambda name, data: heard.append((name, data)) or True
    )
    assert ticket.result(SOON_S).chunks == ()
    assert heard == [("chunk", b"more"), ("chunk", b"hello")]


def test_a_listener_hears_while_the_guest_runs(real):
    heard = threading.Event()
    request = Request(module=GUEST, export="announce_and_spin", deadline_s=1.0)
    ticket = real.submit(request, lambda *_: heard.set() or True)
    assert heard.wait(SOON_S)
    with pytest.raises(InvokeTimeout):
        ticket.result(SOON_S)


def test_a_guest_in_a_worker_ends_after_its_listener_has_gone(real):
    assert real.submit(Request(module=GUEST, export="chatter"), lambda *_: False).result(SOON_S).export == "chatter"


@pytest.mark.parametrize("grants", [Grants(), Grants(cuda=True)], ids=["plain", "cuda"])
def test_slow_listeners_delay_only_their_own_guests(real, grants):
    go_on, heard = threading.Event(), Counter()

    def listener(number):
        return lambda *_: heard.update([number]) or go_on.wait(SOON_S)

    slow = [
        real.submit(Request(module=GUEST, export="chatter", grants=grants, deadline_s=SOON_S), listener(number))
        for number in range(PLACES + 8)
    ]
    for _ in range(5):
        assert call(real, "add", 2, 3).values == (5,)
        assert call(real, "add", 2, 3, grants=Grants(cuda=True)).values == (5,)
    assert max(heard.values()) == 1
    for ticket in slow:
        ticket.cancel()
    go_on.set()


def test_the_deadline_ends_a_guest_that_waits_for_its_listener(real):
    go_on = threading.Event()
    request = Request(module=GUEST, export="chatter", deadline_s=0.5)
    ticket = real.submit(request, lambda *_: go_on.wait(2 * SOON_S))
    assert call(real, "add", 2, 3).values == (5,)
    threading.Timer(1.0, go_on.set).start()  # what it had written by then is taken first
    with pytest.raises(InvokeTimeout):
        ticket.result(SOON_S)


def test_a_guest_that_waits_hears_that_its_listener_has_gone(real):
    answers = iter([True] * 40)
    ticket = real.submit(Request(module=GUEST, export="chatter"), lambda *_: next(answers, False))
    assert ticket.result(SOON_S).export == "chatter"


def test_errors_arrive_as_what_they_are(real):
    with pytest.raises(GuestTrap) as trapped:
        call(real, "sob")
    assert (trapped.value.trap, trapped.value.stdout) == ("unreachable", b"hello")
    with pytest.raises(InvokeTimeout):
        call(real, "spin", deadline_s=0.1)
    with pytest.raises(InvalidArgs, match="2 arguments"):
        call(real, "add", 1)
    with pytest.raises(InvalidWasm):
        real.submit(Request(module=b"no module")).result(SOON_S)
    assert call(real, "leave").exit_code == 7


def test_limits_are_the_requests_own(real):
    with pytest.raises(InvokeTimeout):
        call(real, "spin", limits=Limits(wall_s=0.1))


@pytest.mark.parametrize(
    "fields",
    [
        {"args": (1 << 64,)},
        {"args": ([1],)},
        {"args": (b"1",)},
        {"name": "x" * (1 << 17)},
        {"tenant": "x" * 65},
        {"tenant": ""},
        {"tenant": "ann\n"},
        {"export": "\ud800"},
        {"argv": ("x" * 60_000,) * 100},
        {"memory_kind": "anywhere"},
        {"gpu_bytes": -1},
        {"stdin": "text"},
        {"module": bytearray(b"any")},
        {"limits": Limits(memory_bytes=-1)},
        {"limits": Limits(module_bytes=2)},
    ],
    ids="-".join,
)
def test_a_request_that_cannot_be_sent_is_refused_without_effect_on_others(real, fields):
    with pytest.raises(InvalidArgs):
        real.submit(Request(**{"module": GUEST, "export": "add"} | fields))


MISCHIEF = (
    ("kill", "SIGKILL"),
    ("segv", "SIGSEGV"),
    ("exit", "code 3"),
    ("close", "SIGKILL"),
    ("midframe", "code 0"),
    ("garbage", "protocol"),
    ("oversize", "protocol"),
    ("hello", "protocol"),
    ("twice", "protocol"),
    ("foreign", "protocol"),
    ("foreign_long", "protocol"),
    ("foreign_wish", "protocol"),
    ("foreign_ask", "protocol"),
    ("long_ask", "protocol"),
    ("strange_part", "protocol"),
    ("many_asks", "protocol"),
    ("other", "protocol"),
    ("misfit", "protocol"),
    ("flood", "protocol"),
    ("skip", "protocol"),
    ("charge", "protocol"),
)


@pytest.mark.parametrize(("mischief", "said"), MISCHIEF, ids=[name for name, _ in MISCHIEF])
def test_a_worker_that_misbehaves_takes_its_own_requests_with_it_and_nothing_else(puppets, mischief, said):
    neighbour = hold(puppets, "bob")
    held = hold(puppets)
    first = pid_of(puppets)
    ended = ask(puppets, mischief)
    with pytest.raises(DeviceFault, match=said) as fault:
        held.result(SOON_S)
    assert fault.value.retryable
    assert "tried again" in fault.value.message
    if mischief == "twice":
        assert ended.result(SOON_S).values == (7,)  # the first answer had arrived, and was one
    else:
        with pytest.raises(DeviceFault):
            ended.result(SOON_S)
    assert pid_of(puppets) != first
    assert not neighbour.done()
    ask(puppets, "release", "bob").result(SOON_S)
    assert neighbour.result(SOON_S).values == (7,)
    assert worker_of(puppets, "bob").starts == 1


def test_a_worker_may_have_a_share_of_its_device():
    with WorkerExecutor("emulator", options=WorkerOptions(multiprocessors=7)) as executor:
        assert call(executor, "add", 1, 2).values == (3,)
        assert executor.workers()[0].info.multiprocessors == 7


def test_a_tenant_may_have_a_share_of_its_own():
    shares = {"ann": 5}
    usual = WorkerOptions(multiprocessors=7)
    with WorkerExecutor("emulator", isolation="process", options=usual, shares=shares) as executor:
        for tenant in ("ann", "bob"):
            assert call(executor, "add", 1, 2, tenant=tenant).values == (3,)
        assert {each.tenant: each.info.multiprocessors for each in executor.workers()} == {"ann": 5, "bob": 7}


def test_guarded_tenants_share_a_worker():
    cuda = Grants(cuda=True)
    with WorkerExecutor("emulator", isolation="guarded") as executor:
        calls = [
            executor.submit(Request(module=VECTOR_ADD, tenant=tenant, grants=cuda, memory_kind=kind))
            for tenant in ("ann", "bob", "ann")
            for kind in ("auto", "pinned")
        ]
        for answer in calls:
            assert b"verified, max error 0" in answer.result(SOON_S).stdout
        (worker,) = executor.workers()
        assert worker.tenant is None


def test_a_kernel_that_runs_long_moves_its_tenant_alone():
    def run(tenant, elements):
        wanted = Request(module=VECTOR_ADD, tenant=tenant, argv=("vector_add", str(elements)), grants=Grants(cuda=True))
        assert b"verified, max error 0" in executor.submit(wanted).result(SOON_S).stdout

    with WorkerExecutor("emulator", isolation="guarded") as executor:
        run("ann", 1 << 20)
        run("bob", 64)
        assert [worker.starts for worker in executor.workers()] == [1]
        run("ann", 64)
        assert [worker.answered for worker in executor.workers()] == [2, 1]


def told(executor, tenant, **fields):
    return json.loads(ask(executor, "setup", tenant, **fields).result(SOON_S).stdout)


CUDA = {"grants": Grants(cuda=True)}


@pytest.fixture
def guarded():
    """An executor of guarded workers, which are puppets."""
    with WorkerExecutor("emulator", isolation="guarded", options=options()) as executor:
        yield executor


def test_a_tenant_whose_kernels_run_long_moves_to_a_second_worker_with_his_next_call(guarded):
    usual = told(guarded, "bob", **CUDA)["pid"]
    ask(guarded, "long", "ann", **CUDA).result(SOON_S)
    assert told(guarded, "ann", **CUDA)["pid"] != usual
    assert told(guarded, "ann", **CUDA)["isolation"] == "guarded"
    assert told(guarded, "bob", **CUDA)["pid"] == usual
    assert told(guarded, "ann")["pid"] == usual  # without a GPU nothing of his is long
    assert len(guarded.workers()) == 2


def test_a_tenant_is_taken_to_run_long_for_a_minute(guarded, monkeypatch):
    monkeypatch.setattr(pool, "LONG_S", 0.0)
    usual = told(guarded, "bob", **CUDA)["pid"]
    ask(guarded, "long", "ann", **CUDA).result(SOON_S)
    assert told(guarded, "ann", **CUDA)["pid"] == usual


def test_a_cap_on_memory_leaves_out_what_a_tenant_holds_in_the_other_worker(guarded):
    held = hold(guarded, "ann", "charged", **CUDA)
    ask(guarded, "long", "ann", **CUDA).result(SOON_S)
    assert told(guarded, "ann", gpu_bytes=10_000, **CUDA)["gpu_bytes"] == 10_000 - 4096
    assert told(guarded, "bob", gpu_bytes=10_000, **CUDA)["gpu_bytes"] == 10_000
    held.stop()


def test_tenants_who_keep_the_device_busy_in_two_workers_have_turns_by_their_weights(guarded):
    ask(guarded, "long", "ann", **CUDA).result(SOON_S)
    ann = ask(guarded, "wish", "ann", weight=3, **CUDA)
    bob = ask(guarded, "wish", "bob", weight=2, **CUDA)
    first, second = (json.loads(each.result(SOON_S).stdout) for each in (ann, bob))
    assert len(guarded.workers()) == 2
    assert {first["number"], second["number"]} == {1, 2}
    assert (first["length_ns"], second["length_ns"]) == (3 * TURN_NS, 2 * TURN_NS)


def test_the_turn_of_a_worker_that_is_lost_is_over(guarded):
    ask(guarded, "long", "ann", **CUDA).result(SOON_S)
    ask(guarded, "greedy", "ann", **CUDA).result(SOON_S)
    bob = ask(guarded, "wish", "bob", **CUDA)
    ask(guarded, "kill", "ann", **CUDA).exception(SOON_S)
    cyn = ask(guarded, "wish", "cyn", **CUDA)  # bob alone would wait for no turn
    assert {json.loads(each.result(SOON_S).stdout)["length_ns"] for each in (bob, cyn)} == {TURN_NS}


def test_who_waits_for_a_turn_goes_on_when_the_workers_leave(guarded):
    ask(guarded, "long", "ann", **CUDA).result(SOON_S)
    ask(guarded, "greedy", "ann", **CUDA).result(SOON_S)
    bob = ask(guarded, "await_turns", "bob", **CUDA)
    while guarded._turns[0].turn is None:  # until bob's wish has come
        pass
    guarded.drain(SOON_S)
    assert bob.result(SOON_S).values is not None


def test_tenants_whose_requests_a_fault_ended_have_workers_of_their_own_from_then_on(guarded):
    hold(guarded, "bob", **CUDA)
    hold(guarded, "cyn")
    ask(guarded, "kill", "ann", **CUDA).exception(SOON_S)
    assert told(guarded, "ann", **CUDA)["isolation"] == "process"
    assert told(guarded, "bob", **CUDA)["isolation"] == "process"
    assert len({told(guarded, tenant, **CUDA)["pid"] for tenant in ("ann", "bob", "cyn")}) == 3
    assert told(guarded, "cyn", **CUDA)["isolation"] == told(guarded, "dan", **CUDA)["isolation"] == "guarded"


def test_a_lost_device_sets_apart_those_whose_requests_were_with_it(guarded):
    hold(guarded, "bob", **CUDA)
    ask(guarded, "sick", "ann", **CUDA).result(SOON_S)
    assert told(guarded, "bob", **CUDA)["isolation"] == "process"
    assert told(guarded, "cyn", **CUDA)["isolation"] == "guarded"


def test_shares_of_one_gpu_get_their_placement_and_the_emulators_get_none():
    usual, shares = replace(options(), multiprocessors=24), {"ann": 16, "dan": 40}
    with WorkerExecutor(["cuda:0", "cuda:1"], options=usual, shares=shares) as executor:
        places = [(told(executor, tenant)["device"], told(executor, tenant)["place"]) for tenant in ("ann", "bob")]
        assert places == [("cuda:0", [8, []]), ("cuda:1", [8, []])]
        places = [(told(executor, tenant)["device"], told(executor, tenant)["place"]) for tenant in ("carl", "dan")]
        assert places == [("cuda:0", [8, [16]]), ("cuda:1", [8, [24]])]
        assert told(executor, "ann")["multiprocessors"] == 16
    with WorkerExecutor("emulator", isolation="process", options=usual) as executor:
        assert (told(executor, "ann")["multiprocessors"], told(executor, "ann")["place"]) == (24, None)
    with WorkerExecutor("cuda:0", options=options(), shares={"ann": 16}) as executor:
        assert (told(executor, "bob")["multiprocessors"], told(executor, "bob")["place"]) == (None, None)
        assert told(executor, "ann")["place"] == [16, []]


def test_a_worker_that_follows_another_takes_its_place_on_the_gpu():
    usual = replace(options(), multiprocessors=16)
    with WorkerExecutor("cuda:0", workers=2, options=usual) as executor:
        assert [told(executor, tenant)["place"] for tenant in ("ann", "bob", "ann")] == [[16, []], [16, [16]], [16, []]]
        assert told(executor, "carl")["place"] == [16, [16]]  # in place of bob's, which was idle for longest
        assert isinstance(ask(executor, "kill", "carl").exception(SOON_S), DeviceFault)
        assert told(executor, "carl")["place"] == [16, [16]]
        assert told(executor, "dan")["place"] == [16, []]


def test_shares_that_exceed_the_gpu_are_an_error_at_the_start_and_affect_no_other_share():
    shares = {"ann": 64, "bob": 60, "carl": 16, "dan": 8}
    with WorkerExecutor("cuda:0", options=options("gpu", beat_s=1.0), shares=shares) as executor:
        for tenant in ("ann", "bob"):
            assert call(executor, "add", 1, 2, tenant=tenant).values == (3,)
        with pytest.raises(DeviceUnavailable, match=r"the shares exceed the GPU.*fewer workers"):
            call(executor, "add", 1, 2, tenant="carl")
        with pytest.raises(DeviceUnavailable, match="the shares exceed"):
            ask(executor, "add", "carl")
        assert worker_of(executor, "carl").state is State.FAILED
        assert call(executor, "add", 1, 2, tenant="ann").values == (3,)
        multiprocessors = {each.tenant: each.info.multiprocessors for each in executor.workers() if each.info}
        assert multiprocessors == {"ann": 64, "bob": 64}


@pytest.mark.rule("10-compiler")
def test_the_drivers_compiler_is_left_to_workers_of_one_tenant():
    with WorkerExecutor("cuda:0", isolation="stream", options=options()) as executor:
        assert told(executor, "ann")["jit"] is False
    with WorkerExecutor("cuda:0", isolation="process", options=options()) as executor:
        assert told(executor, "ann")["jit"] is True


@pytest.mark.rule("10-compiler")
def test_without_ptxas_tenants_do_not_share_a_worker_on_a_gpu():
    with (
        WorkerExecutor("cuda:0", isolation="stream", options=options("gpu", beat_s=1.0)) as executor,
        pytest.raises(DeviceUnavailable, match=r"no ptxas.*TENSOR_WASM_PTXAS.*isolation='process'"),
    ):
        call(executor, "add", 1, 2)
    with WorkerExecutor("cuda:0", isolation="process", options=options("gpu", beat_s=1.0)) as executor:
        assert call(executor, "add", 1, 2).values == (3,)
        assert executor.workers()[0].info.name == "NVIDIA Fake"


def test_a_worker_holds_as_many_requests_as_it_is_let():
    with WorkerExecutor("emulator", isolation="process", options=replace(options(), requests=3)) as executor:
        held = [hold(executor) for _ in range(3)]
        with pytest.raises(CapacityExhausted, match=r"holds 3 requests.*WorkerOptions\.requests") as full:
            ask(executor, "any")
        assert full.value.retryable
        assert ask(executor, "any", "bob").result(SOON_S).values == (7,)
        assert held[0].cancel()
        assert executor.statistics().in_flight == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"isolation": "stream", "shares": {"ann": 5}},
        {"isolation": "process", "shares": {"ann": 0}},
        {"isolation": "process", "workers": 0},
        {"options": WorkerOptions(requests=0)},
        {"options": WorkerOptions(places=0)},
        {"options": WorkerOptions(multiprocessors=0)},
    ],
)
def test_options_that_no_executor_supports_are_refused(arguments):
    with pytest.raises(InvalidArgs):
        WorkerExecutor("emulator", **arguments).close()


def test_a_worker_that_is_killed_from_outside_is_replaced():
    with WorkerExecutor("emulator", isolation="process") as executor:
        assert call(executor, "add", 1, 2, tenant="ann").values == (3,)
        begun = threading.Event()
        request = Request(module=GUEST, export="announce_and_spin", tenant="ann")
        ticket = executor.submit(request, lambda *_: begun.set() or True)
        assert begun.wait(SOON_S)
        os.kill(worker_of(executor, "ann").pid, signal.SIGKILL)
        with pytest.raises(DeviceFault, match="SIGKILL"):
            ticket.result(SOON_S)
        assert call(executor, "add", 1, 2, tenant="ann").values == (3,)


def test_output_written_before_the_fault_is_kept(puppets):
    ask(puppets, "idle").result(SOON_S)
    held = hold(puppets)
    pid = worker_of(puppets, "ann").pid
    collecting = ask(puppets, "hold")
    ask(puppets, "idle").result(SOON_S)  # behind it on the same line, so that its output has arrived
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(DeviceFault) as fault:
        collecting.result(SOON_S)
    assert fault.value.stdout == b"held"
    assert isinstance(held.exception(SOON_S), DeviceFault)


def test_a_worker_without_heartbeats_is_taken_to_hang():
    with WorkerExecutor("emulator", isolation="process", options=options(silent_s=5)) as executor:
        neighbour = hold(executor, "bob")
        with pytest.raises(DeviceFault, match="no heartbeat for"):
            hold(executor, export="silence").result(SOON_S)
        assert not neighbour.done()


def test_a_worker_that_never_starts_is_given_up_with_the_reason():
    with WorkerExecutor("emulator", options=options("crash")) as executor:
        with pytest.raises(DeviceUnavailable, match=r"3 times in a row.*exited with code 9"):
            ask(executor, "any").result(SOON_S)
        with pytest.raises(DeviceUnavailable, match="exited with code 9"):
            ask(executor, "any")
        assert [worker.state for worker in executor.workers()] == [State.FAILED]


def test_a_worker_without_its_device_says_so_at_once():
    with (
        WorkerExecutor("cuda:7", options=options("unfit")) as executor,
        pytest.raises(DeviceUnavailable, match=r"there is no cuda:7"),
    ):
        ask(executor, "any").result(SOON_S)


def await_state(executor, state):
    """Wait until the only worker is in a state; return its statistics."""
    ends_s = time.monotonic() + SOON_S
    while (found := executor.workers()[0]).state is not state:
        assert time.monotonic() < ends_s, found
    return found


def test_what_tenants_share_may_be_started_before_it_is_needed():
    with WorkerExecutor("emulator", options=options()) as executor:
        executor.begin()
        begun = await_state(executor, State.READY)
        assert told(executor, "ann")["pid"] == begun.pid
        executor.begin()
        (worker,) = executor.workers()
        assert (worker.pid, worker.starts) == (begun.pid, 1)


def test_workers_of_one_tenant_are_not_started_before_he_calls(puppets):
    puppets.begin()
    assert puppets.workers() == ()


def test_a_worker_that_found_no_device_before_it_was_needed_has_a_successor():
    with WorkerExecutor("cuda:7", isolation="stream", options=options("unfit")) as executor:
        executor.begin()
        assert await_state(executor, State.FAILED).number == 1
        for _ in range(2):
            with pytest.raises(DeviceUnavailable, match=r"there is no cuda:7"):
                ask(executor, "any").result(SOON_S)
        assert [worker.number for worker in executor.workers()] == [2], "the call's own, which stays given up"


def test_a_worker_that_is_never_ready_is_not_waited_for_for_ever():
    with (
        WorkerExecutor("emulator", options=options("mute", start_s=0.2)) as executor,
        pytest.raises(DeviceUnavailable, match="not ready within"),
    ):
        ask(executor, "any").result(SOON_S)


def test_a_request_that_waits_for_a_worker_ends_at_its_deadline():
    with (
        WorkerExecutor("emulator", options=options("mute")) as executor,
        pytest.raises(InvokeTimeout, match="before a worker"),
    ):
        ask(executor, "any", deadline_s=0.2).result(SOON_S)


def test_a_lost_device_ends_what_needs_it_and_the_worker_after_it_has_answered(puppets):
    neighbour = hold(puppets, "bob")
    held, first = hold(puppets), pid_of(puppets)
    assert ask(puppets, "sick").result(SOON_S).values == (7,)
    with pytest.raises(DeviceFault, match=r"the device does not answer.*tried again"):
        held.result(SOON_S)
    assert pid_of(puppets) != first
    assert "an access outside memory" in worker_of(puppets, "ann").last_end
    assert not neighbour.done()


def test_a_real_worker_finds_out_that_its_device_is_lost_and_is_replaced():
    with WorkerExecutor("emulator", options=options("faulty")) as executor:
        for _ in range(2):
            healthy = executor.submit(Request(module=VECTOR_ADD, grants=Grants(cuda=True)))
            assert healthy.result(SOON_S).exit_code == 0
            assert executor.workers()[0].info.name == "faulty"
            breaking = executor.submit(Request(module=MATMUL, grants=Grants(cuda=True)))
            with pytest.raises(DeviceFault, match="a planted fault"):
                breaking.result(SOON_S)
        (worker,) = executor.workers()
        assert "a planted fault" in worker.last_end
        assert worker.starts >= 2


@pytest.mark.rule("3-worker")
def test_a_crash_refunds_what_the_tenants_were_charged_for(puppets):
    hold(puppets, export="charged")
    (ann,) = puppets.statistics().tenants
    assert (ann.device_bytes, ann.pinned_bytes, ann.in_flight) == (4096, 64, 1)
    assert isinstance(ask(puppets, "kill").exception(SOON_S), DeviceFault)
    ask(puppets, "idle").result(SOON_S)
    assert all(tenant.device_bytes == tenant.pinned_bytes == 0 for tenant in puppets.statistics().tenants)
    assert worker_of(puppets, "ann").charges == ()


def test_an_unknown_error_of_a_worker_is_a_bug_and_no_more(puppets):
    with pytest.raises(InternalError, match="SystemExit"):
        ask(puppets, "exotic").result(SOON_S)
    assert worker_of(puppets, "ann").starts == 1


def test_a_cancelled_ticket_ends_at_once_and_the_answer_that_comes_later_is_dropped(puppets):
    held, first = hold(puppets), pid_of(puppets)
    assert held.cancel()
    with pytest.raises(CancelledError):
        held.result(0)
    assert held.cancel()
    ask(puppets, "release").result(SOON_S)
    assert pid_of(puppets) == first


@pytest.mark.parametrize("cuda", [True, False], ids=["with a device", "without a device"])
def test_cancelling_ends_a_guest_that_runs(real, cuda):
    begun, starts = threading.Event(), real.workers()[0].starts
    request = Request(module=GUEST, export="announce_and_spin", grants=Grants(cuda=cuda), limits=Limits(wall_s=600))
    ticket = real.submit(request, lambda *_: begun.set() or True)
    assert begun.wait(SOON_S)
    assert ticket.cancel()
    while any(worker.running for worker in real.workers()):  # it goes on only once a request has gone through
        call(real, "add", 1, 1)
    assert real.workers()[0].starts == starts


def test_draining_lets_what_runs_end():
    executor = WorkerExecutor("emulator", isolation="process", options=options())
    held = hold(executor)
    released = ask(executor, "release")
    executor.drain(SOON_S)
    assert held.result(SOON_S).values == released.result(SOON_S).values == (7,)
    with pytest.raises(CapacityExhausted, match="closed"):
        ask(executor, "any")


def test_closing_ends_what_runs():
    executor = WorkerExecutor("emulator", isolation="process", options=options())
    held = hold(executor)
    executor.close()
    with pytest.raises(CapacityExhausted, match="before the request had ended"):
        held.result(SOON_S)
    executor.close()


def test_a_full_device_makes_room_for_another_tenant_only_by_an_idle_worker():
    with WorkerExecutor("emulator", isolation="process", workers=1, options=options()) as executor:
        held = hold(executor, "ann")
        with pytest.raises(CapacityExhausted, match="busy"):
            ask(executor, "any", "bob")
        ask(executor, "release", "ann").result(SOON_S)
        held.result(SOON_S)
        assert ask(executor, "any", "bob").result(SOON_S).values == (7,)
        assert [worker.tenant for worker in executor.workers()] == ["bob"]


@pytest.mark.rule("11-secrets")
def test_a_worker_gets_no_key_no_other_descriptor_and_no_way_to_a_daemon_of_mps(puppets, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_API_SNAPSHOT_HMAC_KEY", "secret")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        names = ask(puppets, "variables").result(SOON_S).stdout.decode().split()
        descriptors = ask(puppets, "descriptors").result(SOON_S).stdout.decode().split()
    finally:
        os.close(reader)
        os.close(writer)
    assert "CUDA_VISIBLE_DEVICES" in names
    assert "CUDA_MPS_PIPE_DIRECTORY" in names
    assert not [name for name in names if "KEY" in name]
    assert descriptors == ["socket"] * 2


def test_mps_is_refused_unless_kernels_are_trusted():
    with pytest.raises(InvalidArgs, match="every process on the GPU"):
        WorkerExecutor("cuda:0", mps=True)


def test_mps_without_a_daemon_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    with pytest.raises(DeviceUnavailable, match=str(tmp_path)):
        WorkerExecutor("cuda:0", mps=True, kernels="trusted")


PARENT = f"""
import sys
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.runtime.workers.options import WorkerOptions
executor = WorkerExecutor("emulator", options=WorkerOptions(program=({FAKE!r}, "puppet")))
print(executor.submit(Request(module=b"any", export="pid")).result(60).values[0], flush=True)
sys.stdin.read()
"""


def test_a_worker_ends_with_its_parent_however_that_ends():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent:
        worker = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        gone, _, _ = select.select([worker], [], [], SOON_S)
        os.close(worker)
    assert gone


def test_through_random_kills_every_ticket_ends_and_nothing_is_left():
    chance = random.Random(7)
    with WorkerExecutor("emulator", isolation="process", options=options()) as executor:
        tickets = []
        for number in range(200):
            tenant = chance.choice(["ann", "bob"])
            tickets.append(ask(executor, chance.choice(["add", "add", "add", "hold", "release"]), tenant))
            if number % 16 == 15:
                ask(executor, "add", tenant).exception(SOON_S)
                worker = worker_of(executor, tenant).pid
                if worker is not None:
                    kill(worker)
        executor.drain(0.0)
        errors = [ticket.exception(SOON_S) for ticket in tickets]
    assert {type(error) for error in errors} == {type(None), DeviceFault, CapacityExhausted}
    assert sum(error is None for error in errors) > 50
