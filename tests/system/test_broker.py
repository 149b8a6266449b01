"""Several processes that share the workers of one: a broker hands out connections, and each front's end is its own."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from neighbours import deploy, until
from oracles.leftovers import Before
from servers import running_server
from tensorwasm.errors import CapacityExhausted, DeviceFault, DeviceUnavailable, InvalidArgs, InvokeTimeout
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers import frames
from tensorwasm.runtime.workers.broker import WorkerBroker
from tensorwasm.runtime.workers.broker_client import BrokerClient
from tensorwasm.runtime.workers.conversation.flight import make_invoke
from tensorwasm.runtime.workers.frames import (
    PROTOCOL,
    BlobFrame,
    BlobPartFrame,
    CreditFrame,
    SetupFrame,
    StopFrame,
    TurnFrame,
)
from tensorwasm.runtime.workers.lifecycle import Backoff
from tensorwasm.runtime.workers.options import WorkerOptions
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.runtime.workers.process import Patience
from tensorwasm.runtime.workers.wire import FROM_WORKER, Splitter, encode
from tensorwasm.values import Limits

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="workers are looked at through /proc")

ROOT = Path(__file__).resolve().parents[2]
VECTOR_ADD = (ROOT / "examples/vector_add/vector_add.wasm").read_bytes()
SOON_S = 60
GUEST = bytes(
    wat2wasm("""(module
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_alloc" (func $alloc (param i32 i32) (result i64)))
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1)))
  (func (export "hold") (drop (call $alloc (i32.const 4096) (i32.const 0)))
    (drop (call $emit (i32.const 0) (i32.const 1))) (loop (br 0)))
  (func (export "flood") (loop (br_if 0 (i32.eqz (call $emit (i32.const 0) (i32.const 65536)))))))""")
)
FRONT = """
import sys
from pathlib import Path
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.values import Limits

module, grants, limits = Path(sys.argv[2]).read_bytes(), Grants(cuda=True), Limits(wall_s=3600)
request = Request(module=module, export="hold", tenant="ann", grants=grants, limits=limits)
listener = lambda *_: print("begun", flush=True) or True
with WorkerExecutor(broker=Path(sys.argv[1])) as executor:
    executor.submit(request, listener).exception()
