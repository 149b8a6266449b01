"""The table of regions agrees with a list that is searched from end to end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.gpu.device.arguments import RegionTable
from tensorwasm.values import Region

EDGES = [0, 1 << 31, 1 << 32, 1 << 53, 1 << 63, (1 << 64) - 64]


@st.composite
def disjoint_regions(draw):
    address = draw(st.sampled_from(EDGES))
    regions = []
    for _ in range(draw(st.integers(0, 8))):
        address += draw(st.integers(0, 3))
        size = draw(st.integers(1, 8))
        regions.append(Region(address, size, host=draw(st.booleans())))
        address += size
    return draw(st.permutations(regions))


@given(disjoint_regions(), st.data())
def test_contains_says_what_a_search_says(regions, data):
    table = RegionTable()
    for region in regions:
        table.add(region)
    removed = data.draw(st.lists(st.sampled_from(regions), unique=True)) if regions else []
    for region in removed:
        table.remove(region)
    left = [region for region in regions if region not in removed]
    assert table.snapshot() == tuple(sorted(left, key=lambda region: region.address))
    base = data.draw(st.sampled_from(EDGES)) + data.draw(st.integers(-2, 80))
    length = data.draw(st.integers(0, 20))
    wanted = max(length, 1)
    assert table.contains(base, length) == any(r.address <= base and base + wanted <= r.end for r in left)


def test_a_range_over_two_neighbours_is_in_neither():
    table = RegionTable()
    table.add(Region(0, 16, host=False))
    table.add(Region(16, 16, host=False))
    assert table.contains(15)
    assert not table.contains(15, 2)


def test_removing_what_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="not in the table"):
        RegionTable().remove(Region(0, 1, host=False))
