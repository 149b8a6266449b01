"""Load by wrk: so many connections, each asking again as soon as it is answered."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwasm.errors import InvalidArgs

_SCRIPT: Final = """
wrk.method, wrk.body = "POST", BODY
for name, value in pairs(HEADERS) do wrk.headers[name] = value end
function delay() return DELAY end
function done(summary, latency)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d %f %f\\n", summary.requests, summary.duration, e.status,
    latency:percentile(50), latency:percentile(99)))
  io.write(string.format("BROKEN %d\\n", e.connect + e.read + e.write + e.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What came of one run.

    Attributes:
        per_s: answers a second.
        p50_ms: median latency.
        p99_ms: 99th percentile of it.
        refused: answers that were no success.
        broken: requests without an answer.
    """

    per_s: float
    p50_ms: float
    p99_ms: float
    refused: int
    broken: int


def require_wrk() -> str:
    """Return where wrk is.

    Raises:
        InvalidArgs: it is not installed.
    """
    found = shutil.which("wrk")
    if found is None:
        raise InvalidArgs("this benchmark needs wrk as its client: apt install wrk, or brew install wrk")
    return found


def apply_load(
    url: str,
    body: object,
    headers: Mapping[str, str],
    *,
    seconds: float,
    connections: int = 16,
    delay_ms: int = 0,
) -> Load:
    """Post a body again and again.

    Args:
        url: where to.
        body: sent as JSON.
        headers: besides the content type.
        seconds: for how long.
        connections: how many at a time, all from one thread.
        delay_ms: that each waits before it asks again.

    Raises:
        InvalidArgs: wrk is not installed, or could not do it.
    """
    told = {"content-type": "application/json", **headers}
    table = ", ".join(f"[{json.dumps(name)}] = {json.dumps(value)}" for name, value in told.items())
    script = _SCRIPT.replace("BODY", json.dumps(json.dumps(body))).replace("HEADERS", f"{{{table}}}")
    if delay_ms:
        script = script.replace("DELAY", str(delay_ms))
    else:  # a function that delays by nothing costs a turn of wrk's loop all the same
        script = script.replace("function delay() return DELAY end\n", "")
    with tempfile.TemporaryDirectory(prefix="tensorwasm-bench-") as folder:
        path = Path(folder) / "load.lua"
        path.write_text(script)  # the folder is this user's alone: the script has the token
        run = subprocess.run(  # noqa: S603 - a program that was looked for by name
            [require_wrk(), "-t1", f"-c{connections}", f"-d{round(seconds)}s", "-s", str(path), url],
            capture_output=True,
            text=True,
            check=False,
        )
    result = re.search(r"RESULT (\d+) (\d+) (\d+) ([\d.]+) ([\d.]+)\nBROKEN (\d+)", run.stdout)
    if result is None:
        raise InvalidArgs(f"wrk failed: {run.stderr.strip()[:200]}")
    requests, took_us, refused, p50_us, p99_us, broken = (float(each) for each in result.groups())
    return Load(requests / took_us * 1e6, p50_us / 1000, p99_us / 1000, int(refused), int(broken))
