"""The benchmark ``soak``: a day's requests in minutes, with faults, and the resources of the serving process meanwhile.

What takes hours in a service takes seconds here: sessions are saved after one second without a call, ended jobs are
kept for twenty. So whatever ends by time has ended many times over while this runs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import random
import sqlite3
import sys
import time
from bisect import bisect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tensorwasm.bench.figures import Figure, Report
from tensorwasm.bench.harness import descriptor_count, read_guest, resident_bytes, scratch_folder, server_process
from tensorwasm.bench.service.serving import AsyncConnection, RunningService, connect, render, serving, tenant_headers
from tensorwasm.errors import InternalError
from tensorwasm.values import MIB

ENDLESS: Final = bytes.fromhex("0061736d01000000010401600000030201000708010473706b6e00000a0901070003400c000b0b")
"""A module with an export, ``spkn``, that never returns."""

MAY_FAIL: Final = frozenset({429, 503})
"""Statuses of any request while faults are injected: quotas, a full pool, a database that is locked."""

_INVOKE: Final = "/functions/{add}/invoke"
CONNECTIONS: Final = 24
_SETTINGS: Final = {
    "TENSOR_WASM_API_SESSION_IDLE": "1",
    "TENSOR_WASM_API_JOB_KEEP": "20",
    "TENSOR_WASM_DEVICE": "emulator",
}
_READINGS: Final = 100


@dataclass(frozen=True, slots=True)
class SoakTenant:
    """One tenant: its number, the headers of its requests, and the ids of its functions by name."""

    number: int
    headers: dict[str, str]
    functions: dict[str, str]


@dataclass(slots=True)
class SoakClient:
    """One connection to the service, which acts for random tenants; ``refusal`` is the last body without success."""

    address: tuple[str, int]
    tenants: list[SoakTenant]
    random: random.Random
    connection: AsyncConnection | None = None
    refusal: bytes = b""

    async def ask(self, tenant: SoakTenant, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Return status and body of one request; status 0 where the connection broke.

        In the path, names of the tenant's functions in braces stand for their ids.
        """
        try:
            if self.connection is None or self.connection.closed:
                self.connection = await connect(*self.address)
            status, answer = await self.connection.ask(method, path.format_map(tenant.functions), tenant.headers, body)
        except OSError:
            self.connection = None
            return 0, b""
        if status >= 300:
            self.refusal = answer[:200]
        return status, answer


Step = Callable[[SoakClient, SoakTenant], Awaitable[tuple[int, ...]]]
"""Does something for a tenant, and returns the statuses of the answers."""

Request = tuple[str, str, object]
"""Method, path, and body; a function makes the body for a tenant."""


@dataclass(frozen=True, slots=True)
class TenantAction:
    """Something that tenants do, its relative frequency, and its statuses, besides `MAY_FAIL` and 0 for no answer."""

    name: str
    weight: int
    step: Step
    expected: frozenset[int] | set[int]


def _script(first: Request, *more: Request, check: Callable[[Any], bool] | None = None) -> Step:
    """Return a step of several requests.

    If the first succeeds, more follow: in their paths, names in braces stand for values in its answer. ``check``
    returns whether the last answer is right, if its status is 200.
    """

    async def step(client: SoakClient, tenant: SoakTenant) -> tuple[int, ...]:
        method, path, body = first
        status, answer = await client.ask(tenant, method, path, body(tenant) if callable(body) else body)
        statuses = [status]
        if more and 200 <= status < 300:
            made = json.loads(answer)
            for method, path, body in more:
                status, answer = await client.ask(tenant, method, path.format_map(made), body)
                statuses.append(status)
        if check is not None and status == 200 and not check(json.loads(answer)):
            raise InternalError(f"{path} was answered with {answer[:200]!r}")
        return tuple(statuses)

    return step


async def _add(client: SoakClient, tenant: SoakTenant) -> tuple[int, ...]:
    a, b = client.random.randrange(1000), client.random.randrange(1000)
    status, body = await client.ask(tenant, "POST", _INVOKE, {"export": "add", "args": [a, b]})
    if status == 200 and json.loads(body)["result"] != [a + b]:
        raise InternalError(f"{a} + {b} was answered with {body[:100]!r}")
    return (status,)


async def _foreign(client: SoakClient, tenant: SoakTenant) -> tuple[int, ...]:
    other = client.random.choice(client.tenants)
    status, body = await client.ask(tenant, "GET", f"/functions/{other.functions['add']}")
    if status == 200 and other is not tenant:
        raise InternalError(f"tenant {tenant.number} was shown a function of {other.number}: {body[:100]!r}")
    return () if other is tenant else (status,)


async def _unknown_token(client: SoakClient, tenant: SoakTenant) -> tuple[int, ...]:
    headers = tenant_headers(f"tw_{client.random.randrange(1 << 60)}", tenant.number)
    return ((await client.ask(SoakTenant(tenant.number, headers, {}), "GET", "/functions"))[0],)


