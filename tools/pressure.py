"""Put every load of ``tensor-wasm bench neighbours`` on one server in a control group of 3 GiB, and count losses.

``tools/pressure.py --seconds 300 --json bench/results/pressure.json`` needs root: it makes the group (memory
controller, version 1 or 2). Meanwhile a witness deploys functions, queues jobs and makes durable calls of a session,
and records what the server acknowledges. The exit code is 1 if a process was killed, the server was replaced, or
anything that was acknowledged is missing afterwards.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from tensorwasm.bench.harness import read_guest, server_process  # noqa: E402 - found there
from tensorwasm.bench.service.neighbours import (  # noqa: E402 - likewise
    LOADS,
    REFUSALS,
    LoadContext,
    TenantLoad,
    prepare,
    pressing,
)
from tensorwasm.bench.service.serving import RunningService, ServiceClient, serving  # noqa: E402 - likewise
from tensorwasm.errors import InternalError  # noqa: E402 - likewise
from tensorwasm.values import MIB  # noqa: E402 - likewise

WITNESS: Final = 1
"""The witness's tenant; each load has one of its own."""

PAUSE_S: Final = 0.1
SETTLE_S: Final = 120.0
BEGIN_S: Final = 120.0
"""How long the preparation of a load is repeated while the server refuses."""

END_S: Final = 30.0
_GROUPS: Final = Path("/sys/fs/cgroup")


class Group:
    """A control group that limits the memory of all processes in it."""

    def __init__(self, limit_bytes: int) -> None:
        v1 = (_GROUPS / "memory" / "memory.limit_in_bytes").exists()
        self._parent = _GROUPS / "memory" if v1 else _GROUPS
        self._folder = self._parent / f"tensorwasm-pressure-{os.getpid()}"
        self._limit, self._events = (
            ("memory.limit_in_bytes", "memory.oom_control") if v1 else ("memory.max", "memory.events")
        )
        self._peak = "memory.max_usage_in_bytes" if v1 else "memory.peak"
        self._folder.mkdir()
        (self._folder / self._limit).write_text(str(limit_bytes))

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Put this process into the group during the block; its children stay there."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self._parent / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self) -> int:
        """Return how many processes were killed because the group had no memory left."""
        rows = dict(line.split() for line in (self._folder / self._events).read_text().splitlines())
        return int(rows["oom_kill"])

    def peak_mib(self) -> float:
        """Return the peak of the group's memory."""
        return int((self._folder / self._peak).read_text()) / MIB

    def remove(self) -> None:
        """End the processes that still run in the group, and remove it."""
        ends = time.monotonic() + END_S
        while (left := (self._folder / "cgroup.procs").read_text().split()) and time.monotonic() < ends:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            time.sleep(PAUSE_S)
        self._folder.rmdir()


@dataclass
class Witness:
    """A tenant that records what the server acknowledges.

    Attributes:
        client: of the tenant.
        add: id of a function that adds.
        session: id of its session.
        calls: result of the last durable call, which counts calls.
        functions: ids of functions that were deployed.
        jobs: ids of jobs that were accepted.
        answers: how often each status was answered.
    """

    client: ServiceClient
    add: str = ""
    session: str = ""
    calls: int = 0
    functions: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)

    def begin(self) -> None:
        """Deploy its functions and open its session, before there is any load."""
        self.add = self._deploy("add", "add") or ""
        counting = self._deploy("counting", "appetite")
        self.session = self.client.ask("POST", "/sessions", {"function": counting})["id"]

    def work(self, ending: threading.Event) -> None:
        """Ask for things that must not be lost, until the event is set."""
        while not ending.wait(PAUSE_S):
            turn = self.answers.total()
            if (made := self._deploy(f"made{turn}", "add")) is not None:
                self.functions.append(made)
            status, body = self._post(f"/functions/{self.add}/invoke-async", {"export": "add", "args": [turn, 1]})
            if status == 202:
                self.jobs.append(json.loads(body)["job_id"])
            status, body = self._post(f"/sessions/{self.session}/invoke", {"export": "count", "durable": True})
            if status == 200:
                self.calls = json.loads(body)["result"][0]

    def lost(self) -> dict[str, int]:
        """Return how much of what was acknowledged is missing."""
        functions = sum(self._status("GET", f"/functions/{each}") != 200 for each in self.functions)
        ends = time.monotonic() + SETTLE_S
        pending = set(self.jobs)
        while pending and time.monotonic() < ends:
            pending = {each for each in pending if self._job(each) in {"pending", "running"}}
        jobs = sum(self._job(each) != "completed" for each in self.jobs)
        return {"functions": functions, "jobs": jobs, "durable calls": max(0, self.calls + 1 - self._count())}

    def _count(self) -> int:
        """Call the session as soon as there is room; return how many calls it has counted, 0 without an answer."""
        ends = time.monotonic() + SETTLE_S
        while time.monotonic() < ends:
            status, body = self._post(f"/sessions/{self.session}/invoke", {"export": "count"})
            if status == 200:
                return int(json.loads(body)["result"][0])
            time.sleep(PAUSE_S)
        return 0

    def _deploy(self, name: str, guest: str) -> str | None:
        status, body = self._send("POST", f"/functions?name={name}", read_guest(guest), content_type="application/wasm")
        self.answers[status] += 1
        return json.loads(body)["id"] if status == 200 else None

    def _post(self, path: str, body: object) -> tuple[int, bytes]:
        status, answer = self._send("POST", path, json.dumps(body).encode())
        self.answers[status] += 1
        return status, answer

    def _send(self, method: str, path: str, body: bytes | None = None, **options: str) -> tuple[int, bytes]:
        """Return an answer; status 0 stands for none, and then nothing counts as acknowledged."""
        try:
            return self.client.send(method, path, body, **options)
        except (OSError, http.client.HTTPException):
            self.client.close()
            return 0, b""

    def _status(self, method: str, path: str) -> int:
        return self._again(method, path)[0]

    def _job(self, job_id: str) -> str:
        status, body = self._again("GET", f"/jobs/{job_id}")
        return str(json.loads(body)["status"]) if status == 200 else str(status)

    def _again(self, method: str, path: str) -> tuple[int, bytes]:
        """Return an answer; a refusal only when the time is up."""
        ends = time.monotonic() + SETTLE_S
        while True:
            status, body = self._send(method, path)
            if status not in {0, *REFUSALS} or time.monotonic() >= ends:
                return status, body
            time.sleep(PAUSE_S)


