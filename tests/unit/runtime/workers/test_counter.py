"""What a worker's process does with frames that come at a time when they mean nothing, and keeps after the last one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tensorwasm.runtime.workers.child.counter import Counter
from tensorwasm.runtime.workers.child.parent_link import OutputWindow
from tensorwasm.runtime.workers.child.server import WorkerServer
from tensorwasm.runtime.workers.frames import WINDOW, BlobFrame, BlobPartFrame, TurnFrame
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


def test_output_waits_for_credit_however_far_the_deadline_is():
    window = OutputWindow(Deadline.after(1e12))
    assert all(window.take() for _ in range(WINDOW))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(window.take)
        window.close()
        assert waiting.result() is False