async def _malformed(client: SoakClient, tenant: SoakTenant) -> tuple[int, ...]:
    body = client.random.choice((b"{", b"[" * 5000, b'{"args": 7}', b"\xff\xfe", b'{"args": [' + b"1," * 300 + b"1]}"))
    return ((await client.ask(tenant, "POST", _INVOKE, body))[0],)


async def _leave(client: SoakClient, tenant: SoakTenant) -> tuple[int, ...]:
    """Send a request, and close the connection before the answer."""
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(*client.address)
        path = f"/functions/{tenant.functions['endless']}/invoke"
        writer.write(render("POST", path, tenant.headers, {"export": "spkn"}))
        writer.transport.abort()
    return ()


def _stream(accept: str) -> Step:
    """Return a step that reads a stream to its end or leaves it, on a connection of its own."""

    async def step(client: SoakClient, tenant: SoakTenant) -> tuple[int, ...]:
        try:
            reader, writer = await asyncio.open_connection(*client.address)
        except OSError:
            return (0,)
        path = f"/functions/{tenant.functions['chat']}/invoke-stream"
        writer.write(render("POST", path, {**tenant.headers, "accept": accept, "connection": "close"}, {}))
        try:
            head = await reader.read(12)
            if client.random.random() < 0.7:
                while await reader.read(65536):
                    continue
        except OSError:
            head = b""
        finally:
            writer.transport.abort()
        return (int(head[9:12] or 0),)

    return step


def _guest_to_deploy(_: SoakTenant) -> object:
    return {"name": "brief", "wasm_b64": base64.b64encode(read_guest("chat")).decode()}


_ADD: Final = {"export": "add", "args": [1, 2]}

