"""Clients that load a server and remember what it acknowledged, while somebody kills its processes at random."""

import base64
import random
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import httpx

from fakes.services import ADD, COUNTER, SUM
from limited import BURST, HEADERS, QPS, LimitedTenant
from neighbours import until
from oracles.service import (
    AuditedCalls,
    Promises,
    audited_calls,
    broken_in_database,
    count_interrupted,
    found_over_http,
    install_witness,
    lost_to_kills,
)
from tensorwasm.tenancy.audit import verify
from victims import choose, descendants, kill, survivors

ENVIRONMENT = {
    "TENSOR_WASM_API_TENANT_CAPS": "qps=100000,burst=100000",
    "TENSOR_WASM_API_DRAIN": "5",
    "TENSOR_WASM_CODE_CACHE": "1024",  # as operators' servers have: other tests keep no compiled modules
}
PATIENCE_S = 60.0
PAUSE_S = 0.01
MOST_PROCESSES = 4
"""By how much processes that ask at the same time may exceed a rate."""

REPORTED_S = 2.5
"""When fronts have told the primary what tenants used."""

AWAY_S = 0.1
"""How often a client tries a server that is not there."""

LONG = 50_000_000
"""Numbers that a guest sums up for so long that a kill finds it at that."""

PASSING = frozenset({"device_lost", "capacity_exhausted", "database_unavailable", "draining", "not_ready"})
"""Kinds of errors that a client may be told while processes die; each may be tried again."""


AUDIT_S = {"front": 0.05, "server": 1.0, "reported": 1.5}
"""What a process that is killed may lose of the audit log: what it has not given to another, or to the file."""

USAGE_S = {"front": 1.0, "server": 5.0}
"""Likewise of what tenants have used."""


@dataclass
class Report:
    """What a storm has shown.

    Attributes:
        killed: when each process was killed, and what it did.
        state_s: by what was killed, from the kill to the next answer that the state is read for.
        call_s: likewise, to the next result of a call.
        worker_s: likewise, to the next result of a call on the device, where its process may have died.
        acknowledged: how many of each kind.
        found: how many of those were there afterwards.
        interrupted: jobs that were begun more than once.
        attempts: the most that any job took.
        audit: how the audit log agrees with the answers to calls.
        limited: what a tenant with a rate was let do.
        wrong: everything else that must not be.
        answers: how often each status and kind was answered.
    """

    killed: list[tuple[float, str]] = field(default_factory=list)
    state_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    call_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    worker_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    interrupted: int = 0
    attempts: int = 0
    audit: AuditedCalls | None = None
    limited: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)

    @property
    def kills(self):
        """How many processes were killed, by what they did."""
        return Counter(role for _, role in self.killed)

    @property
    def back_s(self):
        """How long the server was away, each time."""
        return [each for times in (self.state_s, self.call_s) for found in times.values() for each in found]


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
            if path.startswith("/functions/") and path.endswith("/invoke"):
                self._promises.invoked[answer.headers["x-request-id"]] = time.time()
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


def rage(server, roles, seed=0, clients=4, gap_s=1.5, tell=lambda _: None):
    """Load a server, kill its processes, stop it, and return what that has shown.

    Args:
        server: that is running, with `ENVIRONMENT`; it has ended when this returns.
        roles: for each kill, which process it is of, by what it does; None for any.
        seed: of what is killed when.
        clients: that load it.
        gap_s: longest time from an answer to the next kill.
        tell: takes a line of progress: one for each kill, and one for each step behind the last.
    """
    report, promises = Report(), Promises()
    chance, processes = random.Random(seed), set()
    database = server.data / "service.db"
    install_witness(database)
    limited = LimitedTenant(server)
    with server.client(headers={"X-TensorWasm-Tenant": "7"}) as client:
        functions = _deploy_all(client)
        with _loaded(server, functions, promises, clients), limited.calling(), ThreadPoolExecutor(3) as asking:
            for number, role in enumerate(roles, 1):
                threading.Event().wait(chance.uniform(0.0, gap_s))
                processes |= descendants(server.process.pid)
                tell(f"kill {number} of {len(roles)}: {_kill_one(server, functions, role, chance, report, asking)}")
        report.acknowledged = promises.count()
        tell(f"looking for what was acknowledged: {report.acknowledged}")
        report.found = found_over_http(promises, client)
        _judge_limited(limited, client, report)
    tell("stopping the server")
    if server.stop() != 0:
        report.wrong.append("the server did not stop as it should")
    report.interrupted, report.attempts = count_interrupted(database)
    report.wrong += promises.wrong + limited.wrong + broken_in_database(database, promises)
    report.wrong += [f"process {each} outlived its server" for each in survivors(processes, PATIENCE_S)]
    _judge_audit(server.data / "audit.log", limited, promises, report)
    report.answers = dict(sorted(promises.answers.items()))
    return report


