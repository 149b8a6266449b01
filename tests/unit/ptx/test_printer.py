import pytest
from hypothesis import given, settings

from oracles.ptx import assemble, check_round_trip
from strategies.ptx import CORPUS, modules
from tensorwasm.ptx import parse, render


@settings(max_examples=50)
@given(modules())
def test_rendered_text_parses_to_the_same_module(module):
    check_round_trip(module)


@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus_survives_a_round_trip(name):
    check_round_trip(parse(CORPUS[name]))


@pytest.mark.parametrize("name", CORPUS)
def test_ptxas_accepts_rendered_text(name, tmp_path):
    complaint = assemble(render(parse(CORPUS[name])), tmp_path)
    if complaint is None:
        pytest.skip("ptxas IS MISSING: no other tool has read the rendered text")
    assert complaint == ""
