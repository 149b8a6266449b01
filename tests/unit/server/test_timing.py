"""Requests that are timed: the header ``Server-Timing``, and traces of sampled requests."""

import asyncio
import base64
import json
import re

import pytest
from wasmtime import wat2wasm

from fakes.applications import ALPHA, BETA, bearer
from fakes.napping import NAP_S, NAPPING
from fakes.wire import FakeWire, ask
from tensorwasm.runtime.invoke.inline import slice_budget

GUEST = bytes(
    wat2wasm("""(module (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1) (data (i32.const 0) "chunk")
  (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add)
  (func (export "emit") (drop (call $emit (i32.const 0) (i32.const 5))))
  (func (export "trap") unreachable))""")
)
MODEL = bytes(
    wat2wasm("""(module (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1) (data (i32.const 0) "chunk")
  (func (export "_start") (drop (call $emit (i32.const 0) (i32.const 5)))))""")
)
PURE = bytes(
    wat2wasm("""(module (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add)
  (func (export "long") (local i32) (loop (br_if 0 (i32.lt_u
    (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 100000000))))))""")
)
ADD = {"export": "add", "args": [2, 3]}
ASKS = {"X-TensorWasm-Timing": "1"}


async def deploy(pipeline, token=ALPHA, module=PURE, **options):
    wasm = base64.b64encode(module).decode()
    body = json.dumps({"name": "guest", "wasm_b64": wasm, "options": options}).encode()
    headers = bearer(token) | {"content-type": "application/json"}
    return (await ask(pipeline, "POST", "/functions", headers=headers, body=body)).json()["id"]


async def send(pipeline, path, body, more=None, token=ALPHA, heads=None):
    """Make a request, as a connection does that knows the heads which came before."""
    headers = bearer(token) | {"content-type": "application/json"} | (more or {})
    headers = {"host": "localhost"} | {name.lower(): value for name, value in headers.items()}
    wire = FakeWire("POST", path, headers=headers, body=json.dumps(body).encode())
    if heads is not None:
        wire.head = heads.setdefault((path, json.dumps(headers)), wire.head)
    slice_budget()._free_ns = 0  # a machine that is busy would send calls elsewhere
    pipeline.begin(wire)
    await asyncio.wait_for(wire.answered.wait(), 30)
    return wire


async def until(holds):
    """Wait until a condition holds."""
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never held")


def read(wire):
    """Return the milliseconds by name, having checked that they add up."""
    found = {}
    for entry in wire.headers["server-timing"].split(", "):
        name, ms = re.fullmatch(r"([a-z]+);dur=(\d+\.\d{3})", entry).groups()
        assert name not in found
        found[name] = float(ms)
    assert sum(ms for name, ms in found.items() if name != "total") <= found["total"] + 1e-9
    return found


def test_a_call_at_once(served):
    async def test():
        async with served() as (_, pipeline):
            path, heads = f"/functions/{await deploy(pipeline)}/invoke", {}
            for _ in range(3):
                wire = await send(pipeline, path, ADD, ASKS, heads=heads)
                assert wire.status == 200
                assert set(read(wire)) >= {"queue", "guest", "answer", "total"}

    asyncio.run(test())


def test_a_call_on_the_reactor(served):
    async def test():
        async with served() as (_, pipeline):
            path = f"/functions/{await deploy(pipeline)}/invoke"
            found = read(await send(pipeline, path, {"export": "long", "args": []}, ASKS))
        assert found["guest"] > found["queue"]

    asyncio.run(test())


def test_replies_are_the_same_otherwise_and_untimed_ones_say_nothing(served):
    async def test():
        async with served() as (_, pipeline):
            path, heads = f"/functions/{await deploy(pipeline)}/invoke", {}
            for more in ({}, {"X-TensorWasm-Timing": "0"}, ASKS, {}):
                wires = [await send(pipeline, path, ADD, more, heads=heads) for _ in range(3)]
                assert all(("server-timing" in wire.headers) == (more is ASKS) for wire in wires)
                assert len({wire.body for wire in wires}) == 1

    asyncio.run(test())


