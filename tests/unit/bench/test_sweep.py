"""Sweeps over numbers of connections, and the processors that wrk has for itself."""

import json

import pytest

from tensorwasm.bench.figures import plot
from tensorwasm.bench.service.sweep import CONNECTIONS, sweep
from tensorwasm.bench.service.wrk import WrkResult, available_processors, processors, started_on


class Server:
    """A target that answers more slowly with each connection, and refuses some from 128 on."""

    def __init__(self, name, asked):
        self.name, self.asked = name, asked

    def press(self, seconds, connections):
        return self.run(seconds, connections, frozenset())

    def run(self, seconds, connections, clients):
        self.asked.append((self.name, connections, clients))
        refused = 20 if connections >= 128 else 0
        return WrkResult(1000.0 + connections, 0.1, 0.2 * connections, refused, 0, 2.0)


@pytest.fixture
def asked():
    return []


@pytest.fixture
def report(asked):
    targets = {name: Server(name, asked) for name in ("ours", "peer")}
    return sweep("http", "", targets, 2.0, frozenset({7}))


def test_each_point_of_all_targets_is_taken_in_turns(asked, report):
    turn = [(name, count, frozenset({7})) for count in CONNECTIONS for name in ("ours", "peer")]
    assert asked[2:] == turn * 3
    assert {name for name, _, _ in asked[:2]} == {"ours", "peer"}


def test_what_failed_is_not_counted_as_served(report):
    values = {figure.name: figure.value for figure in report.figures}
    assert values["ours, 1 connection"] == 1001.0
    assert values["ours, 128 connections"] == 1118.0
    assert values["ours, 128 connections, failed"] == 10.0
    assert len(json.loads(report.to_json())["figures"]) == 2 * len(CONNECTIONS) * 4


def test_the_table_has_a_row_for_each_number_of_connections(report):
    lines = report.to_text().splitlines()
    assert lines[2].split() == ["connections", "ours", "peer"]
    assert [line.split()[0] for line in lines[3:]] == [str(count) for count in CONNECTIONS]
    assert "1118/s, 25.60 ms, 10/s failed" in lines[-2]


def test_progress_is_told(report, capsys, asked):
    sweep("http", "", {"ours": Server("ours", asked)}, 2.0)
    assert "3/3, ours, connections: 256: 1246/s" in capsys.readouterr().err


def test_curves_are_drawn(report, tmp_path):
    plot(report, tmp_path / "sweep.svg")
    assert "<svg" in (tmp_path / "sweep.svg").read_text()


@pytest.mark.parametrize(
    ("count", "servers", "clients"),
    [(1, 1, 0), (4, 4, 0), (5, 4, 1), (12, 10, 2), (16, 12, 4), (128, 96, 32)],
)
def test_wrk_has_a_quarter_of_more_than_four_processors(count, servers, clients):
    found = processors(frozenset(range(count)))
    assert [*map(len, found)] == [servers, clients]
    assert found[0] | found[1] == set(range(count))


def test_processes_are_started_on_the_processors_that_were_chosen():
    before = available_processors()
    with started_on(frozenset({min(before)})):
        assert available_processors() == {min(before)}
    assert available_processors() == before
