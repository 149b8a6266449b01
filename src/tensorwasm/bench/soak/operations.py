"""What tenants of a soak do, how often, and which answers they expect."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.bench.examples import read_guest
from tensorwasm.bench.http.caller import Broken, Caller, connect, render
from tensorwasm.errors import InternalError

ENDLESS: Final = bytes.fromhex("0061736d01000000010401600000030201000708010473706b6e00000a0901070003400c000b0b")
"""An export, ``spkn``, that never returns."""

NOBODY: Final = "00000000-0000-4000-8000-000000000000"
MAY_FAIL: Final = frozenset({429, 503})
"""What any request may be answered while faults are injected: quotas, a full pool, a database that is locked."""


@dataclass(slots=True)
class Tenant:
    """One tenant.

    Attributes:
        number: its own.
        token: for it alone.
        functions: ids by name.
    """

    number: int
    token: str
    functions: dict[str, str] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        """Return what every request of it has."""
        return {"authorization": f"Bearer {self.token}", "x-tensorwasm-tenant": str(self.number)}


@dataclass(slots=True)
class Visitor:
    """One connection's worth of clients, who act for random tenants one after the other.

    Attributes:
        address: of the service.
        tenants: whom it acts for.
        random: of its own.
        answers: how often each operation was answered with each status, or with nothing.
    """

    address: tuple[str, int]
    tenants: list[Tenant]
    random: random.Random
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    caller: Caller | None = None
    told: bytes = b""
    """The last body that was no success."""

    async def ask(
        self, tenant: Tenant, method: str, path: str, body: object = None, extra: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Return status and body of one request; status 0 where the connection broke."""
        try:
            if self.caller is None or self.caller.closed:
                self.caller = await connect(*self.address)
            status, answer = await self.caller.ask(render(method, path, {**tenant.headers(), **(extra or {})}, body))
        except Broken:
            self.caller = None
            return 0, b""
        if status >= 300:
            self.told = answer[:200]
        return status, answer

    async def leave(self, tenant: Tenant, path: str, body: object) -> None:
        """Send a request, and leave before the answer."""
        try:
            caller = await connect(*self.address)
        except Broken:
            return
        caller.leave(render("POST", path, tenant.headers(), body))


Step = Callable[[Visitor, Tenant], Awaitable[tuple[int, ...]]]
"""Does something, and returns the statuses that it was answered with."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that tenants do.

    Attributes:
        name: of it.
        weight: how often, beside the others.
        step: does it.
        expected: statuses that it may be answered with, besides `MAY_FAIL` and a broken connection.
    """

    name: str
    weight: int
    step: Step
    expected: frozenset[int]


