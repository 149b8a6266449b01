"""What the benchmark ``gpu-http`` calls: its guests, and the peer's application."""

import asyncio
import json

import pytest

from tensorwasm import Runtime
from tensorwasm.bench.harness import read_guest
from tensorwasm.bench.peers import cupy_server
from tensorwasm.bench.service.gpu_http import tenants_guest

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
