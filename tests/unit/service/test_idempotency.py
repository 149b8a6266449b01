"""Idempotency keys: one tenant, one operation, one request, one day."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.desks import InlineDesk
from fakes.jobs import SetClock
from tensorwasm.errors import IdempotencyMismatch, InvalidRequest
from tensorwasm.service.idempotency import KEY_S, Idempotency, Repeated, forget_keys, make_key, use_key

NOW = 1_800_000_000_000
USES = st.lists(
    st.tuples(
        st.sampled_from((1, 2)),
        st.sampled_from(("deploy", "invoke")),
        st.sampled_from(("a", "b")),
        st.sampled_from((b"x", b"y")),
        st.sampled_from((0, 3600_000, KEY_S * 1000 + 1)),
    ),
    max_size=12,
)


@given(USES)
def test_a_key_is_kept_for_a_day(uses):
    database, clock = InlineDesk(), SetClock(NOW)
    keys, known = Idempotency(database, clock.clock), {}
    for number, (tenant, operation, name, body, later_ms) in enumerate(uses):
        clock.now_ms += later_ms
        key = make_key(operation, name, body)
        place = (tenant, operation, name)
        first = known.get(place)
        if first is not None and first[2] < clock.now_ms - KEY_S * 1000:
            first = None
        if first is not None and first[0] != body:
            with pytest.raises(IdempotencyMismatch):
                asyncio.run(keys.find(tenant, key))
            with pytest.raises(IdempotencyMismatch):
                database.write_now(use_key, tenant, key, str(number), clock.now_ms)
        elif first is not None:
            assert asyncio.run(keys.find(tenant, key)) == first[1]
            with pytest.raises(Repeated) as repeated:
                database.write_now(use_key, tenant, key, str(number), clock.now_ms)
            assert repeated.value.subject == first[1]
        else:
            assert asyncio.run(keys.find(tenant, key)) is None
            database.write_now(keys.note(tenant, key), str(number))
            known[place] = (body, str(number), clock.now_ms)
    clock.now_ms += KEY_S * 1000 + 1
    assert database.write_now(forget_keys, clock.now_ms, 100) == len(known)
    database.close_now()


@pytest.mark.parametrize("header", ["", "x" * 256, "a\x7f", "a\nb", "ä", "a\x00"])
def test_a_key_is_printable_ascii(header):
    with pytest.raises(InvalidRequest):
        make_key("deploy", header)


@pytest.mark.parametrize("header", ["secret-key", " ", "~" * 255])
def test_any_printable_key_is_accepted_and_not_shown(header):
    key = make_key("deploy", header, b"body")
    assert key.key == header
    assert header.strip() == "" or header not in repr(key)


def test_boundaries_of_parts_belong_to_the_request():
    assert make_key("deploy", "k", b"ab", b"c").digest != make_key("deploy", "k", b"a", b"bc").digest
    assert make_key("deploy", None, b"ab") is None
