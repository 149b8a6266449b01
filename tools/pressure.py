"""Put every load of ``tensor-wasm bench neighbours`` on one server in a control group of 3 GiB, and see what is lost.

``tools/pressure.py --seconds 300 --json bench/results/pressure.json``, as root, for the group is made here (memory
controller, version 1 or 2). Meanwhile a witness deploys functions, queues jobs and makes durable calls of a session,
and notes what the server acknowledged. It ends with 1 if a process was killed, the server was replaced, or anything
that was acknowledged is not there afterwards.
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

from tensorwasm.bench.examples import read_guest  # noqa: E402 - found there
from tensorwasm.bench.http.client import Client  # noqa: E402 - likewise
from tensorwasm.bench.http.serving import Served, serving  # noqa: E402 - likewise
from tensorwasm.bench.neighbours.loads import LOADS, REFUSALS, Load, Scene, prepare  # noqa: E402 - likewise
from tensorwasm.bench.neighbours.pressing import pressing  # noqa: E402 - likewise
from tensorwasm.errors import InternalError  # noqa: E402 - likewise
from tensorwasm.values import MIB  # noqa: E402 - likewise

WITNESS: Final = 1
"""The witness's tenant; each load has one of its own."""

PAUSE_S: Final = 0.1
SETTLE_S: Final = 120.0
BEGIN_S: Final = 120.0
"""How long it is tried to make what a load works with, while the server refuses."""

END_S: Final = 30.0
_GROUPS: Final = Path("/sys/fs/cgroup")
_WASM: Final = {"content-type": "application/wasm"}


class Group:
    """A control group with a limit of memory.

    Args:
        limit_bytes: of all processes in it.
    """

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
        """Have what is started in the block begin its life in the group."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self._parent / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self) -> int:
        """Return how many processes were killed for want of memory."""
        rows = dict(line.split() for line in (self._folder / self._events).read_text().splitlines())
        return int(rows["oom_kill"])

    def peak_mib(self) -> float:
        """Return the most memory that the group had."""
        return int((self._folder / self._peak).read_text()) / MIB

    def remove(self) -> None:
        """End what still runs in the group, and take it away."""
        ends = time.monotonic() + END_S
        while (left := (self._folder / "cgroup.procs").read_text().split()) and time.monotonic() < ends:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            time.sleep(PAUSE_S)
        self._folder.rmdir()


@dataclass
class Witness:
    """What the server acknowledged to one tenant.

    Attributes:
        functions: ids of functions that were deployed.
        jobs: ids of jobs that were taken.
        session: its id.
        calls: durable calls that were answered, the last of them with this number.
        answers: how often each status was answered.
    """

    client: Client
    add: str = ""
    session: str = ""
    calls: int = 0
    functions: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)

    def begin(self) -> None:
        """Make what it works with, before there is any load."""
        self.add = self._deploy("add", "add") or ""
        counting = self._deploy("counting", "appetite")
        self.session = self.client.ask("POST", "/sessions", {"function": counting})["id"]

    def work(self, ending: threading.Event) -> None:
        """Ask for things that must not be lost, until told to stop."""
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
        """Return how much of what was acknowledged is not there."""
        functions = sum(self._status("GET", f"/functions/{each}") != 200 for each in self.functions)
        ends = time.monotonic() + SETTLE_S
        pending = set(self.jobs)
        while pending and time.monotonic() < ends:
            pending = {each for each in pending if self._job(each) in {"pending", "running"}}
        jobs = sum(self._job(each) != "completed" for each in self.jobs)
        return {"functions": functions, "jobs": jobs, "durable calls": max(0, self.calls + 1 - self._count())}

    def _count(self) -> int:
        """Call the session once more, as soon as there is room, and return how many calls it has had; 0 for none."""
        ends = time.monotonic() + SETTLE_S
        while time.monotonic() < ends:
            status, body = self._post(f"/sessions/{self.session}/invoke", {"export": "count"})
            if status == 200:
                return int(json.loads(body)["result"][0])
            time.sleep(PAUSE_S)
        return 0

    def _deploy(self, name: str, guest: str) -> str | None:
        status, body = self._send("POST", f"/functions?name={name}", read_guest(guest), **_WASM)
        self.answers[status] += 1
        return json.loads(body)["id"] if status == 200 else None

    def _post(self, path: str, body: object) -> tuple[int, bytes]:
        status, answer = self._send("POST", path, json.dumps(body).encode())
        self.answers[status] += 1
        return status, answer

    def _send(self, method: str, path: str, body: bytes | None, **headers: str) -> tuple[int, bytes]:
        """Return an answer; status 0 where none came, and then nothing counts as acknowledged."""
        try:
            return self.client.send(method, path, body, headers)
        except (OSError, http.client.HTTPException):
            self.client.reconnect()
            return 0, b""

    def _status(self, method: str, path: str) -> int:
        return self._again(method, path)[0]

    def _job(self, job_id: str) -> str:
        status, body = self._again("GET", f"/jobs/{job_id}")
        return str(json.loads(body)["status"]) if status == 200 else str(status)

    def _again(self, method: str, path: str) -> tuple[int, bytes]:
        """Return an answer that is no refusal, if there is one in time."""
        ends = time.monotonic() + SETTLE_S
        while True:
            status, body = self._send(method, path, None)
            if status not in {0, *REFUSALS} or time.monotonic() >= ends:
                return status, body
            time.sleep(PAUSE_S)


def main(arguments: list[str]) -> int:
    """Do what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--limit-mib", type=int, default=3072)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the server and the group, too
    parser.add_argument("--json", type=Path, help="where the report goes besides the screen")
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
    """Start a server, put all loads on it, and return what is written of that."""
    with ExitStack() as stack:
        with group.joined():
            served = stack.enter_context(serving(folder))
        first = server_of(served)
        with Client(served.url, served.token, WITNESS) as client:
            client.ask("PATCH", f"/tenants/{WITNESS}", {"quotas": {"qps": 100_000, "burst": 1000}})
            witness = Witness(client)
            witness.begin()
            answers = press(served, witness, seconds)
            lost, kills, same = witness.lost(), group.kills(), server_of(served) == first
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


