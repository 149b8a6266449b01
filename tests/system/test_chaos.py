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


@pytest.mark.timeout(60 + 10 * KILLS)
def test_nothing_that_was_acknowledged_is_lost_to_kills(tmp_path):
    with running_server(tmp_path / "data", environment=ENVIRONMENT) as server:
        report = rage(server, KILLS, seed=5)
    times = sorted(report.server_s)
    print(f"killed {report.kills}, back after {[f'{each:.2f}' for each in times]} s, {report.acknowledged}")  # noqa: T201 - the figures are what it is for
    assert report.wrong == [], report.wrong
    assert report.found == report.acknowledged
    assert sum(report.kills.values()) == KILLS
    assert min(report.acknowledged[kind] for kind in ("functions", "jobs", "tokens", "snapshots")) > 0
    assert times[0] < BACK_S
    assert max(times + report.beside_s + report.worker_s) < BUSY_S
