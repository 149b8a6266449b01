"""Pieces of long work: one in each round of the loop, and a rest after a millisecond of them."""

import asyncio
import time

from tensorwasm.server import pieces
from tensorwasm.server.pieces import REST_NS, WORK_NS, do_piece


def test_the_value_is_returned_and_an_error_leaves_the_line_to_others():
    async def run():
        assert await do_piece(lambda: 7) == 7
        try:
            await do_piece(lambda: {}["x"])
        except KeyError:
            return await do_piece(lambda: 8)

    assert asyncio.run(run()) == 8


def test_all_who_ask_have_one_piece_in_each_round():
    async def run():
        rounds, done = 0, []

        def piece(who):
            done.append((rounds, who))

        async def work(who):
            for _ in range(3):
                await do_piece(lambda: piece(who))

        tasks = [asyncio.ensure_future(work(who)) for who in "abc"]
        while not all(task.done() for task in tasks):
            rounds += 1
            await asyncio.sleep(0)
        assert [who for _, who in done] == list("abc" * 3)
        assert len({at for at, _ in done}) == len(done)

    asyncio.run(run())


def test_after_a_millisecond_of_pieces_the_loop_rests(monkeypatch):
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

    monkeypatch.setattr(pieces, "time", Clock)
    monkeypatch.setattr(pieces.asyncio, "sleep", sleep)

    async def run():
        nonlocal now_ns
        for _ in range(40):
            await do_piece(piece)
        assert len(rests) == 10
        for _ in range(40):  # pieces that come seldom never rest: there is nothing to rest from
            now_ns += REST_NS + 1
            await do_piece(piece)

    asyncio.run(run())
    assert len(rests) == 10


def test_a_loop_with_much_to_do_is_idle_half_of_the_time():
    async def run():
        began_s, worked = time.perf_counter(), 0.0

        def piece():
            nonlocal worked
            at_s = time.perf_counter()
            while time.perf_counter() - at_s < 2e-4:
                pass
            worked += time.perf_counter() - at_s

        await asyncio.gather(*([do_piece(piece) for _ in range(200)]))
        assert time.perf_counter() - began_s > 1.3 * worked

    asyncio.run(run())