async def _add(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
    a, b = visitor.random.randrange(1000), visitor.random.randrange(1000)
    path = f"/functions/{tenant.functions['add']}/invoke"
    status, body = await visitor.ask(tenant, "POST", path, {"export": "add", "args": [a, b]})
    if status == 200 and json.loads(body)["result"] != [a + b]:
        raise InternalError(f"{a} + {b} was answered with {body[:100]!r}")
    return (status,)


def _invoke(function: str, **body: object) -> Step:
    async def step(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
        path = f"/functions/{tenant.functions.get(function, function)}/invoke"
        return ((await visitor.ask(tenant, "POST", path, body))[0],)

    return step


async def _foreign(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
    other = visitor.random.choice(visitor.tenants)
    path = f"/functions/{other.functions['add']}"
    status, body = await visitor.ask(tenant, "GET", path)
    if status == 200 and other is not tenant:
        raise InternalError(f"tenant {tenant.number} was shown a function of {other.number}: {body[:100]!r}")
    return () if other is tenant else (status,)


async def _nobody(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
    stranger = Tenant(tenant.number, f"tw_{visitor.random.randrange(1 << 60)}")
    return ((await visitor.ask(stranger, "GET", "/functions"))[0],)


async def _job(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
    path = f"/functions/{tenant.functions['add']}/invoke-async"
    status, body = await visitor.ask(tenant, "POST", path, {"export": "add", "args": [1, 2]})
    if status != 202:
        return (status,)
    found, answer = await visitor.ask(tenant, "GET", f"/jobs/{json.loads(body)['job_id']}")
    if found == 200 and json.loads(answer)["status"] not in ("pending", "running", "completed"):
        raise InternalError(f"a job of add is {answer[:200]!r}")
    return status, found


async def _session(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
    status, body = await visitor.ask(tenant, "POST", "/sessions", {"function": tenant.functions["add"]})
    if status not in (200, 201):
        return (status,)
    path = f"/sessions/{json.loads(body)['id']}"
    called, _ = await visitor.ask(tenant, "POST", f"{path}/invoke", {"export": "add", "args": [1, 2]})
    closed, _ = await visitor.ask(tenant, "DELETE", path)
    return status, called, closed


async def _deploy(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
    body = {"name": "brief", "wasm_b64": base64.b64encode(read_guest("chat")).decode()}
    status, answer = await visitor.ask(tenant, "POST", "/functions", body)
    if status != 200:
        return (status,)
    removed, _ = await visitor.ask(tenant, "DELETE", f"/functions/{json.loads(answer)['id']}")
    return status, removed


async def _chat(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hello?"}]}
    status, answer = await visitor.ask(tenant, "POST", "/v1/chat/completions", body)
    if status == 200 and json.loads(answer)["choices"][0]["message"]["content"] != "Hello there":
        raise InternalError(f"a chat was answered with {answer[:200]!r}")
    return (status,)


def _stream(accept: str) -> Step:
    async def step(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
        """A stream has a connection of its own, read to its end, or left in the middle."""
        try:
            reader, writer = await asyncio.open_connection(*visitor.address)
        except OSError:
            return (0,)
        path = f"/functions/{tenant.functions['chat']}/invoke-stream"
        writer.write(render("POST", path, {**tenant.headers(), "accept": accept, "connection": "close"}, {}))
        try:
            head = await reader.read(12)
            if visitor.random.random() < 0.7:
                while await reader.read(65536):
                    continue
        except OSError:
            head = b""
        finally:
            writer.transport.abort()
        return (int(head[9:12] or 0),)

    return step


async def _leave(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
    await visitor.leave(tenant, f"/functions/{tenant.functions['endless']}/invoke", {"export": "spkn"})
    return ()


def _get(path: str) -> Step:
    async def step(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
        return ((await visitor.ask(tenant, "GET", path))[0],)

    return step


async def _malformed(visitor: Visitor, tenant: Tenant) -> tuple[int, ...]:
    body = visitor.random.choice((b"{", b"[" * 5000, b'{"args": 7}', b"\xff\xfe", b'{"args": [' + b"1," * 300 + b"1]}"))
    return ((await visitor.ask(tenant, "POST", f"/functions/{tenant.functions['add']}/invoke", body))[0],)


_OK: Final = frozenset({200})

OPERATIONS: Final = (
    Operation("invoke", 700, _add, _OK),
    Operation("invoke with wrong arguments", 30, _invoke("add", export="add", args=["x"]), frozenset({400})),
    Operation("invoke of no export", 20, _invoke("add", export="nothing"), frozenset({400})),
    Operation("invoke of nobody's function", 20, _invoke(NOBODY), frozenset({404})),
    Operation(
        "invoke that never ends",
        2,
        _invoke("endless", export="spkn", deadline_ms=20),
        frozenset({504}),
    ),
    Operation("malformed", 20, _malformed, frozenset({400})),
    Operation("another tenant's function", 20, _foreign, frozenset({404})),
    Operation("no such token", 10, _nobody, frozenset({401})),
    Operation("job", 40, _job, frozenset({200, 202})),
    Operation("session", 15, _session, frozenset({200, 201, 204})),
    Operation("deploy and delete", 3, _deploy, frozenset({200, 204})),
    Operation("chat", 30, _chat, _OK),
    Operation("server-sent events", 20, _stream("text/event-stream"), _OK),
    Operation("raw stream", 10, _stream("application/octet-stream"), _OK),
    Operation("leave", 10, _leave, frozenset()),
    Operation("list", 20, _get("/functions?limit=10"), _OK),
    Operation("usage", 5, _get("/usage"), _OK),
    Operation("health", 5, _get("/readyz"), _OK),
)
"""What tenants do."""

WEIGHTS: Final = tuple(itertools.accumulate(operation.weight for operation in OPERATIONS))
