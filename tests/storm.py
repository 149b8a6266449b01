"""Clients that load a server and remember what it acknowledged, while somebody kills its processes at random."""

import base64
import os
import random
import signal
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from fakes.services import ADD, COUNTER, SUM
from oracles.service import Promises, broken_in_database, count_interrupted, found_over_http, install_witness
from tensorwasm.tenancy.audit import verify

ENVIRONMENT = {"TENSOR_WASM_API_TENANT_CAPS": "qps=100000,burst=100000", "TENSOR_WASM_API_DRAIN": "5"}
PATIENCE_S = 60.0
PAUSE_S = 0.01
AWAY_S = 0.1
"""How often a client tries a server that is not there."""

LONG = 50_000_000
"""Numbers that a guest sums up for so long that a kill finds it at that."""

PASSING = frozenset({"device_lost", "capacity_exhausted", "database_unavailable", "draining", "not_ready"})
"""Kinds of errors that a client may be told while processes die; each may be tried again."""


@dataclass
class Report:
    """What a storm has shown.

    Attributes:
        kills: of the server, of workers, and of the process that stands by.
        server_s: from the kill of a server to its first answer.
        worker_s: from the kill of a worker to the first result of another.
        beside_s: from the kill of any other process to the next answer of the server.
        acknowledged: how many of each kind.
        found: how many of those were there afterwards.
        interrupted: jobs that were begun more than once.
        attempts: the most that any job took.
        wrong: everything else that must not be.
        answers: how often each status and kind was answered.
    """

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("server", "worker", "spare"), 0))
    server_s: list[float] = field(default_factory=list)
    worker_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    interrupted: int = 0
    attempts: int = 0
    wrong: list[str] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)


