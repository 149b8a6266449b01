"""`AwaitedCall`: one outcome for one task, from whatever thread it comes; leaving it stops the call, once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tensorwasm.errors import InvokeTimeout
from tensorwasm.runtime.invoke.invocation import AwaitedCall, Invocation

OUTCOME = Invocation("f", (1,), ("i32",), 0, b"", b"", (), 0.0, None)
LATE = InvokeTimeout("late")


class Waited:
    """An `AwaitedCall`, and what it has told."""

    def __init__(self) -> None:
        self.ended, self.stopped = [], []
        self.call = AwaitedCall(self.ended.append)
        self.call.stop_with(lambda: self.stopped.append(True))


def settle(call: AwaitedCall, outcome: Invocation | BaseException, *, elsewhere: bool) -> None:
    if not elsewhere:
        call.settle(outcome)
        return
    thread = threading.Thread(target=call.settle, args=(outcome,))
    thread.start()
    thread.join()


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("outcome", [OUTCOME, LATE])
def test_the_first_outcome_counts_from_every_thread(elsewhere, outcome):
    async def wait() -> None:
        waited = Waited()
        settle(waited.call, outcome, elsewhere=elsewhere)
        settle(waited.call, InvokeTimeout("a second one"), elsewhere=elsewhere)
        if outcome is LATE:
            with pytest.raises(InvokeTimeout, match="late"):
                await waited.call.wait()
        else:
            assert await waited.call.wait() is OUTCOME
        assert (waited.ended, waited.stopped) == ([outcome], [])

    asyncio.run(wait())


def test_an_outcome_ends_the_wait_of_a_task():
    async def wait() -> None:
        waited = Waited()
        task = asyncio.ensure_future(waited.call.wait())
        await asyncio.sleep(0)
        settle(waited.call, OUTCOME, elsewhere=True)
        assert await task is OUTCOME
        assert (waited.ended, waited.stopped) == ([OUTCOME], [])

    asyncio.run(wait())


def test_a_task_that_is_cancelled_stops_the_call_once_and_what_comes_then_is_dropped():
    async def wait() -> None:
        waited = Waited()
        task = asyncio.ensure_future(waited.call.wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        settle(waited.call, OUTCOME, elsewhere=True)
        settle(waited.call, OUTCOME, elsewhere=False)
        await asyncio.sleep(0)
        assert (waited.ended, waited.stopped) == ([None], [True])

    asyncio.run(wait())


def test_an_outcome_after_the_loop_has_closed_harms_nobody():
    async def make() -> Waited:
        return Waited()

    waited = asyncio.run(make())
    settle(waited.call, OUTCOME, elsewhere=True)
    assert waited.ended == []
