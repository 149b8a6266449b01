"""What the benchmark ``http`` is held against."""

import json

from tensorwasm.bench.figures import Report
from tensorwasm.bench.peers.host import NODE, WORKERD
from tensorwasm.bench.service.http import OURS, compare
from tensorwasm.bench.service.wrk import WrkResult


def rounds(per_s, p99_ms):
    return [WrkResult(per_s, 0.5, p99_ms, 0, 0)] * 3


def test_throughput_and_tail_are_judged_beside_both_peers():
    figures = tuple(compare({OURS: rounds(2200.0, 1.8), WORKERD: rounds(1000.0, 4.0), NODE: rounds(2201.0, 3.0)}))
    held = [(each.peer, each.unit, each.bar, each.met) for each in figures if each.bar is not None]
    assert held == [
        (WORKERD, "requests/s", 2.2, True),
        (NODE, "requests/s", 1.0, False),
        (NODE, "ms", 0.6, True),
    ]
    assert {f"p99 of {WORKERD}": 4.0, f"p99 of {NODE}": 3.0}.items() <= {
        each.name: each.value for each in figures
    }.items()
    report = Report("http", "", figures)
    assert [each["met"] for each in json.loads(report.to_json())["figures"] if each["bar"]] == [True, False, True]
    assert "at most 0.6" in report.to_text()


def test_without_one_of_the_peers_the_tail_misses_its_bar():
    figures = compare({OURS: rounds(9000.0, 1.0), WORKERD: rounds(1000.0, 4.0)})
    assert [each.met for each in figures if each.bar is not None] == [True, False, False]
