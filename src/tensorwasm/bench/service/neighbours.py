"""The benchmark ``neighbours``: the 99th percentile of a trivial call, alone and beside guests of other tenants.

A load comes from a process of its own at low priority, so that its clients do not take a processor from the service or
the neighbour.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import time
import urllib.parse
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from tensorwasm.bench.figures import Figure, Report, p99, sampled, summarise
from tensorwasm.bench.harness import make_module, read_example, resident_bytes, scratch_folder, server_process
from tensorwasm.bench.service.serving import AsyncConnection, ServiceClient, ask_steadily, connect, render, serving
from tensorwasm.errors import InternalError
from tensorwasm.guest.engine.compiler_process import step_back
from tensorwasm.values import MIB
from tensorwasm.wasm.binary import sized

SUBJECT: Final = 1
"""The tenant whose calls are measured; every load has a tenant of its own."""

SETTINGS: Final = {
    "TENSOR_WASM_DEVICE": "emulator",
    "TENSOR_WASM_API_TENANT_CAPS": "qps=100000,burst=100000,requests=256,instances=256,streams=64",
}
"""Rates are not what is measured."""

_PERIOD_S: Final = 0.02
_PAUSE_S: Final = 0.05
"""How long a client waits that was refused or that cannot connect."""

Answers = Counter[int]
"""How often each status was answered; 0 stands for no answer."""

OUTPUT_MIB: Final = 64
SESSIONS: Final = 1000
MODULE_MIB: Final = (5, 10, 15, 20)

REFUSALS: Final = frozenset({413, 429, 503, 507})
"""Statuses of a service that has no room."""


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What the clients of a load work with: headers of their tenant, and ids of its function and sessions."""

    headers: Mapping[str, str]
    function: str
    sessions: list[str]


Step = Callable[[AsyncConnection, LoadContext, int], Awaitable[tuple[int, ...]]]
"""Makes requests over one connection and returns their statuses; the number is another in every step of a load."""


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """One kind of load.

    Attributes:
        name: of it.
        clients: connections that repeat ``step`` at a time.
        guest: the guest it deploys, or the example of that name, with the grant ``cuda``.
        step: a client's requests.
        sessions: how many it opens first.
        expected: statuses of success.
        ratio: bar of a neighbour's p99 over its p99 alone.
        value_ms: bar of that p99 itself.
    """

    name: str
    clients: int
    guest: str
    step: Step
    sessions: int = 0
    expected: frozenset[int] = frozenset({200})
    ratio: float = 3.0
    value_ms: float | None = 15.0
    cuda: bool = False

    def tally(self, answers: Counter[int]) -> tuple[int, int, int]:
        """Return how many answers were a success, refused for lack of room, and neither."""
        good, refused = (sum(answers[status] for status in kinds) for kinds in (self.expected, REFUSALS))
        return good, refused, answers.total() - good - refused

    def name_others(self, answers: Counter[int]) -> str:
        """Return the statuses of answers that were neither, for the name of a figure; nothing if there were none."""
        counts = sorted((status, count) for status, count in answers.items() if status not in self.expected | REFUSALS)
        return f" ({', '.join(f'{count} of status {status}' for status, count in counts)})" if counts else ""


def prepare(load: TenantLoad, client: ServiceClient) -> LoadContext:
    """Deploy what a load calls, and open its sessions, with its tenant's client."""
    if load.cuda:
        function = client.deploy(load.guest, read_example(f"{load.guest}/{load.guest}.wasm"), grants=["cuda"])
    else:
        function = client.deploy(load.guest)
    context = LoadContext(client.headers, function, [])
    wanted = json.dumps({"function": context.function}).encode()
    while len(context.sessions) < load.sessions:
        status, body = client.send("POST", "/sessions", wanted)
        if status == 429:  # more in a second than a tenant may
            time.sleep(_PAUSE_S)
            continue
        if status != 201:
            raise InternalError(f"opening a session was answered with {status}: {body[:200]!r}")
        context.sessions.append(json.loads(body)["id"])
    return context


def _call(export: str | None, *args: int) -> Step:
    body = {"export": export, "args": args, "deadline_ms": 60_000}

    async def step(connection: AsyncConnection, context: LoadContext, _turn: int) -> tuple[int, ...]:
        return ((await connection.ask("POST", f"/functions/{context.function}/invoke", context.headers, body))[0],)

    return step


