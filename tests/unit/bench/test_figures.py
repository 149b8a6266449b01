import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.bench.figures import Figure, Report, summarise


def figure(**changes):
    row = {"name": "launch", "unit": "us", "value": 2.0, "spread": 0.1, "samples": 30}
    return Figure(**(row | changes))


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, None),
        ({"bar": 2.0}, True),
        ({"bar": 1.99}, False),
        ({"bar": 2.0, "sense": "at least"}, True),
        ({"bar": 2.01, "sense": "at least"}, False),
        ({"bar": 1.1, "judged": "ratio", "peer": "C", "ratio": 1.05}, True),
        ({"bar": 1.1, "judged": "ratio", "peer": "C", "ratio": 1.2}, False),
        ({"bar": 1.1, "judged": "ratio", "peer": "C"}, False),
    ],
)
def test_a_bar_is_met_or_not(changes, met):
    assert figure(**changes).met is met


def test_one_missed_bar_misses_the_report():
    good, bad, shown = figure(bar=3.0), figure(bar=1.0), figure()
    assert Report("b", "d", (good, shown)).met
    assert not Report("b", "d", (good, bad)).met


def test_json_has_machine_versions_date_and_figures():
    said = json.loads(Report("dispatch", "H200", (figure(bar=3.0),)).to_json())
    assert said.keys() == {"benchmark", "device", "machine", "versions", "date", "figures"}
    assert said["figures"][0]["met"] is True
    assert said["figures"][0].keys() >= {"name", "unit", "value", "spread", "samples", "peer", "ratio", "bar"}


def test_the_table_shows_a_miss_and_a_missing_peer():
    text = Report("b", "", (figure(bar=1.0), figure(peer="CuPy"))).to_text()
    assert "NO" in text
    assert "peer missing" in text


@given(st.lists(st.floats(0.001, 1e3), min_size=1, max_size=50))
def test_the_median_lies_within_the_samples(samples):
    median, spread, count = summarise(samples)
    assert min(samples) <= median <= max(samples)
    assert 0 <= spread <= max(samples) - min(samples)
    assert count == len(samples)
