import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.gpu.emulator.lanes import indices, merge, narrow, pick, select

LANES = 12
SETS = st.sets(st.integers(0, LANES - 1), min_size=1)


def chosen(lanes):
    return select(np.array(sorted(lanes)), LANES)


def listed(who):
    return indices(who, LANES).tolist()


@given(SETS)
def test_a_selection_is_what_was_selected(lanes):
    assert listed(chosen(lanes)) == sorted(lanes)


@given(SETS)
def test_whole_and_contiguous_selections_need_no_index(lanes):
    who = chosen(lanes)
    contiguous = max(lanes) - min(lanes) + 1 == len(lanes)
    assert (who is None) == (len(lanes) == LANES)
    assert isinstance(who, slice) == (contiguous and len(lanes) < LANES)


@given(SETS)
def test_pick(lanes):
    values = np.arange(100, 100 + LANES)
    assert pick(values, chosen(lanes)).tolist() == [100 + lane for lane in sorted(lanes)]


@given(SETS, st.data())
def test_narrow(lanes, data):
    some = data.draw(st.sets(st.sampled_from(sorted(lanes)), min_size=1))
    mask = np.array([lane in some for lane in sorted(lanes)])
    assert listed(narrow(chosen(lanes), mask, LANES)) == sorted(some)


@given(SETS, SETS)
def test_merge(first, second):
    second -= first
    if second:
        assert listed(merge(chosen(first), chosen(second), LANES)) == sorted(first | second)
