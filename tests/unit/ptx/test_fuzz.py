import random

from hypothesis import example, given
from hypothesis import strategies as st

from oracles.ptx import check_any_text
from strategies.ptx import CORPUS, mutate


@given(st.sampled_from(sorted(CORPUS)), st.integers(0, 1 << 32))
def test_a_broken_corpus_file_is_refused_or_means_something(name, seed):
    check_any_text(mutate(random.Random(seed), CORPUS[name]))


@given(st.sampled_from(sorted(CORPUS)), st.data())
def test_a_file_cut_short_is_refused_or_means_something(name, data):
    text = CORPUS[name]
    check_any_text(text[: data.draw(st.integers(0, len(text)))])


@example(b"\xff")
@given(st.binary(max_size=8))
def test_foreign_bytes_inside_a_file(data):
    text = CORPUS["syntax.ptx"].encode("ascii")
    check_any_text(text[:500] + data + text[500:])
