"""What a process is told of its calls: every number that a frame has stands for what it was told before."""

from __future__ import annotations

import socket
import sys
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import InvokeTimeout
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.invoke.invocation import PendingInvocation
from tensorwasm.runtime.workers.conversation import known_targets
from tensorwasm.runtime.workers.conversation.flight import Flight
from tensorwasm.runtime.workers.conversation.flight_queue import FlightQueue
from tensorwasm.runtime.workers.conversation.known_targets import KnownTargets
from tensorwasm.runtime.workers.conversation.outbox import Outbox
from tensorwasm.runtime.workers.frames import BlobFrame, BlobPartFrame, ForgetFrame, InvokeFrame, TargetFrame
from tensorwasm.runtime.workers.wire import TO_WORKER, Splitter

if sys.platform == "win32":
    pytest.skip("workers need Linux or macOS", allow_module_level=True)

KEPT = 2
TARGETS = [
    {"module": module, "tenant": tenant, "grants": Grants(cuda=cuda)}
    for module in (b"one", b"x" * 200_000)
    for tenant in ("ann", "bob")
    for cuda in (True, False)
]
calls = st.tuples(st.sampled_from(TARGETS), st.sampled_from([b"", b"some"]), st.integers(0, 3))


class Carrier:
    """A worker that is told nothing."""

    def cancel(self, flight):
        raise AssertionError

    hush = credit = cancel


class Process:
    """Reads frames as a worker does, and remembers what it was told."""

    def __init__(self):
        self.blobs, self.targets, self.made = {}, {}, []
        self._splitter = Splitter(TO_WORKER)

    def feed(self, data):
        for frame in self._splitter.feed(data):
            match frame:
                case BlobFrame():
                    assert frame.blob not in self.blobs
                    self.blobs[frame.blob] = b""
                case BlobPartFrame():
                    self.blobs[frame.blob] += frame.data
                case TargetFrame():
                    self.targets[frame.target] = frame, self.blobs.pop(frame.module)
                case ForgetFrame():
                    del self.targets[frame.number]
                case InvokeFrame():
                    target, module = self.targets[frame.target]
                    stdin = self.blobs.pop(frame.stdin) if frame.stdin is not None else b""
                    self.made.append((frame.request, module, target.tenant, target.cuda, stdin))


@given(st.lists(calls, max_size=30))
def test_every_call_arrives_with_its_target_however_slowly_the_process_reads(said):
    known, outbox, process = KnownTargets(), Outbox(), Process()
    known._targets._items = KEPT
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)

        def read():
            outbox.flush(ours)
            process.feed(theirs.recv(1 << 20))

        sent = []
        for number, (target, stdin, reads) in zip(count(1), said, strict=False):
            flight = Flight(number, Request(stdin=stdin, **target), None, Carrier(), PendingInvocation())
            frame = None if outbox.lazy else known.find(flight)
            if frame is not None:
                outbox.add(frame)
            else:
                outbox.put(known.describe(flight))
            sent.append((number, target["module"], target["tenant"], target["grants"].cuda, stdin))
            outbox.flush(ours)
            for _ in range(reads):
                if not outbox.empty:
                    read()
        while len(process.made) < len(sent):
            read()
        assert process.made == sent
        assert len(process.targets) <= KEPT


def test_a_call_of_a_known_target_is_one_small_frame():
    known = KnownTargets()
    first, second = (
        Flight(number, Request(b"any", export="f"), None, Carrier(), PendingInvocation()) for number in (1, 2)
    )
    assert known.find(first) is None
    assert len(list(known.describe(first))) == 4
    assert known.find(second).request == 2
    assert [type(frame) for frame in known.describe(second)] == [InvokeFrame]


def test_targets_are_bounded_by_their_modules_bytes(monkeypatch):
    monkeypatch.setattr(known_targets, "_TARGET_BYTES", 10)
    known = KnownTargets()
    forgotten = []
    for number in range(1, 5):
        flight = Flight(number, Request(b"%d" % number * 6), None, Carrier(), PendingInvocation())
        forgotten += [frame.number for frame in known.describe(flight) if isinstance(frame, ForgetFrame)]
    assert len(forgotten) == 3


def test_a_queue_ends_requests_at_their_deadline_and_gives_the_others_in_order():
    queue = FlightQueue()
    flights = [
        Flight(number, Request(b"", deadline_s=limit), None, Carrier(), PendingInvocation())
        for number, limit in PLANNED
    ]
    for each in flights:
        queue.put(each)
    assert queue.expire(0.0) > 50
    assert queue.remove(flights[2])
    assert not queue.remove(flights[2])
    given = []
    queue.give(given.append)
    assert [each.number for each in given] == [1, 4]
    assert isinstance(flights[1].ticket.exception(0), InvokeTimeout)
    assert not queue


PLANNED = [(1, 100.0), (2, 0.0), (3, 100.0), (4, None)]
