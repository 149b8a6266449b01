"""Calls of fronts that a worker process refuses, and what a worker keeps of a front that has gone."""

import os
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from oracles.leftovers import Before
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.broker import WorkerBroker
from tensorwasm.runtime.workers.broker_client import BrokerClient
from tensorwasm.runtime.workers.conversation.flight import make_invoke, make_target
from tensorwasm.runtime.workers.frames import BeatFrame, BlobFrame, BlobPartFrame, DoneFrame, FailedFrame, OutputFrame
from tensorwasm.runtime.workers.options import WorkerOptions
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.runtime.workers.process import Patience
from tensorwasm.runtime.workers.wire import FROM_WORKER, Splitter, encode
from tensorwasm.values import Limits

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="workers are looked at through /proc")

SOON_S = 60
GUEST = bytes(
    wat2wasm("""(module
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_alloc" (func $alloc (param i32 i32) (result i64)))
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1)))
  (func (export "hold") (drop (call $alloc (i32.const 4096) (i32.const 0)))
    (drop (call $emit (i32.const 0) (i32.const 1))) (loop (br 0))))""")
)
ADD = Request(module=GUEST, export="add", args=(2, 3), tenant="ann")
HOLD = Request(module=GUEST, export="hold", tenant="ann", grants=Grants(cuda=True), limits=Limits(wall_s=3600))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The socket of a broker whose worker all tests share."""
    before, path = Before(), tmp_path_factory.mktemp("run") / "broker.sock"
    options = WorkerOptions(patience=Patience(beat_s=0.05))
    with WorkerExecutor("emulator", isolation="guarded", options=options) as owner, WorkerBroker(owner, path):
        yield path
    assert before.new(SOON_S) == {}


class Front:
    """A front that says what it is told, and returns what it hears."""

    def __init__(self, path):
        worker = BrokerClient(path).connect(0, long=False)
        worker.broker.close()
        self.link = worker.link
        self.link.settimeout(SOON_S)
        self._splitter = Splitter(FROM_WORKER)
        self._heard = iter(())
        self.ready = self.hear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.link.close()

    def say(self, *frames):
        self.link.sendall(b"".join(map(encode, frames)))

    def hear(self, *kinds):
        """Return the next frame, of those kinds if any are given; None at the end."""
        while True:
            for frame in self._heard:
                if not kinds or isinstance(frame, kinds):
                    return frame
            try:
                data = self.link.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._heard = self._splitter.feed(data)


def aim(request, target):
    """Return the frames of a target."""
    blob = target + 1
    return BlobFrame(blob, len(GUEST)), BlobPartFrame(blob, GUEST), make_target(request, target, blob)


def invoke(request, number, target=1):
    return make_invoke(request, number, target, None, None, None, stream=True)


@pytest.mark.parametrize(
    "limits", [Limits(wall_s=float("nan")), Limits(wall_s=-1.0), Limits(module_bytes=1)], ids=["nan", "past", "module"]
)
def test_a_call_that_is_refused_is_answered_and_others_go_on(path, limits):
    with Front(path) as front:
        front.say(*aim(HOLD, 1), invoke(HOLD, 1))
        assert front.hear(OutputFrame).request == 1
        wrong = Request(module=GUEST, export="add", args=(2, 3), tenant="ann", limits=limits)
        front.say(*aim(wrong, 11), invoke(wrong, 2, 11))
        refused = front.hear(FailedFrame)
        assert (refused.request, refused.kind) == (2, "invalid_args")
        front.say(invoke(ADD, 3))
        assert front.hear(DoneFrame).values == (5,)


def test_a_number_given_twice_ends_the_connection_and_both_calls(path):
    with Front(path) as front, Front(path) as other:
        front.say(*aim(HOLD, 1), invoke(HOLD, 1))
        assert front.hear(OutputFrame).request == 1
        front.say(invoke(HOLD, 1))
        assert front.hear(OutputFrame) is None
        other.say(*aim(ADD, 1), invoke(ADD, 1))
        assert other.hear(DoneFrame).values == (5,)
        while other.hear(BeatFrame).charges:
            pass


def test_no_other_program_would_inherit_a_workers_connections(path):
    with Front(path) as front:
        folder = Path(f"/proc/{front.ready.pid}")
        sockets = [each.name for each in (folder / "fd").iterdir() if str(each.readlink()).startswith("socket")]
        flags = [int((folder / "fdinfo" / each).read_text().split("flags:")[1].split()[0], 8) for each in sockets]
        assert len(sockets) >= 3
        assert all(each & os.O_CLOEXEC for each in flags)


def test_the_largest_request_goes_through(path):
    words = tuple("€" * 20_000 for _ in range(60)) + ("",) * 60_000
    with WorkerExecutor(broker=path) as front:
        request = Request(module=GUEST, export="add", args=(2, 3), tenant="ann", argv=words)
        assert front.submit(request).result(SOON_S).values == (5,)
