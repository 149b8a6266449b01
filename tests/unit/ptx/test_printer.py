import pytest
from hypothesis import given, settings

from oracles.ptx import assemble, check_round_trip
from strategies.ptx import CORPUS, modules
from tensorwasm.ptx import parse, render


@settings(max_examples=50)
@given(modules())
def test_what_is_rendered_parses_to_the_same_module(module):
    check_round_trip(module)


@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus_survives_a_round_trip(name):
    check_round_trip(parse(CORPUS[name]))


@pytest.mark.parametrize("name", CORPUS)
def test_ptxas_accepts_what_is_rendered(name, tmp_path):
    complaint = assemble(render(parse(CORPUS[name])), tmp_path)
    if complaint is None:
        pytest.skip("ptxas IS MISSING: nobody but us has read what we render")
    assert complaint == ""