async def _stream(connection: AsyncConnection, context: LoadContext, _turn: int) -> tuple[int, ...]:
    """Read a stream to its end, on a connection of its own; its guest runs for 3 ms."""
    reader, writer = await asyncio.open_connection(*connection.address)
    headers = {**context.headers, "accept": "application/octet-stream", "connection": "close"}
    body = {"export": "stamp", "args": [3000]}
    try:
        writer.write(render("POST", f"/functions/{context.function}/invoke-stream", headers, body))
        head = await reader.read(12)
        while await reader.read(65536):
            continue
    finally:
        writer.transport.abort()
    return (int(head[9:12] or 0),)


async def _save(connection: AsyncConnection, context: LoadContext, turn: int) -> tuple[int, ...]:
    """Change a session, save it, and delete the snapshot."""
    path = f"/sessions/{context.sessions[turn % len(context.sessions)]}"
    change = {"export": "change", "args": [turn & 0xFFFF]}
    changed, _ = await connection.ask("POST", f"{path}/invoke", context.headers, change)
    saved, body = await connection.ask("POST", f"{path}/snapshot", context.headers, {})
    if saved != 201:
        return changed, saved
    dropped, _ = await connection.ask("DELETE", f"/snapshots/{json.loads(body)['id']}", context.headers)
    return changed, saved, dropped


async def _touch(connection: AsyncConnection, context: LoadContext, turn: int) -> tuple[int, ...]:
    """Call the sessions in turn: with more of them than fit, each call has to bring one back."""
    path = f"/sessions/{context.sessions[turn * 7 % len(context.sessions)]}/invoke"
    return ((await connection.ask("POST", path, context.headers, {"export": "touch", "args": [turn & 0xFFFF]}))[0],)


def _compile() -> Step:
    modules: dict[int, bytes] = {}

    async def step(connection: AsyncConnection, context: LoadContext, turn: int) -> tuple[int, ...]:
        size = MODULE_MIB[turn % len(MODULE_MIB)]
        if size not in modules:
            modules[size] = make_module(size * MIB, size, distinct=2000)
        # A custom section makes it another module for every cache.
        module = modules[size] + b"\x00" + sized(b"\x01n" + turn.to_bytes(8))
        headers = {**context.headers, "content-type": "application/wasm"}
        status, body = await connection.ask("POST", f"/functions?name=large{turn}", headers, module)
        if status != 200:
            return (status,)
        dropped, _ = await connection.ask("DELETE", f"/functions/{json.loads(body)['id']}", context.headers)
        return status, dropped

    return step


