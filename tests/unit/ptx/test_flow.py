from hypothesis import given
from hypothesis import strategies as st

from oracles.ptx import reach_slowly
from tensorwasm.ptx.flow import propagate

NODES = 12
edges = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=30)
seeds = st.dictionaries(st.integers(0, NODES - 1), st.sampled_from([1, 2, 4, 8]), max_size=4)


@given(edges, seeds)
def test_masks_propagate_to_every_reachable_node(pairs, starts):
    successors = [[target for source, target in pairs if source == node] for node in range(NODES)]
    assert propagate(successors, starts) == reach_slowly(pairs, starts, NODES)


def test_propagation_on_a_long_path_and_a_long_cycle():
    length = 20_000
    path = [[node + 1] for node in range(length - 1)] + [[]]
    circle = [[(node + 1) % length] for node in range(length)]
    assert propagate(path, {0: 1, length // 2: 2})[-1] == 3
    assert propagate(circle, {5: 1, 9: 2}) == [3] * length


def test_propagation_on_an_empty_graph():
    assert propagate([], {}) == []
