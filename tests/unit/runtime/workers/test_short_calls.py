"""Calls with a device in a worker's process, which its crew makes itself where they are short."""

from __future__ import annotations

import dataclasses
import socket
import sys
import threading

import pytest
from msgspec import structs
from wasmtime import wat2wasm

from tensorwasm import Runtime, settings
from tensorwasm.errors import DeviceLost
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers.child import server as served
from tensorwasm.runtime.workers.child.parent_link import ParentLink
from tensorwasm.runtime.workers.child.server import WorkerServer
from tensorwasm.runtime.workers.conversation.flight import make_invoke, make_target
from tensorwasm.runtime.workers.frames import (
    BeatFrame,
    BlobFrame,
    BlobPartFrame,
    CancelFrame,
    DoneFrame,
    FailedFrame,
    ForgetFrame,
    InvokeFrame,
    SickFrame,
    StopFrame,
)
from tensorwasm.runtime.workers.outcomes import describe_device
from tensorwasm.runtime.workers.wire import FROM_WORKER, Splitter, encode
from tensorwasm.values import Limits

if sys.platform == "win32":
    pytest.skip("workers need Linux or macOS", allow_module_level=True)
pytest.importorskip("numba")

LIMIT_S = 60.0
PLACES = 4
CUDA = Grants(cuda=True)
GUEST = bytes(
    wat2wasm("""(module
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 16) "\\00\\00\\01\\00\\00\\00\\01\\00")
  (func (export "spin") (param i32) (result i32) (loop (br_if 0 (local.get 0))) (i32.const 7))
  (func (export "crash") unreachable)
  (func (export "fill") (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 32)))))""")
)


class Caller:
    """A process at the other end of a connection, and a tenant of its."""

    def __init__(self, link, tenant):
        self.link = link
        self.link.settimeout(LIMIT_S)
        self._splitter = Splitter(FROM_WORKER)
        self._heard = []
        self.say(
            BlobFrame(1, len(GUEST)),
            BlobPartFrame(1, GUEST),
            make_target(structs.replace(REQUEST, tenant=tenant), 2, 1),
        )

    def say(self, *frames):
        self.link.sendall(b"".join(map(encode, frames)))

    def hear(self, *kinds):
        """Return the next frame of those kinds."""
        while True:
            while self._heard:
                frame = self._heard.pop(0)
                if isinstance(frame, kinds):
                    return frame
            data = self.link.recv(1 << 16)
            assert data
            self._heard += self._splitter.feed(data)

    def ask(self, number, export, *args):
        self.say(invoke(number, export, *args))

    def call(self, number, export, *args):
        self.ask(number, export, *args)
        return self.hear(DoneFrame, FailedFrame)


REQUEST = Request(
    module=GUEST, tenant="ann", grants=CUDA, limits=Limits(wall_s=LIMIT_S, output_bytes=64 << 20), memory_kind="staged"
)


def invoke(number, export, *args):
    return InvokeFrame(number, 2, export, args, None, None)


@pytest.fixture(scope="module")
def native():
    with pytest.MonkeyPatch.context() as patch:
        changed = dataclasses.replace(settings.current(), native="on")
        patch.setattr(settings, "current", lambda: changed)
        patch.setattr("tensorwasm.runtime.executor.local.SLOW_S", LIMIT_S)  # a first call is slow
        yield