OPERATIONS: Final = (
    TenantAction("invoke", 700, _add, {200}),
    TenantAction(
        "invoke with wrong arguments", 30, _script(("POST", _INVOKE, {"export": "add", "args": ["x"]})), {400}
    ),
    TenantAction("invoke of no export", 20, _script(("POST", _INVOKE, {"export": "nothing"})), {400}),
    TenantAction(
        "invoke of nobody's function",
        20,
        _script(("POST", "/functions/00000000-0000-4000-8000-000000000000/invoke", {})),
        {404},
    ),
    TenantAction(
        "invoke that never ends",
        2,
        _script(("POST", "/functions/{endless}/invoke", {"export": "spkn", "deadline_ms": 20})),
        {504},
    ),
    TenantAction("malformed", 20, _malformed, {400}),
    TenantAction("another tenant's function", 20, _foreign, {404}),
    TenantAction("no such token", 10, _unknown_token, {401}),
    TenantAction(
        "job",
        40,
        _script(
            ("POST", f"{_INVOKE}-async", _ADD),
            ("GET", "/jobs/{job_id}", None),
            check=lambda job: job["status"] in ("pending", "running", "completed"),
        ),
        {200, 202},
    ),
    TenantAction(
        "session",
        15,
        _script(
            ("POST", "/sessions", lambda tenant: {"function": tenant.functions["add"]}),
            ("POST", "/sessions/{id}/invoke", _ADD),
            ("DELETE", "/sessions/{id}", None),
        ),
        {200, 201, 204},
    ),
    TenantAction(
        "deploy and delete",
        3,
        _script(("POST", "/functions", _guest_to_deploy), ("DELETE", "/functions/{id}", None)),
        {200, 204},
    ),
    TenantAction(
        "chat",
        30,
        _script(
            ("POST", "/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "Hello?"}]}),
            check=lambda answer: answer["choices"][0]["message"]["content"] == "Hello there",
        ),
        {200},
    ),
    TenantAction("server-sent events", 20, _stream("text/event-stream"), {200}),
    TenantAction("raw stream", 10, _stream("application/octet-stream"), {200}),
    TenantAction("leave", 10, _leave, frozenset()),
    TenantAction("list", 20, _script(("GET", "/functions?limit=10", None)), {200}),
    TenantAction("usage", 5, _script(("GET", "/usage", None)), {200}),
    TenantAction("health", 5, _script(("GET", "/readyz", None)), {200}),
)
"""What tenants do."""

WEIGHTS: Final = tuple(itertools.accumulate(operation.weight for operation in OPERATIONS))


@dataclass(slots=True)
class Soak:
    """One run.

    Attributes:
        service: the service.
        folder: its data.
        total: operations to do.
        answers: by operation and status.
        held: resident bytes and descriptors of the serving process, at equal distances.
        locks: times that the database was locked.
    """

    service: RunningService
    folder: Path
    total: int
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    held: list[tuple[int, int]] = field(default_factory=list)
    locks: int = 0

    async def run(self, tenants: list[SoakTenant]) -> None:
        """Do all operations over `CONNECTIONS` connections."""
        host, _, port = self.service.url.removeprefix("http://").partition(":")
        sources = [random.Random(seed) for seed in range(CONNECTIONS)]  # noqa: S311 - the same day every time
        clients = [SoakClient((host, int(port)), tenants, source) for source in sources]
        numbers = iter(range(1, self.total + 1))  # shared by all clients
        fault = asyncio.create_task(self._lock_repeatedly())
        try:
            await asyncio.gather(*(self._work(client, numbers) for client in clients))
        finally:
            fault.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await fault

    async def _work(self, client: SoakClient, numbers: Iterator[int]) -> None:
        for number in numbers:
            if number % max(1, self.total // _READINGS) == 0:
                process = server_process(self.service.process)
                self.held.append((resident_bytes(process), descriptor_count(process)))
                self._show_progress(number, *self.held[-1])
            operation = OPERATIONS[bisect(WEIGHTS, client.random.randrange(WEIGHTS[-1]))]
            for status in await operation.step(client, client.random.choice(client.tenants)):
                self.answers[operation.name, status] += 1
                if status and status not in operation.expected and status not in MAY_FAIL:
                    raise InternalError(f"{operation.name} was answered with {status}: {client.refusal!r}")

    async def _lock_repeatedly(self) -> None:
        """Lock the database for 0.5 s every 20 s, as a backup or an administrator may."""
        while True:
            await asyncio.sleep(20.0)
            with contextlib.closing(sqlite3.connect(self.folder / "service.db", timeout=5)) as other:
                with contextlib.suppress(sqlite3.OperationalError):
                    other.execute("BEGIN IMMEDIATE")
                    self.locks += 1
                    await asyncio.sleep(0.5)
                other.rollback()

    def _show_progress(self, done: int, resident: int, files: int) -> None:
        terminal, earlier = sys.stderr.isatty(), done - self.total // _READINGS
        if terminal or done * 20 // self.total != earlier * 20 // self.total:
            text = f"{done * 100 // self.total:3} %  {resident / MIB:.0f} MiB  {files} files"
            print(f"\r{text} " if terminal else text.strip(), end="" if terminal else "\n", file=sys.stderr, flush=True)


def measure_soak(_choice: str = "auto", *, requests: int = 2_000_000, tenants: int = 200) -> Report:
    """Measure so many requests of tenants to a service that this starts; no GPU takes part. Needs Linux."""
    with scratch_folder() as folder, serving(folder, _SETTINGS) as service:
        admitted = [_admit(service, number) for number in range(1, tenants + 1)]
        soak = Soak(service, folder, requests)
        start = time.perf_counter()
        asyncio.run(soak.run(admitted))
        return Report("soak", "", _figures(soak, time.perf_counter() - start))


def _admit(service: RunningService, number: int) -> SoakTenant:
    """Make a tenant, a token for it alone, and its functions."""
    with service.client(number) as client:
        client.ask("PATCH", f"/tenants/{number}", {"quotas": {"qps": 100_000, "burst": 10_000}})
        token = client.ask("POST", "/tokens", {"name": f"soak {number}", "tenants": [number]})["token"]
    with service.client(number, token) as client:
        functions = {"add": client.deploy("add"), "chat": client.deploy("chat", model=True)}
        functions["endless"] = client.deploy("endless", ENDLESS)
        return SoakTenant(number, client.headers, functions)


def _figures(soak: Soak, spent_s: float) -> tuple[Figure, ...]:
    count = soak.answers.total()
    refused = sum(times for (_, status), times in soak.answers.items() if status in MAY_FAIL)
    unanswered = sum(times for (_, status), times in soak.answers.items() if not status)
    steady = soak.held[len(soak.held) // 5 :]  # caches and pools fill in the first fifth
    resident, third = [held / MIB for held, _ in steady], max(1, len(steady) // 3)
    first, last = _thirds(resident, third)
    first_files, last_files = _thirds([files for _, files in steady], third)
    return (
        Figure("answers", "requests", count, 0, 1),
        Figure("requests a second", "requests/s", count / spent_s, 0, 1),
        Figure("refused for now (429, 503)", "requests", refused, 0, 1),
        Figure("without an answer", "requests", unanswered, 0, 1, bar=0),
        Figure("times that the database was locked", "times", soak.locks, 0, 1),
        Figure("resident memory", "MiB", last, (max(resident) - min(resident)) / 2, len(resident)),
        Figure("resident memory, last third over first", "MiB", last - first, 0, third, bar=16.0),
        Figure("descriptors, last third over first", "files", last_files - first_files, 0, third, bar=2),
    )


def _thirds(values: Sequence[float], third: int) -> list[float]:
    """Return the upper medians of the first and the last third."""
    return [sorted(part)[len(part) // 2] for part in (values[:third], values[-third:])]
