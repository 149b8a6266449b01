"""Kill processes of a server at random under load, and report what was lost.

``tools/chaos.py --kills 100 --json bench/results/chaos.json``, and with ``--workers 4`` its supervisor as well, which
is started again at once. The exit code is 1 if anything that was acknowledged is lost or exists twice, a rate was
exceeded, or the server did not answer for 2 s.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import storm  # noqa: E402 - found there
from servers import running_server  # noqa: E402 - likewise

BACK_S = 2.0
_BEGUN_S = time.monotonic()
MOST_SAID = 1 << 16
"""Characters of what the server said that are shown if something was wrong."""

PACKAGES = ("tensor-wasm", "httptools", "uvloop", "SQLAlchemy", "wasmtime")


def main(arguments: list[str]) -> int:
    """Run with the options of the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1, help="processes that take requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--json", type=Path, help="file for the report, which is printed as well")
    asked = parser.parse_args(arguments)
    loads = [os.getloadavg()[0]]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder) / "data", "--workers", str(asked.workers), environment=storm.ENVIRONMENT) as server,
    ):
        found = storm.rage(server, [None] * asked.kills, seed=asked.seed, clients=asked.clients, tell=_tell)
        if found.wrong:
            sys.stderr.write(server.data.with_suffix(".stderr").read_text()[-MOST_SAID:])
    loads.append(os.getloadavg()[0])
    report = describe(asked, found, loads)
    text = json.dumps(report, indent=2) + "\n"
    print(text, end="")
    if asked.json is not None:
        asked.json.write_text(text)
    return 0 if report["ok"] else 1


def _tell(line: str) -> None:
    print(f"{time.monotonic() - _BEGUN_S:7.1f} s  {line}", file=sys.stderr, flush=True)


def describe(asked: argparse.Namespace, found: storm.Report, loads: list[float]) -> dict[str, Any]:
    """Return the report of a storm."""
    lost = {kind: count - found.found[kind] for kind, count in found.acknowledged.items()}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {"processors": os.cpu_count(), "name": _processor(), "system": platform.platform()},
        "load_average": [round(each, 2) for each in loads],
        "versions": {"python": platform.python_version(), **{each: version(each) for each in PACKAGES}},
        "seed": asked.seed,
        "clients": asked.clients,
        "workers": asked.workers,
        "kills": found.kills,
        "killed_to_next_answer_s": _by_role(found.state_s),
        "killed_to_next_call_s": _by_role(found.call_s),
        "killed_to_next_result_of_a_worker_s": _by_role(found.worker_s),
        "acknowledged": found.acknowledged,
        "lost": lost,
        "jobs_begun_more_than_once": found.interrupted,
        "most_attempts_of_a_job": found.attempts,
        "limited_tenant": found.limited,
        "audited_calls": None if found.audit is None else asdict(found.audit),
        "wrong": found.wrong,
        "answers": found.answers,
        "ok": not any(lost.values()) and not found.wrong and max(found.back_s, default=0.0) < BACK_S,
    }


def _by_role(times_s: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    return {role: quantiles(found) for role, found in sorted(times_s.items())}


def quantiles(times_s: list[float]) -> dict[str, float]:
    """Return median, 90th and 99th percentile and maximum, each one of the times; empty for no times."""
    ordered = sorted(times_s)
    if not ordered:
        return {}
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[max(0, -int(-len(ordered) * part // 1) - 1)], 3) for name, part in at.items()}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
