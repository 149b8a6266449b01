"""Bodies: how much, how long, and what is no base64."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import (
    BodyTooLarge,
    CapacityExhausted,
    InvalidBase64,
    InvalidRequest,
    RequestTimeout,
)
from tensorwasm.server import bodies
from tensorwasm.server.bodies import Budget, Reader, declared_bytes, decode_base64


async def chunks(*parts):
    for part in parts:
        if isinstance(part, asyncio.Event):
            await part.wait()
        else:
            yield part


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.integers(0, 600))
def test_a_body_within_the_limit_is_read_and_its_memory_given_back(parts, limit):
    whole, budget = b"".join(parts), Budget(1000)

    async def read():
        reader = Reader(chunks(*parts, b""), budget, limit)
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
def test_a_body_that_breaks_off_is_not_taken_for_whole(came):
    """RSGI gives an empty chunk for what broke off, and then another: after a real end there is none."""
    with pytest.raises(RequestTimeout):
        asyncio.run(Reader(chunks(*came, b"", b""), Budget(), 100).read(30))


def test_of_a_body_over_the_limit_no_more_is_taken():
    taken = []

    async def endless():
        while True:
            taken.append(1)
            yield b"x" * 100

    with pytest.raises(BodyTooLarge):
        asyncio.run(Reader(endless(), Budget(), 1000).read(30))
    assert len(taken) == 11


def test_all_bodies_together_have_so_much_memory_and_no_more():
    async def fill():
        budget, held = Budget(1000), asyncio.Event()
        first = Reader(chunks(b"x" * 900, held, b""), budget, 2000)
        reading = asyncio.ensure_future(first.read(30))
        await asyncio.sleep(0)
        second = Reader(chunks(b"y" * 200, b""), budget, 2000)
        with pytest.raises(CapacityExhausted):
            await second.read(30)
        second.close()
        held.set()
        assert len(await reading) == 900
        first.close()
        assert budget.free_bytes == 1000

    asyncio.run(fill())


def test_no_tenant_has_more_than_is_left_for_others():
    budget = Budget(1000)
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


def test_a_body_that_does_not_come_is_waited_for_so_long():
    with pytest.raises(RequestTimeout):
        asyncio.run(Reader(chunks(b"x", asyncio.Event()), Budget(), 100).read(0.001))


def test_what_lingers_is_dropped_and_bounded(monkeypatch):
    monkeypatch.setattr(bodies, "LINGER_S", 0.001)
    budget, taken = Budget(), []

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
def test_a_length_that_is_none_is_refused(text):
    with pytest.raises(InvalidRequest):
        declared_bytes(text)


def test_a_length_is_read():
    assert declared_bytes(None) is None
    assert declared_bytes("0") == 0
    assert declared_bytes("67108865") == 67108865


@pytest.mark.parametrize("text", ["*", "abc", "YQ", "YQ==\n", "YQ==YQ==", "ä", "Y Q=="])
def test_what_is_not_base64_is_refused(text):
    with pytest.raises(InvalidBase64):
        asyncio.run(decode_base64(text))


def test_base64_of_any_length_is_decoded(monkeypatch):
    assert asyncio.run(decode_base64("YQ==")) == b"a"
    monkeypatch.setattr(bodies, "INLINE_BYTES", 1)
    assert asyncio.run(decode_base64("YQ==")) == b"a"


@pytest.mark.parametrize("parts", [(b"abc", b"", b""), (b"a", b"", b"bc", b"", b""), (b"abc", b"")])
def test_a_body_of_the_length_it_declared_is_whole_however_many_empty_frames_it_has(parts):
    """Over HTTP/2 the last frame is often an empty one: the same empty chunks as of a body that broke off."""
    assert asyncio.run(Reader(chunks(*parts), Budget(), 100).read(30, declared=3)) == b"abc"


def test_a_body_that_broke_off_is_shorter_than_it_declared():
    body = asyncio.run(Reader(chunks(b"ab", b"", b""), Budget(), 100).read(30, declared=3))
    with pytest.raises(RequestTimeout):
        bodies.require_whole(body, "3")


def test_where_no_length_was_declared_a_second_empty_chunk_may_be_a_break_and_is_refused():
    with pytest.raises(RequestTimeout):
        asyncio.run(Reader(chunks(b"abc", b"", b""), Budget(), 100).read(30))
