"""The report of where a request's time goes, and how the header is read."""

import json

import pytest

from tensorwasm.bench.figures import plot
from tensorwasm.bench.service.where import TimesReport, read_timing

TIMES = {
    "quick": {"queue": [1.0, 2.0, 3.0], "total": [5.0, 6.0, 7.0], "outside": [9.0, 9.0, 9.0]},
    "slow": {
        "queue": [1.0, 1.0, 1.0],
        "guest": [50.0, 60.0, 100.0],
        "kernel": [40.0, 40.0, 300.0],
        "total": [95.0, 105.0, 405.0],
        "outside": 3 * [0.0],
    },
}


def test_the_header_is_read_in_microseconds():
    assert read_timing("queue;dur=0.020, guest;dur=1.500, total;dur=1.520") == pytest.approx(
        {"queue": 20, "guest": 1500, "total": 1520}
    )


def test_the_table_has_a_row_for_each_kind():
    lines = TimesReport("where", "a device", (), TIMES).to_text().splitlines()
    assert lines[0] == "where on a device: p50 / p99 in µs"
    assert lines[2].split() == ["kind", "n", "queue", "guest", "kernel", "total", "outside"]
    assert lines[3].split() == ["quick", "3", "2", "/", "3", "6", "/", "7", "9", "/", "9"]
    assert lines[4].replace(" ", "") == "slow31/160/10040/300105/4050/0"


def test_a_report_is_json_and_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    report = TimesReport("where", "", (), TIMES)
    assert json.loads(report.to_json())["benchmark"] == "where"
    plot(report, tmp_path / "where.svg")
    picture = (tmp_path / "where.svg").read_text()
    assert "<svg" in picture