def _judge_limited(limited, client, report):
    """Judge whether a tenant's rate held over all processes, and what it is said to have used."""
    restarts, admitted = report.kills["supervisor"], len(limited.admitted)
    allowed = BURST * (1 + restarts) + MOST_PROCESSES
    until(lambda: client.get("/readyz").status_code == 200)
    threading.Event().wait(REPORTED_S)
    usage = client.get("/usage", headers=HEADERS).raise_for_status().json()
    used, held = usage["total"]["requests"], {name: usage["quotas"][name]["used"] for name in ("requests", "instances")}
    excused = lost_to_kills([at for _, at, _ in limited.admitted], report.killed, USAGE_S)
    report.limited = {
        "qps": QPS,
        "burst": BURST,
        "admitted": admitted,
        "refused": limited.limited,
        "unanswered": limited.unanswered,
        "most_beyond_105_percent_of_the_rate": round(limited.excess(), 1),
        "allowed_beyond": allowed,
        "used": used,
        "used_that_a_kill_may_have_lost": excused,
    }
    if held != {"requests": 1, "instances": 0}:  # the request that asks
        report.wrong.append(f"a tenant without calls holds {held}")
    if limited.excess() > allowed:
        report.wrong.append(f"a tenant was let do {limited.excess():.1f} more than its rate, not {allowed}")
    if not admitted or not limited.limited:
        report.wrong.append("the limited tenant was not let do anything, or everything")
    if not admitted - excused <= used <= admitted + limited.unanswered:
        report.wrong.append(f"a tenant has used {used}, and {admitted} calls were answered; {excused} may be lost")


def _judge_audit(path, limited, promises, report):
    """Judge whether the audit log has a line for each call that was answered."""
    report.wrong += [f"the audit log: {each}" for each in verify(path).findings]
    answered = promises.invoked | {request: at for _, at, request in limited.admitted}
    audit = report.audit = audited_calls(path, answered, report.killed, AUDIT_S)
    if audit.missing > audit.excused:
        report.wrong.append(f"answered calls that are not in the audit log; kills near them: {audit.unexplained}")
    if audit.twice and not {"primary", "supervisor"} & {role for _, role in report.killed}:
        report.wrong.append(f"{audit.twice} calls are in the audit log again")


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


def _kill_one(server, functions, role, chance, report, asking):
    """Kill a process, wait until all is answered again, and return what was killed and how long that took."""
    role, victim = choose(server.process.pid, chance, role)
    begun_s = time.monotonic()
    report.killed.append((time.time(), role))
    if role == "supervisor":
        server.restart()
    else:
        kill(victim)
    call = {"export": "sum", "args": [10]}
    awaited = [
        (report.state_s, "GET", "/functions", None),
        (report.call_s, "POST", f"/functions/{functions['sum']}/invoke", call),
    ]
    if role in {"worker", "worker template", "broker", "supervisor"}:
        awaited.append((report.worker_s, "POST", f"/functions/{functions['cuda']}/invoke", call))
    times = [asking.submit(wait_for, server, method, path, begun_s, body) for _, method, path, body in awaited]
    for (into, *_), answered in zip(awaited, times, strict=True):
        into[role].append(answered.result())
    return f"{role}, all answered again after {time.monotonic() - begun_s:.1f} s"


def wait_for(server, method, path, begun_s, body=None):
    """Ask over new connections until the answer is 200, and return how long that took from `begun_s` on."""
    fresh = httpx.Limits(max_keepalive_connections=0)
    with server.client(headers={"X-TensorWasm-Tenant": "7"}, timeout=PATIENCE_S, limits=fresh) as client:
        while time.monotonic() < begun_s + PATIENCE_S:
            with suppress(httpx.HTTPError):
                if client.request(method, path, json=body).status_code == 200:
                    return time.monotonic() - begun_s
            threading.Event().wait(PAUSE_S)
    said = server.data.with_suffix(".stderr").read_text()
    raise AssertionError(f"{method} {path} is not answered any more: {said[-4000:]}")
