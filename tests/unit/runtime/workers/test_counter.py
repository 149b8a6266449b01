"""What a worker's process does with frames that come at a time when they mean nothing, and keeps after the last one."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.workers.child.counter import Counter
from tensorwasm.runtime.workers.child.parent_link import OutputWindow, ParentLink
from tensorwasm.runtime.workers.child.server import WorkerServer
from tensorwasm.runtime.workers.frames import WINDOW, BlobFrame, BlobPartFrame, TurnFrame
from tensorwasm.runtime.workers.wire import FROM_WORKER, Splitter
from tensorwasm.values import Deadline


def test_an_order_for_the_process_before_is_passed_over_where_nobody_has_turns():
    counter = Counter(None, WorkerServer(None, 1, None, 1.0))
    counter.take(TurnFrame(contested=True, number=3, tenant="ann", length_ns=50))
    counter.take(TurnFrame(contested=False, number=0, tenant=None, length_ns=0))


def test_a_connection_that_has_ended_keeps_no_modules():
    counter = Counter(None, WorkerServer(None, 1, None, 1.0), front=True)
    for frame in (BlobFrame(1, 1), BlobPartFrame(1, b"x"), BlobFrame(2, 2), BlobPartFrame(2, b"x")):
        counter.take(frame)
    counter.close()
    assert not counter._blobs
    assert not counter._incoming


def test_the_device_is_looked_at_once_for_the_answers_of_all_connections(monkeypatch):
    server, looks, ends = WorkerServer(None, 1, None, 1.0), [], [socket.socketpair() for _ in range(3)]
    monkeypatch.setattr(server, "look_after_device", lambda teller: looks.append(teller) or "")
    server._counters = busy, idle, other = [Counter(ParentLink(theirs), server, front=True) for _, theirs in ends]
    made = Invocation("run", (1,), ("i32",), 0, b"", b"", (), 0.5, None)
    busy.finished += [(1, made), (2, made)]
    other.finished += [(1, made)]
    server._flush()
    server._flush()
    assert looks == [busy]
    heard = [[done.request for done in Splitter(FROM_WORKER).feed(ours.recv(4096))] for ours, _ in (ends[0], ends[2])]
    assert heard == [[1, 2], [1]]
    for counter, (ours, _) in zip((busy, idle, other), ends, strict=True):
        counter.close()
        counter.line.close()
        ours.close()


def test_output_waits_for_credit_however_far_the_deadline_is():
    window = OutputWindow(Deadline.after(1e12))
    assert all(window.take() for _ in range(WINDOW))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(window.take)
        window.close()
        assert waiting.result() is False