"""


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = Before()
    yield
    assert before.new(SOON_S) == {}


@pytest.fixture
def owner():
    """The executor whose workers are shared."""
    options = WorkerOptions(patience=Patience(beat_s=0.05), backoff=Backoff(first_s=0.01, longest_s=0.05))
    with WorkerExecutor("emulator", isolation="guarded", options=options) as executor:
        yield executor


@pytest.fixture
def path(owner, tmp_path):
    """The socket of its broker."""
    with WorkerBroker(owner, tmp_path / "run" / "broker.sock"):
        yield tmp_path / "run" / "broker.sock"


@pytest.fixture
def fronts(path):
    quick = WorkerOptions(backoff=Backoff(first_s=0.01, longest_s=0.05))
    with WorkerExecutor(broker=path, options=quick) as first, WorkerExecutor(broker=path, options=quick) as second:
        yield first, second


def add(front, tenant="ann", **fields):
    return front.submit(Request(module=GUEST, export="add", args=(2, 3), tenant=tenant, **fields)).result(SOON_S).values


def pid_of(executor):
    (worker,) = executor.workers()
    return worker.pid


def connect(path, *, long=False):
    """Return a connection to a worker, blocking, and what it says first."""
    worker = BrokerClient(path).connect(0, long=long)
    worker.broker.close()
    link = worker.link
    link.setblocking(True)
    link.settimeout(SOON_S)
    splitter = Splitter(FROM_WORKER)
    while True:
        for frame in splitter.feed(link.recv(4096)):
            return link, frame


def is_cut_off(link):
    """Wait until the worker has closed a connection."""
    try:
        while link.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def test_fronts_share_one_process_and_its_device(owner, fronts):
    for front in fronts:
        assert (front.devices, front.isolation) == (("emulator",), "guarded")
        assert add(front) == (5,)
        request = Request(module=VECTOR_ADD, name="vector_add", grants=Grants(cuda=True), tenant="ann")
        assert b"verified" in front.submit(request).result(SOON_S).stdout
    assert len({pid_of(executor) for executor in (owner, *fronts)}) == 1
    assert pid_of(owner) != os.getpid()


def hold(front, tenant="ann"):
    """Have a guest hold device memory without end; return its ticket once it does."""
    begun = threading.Event()
    grants, limits = Grants(cuda=True), Limits(wall_s=3600)
    request = Request(module=GUEST, export="hold", tenant=tenant, grants=grants, limits=limits)
    ticket = front.submit(request, lambda *_: begun.set() or True)
    assert begun.wait(SOON_S)
    return ticket


def held_bytes(front):
    """Return what its tenants hold in the worker, in calls of other fronts, too."""
    return sum(each.device_bytes for each in front.statistics().tenants)


def wait_for(holds):
    ends_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def test_a_front_that_closes_ends_its_own_calls_and_no_others(fronts, path):
    first, _ = fronts
    assert add(first) == (5,)
    with WorkerExecutor(broker=path) as third:
        held = hold(third)
        wait_for(lambda: held_bytes(first) == 4096)
        kept = hold(first)
        wait_for(lambda: held_bytes(first) == 8192)
    assert isinstance(held.exception(SOON_S), CapacityExhausted)
    wait_for(lambda: held_bytes(first) == 4096)
    assert not kept.done()
    assert add(first) == (5,)
    kept.stop()


def test_a_front_that_drains_lets_its_calls_end(path):
    draining = threading.Event()
    with WorkerExecutor(broker=path) as front, ThreadPoolExecutor(1) as threads:
        begun = threading.Event()
        request = Request(module=GUEST, export="flood", tenant="ann")
        ticket = front.submit(request, lambda *_: begun.set() or not (draining.is_set() and not front.workers()))
        assert begun.wait(SOON_S)
        draining.set()
        drained = threads.submit(front.drain, SOON_S)
        assert ticket.result(SOON_S).export == "flood"
        drained.result(SOON_S)


def test_the_guests_of_a_front_that_is_killed_end_with_it(fronts, path, tmp_path):
    first, _ = fronts
    assert add(first) == (5,)
    module = tmp_path / "guest.wasm"
    module.write_bytes(GUEST)
    with subprocess.Popen([sys.executable, "-c", FRONT, str(path), str(module)], stdout=subprocess.PIPE) as front:
        assert front.stdout.readline() == b"begun\n"
        wait_for(lambda: held_bytes(first) == 4096)
        front.kill()
    wait_for(lambda: held_bytes(first) == 0)
    assert add(first) == (5,)


def test_a_worker_that_dies_ends_the_calls_of_all_fronts_which_go_on_with_the_next(owner, fronts):
    tickets = [hold(front) for front in fronts]
    before = pid_of(owner)
    os.kill(before, signal.SIGKILL)
    assert all(isinstance(ticket.exception(SOON_S), DeviceFault) for ticket in tickets)
    assert [add(front) for front in fronts] == [(5,), (5,)]
    assert before not in {pid_of(executor) for executor in (owner, *fronts)}


def test_tenants_who_had_calls_in_a_lost_worker_have_workers_of_their_fronts_own(owner, fronts):
    first, _ = fronts
    ticket = hold(first)
    os.kill(pid_of(owner), signal.SIGKILL)
    ticket.exception(SOON_S)
    outcome = first.submit(Request(module=GUEST, export="add", args=(2, 3), tenant="ann", grants=Grants(cuda=True)))
    assert outcome.result(SOON_S).values == (5,)
    assert [worker.tenant for worker in first.workers()] == [None, "ann"]
    assert add(first, "bob") == (5,)


def test_tenants_whose_kernels_run_long_have_a_worker_of_their_own(path):
    (usual, first), (long, second) = connect(path), connect(path, long=True)
    with usual, long:
        assert first.pid != second.pid


def test_a_worker_that_is_ready_has_loaded_what_its_first_call_needs(path):
    pytest.importorskip("numba")
    link, ready = connect(path)
    with link:
        assert "llvmlite" in Path(f"/proc/{ready.pid}/maps").read_text()


@pytest.mark.parametrize(
    "said",
    [
        b"\xff" * 100,
        encode(BlobFrame(1, 1)) * 2,
        encode(TurnFrame(contested=True, number=1, tenant="ann", length_ns=1)),
        encode(SetupFrame(PROTOCOL, "emulator", None, None, "stream", False, False, 1, 1.0)),
        encode(StopFrame()),
    ],
    ids=["rubbish", "a blob twice", "a turn", "a setup", "stop"],
)
def test_what_a_front_may_not_say_ends_its_connection_alone(fronts, path, said):
    first, _ = fronts
    assert add(first) == (5,)
    link, ready = connect(path)
    with link:
        link.sendall(said)
        assert is_cut_off(link)
    assert add(first) == (5,)
    assert pid_of(first) == ready.pid


def test_a_front_that_reads_nothing_is_cut_off_and_others_are_served(fronts, path):
    first, _ = fronts
    link, ready = connect(path)
    with link:
        request = Request(module=GUEST, export="flood", tenant="ann")
        blob = (BlobFrame(1, len(GUEST)), BlobPartFrame(1, GUEST))
        calls = [make_invoke(request, number, 1, None, None, None, stream=True) for number in range(1, 9)]
        credit = [CreditFrame(number, frames.WINDOW) for number in range(1, 9) for _ in range(8)]
        link.sendall(b"".join(map(encode, (*blob, *calls, *credit))))
        assert add(first) == (5,)
        wait_for(lambda: poll_hangup(link))
    assert add(first) == (5,)
    assert pid_of(first) == ready.pid


def poll_hangup(link):
    """Return whether the other end is closed, without reading what it has sent."""
    poll = select.poll()
    poll.register(link, select.POLLRDHUP)
    return bool(poll.poll(100))


def test_a_front_goes_on_when_its_broker_has_come_again(tmp_path):
    path = tmp_path / "broker.sock"
    quick = WorkerOptions(backoff=Backoff(first_s=0.01, longest_s=0.05, idle_ends=1))
    with WorkerExecutor("emulator") as owner, WorkerBroker(owner, path):
        front = WorkerExecutor(broker=path, options=quick)
        assert add(front) == (5,)
    with front:
        with pytest.raises(InvokeTimeout):
            add(front, deadline_s=0.3)
        with WorkerExecutor("emulator") as owner, WorkerBroker(owner, path):
            assert add(front) == (5,)


def test_a_front_waits_for_a_broker_that_is_long_away_and_says_so_once(tmp_path, caplog):
    path = tmp_path / "broker.sock"
    with WorkerExecutor("emulator") as owner, WorkerBroker(owner, path):
        front = WorkerExecutor(broker=path)
        assert add(front) == (5,)
    with front:
        with pytest.raises(InvokeTimeout):
            add(front, deadline_s=3.0)
        (worker,) = front.workers()
        assert (worker.starts, caplog.text.count("no broker answers")) == (1, 1)  # it was asked some thirty times
        come = threading.Event()
        with WorkerExecutor("emulator") as owner:
            owner.connect = lambda link, *_, **__: (link.close(), come.set())
            with WorkerBroker(owner, path):
                assert come.wait(SOON_S)


def test_a_broker_that_leaves_has_the_calls_that_it_had_and_the_next_one_all_others(tmp_path):
    path, gone, next_one = tmp_path / "broker.sock", threading.Event(), []
    with (
        WorkerExecutor("emulator") as owner,
        WorkerExecutor("emulator") as next_owner,
        WorkerBroker(owner, path) as one,
    ):

        def may_follow():
            with suppress(InvalidArgs):
                next_one.append(WorkerBroker(next_owner, path))
            return next_one

        assert not may_follow()
        with WorkerExecutor(broker=path) as front:
            held = hold(front, "ann")
            one.leave(gone.set)
            until(may_follow)
            with next_one[0], WorkerExecutor(broker=path) as other:
                assert add(other) == (5,)
                assert add(front) == (5,), "on the connection that it has"
                assert [len(each.workers()) for each in (owner, next_owner)] == [1, 1]
                assert pid_of(front) != pid_of(other)
                one.leave(gone.set)  # again
                assert path.exists(), "it is another's now"
                assert not held.done()
                assert not gone.is_set()
            assert not path.exists()
        assert gone.wait(SOON_S)
        assert isinstance(held.exception(SOON_S), CapacityExhausted)


def test_a_front_without_a_broker_says_how_to_start_one(tmp_path):
    with pytest.raises(DeviceUnavailable, match="tensor-wasm broker"):
        WorkerExecutor(broker=tmp_path / "broker.sock")


def test_callers_who_say_nothing_keep_no_front_waiting(fronts, path):
    with ExitStack() as silent:
        for _ in range(200):
            link = silent.enter_context(socket.socket(socket.AF_UNIX))
            link.connect(str(path))
        assert [add(front) for front in fronts] == [(5,), (5,)]


@pytest.fixture
def broker(tmp_path):
    """A broker in a process of its own, and the path of its socket."""
    path = tmp_path / "b"
    command = [sys.executable, "-m", "tensorwasm.cli", "broker", "--device", "emulator", "--socket", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == f"listening on {path}\n"
            yield process, path
        finally:
            process.kill()


def test_servers_share_the_workers_of_a_broker_which_leaves_nothing(broker, tmp_path):
    process, path = broker
    own = {"TENSOR_WASM_BROKER": str(path)}
    workers = set()
    for number in (1, 2):
        with running_server(tmp_path / f"data{number}", environment=own) as server, server.client() as client:
            function = deploy(client, VECTOR_ADD, "vector_add", grants=["cuda"])
            done = client.post(f"/functions/{function}/invoke", json={}).json()
            assert "verified" in done["stdout"]["text"]
            tasks = Path(f"/proc/{process.pid}/task").iterdir()
            workers |= {child for task in tasks for child in (task / "children").read_text().split()}
            assert server.stop() == 0
    assert len(workers) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON_S) == 0
    assert not path.exists()