class Client(threading.Thread):
    """One client, which tries what was not answered again under the same key, as clients should.

    Args:
        number: apart from all others'.
        server: that is loaded.
        functions: ids of those that all clients call, by name.
        promises: what it remembers.
        stopping: ends it.
    """

    def __init__(self, number, server, functions, promises, stopping):
        super().__init__(name=f"client {number}", daemon=True)
        self._number = number
        self._server = server
        self._functions = functions
        self._promises = promises
        self._stopping = stopping
        self._random = random.Random(number)
        self._made = 0
        self._session = None
        self._mine = []
        self._tokens = []

    def run(self):
        deeds = (self.deploy, self.delete, self.submit, self.submit, self.submit, self.make_token, self.revoke_token)
        deeds += (self.save_snapshot, self.count, self.invoke, self.invoke, self.invoke)
        with self._server.client(headers={"X-TensorWasm-Tenant": "7"}) as self._client:
            try:
                while not self._stopping.wait(PAUSE_S):
                    self._random.choice(deeds)()
            except Exception as error:  # noqa: BLE001 - a client that ends early proves nothing
                self._promises.wrong.append(f"{self.name}: {error!r}")

    def deploy(self):
        name = self._new_name()
        body = {"name": name, "wasm_b64": base64.b64encode(named(ADD, name)).decode()}
        made = self._insist("POST", "/functions", json=body, headers={"Idempotency-Key": name})
        if made is not None:
            self._promises.keep("functions", made["id"], name)
            self._mine.append(made["id"])

    def delete(self):
        if len(self._mine) < 3:
            return
        function = self._mine.pop(0)
        with self._promises.lock:
            del self._promises.functions[function]
        if self._insist("DELETE", f"/functions/{function}", also=(404,)) is not None:
            self._promises.deleted.add(function)

    def submit(self):
        name = self._new_name()
        number = self._number * 1_000_000 + self._made + self._random.choice((0, 0, 0, LONG))
        function = self._functions[self._random.choice(("sum", "sum", "cuda"))]
        body = {"export": "sum", "args": [number], "max_attempts": 100}
        path = f"/functions/{function}/invoke-async"
        accepted = self._insist("POST", path, json=body, headers={"Idempotency-Key": name})
        if accepted is not None:
            self._promises.keep("jobs", accepted["job_id"], [number * (number + 1) // 2])

    def make_token(self):
        body = {"name": self._new_name(), "tenants": [7]}
        made = self._insist("POST", "/tokens", json=body)
        if made is not None:
            self._promises.keep("tokens", made["id"], made["token"])
            self._tokens.append(made["id"])

    def revoke_token(self):
        if len(self._tokens) < 3:
            return
        token = self._tokens.pop(0)
        with self._promises.lock:
            text = self._promises.tokens.pop(token)
        if self._insist("DELETE", f"/tokens/{token}", also=(404,)) is not None:
            self._promises.revoked.append(text)

    def save_snapshot(self):
        if self._session is not None:
            made = self._insist("POST", f"/sessions/{self._session}/snapshot")
            if made is not None:
                self._promises.keep("snapshots", made["id"], made["size_bytes"])

    def count(self):
        if self._session is None or self._made % 50 == 0:
            begun = self._insist("POST", "/sessions", json={"function": self._functions["counter"]})
            self._session = None if begun is None else begun["id"]
            return
        body = {"export": "main", "durable": True}
        counted = self._insist("POST", f"/sessions/{self._session}/invoke", json=body)
        if counted is not None:
            last, now = self._promises.sessions.get(self._session, 0), counted["result"][0]
            if now <= last:
                self._promises.wrong.append(f"session {self._session} went back from {last} to {now}")
            self._promises.keep("sessions", self._session, now)

    def invoke(self):
        number = self._random.randrange(1, 1000)
        function = self._functions[self._random.choice(("sum", "sum", "cuda"))]
        called = self._ask("POST", f"/functions/{function}/invoke", json={"export": "sum", "args": [number]})
        if called is not None and called["result"] != [number * (number + 1) // 2]:
            self._promises.wrong.append(f"sum({number}) is {called['result']}")

    def _new_name(self):
        self._made += 1
        return f"{self._number}-{self._made}"

    def _insist(self, method, path, also=(), **more):
        """Ask until there is an answer; None if there is none before the end."""
        while not self._stopping.wait(0.0 if self._server_is_there else AWAY_S):
            answer = self._ask(method, path, also, **more)
            if answer is not None:
                return answer
        return None

    _server_is_there = True

    def _ask(self, method, path, also=(), **more):
        """Return what was answered, None where that is no promise."""
        try:
            answer = self._client.request(method, path, **more)
        except httpx.HTTPError as error:
            self._server_is_there = False
            self._tell(type(error).__name__)
            return None
        self._server_is_there = True
        if answer.is_success or answer.status_code in also:
            self._tell(str(answer.status_code))
            return answer.json() if answer.content else {}
        kind = answer.json()["error"]["kind"]
        self._tell(f"{answer.status_code} {kind}")
        if kind not in PASSING:
            self._promises.wrong.append(f"{method} {path}: {answer.status_code} {kind}")
        return None

    def _tell(self, what):
        with self._promises.lock:
            self._promises.answers[what] += 1


def named(module, name):
    """Return a module that does the same and is another: with a section that says its name."""
    payload = b"\x04mark" + name.encode()
    assert len(payload) < 128
    return module + b"\x00" + bytes([len(payload)]) + payload


def rage(server, kills, seed=0, clients=4, gap_s=1.5):
    """Load a server, kill its processes, stop it, and return what that has shown.

    Args:
        server: that is running, with `ENVIRONMENT`; it has ended when this returns.
        kills: how many processes are killed.
        seed: of what is killed when.
        clients: that load it.
        gap_s: longest time from an answer to the next kill.
    """
    report, promises = Report(), Promises()
    chance, workers = random.Random(seed), set()
    database = server.data / "service.db"
    install_witness(database)
    with server.client(headers={"X-TensorWasm-Tenant": "7"}) as client:
        functions = _deploy_all(client)
        with _loaded(server, functions, promises, clients):
            for _ in range(kills):
                threading.Event().wait(chance.uniform(0.0, gap_s))
                workers |= {(each, birth_of(each)) for each in children(server.child())}
                _kill_one(server, client, functions["cuda"], chance, report)
        report.acknowledged = promises.count()
        report.found = found_over_http(promises, client)
    if server.stop() != 0:
        report.wrong.append("the server did not stop as it should")
    report.interrupted, report.attempts = count_interrupted(database)
    report.wrong += promises.wrong + broken_in_database(database, promises)
    report.wrong += [f"worker {each} outlived its server" for each in _survivors(workers)]
    report.wrong += _broken_in_audit(server.data / "audit.log")
    report.answers = dict(sorted(promises.answers.items()))
    return report


def _deploy_all(client):
    modules = {"sum": (SUM, {}), "cuda": (SUM, {"grants": ["cuda"]}), "counter": (COUNTER, {})}
    made = {}
    for name, (module, options) in modules.items():
        body = {"name": name, "wasm_b64": base64.b64encode(module).decode(), "options": options}
        made[name] = client.post("/functions", json=body).raise_for_status().json()["id"]
    return made


@contextmanager
def _loaded(server, functions, promises, clients):
    stopping = threading.Event()
    threads = [Client(number, server, functions, promises, stopping) for number in range(1, clients + 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def _kill_one(server, client, function, chance, report):
    child, *others = children(server.process.pid)
    among = {"server": [child], "worker": children(child), "spare": others}
    kind = chance.choices(["server", "worker", "spare"], [6, 4, 1])[0]
    if not among[kind]:
        kind = "server"
    victim = chance.choice(among[kind])
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    report.kills[kind] += 1
    begun_s = time.monotonic()
    answered_s = wait_for(server, "GET", "/functions", begun_s)
    if kind == "server":
        report.server_s.append(answered_s)
        return
    report.beside_s.append(answered_s)
    if kind == "spare":
        return
    call = {"export": "sum", "args": [10]}
    report.worker_s.append(wait_for(server, "POST", f"/functions/{function}/invoke", begun_s, json=call))


def wait_for(server, method, path, begun_s, **more):
    """Ask over new connections until the answer is 200, and return how long that took from `begun_s` on."""
    headers = server.headers | {"X-TensorWasm-Tenant": "7"}
    while time.monotonic() < begun_s + PATIENCE_S:
        with suppress(httpx.HTTPError):
            if httpx.request(method, server.url + path, headers=headers, timeout=PATIENCE_S, **more).status_code == 200:
                return time.monotonic() - begun_s
        threading.Event().wait(PAUSE_S)
    said = server.data.with_suffix(".stderr").read_text()
    raise AssertionError(f"{method} {path} is not answered any more: {said[-4000:]}")


def children(process):
    """Return the processes that a process has started."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def birth_of(process):
    """Return when a process began, which tells it from others that get its number later; None if it has ended."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(fields[18])


def _survivors(workers):
    """Return those that do not end soon after their server."""
    ends_s = time.monotonic() + PATIENCE_S
    left = {(process, birth) for process, birth in workers if birth is not None}
    while left and time.monotonic() < ends_s:
        left = {(process, birth) for process, birth in left if birth_of(process) == birth}
        threading.Event().wait(PAUSE_S)
    return [process for process, _ in left]


def _broken_in_audit(path):
    return [f"the audit log: {each}" for each in verify(path).findings]