LOADS: Final[tuple[TenantLoad, ...]] = (
    TenantLoad(f"eight guests with {OUTPUT_MIB} MiB of output", 8, "appetite", _call("emit", OUTPUT_MIB)),
    # The lines that four guests write in some ten seconds, for each line is a call of the host.
    TenantLoad("a flood of stdout", 4, "appetite", _call("print", 4 * MIB // 64)),
    TenantLoad("allocation to the limit", 4, "appetite", _call("grow")),
    TenantLoad("one memory.fill", 4, "appetite", _call("fill")),
    TenantLoad("snapshots in a loop", 2, "appetite", _save, sessions=2, expected=frozenset({200, 201, 204})),
    TenantLoad(f"{SESSIONS} sessions", 8, "page", _touch, sessions=SESSIONS),
    TenantLoad(
        "twenty compiles of 5 to 20 MB", 20, "add", _compile(), expected=frozenset({200, 204}), ratio=2.0, value_ms=None
    ),
    TenantLoad("four streams", 4, "stream", _stream),
    TenantLoad("calls with a GPU", 2, "vector_add", _call(None), cuda=True),
)
"""All of them, with the bars that a neighbour's latency has beside each."""


def measure_neighbours(_choice: str = "auto", *, seconds: float = 60.0, loads: Sequence[TenantLoad] = LOADS) -> Report:
    """Measure a service that this starts; the GPU is an emulated one. Needs Linux.

    The call is measured for so many seconds beside each load, and before each alone for a share of them.
    """
    alone: list[float] = []
    beside: list[tuple[TenantLoad, list[float], Answers, int]] = []
    with scratch_folder() as folder, serving(folder, SETTINGS) as service:
        with service.client(SUBJECT) as client:
            add = client.deploy("add")
        for number, load in enumerate(loads, SUBJECT + 1):
            with service.client(number) as client:
                context = prepare(load, client)
            with service.client(SUBJECT) as client:
                alone += ask_steadily(client, add, max(seconds / len(loads), 1.0), _PERIOD_S)
            with pressing(load, context, service.url) as answers, service.client(SUBJECT) as client:
                taken = [*ask_steadily(client, add, seconds, _PERIOD_S)]
            beside.append((load, taken, answers, resident_bytes(server_process(service.process))))
    return Report("neighbours", "", tuple(_figures(alone, beside)))


def _figures(alone: list[float], beside: list[tuple[TenantLoad, list[float], Answers, int]]) -> Iterator[Figure]:
    base = p99(alone)
    yield sampled("p50 alone", "ms", alone)
    yield Figure("p99 alone", "ms", base, _spread(alone), len(alone))
    for load, taken, answers, resident in beside:
        good, refused, other = load.tally(answers)
        if not good:
            raise InternalError(f"{load.name}: no call was answered with success: {dict(answers)}")
        name, tail = f"p99 beside {load.name}", (p99(taken), _spread(taken), len(taken))
        if load.value_ms is not None:
            yield Figure(name, "ms", *tail, bar=load.value_ms)
            name = "over p99 alone"
        yield Figure(name, "ms", *tail, peer="alone", ratio=tail[0] / base, bar=load.ratio, judged="ratio")
        yield sampled("p50", "ms", taken)
        yield Figure("longest", "ms", max(taken), 0, len(taken))
        yield Figure("answers of the load", "requests", good, 0, 1)
        yield Figure("refused for lack of room", "requests", refused, 0, 1)
        yield Figure(f"other answers{load.name_others(answers)}", "requests", other, 0, 1, bar=0)
        yield Figure("resident afterwards", "MiB", resident / MIB, 0, 1)


def _spread(taken: Sequence[float]) -> float:
    """Return how far the 99th percentiles of twentieths of a run lie apart."""
    size = max(len(taken) // 20, 1)
    return summarise([p99(taken[start : start + size]) for start in range(0, len(taken) - size + 1, size)])[1]


@contextlib.contextmanager
def pressing(load: TenantLoad, context: LoadContext, url: str) -> Iterator[Answers]:
    """Put one of `LOADS` on the service until the end of the block; its answers are filled in then."""
    spawn, answers = multiprocessing.get_context("spawn"), Answers()
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_press, args=(LOADS.index(load), context, url, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        _receive(ours)  # all have asked
        yield answers
        ours.send(None)
        answers.update(_receive(ours))
    finally:
        ours.close()
        process.terminate()
        process.join()


def _receive(pipe: Connection) -> dict[int, int]:
    if not pipe.poll(180.0):
        raise InternalError("a load does not end")
    try:
        answered: dict[int, int] = pipe.recv()
    except EOFError:
        raise InternalError("a load's process has ended") from None
    return answered


def _press(number: int, context: LoadContext, url: str, pipe: Connection) -> None:
    # Where Linux schedules by session, the processes of one share its time: a load in the session of the neighbour's
    # client would delay that client.
    os.setsid()
    step_back()
    asyncio.run(_run_clients(LOADS[number], context, url, pipe))


async def _run_clients(load: TenantLoad, context: LoadContext, url: str, pipe: Connection) -> None:
    parts, answers = urllib.parse.urlsplit(url), Answers()

    async def work(index: int) -> None:
        connection = None
        for turn in itertools.count(index, load.clients):
            try:
                if connection is None:
                    connection = await connect(parts.hostname or "127.0.0.1", parts.port or 80)
                statuses = await load.step(connection, context, turn)
            except OSError:
                connection, statuses = None, (0,)
            answers.update(statuses)
            if not set(statuses) <= load.expected:
                await asyncio.sleep(_PAUSE_S)

    tasks = [asyncio.ensure_future(work(index)) for index in range(load.clients)]
    await asyncio.sleep(0.5)  # until all of them have asked; making what they send may take longer
    pipe.send({})
    await asyncio.wait((asyncio.ensure_future(asyncio.to_thread(pipe.recv)), *tasks), return_when="FIRST_COMPLETED")
    pipe.send(dict(answers))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
