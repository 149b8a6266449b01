"""What a front does with a broker, or a worker, that hangs, answers rubbish or says what is not its to say."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from oracles.leftovers import Before
from tensorwasm.errors import CapacityExhausted, DeviceFault, InvokeTimeout
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.broker import WorkerBroker
from tensorwasm.runtime.workers.broker_client import ANSWER_S, BrokerClient
from tensorwasm.runtime.workers.frames import (
    PROTOCOL,
    AskFrame,
    AskPartFrame,
    InvokeFrame,
    ReadyFrame,
    TurnEndFrame,
    UnfitFrame,
    WishFrame,
)
from tensorwasm.runtime.workers.lifecycle import Backoff, State
from tensorwasm.runtime.workers.options import WorkerOptions
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.runtime.workers.wire import FROM_WORKER, TO_WORKER, Splitter, encode

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="workers are looked at through /proc")

SOON_S = 60
QUICK = WorkerOptions(backoff=Backoff(first_s=0.01, longest_s=0.05))
ROOT = Path(__file__).resolve().parents[2]
GUEST = bytes(
    wat2wasm("""(module
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "seven") (result i32) (i32.const 7))
  (func (export "flood") (loop (br_if 0 (i32.eqz (call $emit (i32.const 0) (i32.const 65536)))))))""")
)
MATMUL = (ROOT / "examples/matmul/matmul.wasm").read_bytes()
SEVEN = Request(module=GUEST, export="seven", tenant="ann")
FLOOD = Request(module=GUEST, export="flood", tenant="ann")
BREAKING = Request(module=MATMUL, tenant="bob", grants=Grants(cuda=True))
REPLY = {"devices": ["emulator"], "isolation": "guarded"}


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = Before()
    yield
    assert before.new(SOON_S) == {}


@contextmanager
def false_broker(path, answer):
    """Say what there is to the first front, and have a function answer the others."""

    def serve():
        link, _ = listener.accept()
        with link:
            link.recv(4096)
            link.sendall(json.dumps(REPLY).encode() + b"\n")
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            kept.append(link)
            link.recv(4096)
            answer(link)

    kept = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(SOON_S)
            for each in kept:
                each.close()


def test_a_broker_that_hangs_holds_up_no_deadline_no_cancelling_and_no_end(tmp_path):
    path, asked = tmp_path / "broker.sock", threading.Event()
    with false_broker(path, lambda _: asked.set()):
        front = WorkerExecutor(broker=path, options=QUICK)
        began_s = time.monotonic()
        waiting, stopped = front.submit(SEVEN), front.submit(SEVEN)
        assert asked.wait(SOON_S)
        with pytest.raises(InvokeTimeout):
            front.submit(Request(module=GUEST, export="seven", deadline_s=0.05)).result(SOON_S)
        stopped.cancel()
        front.close()
        assert time.monotonic() - began_s < ANSWER_S / 2
        assert isinstance(waiting.exception(0), CapacityExhausted)


def test_a_broker_that_answers_what_nobody_understands_is_asked_again(tmp_path):
    path, answers = tmp_path / "broker.sock", threading.Semaphore(0)

    def answer(link):
        link.sendall(json.dumps({"failure": [1, "wasmtime", "what kind of a trap?"]}).encode() + b"\n")
        answers.release()

    with false_broker(path, answer), WorkerExecutor(broker=path, options=QUICK) as front:
        ticket = front.submit(Request(module=GUEST, export="seven", deadline_s=1.0))
        assert all(answers.acquire(timeout=SOON_S) for _ in range(3))
        assert isinstance(ticket.exception(SOON_S), InvokeTimeout)


READY = ReadyFrame(PROTOCOL, "0", "emulator", 0, "false", (9, 0), (9, 0), 1 << 30, 1, 1 << 10, True, "", 1024, "")


@pytest.mark.parametrize(
    "said",
    [
        (UnfitFrame("device_unavailable", "there is no such device"),),
        (READY, READY),
        (READY, WishFrame({"ann": 1})),
        (READY, TurnEndFrame(1)),
        (READY, AskFrame(7, "ann", "k", (9, 0), "narrow", 8)),
        (READY, AskPartFrame(7, b"x")),
    ],
    ids=["unfit", "ready twice", "a wish", "the end of a turn", "an ask", "a part of one"],
)
def test_what_a_worker_may_say_to_its_parent_alone_ends_a_fronts_connection(tmp_path, said):
    path, cut_off = tmp_path / "broker.sock", threading.Semaphore(0)

    def answer(link):
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(link, [json.dumps(REPLY).encode() + b"\n"], [theirs.fileno()])
            ours.sendall(encode(said[0]))
            splitter = Splitter(TO_WORKER)
            while data := ours.recv(1 << 16):
                for frame in splitter.feed(data):
                    if isinstance(frame, InvokeFrame):
                        ours.sendall(b"".join(map(encode, said[1:])))
        cut_off.release()

    with false_broker(path, answer), WorkerExecutor(broker=path, options=QUICK) as front:
        front.submit(SEVEN)
        assert cut_off.acquire(timeout=SOON_S)
        later = front.submit(SEVEN)
        assert cut_off.acquire(timeout=SOON_S)
        assert all(worker.state is not State.FAILED for worker in front.workers())
    assert later.done()


@pytest.fixture
def broken(tmp_path):
    """The socket of a broker whose device a call of `BREAKING` breaks, and its executor."""
    program = (str(ROOT / "tests/fakes/worker.py"), "faulty")
    options = WorkerOptions(program=program, backoff=QUICK.backoff)
    with (
        WorkerExecutor("emulator", isolation="guarded", options=options) as owner,
        WorkerBroker(owner, tmp_path / "broker.sock"),
    ):
        yield tmp_path / "broker.sock", owner


def flood(executor, lost):
    """Have a guest without a device run until the device is lost; return its ticket once it does."""
    begun = threading.Event()
    ticket = executor.submit(FLOOD, lambda *_: begun.set() or not lost.is_set())
    assert begun.wait(SOON_S)
    return ticket


def test_a_fronts_call_without_a_device_ends_well_beside_one_that_breaks_it(broken):
    path, _ = broken
    lost = threading.Event()
    with WorkerExecutor(broker=path, options=QUICK) as front, WorkerExecutor(broker=path, options=QUICK) as other:
        unharmed = flood(other, lost)
        assert isinstance(front.submit(BREAKING).exception(SOON_S), DeviceFault)
        lost.set()
        assert unharmed.result(SOON_S).export == "flood"
        assert [each.submit(SEVEN).result(SOON_S).values for each in (front, other)] == [(7,), (7,)]


def test_a_front_that_comes_while_a_device_is_lost_is_given_the_next_one(broken):
    path, owner = broken
    lost = threading.Event()
    unharmed, before = flood(owner, lost), owner.workers()[0].pid
    assert isinstance(owner.submit(BREAKING).exception(SOON_S), DeviceFault)
    worker = BrokerClient(path).connect(0, long=False)
    with worker.broker, worker.link as link:
        link.settimeout(SOON_S)
        lost.set()
        (ready, *_) = Splitter(FROM_WORKER).feed(link.recv(1 << 16))
        assert ready.pid != before
    assert unharmed.result(SOON_S).export == "flood"


def test_tenants_stay_together_when_a_broker_ends_during_their_calls(tmp_path):
    path = tmp_path / "broker.sock"
    command = [sys.executable, "-m", "tensorwasm.cli", "broker", "--device=emulator", "--isolation=guarded"]

    def begin():
        process = stack.enter_context(subprocess.Popen([*command, f"--socket={path}"], stdout=subprocess.PIPE))
        stack.callback(process.kill)
        assert process.stdout.readline()
        return process

    with ExitStack() as stack:
        broker = begin()
        front = stack.enter_context(WorkerExecutor(broker=path, options=QUICK))
        for number in (signal.SIGTERM, signal.SIGKILL):
            begun = threading.Event()
            call = Request(module=GUEST, export="flood", tenant="ann", grants=Grants(cuda=True))
            lost = front.submit(call, lambda *_, begun=begun: begun.set() or True)
            assert begun.wait(SOON_S)
            broker.send_signal(number)
            assert isinstance(lost.exception(SOON_S), DeviceFault)
            broker.wait(SOON_S)
            broker = begin()
            request = Request(module=GUEST, export="seven", tenant="ann", grants=Grants(cuda=True))
            assert front.submit(request).result(SOON_S).values == (7,)
            assert [worker.tenant for worker in front.workers()] == [None]
