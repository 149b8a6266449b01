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
from tensorwasm.server.http.bodies import BodyBudget, BodyReader, declared_bytes


def coming(*parts):
    """Return what reads a body that comes in parts; an event is waited for, an error ends it."""
    left = list(parts)

    async def read():
        if left and isinstance(left[0], asyncio.Event):
            await left.pop(0).wait()
        part = left.pop(0) if left else None
        if isinstance(part, Exception):
            raise part
        return part

    return read


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.integers(0, 600))
def test_a_body_within_the_limit_is_read_and_its_memory_returned(parts, limit):
    whole, budget = b"".join(parts), BodyBudget(1000)

    async def read():
        reader = BodyReader(coming(*parts), budget, limit)
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
    with pytest.raises(RequestTimeout):
        asyncio.run(BodyReader(coming(*came, RequestTimeout("broken off")), BodyBudget(), 100).read(30))


def test_a_body_over_the_limit_is_read_no_further():
    taken = []

    async def read():
        taken.append(1)
        return b"x" * 100

    with pytest.raises(BodyTooLarge):
        asyncio.run(BodyReader(read, BodyBudget(), 1000).read(30))
    assert len(taken) == 11


def test_the_memory_of_all_bodies_is_bounded():
    async def fill():
        budget, held = BodyBudget(1000), asyncio.Event()
        first = BodyReader(coming(b"x" * 900, held), budget, 2000)
        reading = asyncio.ensure_future(first.read(30))
        await asyncio.sleep(0)
        second = BodyReader(coming(b"y" * 200), budget, 2000)
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
        asyncio.run(BodyReader(coming(b"x", asyncio.Event()), BodyBudget(), 100).read(0.001))


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e3", "٣", " 1", "0x10", "9" * 30])
def test_an_invalid_content_length_is_refused(text):
    with pytest.raises(InvalidRequest):
        declared_bytes(text)


def test_a_content_length_is_parsed():
    assert declared_bytes(None) is None
    assert declared_bytes("0") == 0
    assert declared_bytes("67108865") == 67108865