def test_a_failure_and_a_refusal(served):
    async def test():
        async with served() as (_, pipeline):
            function = await deploy(pipeline, module=GUEST)
            trap = await send(pipeline, f"/functions/{function}/invoke", {"export": "trap"}, ASKS)
            assert trap.status >= 400
            assert set(read(trap)) >= {"queue", "total"}
            unknown = await send(pipeline, f"/functions/{function}/invoke", ADD, ASKS, token="x" * 22)
            assert unknown.status == 401
            assert "server-timing" not in unknown.headers

    asyncio.run(test())


def test_only_calls_are_timed(served):
    async def test():
        async with served(TENSOR_WASM_API_TRACE_SAMPLE="1") as (_, pipeline):
            made = await send(pipeline, "/sessions", {"function": await deploy(pipeline)}, ASKS)
            assert made.status == 201
            assert "server-timing" not in made.headers

    asyncio.run(test())


def test_a_stream_and_a_session(served):
    async def test():
        async with served() as (_, pipeline):
            function = await deploy(pipeline, module=GUEST)
            stream = await send(pipeline, f"/functions/{function}/invoke-stream", {"export": "emit"}, ASKS)
            assert set(read(stream)) >= {"queue", "first", "total"}
            session = (await send(pipeline, "/sessions", {"function": function})).json()["id"]
            called = await send(pipeline, f"/sessions/{session}/invoke", ADD, ASKS)
            assert called.json()["result"] == [5]
            assert set(read(called)) >= {"queue", "sandbox", "dispatch", "guest", "answer", "total"}

    asyncio.run(test())


@pytest.mark.parametrize(
    ("more", "spans"),
    [({}, {"guest", "answer"}), ({"max_tokens": 9}, {"guest", "answer"}), ({"stream": True}, {"first"})],
)
def test_an_answer_of_a_model(served, more, spans):
    async def test():
        async with served() as (_, pipeline):
            await deploy(pipeline, module=MODEL, model=True)
            body = {"model": "guest", "prompt": "x", **more}
            answer = await send(pipeline, "/v1/completions", body, ASKS)
            assert answer.status == 200
            found = read(answer)
            assert set(found) >= {"queue", "total"} | spans
            assert "kernel" not in found

    asyncio.run(test())


def test_a_call_whose_kernel_takes_its_time(served, tmp_path):
    """Its kernel, in a worker process, is told apart from its own code, in the header and in the trace."""
    log = tmp_path / "traces"
    settings = {"TRACE_SAMPLE": "1", "TRACE_LOG": f"file:{log}"}

    async def test():
        named = {f"TENSOR_WASM_API_{name}": value for name, value in settings.items()}
        async with served(**named) as (service, pipeline):
            path = f"/functions/{await deploy(pipeline, module=NAPPING, grants=['cuda'])}/invoke"
            wires = [await send(pipeline, path, {"export": each}) for each in ("copy", "launch", "compute", "nothing")]
            assert [wire.json()["result"] for wire in wires] == [[0]] * 4
            return [read(wire) for wire in wires[1:]], service.metrics.render().decode()

    (napped, computed, idle), metrics = asyncio.run(test())
    waited_s = re.search(r"^tensor_wasm_kernel_latency_seconds_sum (\S+)$", metrics, re.MULTILINE)[1]
    assert float(waited_s) * 1e3 >= napped["kernel"]
    assert re.search(r"^tensor_wasm_kernel_latency_seconds_count [123]\.0$", metrics, re.MULTILINE)
    assert napped["kernel"] >= 0.95e3 * NAP_S > napped["guest"]
    assert computed.get("kernel", 0.0) < computed["guest"]
    assert "kernel" not in idle
    spans = json.loads(log.read_text().splitlines()[-3])["spans"]
    lengths_us = {name: length for name, _, length in spans}
    assert lengths_us["kernel"] / 1e3 == pytest.approx(napped["kernel"], abs=0.002)
    assert [name for name, *_ in spans][-3:] == ["guest", "kernel", "answer"]


