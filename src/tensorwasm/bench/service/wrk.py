"""wrk, the client of benchmarks of a server: so many connections, each of which asks again as soon as it is answered.

Where there are more than four processors, `processors` keeps some for wrk, so that it takes none from the servers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from tensorwasm.bench.figures import alternate
from tensorwasm.bench.harness import scratch_folder
from tensorwasm.errors import InternalError, InvalidArgs

_DELAY: Final = "function delay() return DELAY end\n"
_SCRIPT: Final = f"""
wrk.method, wrk.body = "POST", BODY
for name, value in pairs(HEADERS) do wrk.headers[name] = value end
{_DELAY}function done(summary, latency)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d %f %f\\n", summary.requests, summary.duration, e.status,
    latency:percentile(50), latency:percentile(99)))
  io.write(string.format("BROKEN %d\\n", e.connect + e.read + e.write + e.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class WrkResult:
    """The outcome of one run: answers a second, latencies, answers without success, and requests without answer."""

    per_s: float
    p50_ms: float
    p99_ms: float
    refused: int
    broken: int
    took_s: float = 1.0

    @property
    def failed_per_s(self) -> float:
        """Answers without success and requests without answer, a second."""
        return (self.refused + self.broken) / self.took_s

    @property
    def succeeded_per_s(self) -> float:
        """Answers with success, a second."""
        return self.per_s - self.refused / self.took_s


@dataclass(frozen=True, slots=True)
class WrkTarget:
    """What is measured: where it is asked, what, and with which headers."""

    url: str
    body: object
    headers: Mapping[str, str]

    def run(self, seconds: float, connections: int, clients: frozenset[int] = frozenset()) -> WrkResult:
        """Return the outcome of one run of wrk, on processors of its own if there are any."""
        return apply_load(self.url, self.body, self.headers, seconds=seconds, connections=connections, clients=clients)

    def press(self, seconds: float, connections: int) -> WrkResult:
        """Return the outcome of one run of wrk; InternalError unless every request succeeded."""
        result = self.run(seconds, connections)
        if result.refused or result.broken:
            raise InternalError(f"{self.url}: {result.refused} without success, {result.broken} without an answer")
        return result


def require_wrk() -> str:
    """Return the path of wrk."""
    found = shutil.which("wrk")
    if found is None:
        raise InvalidArgs("this benchmark needs wrk as its client: apt install wrk, or brew install wrk")
    return found


def processors(available: frozenset[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Return those for servers and those for wrk, a quarter of more than four; no more than four are not divided.

    wrk's are a power of two, because each of its threads has as many connections as the others.
    """
    if len(available) <= 4:
        return available, frozenset()
    clients = frozenset(sorted(available)[-(1 << (len(available) // 4).bit_length() - 1) :])
    return available - clients, clients


def press_in_turns(
    targets: Mapping[str, WrkTarget], seconds: float, connections: int, rounds: int
) -> dict[str, list[WrkResult]]:
    """Return the outcomes of so many runs against each target, in turns; a first round is not counted."""
    results: dict[str, list[WrkResult]] = {name: [] for name in targets}

    def press(name: str) -> float:
        results[name].append(targets[name].press(seconds, connections))
        return results[name][-1].per_s

    alternate({name: partial(press, name) for name in targets}, rounds)
    return {name: each[1:] for name, each in results.items()}


def available_processors() -> frozenset[int]:
    """Return the processors that this thread may use; none where the system does not say so."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


@contextlib.contextmanager
def started_on(chosen: frozenset[int]) -> Iterator[None]:
    """Let processes that this thread starts in the block use these processors only, or any if there are none."""
    before = available_processors()
    if chosen and before:
        os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        if chosen and before:
            os.sched_setaffinity(0, before)


@contextlib.contextmanager
def dividing_processors() -> Iterator[frozenset[int]]:
    """Let servers that this thread starts in the block leave some processors to wrk, and yield those."""
    servers, clients = processors(available_processors())
    with started_on(servers):
        yield clients


def apply_load(
    url: str,
    body: object,
    headers: Mapping[str, str],
    *,
    seconds: float,
    connections: int = 16,
    delay_ms: int = 0,
    clients: frozenset[int] = frozenset(),
) -> WrkResult:
    """Post a body as JSON again and again; each connection pauses before it asks again.

    wrk has one thread, or one on each of the processors ``clients``.
    """
    fields = {"content-type": "application/json", **headers}
    table = ", ".join(f"[{json.dumps(name)}] = {json.dumps(value)}" for name, value in fields.items())
    script = _SCRIPT.replace("BODY", json.dumps(json.dumps(body))).replace("HEADERS", f"{{{table}}}")
    # A function that delays by nothing costs a turn of wrk's loop all the same.
    script = script.replace("DELAY", str(delay_ms)) if delay_ms else script.replace(_DELAY, "")
    threads = min(len(clients) or 1, connections)
    with scratch_folder() as folder, started_on(clients):
        path = folder / "load.lua"
        path.write_text(script)  # the folder is this user's alone: the script has the token
        run = subprocess.run(  # noqa: S603 - a program that was looked for by name
            [require_wrk(), f"-t{threads}", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(path), url],
            capture_output=True,
            text=True,
            check=False,
        )
    result = re.search(r"RESULT (\d+) (\d+) (\d+) ([\d.]+) ([\d.]+)\nBROKEN (\d+)", run.stdout)
    if result is None:
        raise InvalidArgs(f"wrk failed: {run.stderr.strip()[:200]}")
    requests, took_us, refused, p50_us, p99_us, broken = (float(each) for each in result.groups())
    return WrkResult(requests / took_us * 1e6, p50_us / 1000, p99_us / 1000, int(refused), int(broken), took_us / 1e6)
