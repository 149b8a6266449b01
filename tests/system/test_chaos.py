"""A server under load whose processes are killed at random: what it has acknowledged is there, and it is back soon.

`TENSOR_WASM_CHAOS_KILLS` says how often; `tools/chaos.py` writes what many kills have shown.
"""

import os

import pytest

from servers import running_server
from storm import ENVIRONMENT, rage

KILLS = int(os.environ.get("TENSOR_WASM_CHAOS_KILLS", "8"))
BACK_S = 2.0
BUSY_S = 20.0
"""What a machine may take that has much else to do."""


SEVERAL = ("front", "primary", "worker", "front", "supervisor", "primary")
"""What is killed of a server with several processes."""


@pytest.mark.timeout(60 + 10 * KILLS)
def test_nothing_that_was_acknowledged_is_lost_to_kills(tmp_path):
    with running_server(tmp_path / "data", "--workers", "1", environment=ENVIRONMENT) as server:
        report = rage(server, [None] * KILLS, seed=5)
    judge(report, KILLS)
    assert min(report.state_s["server"]) < BACK_S


@pytest.mark.timeout(180)
def test_nothing_is_lost_to_kills_of_fronts_the_primary_workers_and_the_supervisor(tmp_path):
    with running_server(tmp_path / "data", "--workers", "3", environment=ENVIRONMENT) as server:
        report = rage(server, SEVERAL, clients=3)
    judge(report, len(SEVERAL))
    assert report.kills.keys() >= {"front", "primary", "supervisor"}


def judge(report, kills):
    times = {role: [round(each, 2) for each in found] for role, found in report.state_s.items()}
    print(f"killed {dict(report.kills)}, back after {times} s, {report.acknowledged}")  # noqa: T201 - the figures are what it is for
    assert report.wrong == [], report.wrong
    assert report.found == report.acknowledged
    assert report.kills.total() == kills
    assert min(report.acknowledged[kind] for kind in ("functions", "jobs", "tokens", "snapshots")) > 0
    assert max(report.back_s + [each for found in report.worker_s.values() for each in found]) < BUSY_S