def press(served: Served, witness: Witness, seconds: float) -> dict[str, dict[str, int]]:
    """Put all loads on a server at once, for so long, and return how they were answered."""
    ending = threading.Event()
    scenes = {}
    for number, load in enumerate(LOADS, WITNESS + 1):
        with Client(served.url, served.token, number) as client:
            scenes[load.name] = prepare_in_time(load, client)
    with ExitStack() as stack:
        found = {
            load.name: stack.enter_context(pressing(load, scenes[load.name], served.url))
            for load in reversed(LOADS)  # the last makes its modules first, for which the others would leave no time
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
        counts = found[load.name].answers
        good, refused = (sum(counts[each] for each in kinds) for kinds in (load.expected, REFUSALS))
        answers[load.name] = {"good": good, "refused": refused, "other": counts.total() - good - refused}
    return answers


def prepare_in_time(load: Load, client: Client) -> Scene:
    """Deploy what a load calls, and open its sessions; again while that is refused.

    Raises:
        InternalError: it was refused all the time.
    """
    ends = time.monotonic() + BEGIN_S
    while True:
        try:
            return prepare(load, client)
        except (InternalError, OSError, http.client.HTTPException):
            if time.monotonic() >= ends:
                raise
            client.reconnect()
            time.sleep(PAUSE_S)


def server_of(served: Served) -> list[str]:
    """Return the server's process, the first of those that the command has started: one stands by.

    Raises:
        InternalError: the command has ended.
    """
    try:
        return Path(f"/proc/{served.process}/task/{served.process}/children").read_text().split()[:1]
    except OSError:
        raise InternalError("the server has ended") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
