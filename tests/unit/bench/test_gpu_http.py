"""What the benchmark ``gpu-http`` calls: its guests, and the peer's application."""

import asyncio
import json

import pytest

from tensorwasm import Runtime
from tensorwasm.bench.harness import read_guest
from tensorwasm.bench.peers import cupy_server
from tensorwasm.bench.peers.host import CUPY
from tensorwasm.bench.service.gpu_http import FREESTANDING, WASI, compare, tenants_guest
from tensorwasm.bench.service.wrk import WrkResult

GPU = {"grants": {"cuda"}}


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator") as runtime:
        yield runtime


def test_both_guests_launch_the_kernel(runtime):
    assert runtime.load(read_guest("increment")).invoke("increment", (41,), **GPU).values == (42,)
    program = runtime.load(read_guest("wasi/increment"))
    assert program.invoke(argv=("increment", "41"), **GPU).stdout == b"42\n"


def test_each_tenants_guest_has_a_kernel_of_its_own(runtime):
    guests = [tenants_guest(number) for number in (2, 1001)]
    assert len({*guests, read_guest("increment")}) == 3
    assert [runtime.load(each).invoke("increment", (1,), **GPU).values for each in guests] == [(2,), (2,)]


def talk(scope, *messages):
    """Return what the application sends."""
    sent, waiting = [], list(messages)

    async def receive():
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(cupy_server.serve(scope, receive, send))
    return sent


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(cupy_server, "_kernel", lambda: lambda number: number + 1)


def test_the_peer_answers_a_body_in_parts(kernel):
    parts = ({"body": b'{"args"', "more_body": True}, {"body": b": [41]}"})
    head, body = talk({"type": "http"}, *parts)
    assert head["status"] == 200
    assert json.loads(body["body"]) == {"result": [42]}
    assert (b"content-length", str(len(body["body"])).encode()) in head["headers"]


def test_the_peer_opens_the_gpu_before_the_first_request(kernel):
    sent = talk({"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    assert [each["type"] for each in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def judged(connections, *, real, **per_s):
    """Return which bars the figures have, and whether they are met."""
    results = {name: [WrkResult(each, 0.2, 2.9, 0, 0)] for name, each in per_s.items()}
    return {
        figure.name: (figure.sense, figure.bar, figure.met)
        for figure in compare(results, connections, real=real)
        if figure.bar is not None
    }


def test_throughput_is_judged_beside_the_peer_and_latency_by_itself():
    per_s = {FREESTANDING: 800.0, WASI: 499.0, CUPY: 1000.0}
    assert judged(64, real=True, **per_s) == {
        f"{FREESTANDING}, 64 connections": ("at least", 0.8, True),
        f"{WASI}, 64 connections": ("at least", 0.5, False),
    }
    assert judged(16, real=True, **per_s) == {f"{FREESTANDING}, 16 connections, p99": ("at most", 3.0, True)}
    assert judged(1, real=True, **per_s) == {f"{FREESTANDING}, 1 connection, p50": ("at most", 0.25, True)}


def test_an_emulator_has_no_bars_and_a_missing_peer_misses_its_own():
    assert judged(64, real=False, **{FREESTANDING: 1.0, WASI: 1.0, CUPY: 1000.0}) == {}
    met = judged(64, real=True, **{FREESTANDING: 800.0, WASI: 499.0})
    assert {each[2] for each in met.values()} == {False}
