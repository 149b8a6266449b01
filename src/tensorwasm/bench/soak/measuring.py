"""`tensor-wasm bench soak`: a day's requests in minutes, with faults, and what the serving process holds meanwhile.

What takes hours in a service takes seconds here: sessions are saved after one second without a call, ended jobs kept
for twenty. So whatever ends by time has ended many times over while this runs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import sqlite3
import sys
import tempfile
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tensorwasm.bench.examples import read_guest
from tensorwasm.bench.figures import Figure, Report
from tensorwasm.bench.http.client import Client
from tensorwasm.bench.http.serving import Served, serving
from tensorwasm.bench.soak.operations import ENDLESS, MAY_FAIL, OPERATIONS, WEIGHTS, Tenant, Visitor
from tensorwasm.errors import InternalError
from tensorwasm.values import MIB

REQUESTS: Final = 2_000_000
TENANTS: Final = 200
VISITORS: Final = 24

_SETTINGS: Final = {
    "TENSOR_WASM_API_SESSION_IDLE": "1",
    "TENSOR_WASM_API_JOB_KEEP": "20",
    "TENSOR_WASM_DEVICE": "emulator",
}
_SAMPLES: Final = 100
_WARM: Final = 0.2
"""What of the run is not looked at: caches and pools fill."""

_GROWTH_BAR_MIB: Final = 16.0
_LOCK_EVERY_S: Final = 20.0
_LOCK_S: Final = 0.5


@dataclass(slots=True)
class Soak:
    """One run.

    Attributes:
        served: the service.
        folder: its data.
        total: operations to do.
        done: those that were begun.
        answers: by operation and status.
        held: resident bytes and descriptors of the serving process, now and again.
        locks: times that the database was locked.
    """

    served: Served
    folder: Path
    total: int
    done: int = 0
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    held: list[tuple[int, int]] = field(default_factory=list)
    locks: int = 0

    async def run(self, tenants: list[Tenant], visitors: int) -> None:
        """Have visitors do what tenants do, until all is done."""
        host, _, port = self.served.url.removeprefix("http://").partition(":")
        sources = [random.Random(seed) for seed in range(visitors)]  # noqa: S311 - the same day every time
        guests = [Visitor((host, int(port)), tenants, source, self.answers) for source in sources]
        fault = asyncio.create_task(self._lock_now_and_again())
        try:
            await asyncio.gather(*(self._visit(visitor) for visitor in guests))
        finally:
            fault.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await fault

    async def _visit(self, visitor: Visitor) -> None:
        every = max(1, self.total // _SAMPLES)
        while self.done < self.total:
            self.done += 1
            if self.done % every == 0:
                self.held.append(holdings(self.served.process))
                _show(self.done, self.total, *self.held[-1])
            operation = OPERATIONS[bisect(WEIGHTS, visitor.random.randrange(WEIGHTS[-1]))]
            for status in await operation.step(visitor, visitor.random.choice(visitor.tenants)):
                self.answers[operation.name, status] += 1
                if status and status not in operation.expected and status not in MAY_FAIL:
                    raise InternalError(f"{operation.name} was answered with {status}: {visitor.told!r}")

    async def _lock_now_and_again(self) -> None:
        """Lock the database, as a backup or an administrator may."""
        while True:
            await asyncio.sleep(_LOCK_EVERY_S)
            with contextlib.closing(sqlite3.connect(self.folder / "service.db", timeout=5)) as other:
                with contextlib.suppress(sqlite3.OperationalError):
                    other.execute("BEGIN IMMEDIATE")
                    self.locks += 1
                    await asyncio.sleep(_LOCK_S)
                other.rollback()


def measure_soak(_choice: str = "auto", *, requests: int = REQUESTS, tenants: int = TENANTS) -> Report:
    """Do all this; no GPU takes part. Needs Linux.

    Args:
        requests: to make.
        tenants: who make them.
    """
    with tempfile.TemporaryDirectory(prefix="tensorwasm-bench-") as name, serving(Path(name), _SETTINGS) as served:
        people = [_admit(served, number) for number in range(1, tenants + 1)]
        soak = Soak(served, Path(name), requests)
        start = time.perf_counter()
        asyncio.run(soak.run(people, VISITORS))
        spent_s = time.perf_counter() - start
        figures = tuple(_figures(soak, spent_s))
    return Report("soak", "", figures)


def _admit(served: Served, number: int) -> Tenant:
    """Make a tenant, a token for it alone, and its functions."""
    with Client(served.url, served.token, number) as client:
        client.ask("PATCH", f"/tenants/{number}", {"quotas": {"qps": 100_000, "burst": 10_000}})
        made = client.ask("POST", "/tokens", {"name": f"soak {number}", "tenants": [number]})
        tenant = Tenant(number, made["token"])
    with Client(served.url, tenant.token, number) as client:
        for name, module in (("add", read_guest("add")), ("chat", read_guest("chat")), ("endless", ENDLESS)):
            body = {"name": name, "wasm_b64": base64.b64encode(module).decode(), "options": {"model": name == "chat"}}
            tenant.functions[name] = client.ask("POST", "/functions", body)["id"]
    return tenant


def _figures(soak: Soak, spent_s: float) -> Iterator[Figure]:
    count = sum(soak.answers.values())
    yield Figure("answers", "requests", count, 0, 1)
    yield Figure("requests a second", "requests/s", count / spent_s, 0, 1)
    refused = sum(times for (_, status), times in soak.answers.items() if status in MAY_FAIL)
    yield Figure("refused for now (429, 503)", "requests", refused, 0, 1)
    yield Figure("without an answer", "requests", sum(t for (_, s), t in soak.answers.items() if not s), 0, 1, bar=0)
    yield Figure("times that the database was locked", "times", soak.locks, 0, 1)
    steady = soak.held[int(len(soak.held) * _WARM) :]
    resident = [held / MIB for held, _ in steady]
    third = max(1, len(steady) // 3)
    first, last = (sorted(part)[len(part) // 2] for part in (resident[:third], resident[-third:]))
    yield Figure("resident memory", "MiB", last, (max(resident) - min(resident)) / 2, len(resident))
    yield Figure("resident memory, last third over first", "MiB", last - first, 0, third, bar=_GROWTH_BAR_MIB)
    files = [held for _, held in steady]
    first_files, last_files = (sorted(part)[len(part) // 2] for part in (files[:third], files[-third:]))
    yield Figure("descriptors, last third over first", "files", last_files - first_files, 0, third, bar=2)


def holdings(command: int) -> tuple[int, int]:
    """Return resident bytes and descriptors of the process that serves: the command's only child, or itself.

    Raises:
        InternalError: the system does not tell, or it has gone.
    """
    try:
        children = Path(f"/proc/{command}/task/{command}/children").read_text().split()
        serving_ = int(children[0]) if children else command
        pages = int(Path(f"/proc/{serving_}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{serving_}/fd"))  # noqa: PTH208 - names only
    except OSError:
        raise InternalError("the serving process has gone, or this is no Linux") from None


def _show(done: int, total: int, resident_bytes: int, files: int) -> None:
    terminal = sys.stderr.isatty()
    if not terminal and done * 20 // total == (done - total // _SAMPLES) * 20 // total:
        return
    text = f"\r{done * 100 // total:3} %  {resident_bytes / MIB:.0f} MiB  {files} files "
    sys.stderr.write(text if terminal else text.strip() + "\n")
    sys.stderr.flush()
