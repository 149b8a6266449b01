"""Loads that tenants put on a service: what is prepared for each, and what its clients ask for again and again."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.bench.examples import read_guest
from tensorwasm.bench.http.caller import Caller, render
from tensorwasm.bench.http.client import Client
from tensorwasm.bench.modules import make_module
from tensorwasm.errors import InternalError
from tensorwasm.values import MIB

OUTPUT_MIB: Final = 64
LINES: Final = 4 * MIB // 64
"""Lines of a flood: what four guests write in some ten seconds, for each line is a call of the host."""

SESSIONS: Final = 1000
MODULE_MIB: Final = (5, 10, 15, 20)

REFUSALS: Final = frozenset({413, 429, 503, 507})
"""Statuses by which a service that has no room says so."""

_PAUSE_S: Final = 0.05
_WASM: Final = {"content-type": "application/wasm"}


@dataclass(slots=True)
class Scene:
    """What a load works with.

    Attributes:
        headers: of its tenant, on every request.
        functions: ids of its functions, by name.
        sessions: ids of its sessions.
    """

    headers: Mapping[str, str]
    functions: dict[str, str] = field(default_factory=dict)
    sessions: list[str] = field(default_factory=list)


Step = Callable[[Caller, Scene, int], Awaitable[tuple[int, ...]]]
"""Asks over one connection for one thing, the connection's number and turn in one number, and returns the statuses."""


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of load.

    Attributes:
        name: of it.
        clients: connections that ask at a time.
        guest: the guest it deploys.
        step: what each of them does again and again.
        sessions: how many it opens first.
        expected: statuses of success.
        ratio: bar of a neighbour's p99 over its p99 alone.
        value_ms: bar of that p99 itself; None for none.
    """

    name: str
    clients: int
    guest: str
    step: Step
    sessions: int = 0
    expected: frozenset[int] = frozenset({200})
    ratio: float = 3.0
    value_ms: float | None = 15.0


def prepare(load: Load, client: Client) -> Scene:
    """Deploy what a load calls, and open its sessions.

    Args:
        load: it.
        client: of its tenant.

    Raises:
        InternalError: that is refused.
    """
    scene = Scene(client.headers)
    status, body = client.send("POST", f"/functions?name={load.guest}", read_guest(load.guest), _WASM)
    if status != 200:
        raise InternalError(f"deploying {load.guest} was answered with {status}: {body[:200]!r}")
    scene.functions[load.guest] = json.loads(body)["id"]
    wanted = json.dumps({"function": scene.functions[load.guest]}).encode()
    while len(scene.sessions) < load.sessions:
        status, body = client.send("POST", "/sessions", wanted, {})
        if status == 429:  # more in a second than a tenant may
            time.sleep(_PAUSE_S)
            continue
        if status != 201:
            raise InternalError(f"opening a session was answered with {status}: {body[:200]!r}")
        scene.sessions.append(json.loads(body)["id"])
    return scene


def _call(export: str, *args: int) -> Step:
    async def step(caller: Caller, scene: Scene, _turn: int) -> tuple[int, ...]:
        path = f"/functions/{scene.functions['appetite']}/invoke"
        body = {"export": export, "args": args, "deadline_ms": 60_000}
        return ((await caller.ask(render("POST", path, scene.headers, body)))[0],)

    return step


async def _save(caller: Caller, scene: Scene, turn: int) -> tuple[int, ...]:
    """Change a session, keep what it is, and drop that again."""
    path = f"/sessions/{scene.sessions[turn % len(scene.sessions)]}"
    changed, _ = await caller.ask(
        render("POST", f"{path}/invoke", scene.headers, {"export": "change", "args": [turn & 0xFFFF]})
    )
    saved, body = await caller.ask(render("POST", f"{path}/snapshot", scene.headers, {}))
    if saved != 201:
        return changed, saved
    dropped, _ = await caller.ask(render("DELETE", f"/snapshots/{json.loads(body)['id']}", scene.headers))
    return changed, saved, dropped


async def _touch(caller: Caller, scene: Scene, turn: int) -> tuple[int, ...]:
    """Call the sessions in turn: with more of them than fit, each call has to bring one back."""
    session = scene.sessions[turn * 7 % len(scene.sessions)]
    body = {"export": "touch", "args": [turn & 0xFFFF]}
    return ((await caller.ask(render("POST", f"/sessions/{session}/invoke", scene.headers, body)))[0],)


def _compile() -> Step:
    modules: dict[int, bytes] = {}

    async def step(caller: Caller, scene: Scene, turn: int) -> tuple[int, ...]:
        size = MODULE_MIB[turn % len(MODULE_MIB)]
        if size not in modules:
            modules[size] = make_module(size * MIB, size, distinct=2000)
        module = modules[size] + _custom_section(turn.to_bytes(8))  # another module to every cache
        headers = {**scene.headers, **_WASM}
        status, body = await caller.ask(render("POST", f"/functions?name=large{turn}", headers, module))
        if status != 200:
            return (status,)
        dropped, _ = await caller.ask(render("DELETE", f"/functions/{json.loads(body)['id']}", scene.headers))
        return status, dropped

    return step


def _custom_section(content: bytes) -> bytes:
    body = b"\x01n" + content
    return bytes([0, len(body)]) + body


def turns(number: int, clients: int) -> Iterator[int]:
    """Yield the turns of one of a load's connections: no two of them have one in common."""
    return itertools.count(number, clients)


_SAVED: Final = frozenset({200, 201, 204})

LOADS: Final[tuple[Load, ...]] = (
    Load(f"eight guests with {OUTPUT_MIB} MiB of output", 8, "appetite", _call("emit", OUTPUT_MIB)),
    Load("a flood of stdout", 4, "appetite", _call("print", LINES)),
    Load("allocation to the limit", 4, "appetite", _call("grow")),
    Load("one memory.fill", 4, "appetite", _call("fill")),
    Load("snapshots in a loop", 2, "appetite", _save, sessions=2, expected=_SAVED),
    Load(f"{SESSIONS} sessions", 8, "page", _touch, sessions=SESSIONS),
    Load(
        "twenty compiles of 5 to 20 MB", 20, "add", _compile(), expected=frozenset({200, 204}), ratio=2.0, value_ms=None
    ),
)
"""All of them, by the bars that a neighbour's latency has beside each."""