class World:
    """A worker's server in this process, its parent, and any number of fronts; it notes what it submits."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.server = WorkerServer(runtime, PLACES, describe_device(runtime.open_device()), 0.05)
        self.submitted = []
        submit = self.server.executor.submit

        def note(request, listener=None):
            self.submitted.append(request.tenant)
            return submit(request, listener)

        self.server.executor.submit = note
        ours, theirs = socket.socketpair()
        self.handover, fronts = socket.socketpair()
        self.ends = [ours, theirs, self.handover, fronts]
        self.thread = threading.Thread(target=self.server.serve, args=(ParentLink(theirs), None, fronts))
        self.thread.start()
        self.parent = Caller(ours, "ann")
        self.parent.call(1, "spin", 0)  # compiles, on another thread
        self.parent.call(2, "crash")
        self.submitted.clear()

    def front(self):
        ours, theirs = socket.socketpair()
        socket.send_fds(self.handover, [b"\0"], [theirs.fileno()])
        theirs.close()
        self.ends.append(ours)
        return Caller(ours, "bob")

    def close(self):
        self.parent.say(StopFrame())
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()
        for counter in self.server._counters:
            counter.close()
        self.server.executor.close()
        for each in self.ends:
            each.close()


@pytest.fixture
def world(native):
    with Runtime(device="emulator") as runtime:
        made = World(runtime)
        yield made
        made.close()


def test_a_function_that_was_called_before_is_called_where_it_is_read(world):
    for number in range(10, 20):
        done = world.parent.call(number, "spin", 0)
        assert (done.request, done.values) == (number, (7,))
    assert world.submitted == []


def test_many_calls_at_once_are_all_answered(world):
    world.parent.say(*(invoke(number, "spin", 0) for number in range(10, 500)))
    assert [world.parent.hear(DoneFrame).request for _ in range(10, 500)] == list(range(10, 500))
    assert world.submitted == []


def test_a_trap_is_its_calls_outcome_and_the_next_call_is_well(world):
    failed = world.parent.call(10, "crash")
    assert (failed.request, failed.details) == (10, {"trap": "unreachable"})
    assert world.parent.call(11, "spin", 0).values == (7,)
    assert world.submitted == []


def test_beside_a_guest_that_does_not_end_others_are_answered_and_it_can_be_cancelled(world):
    front = world.front()
    front.call(1, "spin", 0)
    world.submitted.clear()
    world.parent.ask(10, "spin", 1)
    assert [front.call(number, "spin", 0).values for number in range(2, 50)] == [(7,)] * 48
    assert "bob" not in world.submitted
    assert world.parent.call(11, "spin", 0).values == (7,)
    beat = world.parent.hear(BeatFrame).number
    assert world.parent.hear(BeatFrame).number == beat + 1
    world.parent.say(CancelFrame(10, stop=True))
    failed = world.parent.hear(FailedFrame)
    assert (failed.request, failed.details) == (10, {"trap": "cancelled"})


def test_a_tenant_whose_guests_do_not_end_holds_up_the_others_once(world):
    for number in range(10, 10 + PLACES):
        world.parent.ask(number, "spin", 1)
    while len(world.submitted) < PLACES - 1:
        pass
    assert world.parent.call(30, "crash").details == {"trap": "unreachable"}
    for number in range(10, 10 + PLACES):
        world.parent.say(CancelFrame(number, stop=True))
    ended = {world.parent.hear(FailedFrame).request for _ in range(PLACES)}
    assert ended == set(range(10, 10 + PLACES))


def test_a_guest_whose_front_goes_is_ended(world):
    front = world.front()
    front.call(1, "spin", 0)
    front.ask(2, "spin", 1)
    front.link.close()
    while len(world.server._counters) > 1:
        pass
    assert world.parent.call(10, "spin", 0).values == (7,)


def test_a_front_that_reads_nothing_delays_no_other(world):
    silent = world.front()
    silent.call(1, "fill")
    for number in range(2, 12):
        silent.ask(number, "fill")  # 64 KiB of output each, more than a socket takes
    for number in range(10, 20):
        assert world.parent.call(number, "spin", 0).values == (7,)
    assert {silent.hear(DoneFrame).request for _ in range(2, 12)} == set(range(2, 12))


def test_a_front_that_breaks_the_protocol_loses_its_connection_alone(world):
    front = world.front()
    front.ask(1, "spin", 1)
    front.say(InvokeFrame(2, 99, "spin", (0,), None, None))  # there is no such target
    while len(world.server._counters) > 1:
        pass
    assert world.parent.call(10, "spin", 0).values == (7,)


def test_a_target_that_is_forgotten_is_no_more(world):
    front = world.front()
    front.call(1, "spin", 0)
    front.say(ForgetFrame(2), invoke(2, "spin", 0))
    while len(world.server._counters) > 1:
        pass


def test_a_device_that_is_lost_is_told_before_the_outcome(world, monkeypatch):
    def lost(_):
        raise DeviceLost("a planted fault")

    monkeypatch.setattr(world.runtime.open_device(), "ended", lost)
    world.parent.ask(10, "spin", 0)
    assert isinstance(world.parent.hear(SickFrame, DoneFrame, FailedFrame), SickFrame)
    assert world.parent.hear(DoneFrame).values == (7,)  # it did nothing with the device
    assert served.WorkerServer.look_after_device(world.server, world.server._parent)


def test_what_was_checked_for_a_request_is_checked_for_a_short_call(world):
    long = b"x" * (REQUEST.limits.stdin_bytes + 1)
    parts = [BlobPartFrame(5, long[at : at + (64 << 10)]) for at in range(0, len(long), 64 << 10)]
    world.parent.say(BlobFrame(5, len(long)), *parts, make_invoke(REQUEST, 10, 2, 5, None, None, stream=False))
    assert world.parent.hear(FailedFrame).kind == "stdin_too_large"
