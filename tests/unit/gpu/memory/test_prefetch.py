"""Windows worth moving are moved, each byte once, and nothing beside the guest's own pages."""

import logging
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.unified import FakeMemory
from tensorwasm.errors import DeviceLost, InternalError, InvalidPointer, KernelFault, QuotaExceeded
from tensorwasm.gpu.memory import prefetch
from tensorwasm.gpu.memory.pages import PAGE_BYTES
from tensorwasm.gpu.memory.prefetch import MOST_MOVES, PREFETCH_BYTES, Prefetch
from tensorwasm.values import Region

BASE = 1 << 40
MEMORY = Region(BASE, 4 * PREFETCH_BYTES, host=True)


@pytest.fixture
def device():
    return FakeMemory()


@st.composite
def windows(draw):
    ends = st.integers(0, MEMORY.size_bytes) | st.integers(0, MEMORY.size_bytes // PAGE_BYTES).map(
        lambda page: page * PAGE_BYTES
    )
    first, second = sorted((draw(ends), draw(ends)))
    return BASE + first, second - first


@given(st.lists(windows(), max_size=MOST_MOVES))
def test_prefetch_moves_each_page_of_the_windows_once_or_none(asked):
    spans = Prefetch(FakeMemory()).choose(asked, MEMORY)
    touched = {
        page
        for address, length in asked
        if length
        for page in range(address // PAGE_BYTES, -(-(address + length) // PAGE_BYTES))
    }
    if len(touched) * PAGE_BYTES < PREFETCH_BYTES:
        assert spans == []
        return
    assert all(span.address % PAGE_BYTES == span.size_bytes % PAGE_BYTES == 0 for span in spans)
    assert all(before.end < after.address for before, after in pairwise(spans))
    moved = {page for span in spans for page in range(span.address // PAGE_BYTES, span.end // PAGE_BYTES)}
    assert moved == touched


@given(st.lists(st.integers(0, 40), min_size=MOST_MOVES + 1, max_size=12))
def test_of_many_windows_apart_the_longest_are_moved(pages):
    memory = Region(BASE, 100 * PREFETCH_BYTES, host=True)
    unit = PREFETCH_BYTES // 8
    asked = [(BASE + number * 8 * PREFETCH_BYTES, count * unit) for number, count in enumerate(pages)]
    spans = Prefetch(FakeMemory()).choose(asked, memory)
    longest = sorted((length for _, length in asked if length), reverse=True)[:MOST_MOVES]
    worth = sum(longest) >= PREFETCH_BYTES
    assert sorted((span.size_bytes for span in spans), reverse=True) == (longest if worth else [])
    assert all(before.end < after.address for before, after in pairwise(spans))


def test_nothing_beside_the_memory_is_moved(device):
    beyond = [(BASE - PAGE_BYTES, MEMORY.size_bytes + 2 * PAGE_BYTES), (BASE - 10, 5), (MEMORY.end, 10)]
    assert Prefetch(device).choose(beyond, MEMORY) == [MEMORY]


@pytest.mark.parametrize(("size", "moved"), [(PREFETCH_BYTES - 2 * PAGE_BYTES, False), (PREFETCH_BYTES, True)])
def test_few_bytes_are_left_to_their_faults(device, size, moved):
    halves = [(BASE, size // 2), (BASE + 2 * PREFETCH_BYTES, size - size // 2)]
    assert bool(Prefetch(device).choose(halves, MEMORY)) is moved


def test_moving_is_asked_of_the_device_on_the_stream(device):
    stream, own = device.open_stream(), Prefetch(device)
    own.start([MEMORY, Region(BASE, PAGE_BYTES, host=True)], stream)
    sizes = (MEMORY.size_bytes, PAGE_BYTES)
    assert [call for call in device.calls if call[0] == "prefetch"] == [("prefetch", n, stream, False) for n in sizes]
    assert own.effective


@pytest.mark.parametrize("error", [QuotaExceeded("full"), InvalidPointer("no"), InternalError("not taken")])
def test_a_refused_hint_is_no_failure(device, error):
    own = Prefetch(device)
    device.failures["prefetch"] = error
    own.start([MEMORY], object())
    assert own.effective


@pytest.mark.parametrize("error", [DeviceLost("gone"), KernelFault("of a kernel before")])
def test_a_failure_of_the_device_is_raised(device, error):
    device.failures["prefetch"] = error
    with pytest.raises(type(error)):
        Prefetch(device).start([MEMORY], object())


def test_a_device_without_concurrent_access_is_not_asked(device):
    device.info = replace(device.info, concurrent_managed_access=False)
    assert Prefetch(device).choose([(BASE, MEMORY.size_bytes)], MEMORY) == []


def test_prefetch_without_effect_is_tried_once_and_logged_once(device, caplog):
    prefetch._log_ineffective.cache_clear()
    device.prefetch = lambda *_, to_host: False
    with caplog.at_level(logging.INFO, prefetch.__name__):
        for _ in range(2):  # two sandboxes
            own = Prefetch(device)
            own.start([MEMORY], object())
            assert not own.effective
            assert own.choose([(BASE, MEMORY.size_bytes)], MEMORY) == []
    assert len(caplog.records) == 1
