"""Launches that come again are recorded as graphs, and do the same."""

import pytest

from loops import compile_c
from tensorwasm.errors import QuotaExceeded
from tensorwasm.gpu.session.graphs import SessionGraphs
from tensorwasm.gpu.session.kernels import SessionKernels
from tensorwasm.guest.imports.offload import launches
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs

STENCILS = """
double a[64], b[64], source[128];
void __attribute__((export_name("init"))) init(void) {
  for (int i = 0; i < 64; i++) { a[i] = i * 0.25; b[i] = 64 - i; source[i] = source[i + 64] = i / 3.0; }
}
void __attribute__((export_name("same"))) same(int steps, int n) {
  for (int t = 0; t < steps; t++) {
    for (int i = 1; i < n - 1; i++) b[i] = 0.5 * (a[i - 1] + a[i + 1]);
    for (int i = 1; i < n - 1; i++) a[i] = 0.5 * (b[i - 1] + b[i + 1]);
  }
}
void __attribute__((export_name("other"))) other(int steps, int n) {
  for (int t = 0; t < steps; t++) {
    for (int i = 1; i < n - 1; i++) b[i] = 0.5 * (a[i - 1] + source[t]);
    for (int i = 1; i < n - 1; i++) a[i] = 0.5 * (b[i - 1] + b[i + 1]);
  }
}
"""


@pytest.fixture
def made(monkeypatch):
    """Counts of launches, of which some are recorded, and of replays; pieces are short."""
    counts = {"submit": 0, "replay": 0}

    def count(part, name):
        call = getattr(part, name)

        def counted(self, *given, **more):
            counts[name] += 1
            return call(self, *given, **more)

        monkeypatch.setattr(part, name, counted)

    count(SessionKernels, "submit")
    count(SessionGraphs, "replay")
    monkeypatch.setattr(launches, "SHORT_PIECE", 8)
    monkeypatch.setattr(launches, "LONG_PIECE", 16)
    return counts


def difference(name, repeat, sizes=(40, 60)):
    wasm = compile_c(STENCILS, "-O2")
    with Runtime("emulator") as runtime:
        plain, offloaded = runtime.load(wasm), runtime.load(wasm, offload="gpu", offload_waits=True)
        found = compare_runs(plain, offloaded, [MeasuredCall("init", [])], MeasuredCall(name, list(sizes)), repeat)
        assert sum(each.taken for each in offloaded.offloading.statistics) >= repeat
        return found.difference


def test_a_loop_that_does_the_same_in_each_turn_is_recorded_once(made):
    assert difference("same", 1) == ""
    assert made == {"submit": 8, "replay": 10}


def test_other_launches_are_recorded_when_they_are_made_again(made):
    assert difference("other", 1) == ""
    assert made == {"submit": 80, "replay": 0}
    assert difference("other", 3) == ""
    assert made == {"submit": 80 + 2 * 80, "replay": 2 * 5}


def test_few_launches_are_not_recorded(made):
    assert difference("same", 3, (3, 60)) == ""
    assert made == {"submit": 18, "replay": 0}


def test_the_oldest_graphs_make_room(made, monkeypatch):
    monkeypatch.setattr(launches, "MOST_GRAPHS", 2)
    assert difference("other", 3) == ""
    assert made["submit"] == 3 * 80


def test_what_a_session_does_not_record_is_launched(made, monkeypatch):
    def refuse(self, stream):
        raise QuotaExceeded("no more graphs")

    monkeypatch.setattr(SessionGraphs, "begin", refuse)
    assert difference("same", 2) == ""
    assert made == {"submit": 160, "replay": 0}


def test_a_graph_that_is_full_is_given_up(made, monkeypatch):
    monkeypatch.setattr(launches, "SHORT_PIECE", 5000)
    monkeypatch.setattr(launches, "LONG_PIECE", 5000)
    assert difference("same", 2, (2600, 20)) == ""
    assert made["replay"] == 0
    assert made["submit"] > 2 * 5200


class Parts:
    """A session that only counts, and the call that uses it."""

    deadline = None

    def __init__(self):
        self.kernels = self.graphs = self

    def submit(self, *given):
        pass

    def begin(self, stream):
        pass

    def end(self, stream):
        return 1

    def replay(self, *given):
        pass

    def close(self, graph, deadline):
        pass

    def check(self):
        pass


def test_launches_of_many_plans_make_room_for_one_another(monkeypatch):
    monkeypatch.setattr(launches, "MOST_LAUNCHES", 100)
    kept, parts, asked = launches.PlanLaunches(), Parts(), []

    def run(key):
        def taken():
            asked.append(key)
            yield from (launches.PlanLaunch(key, None, (number,), last=True) for number in range(40))

        kept.run(parts, key, taken(), parts)

    for key in (1, 2, 2, 1, 3, 1, 2):
        run(key)
    assert asked == [1, 2, 3, 2]
    kept.forget(parts, None)
    for key in (1, 2, 1, 2):
        run(key)
    assert asked[4:] == [1, 2]
