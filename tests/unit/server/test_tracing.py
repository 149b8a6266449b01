"""Names of requests and traces."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.server.tracing import request_ids, trace_id

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_request_ids_are_uuids_and_never_the_same():
    first, second = request_ids(), request_ids()
    made = [first() for _ in range(1000)] + [second() for _ in range(1000)]
    assert len(set(made)) == 2000
    for each in made:
        parsed = uuid.UUID(each)
        assert str(parsed) == each
        assert (parsed.version, parsed.variant) == (4, uuid.RFC_4122)


@pytest.mark.parametrize(
    "header", [f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00", f"cc-{TRACE}-{PARENT}-01-more"]
)
def test_the_trace_of_a_good_header_is_taken(header):
    assert trace_id(header) == TRACE


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        TRACE,
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01\n",
        f" 00-{TRACE}-{PARENT}-01",
        f"00-{TRACE[:-1]}٣-{PARENT}-01",
    ],
)
def test_the_trace_of_any_other_is_not(header):
    assert trace_id(header) == ""


@given(st.text(max_size=80))
def test_what_is_taken_can_stand_in_a_header(header):
    found = trace_id(header)
    assert found == "" or (len(found) == 32 and found.isascii() and found.isalnum())
