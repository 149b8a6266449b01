"""Compiled loads: the very text and entry that are offered are that kernel; everything else is Python's."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.gpu.native.layout import KERNEL_ROWS, LOAD_ROWS, OFFER_ROWS, OfferRow
from tensorwasm.values import Deadline

TEXT, ENTRY = b".version 7.0 and so on", b"main"
TEXT_AT, ENTRY_AT, FIRST, HEAD = 1024, 512, 70, 0xBEEF
LOAD = "wasi_cuda_load_ptx"


class Offered:
    """Offers written by hand, and what they point to."""

    def __init__(self, bench, offers=((TEXT, ENTRY),)) -> None:
        self.kept = []
        layout = bench.layout
        ctypes.memset(ctypes.addressof(layout.offers), 0, ctypes.sizeof(layout.offers))
        layout.loads = layout.loaded_bytes = 0
        layout.next_kernel, layout.budget = FIRST, LOAD_ROWS
        for row, (text, entry) in enumerate(offers):
            kept = [ctypes.create_string_buffer(each, len(each) or 1) for each in (text, entry)]
            self.kept.append(kept)
            at = [ctypes.addressof(each) for each in kept]
            layout.offers[row] = OfferRow(at[0], len(text), at[1], len(entry), HEAD + row)


def ask(bench, text=TEXT, entry=ENTRY, text_at=TEXT_AT, entry_at=ENTRY_AT):
    bench.instance.memory.write(text_at, text)
    bench.instance.memory.write(entry_at, entry)
    return bench.call(LOAD, text_at, len(text), entry_at, len(entry))


def books(bench):
    layout = bench.layout
    return layout.next_kernel, layout.budget, layout.loads, layout.loaded_bytes


@pytest.fixture
def bench(make_bench):
    bench = make_bench(1)
    bench.offered = Offered(bench)
    return bench


def test_the_same_text_is_the_kernel_that_is_offered(bench):
    assert ask(bench) == FIRST
    assert bench.went_native()
    row = bench.layout.kernels[FIRST % KERNEL_ROWS]
    assert (row.id, row.head) == (FIRST, HEAD)
    assert books(bench) == (FIRST + 1, LOAD_ROWS - 1, 1, len(TEXT))


def test_each_load_has_an_id_of_its_own_until_the_budget_is_spent(bench):
    bench.offered = Offered(bench, [(b"x", b"e"), (TEXT, ENTRY)])
    bench.layout.budget = 3
    assert [ask(bench) for _ in range(3)] == [FIRST, FIRST + 1, FIRST + 2]
    assert list(bench.layout.loaded[:3]) == [1, 1, 1]
    ask(bench)
    assert not bench.went_native()
    assert books(bench) == (FIRST + 3, 0, 3, 3 * len(TEXT))


@given(st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=2)), max_size=OFFER_ROWS), st.data())
@pytest.mark.rule("1-twin")
def test_nothing_is_taken_for_something_else(make_bench, offers, data):
    bench = make_bench(1)
    offered = Offered(bench, offers)
    choices = st.sampled_from(offers) if offers else st.nothing()
    text, entry = data.draw(choices | st.tuples(st.binary(max_size=4), st.binary(max_size=2)))
    answer = ask(bench, text, entry)
    if (text, entry) in offers:
        assert answer == FIRST
        assert bench.layout.kernels[FIRST % KERNEL_ROWS].head == HEAD + offers.index((text, entry))
    else:
        assert not bench.went_native()
        assert books(bench) == (FIRST, LOAD_ROWS, 0, 0)
    assert len(offered.kept) == len(offers)


@pytest.mark.parametrize(
    "unready",
    [
        {"armed": 0},
        {"pending": 1},
        {"budget": 0},
        {"next_kernel": 0},
        {"loads": LOAD_ROWS},
    ],
)
@pytest.mark.rule("2-text")
def test_a_session_that_is_not_ready_is_left_to_python(bench, unready):
    for name, value in unready.items():
        setattr(bench.layout, name, value)
    before = books(bench)
    ask(bench)
    assert not bench.went_native()
    assert books(bench) == before


def test_while_a_stream_records_loads_are_left_to_python(bench):
    bench.layout.streams[0].recording = 1
    ask(bench)
    assert not bench.went_native()


def test_another_context_is_left_to_python(bench):
    bench.driver.context = 1
    ask(bench)
    assert not bench.went_native()


def test_a_deadline_that_is_near_is_left_to_python(bench):
    bench.instance.memory.write(TEXT_AT, TEXT)
    bench.instance.memory.write(ENTRY_AT, ENTRY)
    params = (TEXT_AT, len(TEXT), ENTRY_AT, len(ENTRY))
    assert bench.instance.call(LOAD, params, deadline=Deadline.after(0.049)) == [-99]
    assert bench.instance.call(LOAD, params, deadline=Deadline.after(5)) == [FIRST]


@pytest.mark.parametrize(
    ("text_at", "entry_at"),
    [
        (0x10000 - len(TEXT) + 1, ENTRY_AT),
        (TEXT_AT, 0x10000 - len(ENTRY) + 1),
        (0xFFFF_FFFF, ENTRY_AT),
        (TEXT_AT, 0xFFFF_FFFF),
    ],
)
@pytest.mark.rule("1-twin")
def test_ranges_outside_the_memory_are_left_to_python(bench, text_at, entry_at):
    bench.call(LOAD, signed(text_at), len(TEXT), signed(entry_at), len(ENTRY))
    assert not bench.went_native()


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
