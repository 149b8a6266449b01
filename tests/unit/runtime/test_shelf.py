from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.runtime.deploy.shelf import Shelf


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 30)), max_size=60), st.integers(1, 4), st.integers(1, 60))
def test_a_shelf_keeps_what_was_used_last_within_its_bounds(uses, items, size_bytes):
    shelf, model = Shelf(items, size_bytes), {}
    for key, weight in uses:
        found = shelf.get(key)
        assert found == (model.pop(key, None))
        if found is not None:
            model[key] = found
            continue
        gone = shelf.put(key, (key, weight), weight)
        model[key] = key, weight
        for expected in gone:
            assert model.pop(next(iter(model))) == expected
        held = sum(weight for _, weight in model.values())
        assert len(model) == 1 or (len(model) <= items and held <= size_bytes)
        assert (len(shelf), shelf.held_bytes) == (len(model), held)
