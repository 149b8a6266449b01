"""Pieces of long work: one in each round of the loop, and a rest after a millisecond of them."""

import asyncio
import time

from tensorwasm.server.http import long_work
from tensorwasm.server.http.long_work import REST_NS, WORK_NS, run_slice


def test_a_slice_returns_its_value_and_an_error_does_not_block_others():
    async def run():
        assert await run_slice(lambda: 7) == 7
        try:
            await run_slice(lambda: {}["x"])
        except KeyError:
            return await run_slice(lambda: 8)

    assert asyncio.run(run()) == 8


def test_each_round_runs_one_slice_of_all_requests():
    async def run():
        rounds, done = 0, []

        def piece(who):
            done.append((rounds, who))

        async def work(who):
            for _ in range(3):
                await run_slice(lambda: piece(who))

        tasks = [asyncio.ensure_future(work(who)) for who in "abc"]
        while not all(task.done() for task in tasks):
            rounds += 1
            await asyncio.sleep(0)
        assert [who for _, who in done] == list("abc" * 3)
        assert len({at for at, _ in done}) == len(done)

    asyncio.run(run())


def test_the_loop_rests_after_a_millisecond_of_slices(monkeypatch):
    now_ns, rests = 10**9, []

    class Clock:
        @staticmethod
        def monotonic_ns():
            return now_ns

    async def sleep(seconds, real=asyncio.sleep):
        nonlocal now_ns
        if seconds:
            rests.append(now_ns)
            now_ns += round(seconds * 1e9) + 1
        await real(0)

    def piece():
        nonlocal now_ns
        now_ns += WORK_NS // 4 + 1

    monkeypatch.setattr(long_work, "time", Clock)
    monkeypatch.setattr(long_work.asyncio, "sleep", sleep)

    async def run():
        nonlocal now_ns
        for _ in range(40):
            await run_slice(piece)
        assert len(rests) == 10
        for _ in range(40):  # pieces that come seldom never rest: there is nothing to rest from
            now_ns += REST_NS + 1
            await run_slice(piece)

    asyncio.run(run())
    assert len(rests) == 10


def test_a_busy_loop_is_idle_half_of_the_time():
    async def run():
        began_s, worked = time.perf_counter(), 0.0

        def piece():
            nonlocal worked
            at_s = time.perf_counter()
            while time.perf_counter() - at_s < 2e-4:
                pass
            worked += time.perf_counter() - at_s

        await asyncio.gather(*([run_slice(piece) for _ in range(200)]))
        assert time.perf_counter() - began_s > 1.3 * worked

    asyncio.run(run())
