"""Chunks between a guest's thread and an event loop."""

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwasm.errors import InvokeTimeout
from tensorwasm.service.invocations.channel import DEPTH, Channel
from tensorwasm.values import NEVER, Deadline


def start(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


async def drain(channel):
    taken = []
    while (chunk := await channel.take()) is not None:
        taken.append(chunk)
    return taken


@settings(max_examples=50)
@given(st.lists(st.binary(min_size=1, max_size=8), max_size=100), st.integers(1, 8))
def test_every_chunk_arrives_in_order_and_never_more_wait_than_may(chunks, depth):
    async def story():
        channel, most = Channel(NEVER, depth), [0]

        def send():
            for chunk in chunks:
                assert channel.put(chunk)
                most[0] = max(most[0], len(channel._chunks))
            channel.end()

        thread = start(send)
        assert await drain(channel) == chunks
        await asyncio.to_thread(thread.join)
        assert most[0] <= depth

    asyncio.run(story())


def test_who_waits_for_room_hears_that_nobody_listens():
    async def story():
        channel, answers = Channel(NEVER), []

        def send():
            while channel.put(b"x"):
                answers.append(True)
            answers.extend(channel.put(b"x") for _ in range(3))
            full.set()

        full = threading.Event()
        start(send)
        while len(channel._chunks) < DEPTH:
            await asyncio.to_thread(full.wait, 0.001)
        channel.close()
        await asyncio.to_thread(full.wait)
        assert answers == [True] * DEPTH + [False] * 3

    asyncio.run(story())


def test_who_waits_for_room_is_ended_at_the_deadline():
    async def story():
        channel = Channel(Deadline.after(0.05))

        def send():
            for _ in range(DEPTH):
                channel.put(b"x")
            with pytest.raises(InvokeTimeout):
                channel.put(b"x")
            return True

        assert await asyncio.to_thread(send)
        channel.end()
        assert len(await drain(channel)) == DEPTH

    asyncio.run(story())


def test_nothing_that_comes_after_its_loop_has_gone_is_an_error():
    async def story():
        return Channel(NEVER)

    channel = asyncio.run(story())
    channel.put(b"x")
    channel.end()