def main(arguments: list[str]) -> int:
    """Run with the options of the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--limit-mib", type=int, default=3072)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that server and group end, too
    parser.add_argument("--json", type=Path, help="file for the report, which is printed as well")
    asked = parser.parse_args(arguments)
    group = Group(asked.limit_mib * MIB)
    try:
        with tempfile.TemporaryDirectory(prefix="tensorwasm-pressure-") as name:
            report = endure(group, Path(name), asked.seconds)
    finally:
        group.remove()
    text = json.dumps({"seconds": asked.seconds, "limit_mib": asked.limit_mib, **report}, indent=2) + "\n"
    print(text, end="")
    if asked.json is not None:
        asked.json.write_text(text)
    return 0 if report["ok"] else 1


def endure(group: Group, folder: Path, seconds: float) -> dict[str, Any]:
    """Start a server, put all loads on it, and return the report."""
    with ExitStack() as stack:
        with group.joined():
            service = stack.enter_context(serving(folder))
        first = server_process(service.process)
        with service.client(WITNESS) as client:
            client.ask("PATCH", f"/tenants/{WITNESS}", {"quotas": {"qps": 100_000, "burst": 1000}})
            witness = Witness(client)
            witness.begin()
            answers = press(service, witness, seconds)
            lost, kills, same = witness.lost(), group.kills(), server_process(service.process) == first
        return {
            "killed": kills,
            "same_server": same,
            "peak_mib": round(group.peak_mib()),
            "acknowledged": {
                "functions": len(witness.functions),
                "jobs": len(witness.jobs),
                "durable calls": witness.calls,
            },
            "lost": lost,
            "witness": dict(witness.answers),
            "loads": answers,
            "ok": not kills and same and not any(lost.values()),
        }


def press(service: RunningService, witness: Witness, seconds: float) -> dict[str, dict[str, int]]:
    """Put all loads on a server at once, and return how they were answered."""
    ending = threading.Event()
    contexts = {}
    for number, load in enumerate(LOADS, WITNESS + 1):
        with service.client(number) as client:
            contexts[load.name] = prepare_in_time(load, client)
    with ExitStack() as stack:
        found = {
            load.name: stack.enter_context(pressing(load, contexts[load.name], service.url))
            for load in reversed(LOADS)  # the last begins: making its modules takes processor time
        }
        thread = threading.Thread(target=witness.work, args=(ending,))
        thread.start()
        try:
            time.sleep(seconds)
        finally:
            ending.set()
            thread.join()
    answers = {}
    for load in LOADS:
        answers[load.name] = dict(zip(("good", "refused", "other"), load.tally(found[load.name]), strict=True))
    return answers


def prepare_in_time(load: TenantLoad, client: ServiceClient) -> LoadContext:
    """Deploy what a load calls, and open its sessions; repeat this while the server refuses.

    Raises:
        InternalError: the server refused until the time was up.
    """
    ends = time.monotonic() + BEGIN_S
    while True:
        try:
            return prepare(load, client)
        except (InternalError, OSError, http.client.HTTPException):
            if time.monotonic() >= ends:
                raise
            client.close()
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