def test_a_call_that_waits_for_its_turn(served):
    async def test():
        async with served() as (service, pipeline):
            path = f"/functions/{await deploy(pipeline)}/invoke"
            gate = service.admission.guests["cpu"]
            held = []
            while gate.try_enter(7, 1, 1.0):
                held.append(7)
            asking = asyncio.create_task(send(pipeline, path, ADD, ASKS))
            await until(lambda: gate.statistics().waiting)
            for tenant in held:
                gate.leave(tenant, 1.0, 1.0)
            assert read(await asking)["gate"] > 0

    asyncio.run(test())


def test_every_other_request_is_sampled(served, tmp_path):
    async def test():
        log = tmp_path / "traces"
        settings = {"TENSOR_WASM_API_TRACE_SAMPLE": "0.5", "TENSOR_WASM_API_TRACE_LOG": f"file:{log}"}
        async with served(**settings) as (_, pipeline):
            path, heads = f"/functions/{await deploy(pipeline)}/invoke", {}
            wires = [await send(pipeline, path, ADD, heads=heads) for _ in range(10)]
            timed = [wire for wire in wires if "server-timing" in wire.headers]
            assert len(timed) == 5
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [each["request_id"] for each in lines] == [wire.headers["x-request-id"] for wire in timed]
        for each in lines:
            assert (each["route"], each["status"], each["tenant_id"]) == ("POST /functions/{id}/invoke", 200, 7)
            assert each["trace_id"] == timed[0].headers["x-trace-id"]
            ends = [0.0, *(start + length for _, start, length in each["spans"])]
            assert all(start >= end - 1e-6 for end, (_, start, _) in zip(ends[:-1], each["spans"], strict=True))
            assert ends[-1] <= each["total_us"] + 1e-6

    asyncio.run(test())


def test_those_who_ask_write_no_trace(served, tmp_path):
    async def test():
        log = tmp_path / "traces"
        settings = {"TENSOR_WASM_API_TRACE_SAMPLE": "0.001", "TENSOR_WASM_API_TRACE_LOG": f"file:{log}"}
        async with served(**settings) as (_, pipeline):
            path = f"/functions/{await deploy(pipeline)}/invoke"
            for _ in range(20):
                read(await send(pipeline, path, ADD, ASKS))
        assert not log.exists()

    asyncio.run(test())


def test_tenants_see_their_own_times_alone(served):
    """A tenant's long guest, which runs meanwhile, is in no span of another one's call."""

    async def test():
        async with served() as (_, pipeline):
            slow = f"/functions/{await deploy(pipeline, BETA)}/invoke"
            path, heads = f"/functions/{await deploy(pipeline)}/invoke", {}
            await send(pipeline, path, ADD, ASKS, heads=heads)
            asking = asyncio.create_task(send(pipeline, slow, {"export": "long"}, ASKS, token=BETA))
            await until(lambda: pipeline.tasks)
            found = [read(await send(pipeline, path, ADD, ASKS, heads=heads)) for _ in range(3)]
            long = read(await asking)
        assert all(each["guest"] < long["guest"] for each in found)
        assert all(set(each) <= {"queue", "gate", "dispatch", "guest", "answer", "total"} for each in found)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("name", "value"),
    [("TRACE_SAMPLE", "2"), ("TRACE_SAMPLE", "-0.1"), ("TRACE_SAMPLE", "nan"), ("TRACE_SAMPLE", "some")],
)
def test_settings_are_checked(served, name, value):
    async def test():
        with pytest.raises(Exception, match=f"TENSOR_WASM_API_{name}"):
            async with served(**{f"TENSOR_WASM_API_{name}": value}):
                pass

    asyncio.run(test())
