"""Parsing metrics of a server, and rates between two scrapes."""

import json
import math
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.cli.remote import metrics
from tensorwasm.cli.remote.metrics import Sample, buckets, parse, quantile, total

TEXT = """# HELP a_total Of what.
# TYPE a_total counter
a_total{route="/x",status="200"} 3
a_total{route="/y",status="500"} 4 1700000000000
odd{text="a\\\\b\\"c\\nd,e=\\"}"} NaN
bare +Inf
broken{ 1
not a sample
"""

FAMILY = "tensor_wasm_http_request_duration_seconds"


def scrape(requests, failures, fast, slow):
    """Return the metrics of a server that has answered so many requests of one route."""
    route = 'route="/functions/:id/invoke",method="POST"'
    return httpx.Response(
        200,
        text=f"""tensor_wasm_http_requests_total{{{route},status="200"}} {requests}
tensor_wasm_http_requests_total{{{route},status="500"}} {failures}
{FAMILY}_bucket{{{route},status="200",le="0.001"}} {fast}
{FAMILY}_bucket{{{route},status="200",le="0.01"}} {fast + slow}
{FAMILY}_bucket{{{route},status="200",le="+Inf"}} {fast + slow}
tensor_wasm_active_instances 3
""",
    )


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only between two scrapes, whatever other threads of this process wait for."""
    now = [100.0]
    time = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(metrics, "time", time)


def test_samples_are_parsed_and_other_lines_skipped():
    samples = parse(TEXT)
    assert [s.name for s in samples] == ["a_total", "a_total", "odd", "bare"]
    assert samples[2].labels == {"text": 'a\\b"c\nd,e="}'}
    assert [samples[0].value, samples[3].value] == [3, math.inf]
    assert [total(samples, "a_total"), total(samples, "a_total", route="/y"), total(samples, "b")] == [7, 4, None]


@given(st.text())
def test_any_text_can_be_parsed(text):
    parse(text)


def test_buckets_of_several_series_are_added():
    samples = [Sample("h_bucket", {"le": bound, "route": route}, 1.0) for bound in ("1", "+Inf") for route in "ab"]
    assert buckets(samples, "h") == {1.0: 2.0, math.inf: 2.0}
    assert buckets(samples, "h", route="a") == {1.0: 1.0, math.inf: 1.0}


@pytest.mark.parametrize(
    ("counts", "q", "value"),
    [
        ({1.0: 10, 2.0: 20, math.inf: 20}, 0.5, 1.0),
        ({1.0: 10, 2.0: 20, math.inf: 20}, 0.75, 1.5),
        ({1.0: 0, math.inf: 5}, 0.5, 1.0),
        ({1.0: 0, math.inf: 0}, 0.5, None),
        ({1.0: 5}, 0.5, None),
        ({}, 0.5, None),
    ],
)
def test_a_quantile_is_interpolated_within_its_bucket(counts, q, value):
    assert quantile(counts, q) == value


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_are_within_the_bounds_and_ascend(counted, q, r):
    bounds = [*map(float, range(1, len(counted))), math.inf]
    counts = {bound: float(sum(counted[: i + 1])) for i, bound in enumerate(bounds)}
    low, high = (quantile(counts, share) for share in sorted((q, r)))
    if low is not None:
        assert 0 <= low <= high <= max(len(counted) - 1, 0)


def test_two_scrapes_give_rates_and_quantiles_by_route(server, cli, clock):
    server["GET /metrics"] = [scrape(10, 0, 10, 0), scrape(50, 10, 30, 20)]
    done = cli("observe", "--interval", "4", "--count", "2", "--output", "json")
    first, second = map(json.loads, done.out.splitlines())
    assert (done.code, first["requests_per_s"], first["instances"], first["jobs"]) == (0, None, 3, None)
    assert (second["requests_per_s"], second["failures_per_s"]) == (12.5, 2.5)
    route = second["routes"]["/functions/:id/invoke"]
    assert (route["p50_s"], route["p99_s"]) == (0.001, pytest.approx(0.001 + 0.009 * 19.6 / 20))


def test_a_failed_scrape_is_shown_and_the_next_one_is_made(server, cli, clock):
    server["GET /metrics"] = [
        scrape(1, 0, 1, 0),
        httpx.ConnectError("refused"),
        scrape(9, 0, 9, 0),
        scrape(19, 0, 9, 0),
    ]
    done = cli("observe", "--count", "4", "--output", "json")
    rows = list(map(json.loads, done.out.splitlines()))
    assert done.code == 0
    assert [row.get("requests_per_s", row.get("error", {}).get("kind")) for row in rows] == [
        None,
        "server_unreachable",
        None,
        5.0,
    ]


def test_counters_of_a_restarted_server_begin_at_0(server, cli, clock):
    server["GET /metrics"] = [scrape(1000, 0, 1000, 0), scrape(4, 0, 4, 0)]
    rows = list(map(json.loads, cli("observe", "--count", "2", "--output", "json").out.splitlines()))
    assert rows[1]["requests_per_s"] == 2.0


def test_unknown_values_are_marked_in_text(server, cli, clock):
    server["GET /metrics"] = [scrape(1, 0, 1, 0), scrape(3, 0, 3, 0)]
    first, second, route = cli("observe", "--count", "2").out.splitlines()
    assert "? req/s" in first
    assert "p50 n/a" in first
    assert "jobs ?" in first
    assert "1 req/s" in second
    assert route.endswith("/functions/:id/invoke")


def test_an_interval_that_is_too_short_is_refused(server, cli):
    assert cli("observe", "--interval", "0.5").code == 2
    assert cli("observe", "--interval", "nan").code == 2


def test_metrics_are_printed_without_control_characters_or_as_json(server, cli):
    answer = 'a{x="1"} 2\nb NaN\n\x1b[31mred 1\n'
    server["GET /metrics"] = lambda _request: httpx.Response(200, text=answer)
    assert cli("metrics").out == 'a{x="1"} 2\nb NaN\n[31mred 1\n'
    assert json.loads(cli("metrics", "--output", "json").out) == [
        {"name": "a", "labels": {"x": "1"}, "value": 2.0},
        {"name": "b", "labels": {}, "value": "nan"},
    ]
