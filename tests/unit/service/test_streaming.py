"""Channels between a guest's thread and an event loop, and the outcomes of streams."""

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwasm.errors import InvokeTimeout, NotFound
from tensorwasm.service.invocations.streaming import (
    ALL,
    DEPTH,
    KEPT,
    KEPT_S,
    TENANTS,
    Channel,
    StreamEnding,
    StreamEndings,
)
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
def test_every_chunk_arrives_in_order_within_the_depth(chunks, depth):
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


def test_closing_a_channel_unblocks_the_guest():
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


def test_a_blocked_put_ends_at_the_deadline():
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


def test_put_after_the_loop_has_closed_is_no_error():
    async def story():
        return Channel(NEVER)

    channel = asyncio.run(story())
    channel.put(b"x")
    channel.end()


def test_an_outcome_is_visible_to_its_tenant_only():
    outcomes = StreamEndings()
    outcomes.put(1, StreamEnding("a", "f", "running"))
    outcomes.put(1, StreamEnding("a", "f", "done"))
    assert outcomes.get(1, "a").status == "done"
    with pytest.raises(NotFound):
        outcomes.get(2, "a")
    with pytest.raises(NotFound):
        outcomes.get(1, "b")


def test_an_outcome_expires():
    now_s = [0.0]
    outcomes = StreamEndings(lambda: now_s[0])
    outcomes.put(1, StreamEnding("a", "f", "done"))
    now_s[0] = KEPT_S - 1
    assert outcomes.get(1, "a").status == "done"
    now_s[0] = KEPT_S
    with pytest.raises(NotFound):
        outcomes.get(1, "a")


def test_outcomes_beyond_the_limit_of_a_tenant_drop_its_oldest():
    outcomes = StreamEndings()
    outcomes.put(2, StreamEnding("other", "f", "done"))
    for at in range(KEPT + 1):
        outcomes.put(1, StreamEnding(str(at), "f", "done"))
    assert outcomes.get(2, "other").status == "done"
    assert outcomes.get(1, "1").status == "done"
    with pytest.raises(NotFound):
        outcomes.get(1, "0")


def test_outcomes_beyond_the_total_limit_drop_the_least_recent_tenant():
    outcomes = StreamEndings()
    for tenant in range(ALL // KEPT + 1):
        for at in range(KEPT):
            outcomes.put(tenant, StreamEnding(str(at), "f", "running"))
            outcomes.put(tenant, StreamEnding(str(at), "f", "done"))
    assert sum(map(len, outcomes._tenants.values())) <= ALL
    assert outcomes.get(1, "0").status == outcomes.get(tenant, str(KEPT - 1)).status == "done"
    with pytest.raises(NotFound):
        outcomes.get(0, str(KEPT - 1))


def test_tenants_beyond_the_limit_drop_the_least_recent_tenant():
    outcomes = StreamEndings()
    for tenant in range(TENANTS):
        outcomes.put(tenant, StreamEnding("a", "f", "running"))
    outcomes.put(0, StreamEnding("a", "f", "done"))
    outcomes.put(TENANTS, StreamEnding("a", "f", "running"))
    assert outcomes.get(0, "a").status == "done"
    with pytest.raises(NotFound):
        outcomes.get(1, "a")
