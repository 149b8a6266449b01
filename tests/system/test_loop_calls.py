"""Workers whose answers an event loop reads: the same outcomes as elsewhere, whatever a process does, and no thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from oracles.leftovers import Before
from tensorwasm.errors import CapacityExhausted, DeviceFault
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.invoke.invocation import await_outcome
from tensorwasm.runtime.workers.conversation.loop_reader import LoopReader
from tensorwasm.runtime.workers.lifecycle import Backoff
from tensorwasm.runtime.workers.options import WorkerOptions
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.runtime.workers.process import Patience

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="workers are looked at through /proc")

FAKE = str(Path(__file__).resolve().parents[1] / "fakes" / "worker.py")
SOON_S = 60
SILENT_S = 2.0


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = Before()
    yield
    assert before.new(SOON_S) == {}


@asynccontextmanager
async def puppets(**patience):
    """An executor with puppets as workers, read by the running loop."""
    options = WorkerOptions(
        program=(FAKE, "puppet"),
        backoff=Backoff(first_s=0.01, longest_s=0.05, idle_ends=3),
        patience=Patience(beat_s=0.05, **patience),
    )
    reader = LoopReader()
    executor = WorkerExecutor("emulator", isolation="process", options=options)
    executor.read_on(reader)
    try:
        yield executor
    finally:
        await asyncio.to_thread(executor.close)
        reader.close()


def submit(executor, export, **fields):
    return executor.submit(Request(module=b"any", export=export, tenant="ann", **fields))


async def ask(executor, export):
    return await asyncio.wait_for(await_outcome(submit(executor, export)), SOON_S)


def test_an_outcome_is_settled_on_the_loops_thread():
    async def main():
        async with puppets() as executor:
            assert (await ask(executor, "first")).values == (7,)  # its process is ready from now on
            threads = []
            pending = submit(executor, "second")
            pending.add_done_callback(lambda _: threads.append(threading.get_ident()))
            await asyncio.wait_for(await_outcome(pending), SOON_S)
            assert threads == [threading.get_ident()]

    asyncio.run(main())


def test_many_requests_of_one_turn_are_all_answered():
    async def main():
        async with puppets() as executor:
            outcomes = await asyncio.gather(*(ask(executor, f"f{number}") for number in range(100)))
            assert [each.export for each in outcomes] == [f"f{number}" for number in range(100)]

    asyncio.run(main())


@pytest.mark.rule("11-claims")
@pytest.mark.parametrize(
    "mischief",
    ["kill", "segv", "exit", "close", "midframe", "garbage", "oversize", "hello", "foreign", "other", "misfit", "skip"],
)
def test_a_process_that_misbehaves_ends_its_own_calls_and_is_replaced(mischief):
    async def main():
        async with puppets() as executor:
            held = asyncio.ensure_future(ask(executor, "hold"))
            with pytest.raises(DeviceFault):
                await ask(executor, mischief)
            with pytest.raises(DeviceFault):
                await held
            assert (await ask(executor, "again")).values == (7,)
            (worker,) = executor.workers()
            assert worker.starts == 2

    asyncio.run(main())


def test_a_loop_that_stands_still_makes_no_worker_look_hung():
    async def main():
        async with puppets(silent_s=SILENT_S) as executor:
            (before,) = (await ask(executor, "pid")).values
            pending = submit(executor, "later")
            threading.Event().wait(3 * SILENT_S)  # the loop's thread does nothing else
            assert (await asyncio.wait_for(await_outcome(pending), SOON_S)).values == (7,)
            assert (await ask(executor, "pid")).values == (before,)

    asyncio.run(main())


def test_calls_that_run_when_the_executor_is_closed_have_an_outcome():
    async def main():
        async with puppets() as executor:
            held = [asyncio.ensure_future(ask(executor, "hold")) for _ in range(3)]
            await ask(executor, "first")
            await asyncio.to_thread(executor.close)
            for each in held:
                with pytest.raises(CapacityExhausted):
                    await each

    asyncio.run(main())


def test_a_cancelled_call_frees_its_place():
    async def main():
        async with puppets() as executor:
            await ask(executor, "first")
            held = asyncio.ensure_future(ask(executor, "hold"))
            await asyncio.sleep(0)
            held.cancel()
            with pytest.raises(asyncio.CancelledError):
                await held
            assert (await ask(executor, "next")).values == (7,)

    asyncio.run(main())


def test_other_threads_may_submit_beside_the_loop():
    async def main():
        async with puppets() as executor:
            await ask(executor, "first")

            def work():
                return [submit(executor, "any").result(SOON_S).values for _ in range(50)]

            found = await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)), ask(executor, "here"))
            assert found[:4] == [[(7,)] * 50] * 4

    asyncio.run(main())
