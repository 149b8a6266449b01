"""What a front does with a broker, or a worker, that hangs, answers rubbish or says what is not its to say."""

import json
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from oracles.leftovers import Before
from tensorwasm.errors import CapacityExhausted, InvokeTimeout
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.broker_client import ANSWER_S
from tensorwasm.runtime.workers.frames import (
    PROTOCOL,
    TO_WORKER,
    AskFrame,
    AskPartFrame,
    InvokeFrame,
    ReadyFrame,
    Splitter,
    TurnEndFrame,
    UnfitFrame,
    WishFrame,
    encode,
)
from tensorwasm.runtime.workers.lifecycle import Backoff, State
from tensorwasm.runtime.workers.options import WorkerOptions
from tensorwasm.runtime.workers.pool import WorkerExecutor

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="workers are looked at through /proc")

SOON_S = 60
QUICK = WorkerOptions(backoff=Backoff(first_s=0.01, longest_s=0.05))
GUEST = bytes(wat2wasm('(module (func (export "seven") (result i32) (i32.const 7)))'))
SEVEN = Request(module=GUEST, export="seven", tenant="ann")
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
