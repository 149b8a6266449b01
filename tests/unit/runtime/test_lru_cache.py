from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.runtime.deploy.lru_cache import LruCache


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 30)), max_size=60), st.integers(1, 4), st.integers(1, 60))
def test_a_cache_keeps_the_most_recently_used_within_its_bounds(uses, items, size_bytes):
    cache, model = LruCache(items, size_bytes), {}
    for key, weight in uses:
        found = cache.get(key)
        assert found == (model.pop(key, None))
        if found is not None:
            model[key] = found
            continue
        gone = cache.put(key, (key, weight), weight)
        model[key] = key, weight
        for expected in gone:
            assert model.pop(next(iter(model))) == expected
        held = sum(weight for _, weight in model.values())
        assert len(model) == 1 or (len(model) <= items and held <= size_bytes)
        assert (len(cache), cache.held_bytes) == (len(model), held)
