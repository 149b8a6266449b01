"""What a worker's process does with frames that come at a time when they mean nothing."""

from __future__ import annotations

from tensorwasm.runtime.workers.child.counter import Counter
from tensorwasm.runtime.workers.child.server import WorkerServer
from tensorwasm.runtime.workers.frames import TurnFrame


def test_an_order_for_the_process_before_is_passed_over_where_nobody_has_turns():
    counter = Counter(None, WorkerServer(None, 1, None, 1.0))
    counter.take(TurnFrame(contested=True, number=3, tenant="ann", length_ns=50))
    counter.take(TurnFrame(contested=False, number=0, tenant=None, length_ns=0))
