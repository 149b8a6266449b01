"""Bodies: how much, how long, and what is no base64."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import (
    BodyTooLarge,
    CapacityExhausted,
    InvalidRequest,
    RequestTimeout,
)
from tensorwasm.server.http import bodies
from tensorwasm.server.http.bodies import BodyBudget, BodyReader, declared_bytes


async def chunks(*parts):
    for part in parts:
        if isinstance(part, asyncio.Event):
            await part.wait()
        else:
            yield part


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.integers(0, 600))
def test_a_body_within_the_limit_is_read_and_its_memory_returned(parts, limit):
    whole, budget = b"".join(parts), BodyBudget(1000)

    async def read():
        reader = BodyReader(chunks(*parts, b""), budget, limit)
        try:
            return await reader.read(30)
        finally:
            reader.close()

    if len(whole) <= limit:
        assert asyncio.run(read()) == whole
    else:
        with pytest.raises(BodyTooLarge):
            asyncio.run(read())
    assert budget.free_bytes == 1000


@pytest.mark.parametrize("came", [(), (b"x",), (b"x", b"y")])
def test_a_body_that_breaks_off_is_refused(came):
    """RSGI gives an empty chunk for what broke off, and then another: after a real end there is none."""
    with pytest.raises(RequestTimeout):
        asyncio.run(BodyReader(chunks(*came, b"", b""), BodyBudget(), 100).read(30))


def test_a_body_over_the_limit_is_read_no_further():
    taken = []

    async def endless():
        while True:
            taken.append(1)
            yield b"x" * 100

    with pytest.raises(BodyTooLarge):
        asyncio.run(BodyReader(endless(), BodyBudget(), 1000).read(30))
    assert len(taken) == 11


def test_the_memory_of_all_bodies_is_bounded():
    async def fill():
        budget, held = BodyBudget(1000), asyncio.Event()
        first = BodyReader(chunks(b"x" * 900, held, b""), budget, 2000)
        reading = asyncio.ensure_future(first.read(30))
        await asyncio.sleep(0)
        second = BodyReader(chunks(b"y" * 200, b""), budget, 2000)
        with pytest.raises(CapacityExhausted):
            await second.read(30)
        second.close()
        held.set()
        assert len(await reading) == 900
        first.close()
        assert budget.free_bytes == 1000

    asyncio.run(fill())


def test_no_tenant_gets_more_memory_than_it_leaves_for_others():
    budget = BodyBudget(1000)
    budget.take(500, 1)
    with pytest.raises(CapacityExhausted):
        budget.take(1, 1)
    budget.take(250, 2)
    with pytest.raises(CapacityExhausted):
        budget.take(1, 2)
    budget.take(125, 3)
    for tenant, size_bytes in ((1, 500), (2, 250), (3, 125)):
        budget.give(size_bytes, tenant)
    budget.take(500, 2)
    assert budget.free_bytes == 500


def test_a_body_that_does_not_arrive_times_out():
    with pytest.raises(RequestTimeout):
        asyncio.run(BodyReader(chunks(b"x", asyncio.Event()), BodyBudget(), 100).read(0.001))


def test_the_rest_of_a_refused_body_is_dropped_and_bounded(monkeypatch):
    monkeypatch.setattr(bodies, "LINGER_S", 0.001)
    budget, taken = BodyBudget(), []

    async def parts():
        for each in range(5):
            taken.append(each)
            yield b"x"

    asyncio.run(bodies.linger(parts(), budget))
    assert len(taken) == 5
    asyncio.run(bodies.linger(chunks(asyncio.Event()), budget))
    assert budget.lingering == 0
    budget.lingering = bodies.LINGERING
    asyncio.run(bodies.linger(parts(), budget))
    assert len(taken) == 5


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e3", "٣", " 1", "0x10", "9" * 30])
def test_an_invalid_content_length_is_refused(text):
    with pytest.raises(InvalidRequest):
        declared_bytes(text)


def test_a_content_length_is_parsed():
    assert declared_bytes(None) is None
    assert declared_bytes("0") == 0
    assert declared_bytes("67108865") == 67108865


@pytest.mark.parametrize("parts", [(b"abc", b"", b""), (b"a", b"", b"bc", b"", b""), (b"abc", b"")])
def test_a_body_of_its_declared_length_is_complete_whatever_empty_frames_it_has(parts):
    """Over HTTP/2 the last frame is often an empty one: the same empty chunks as of a body that broke off."""
    assert asyncio.run(BodyReader(chunks(*parts), BodyBudget(), 100).read(30, declared=3)) == b"abc"


def test_a_body_that_broke_off_is_shorter_than_it_declared():
    with pytest.raises(RequestTimeout):
        asyncio.run(BodyReader(chunks(b"ab", b"", b""), BodyBudget(), 100).read(30, declared=3))


def test_without_a_declared_length_a_second_empty_chunk_is_refused():
    with pytest.raises(RequestTimeout):
        asyncio.run(BodyReader(chunks(b"abc", b"", b""), BodyBudget(), 100).read(30))
