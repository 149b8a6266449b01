"""A front and the primary: what one cannot do the other does, and what changes holds in both."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from wasmtime import wat2wasm

from fakes.applications import bearer
from fakes.fleets import FleetFolder
from fakes.services import ADD, GUEST, SUB, until
from fakes.wire import FakeWire, ask
from tensorwasm.errors import RequestTimeout
from tensorwasm.server.application import Application, RelayingApplication
from tensorwasm.server.exchange import Exchange
from tensorwasm.server.routes import ALL
from tensorwasm.values import Limits

HOUR_MS = 3_600_000
JSON = {"content-type": "application/json"}
HOST = {"host": "localhost"}
CALL = b'{"export":"add","args":[5,3]}'
LARGE = bytes(
    wat2wasm("""(module (memory (export "memory") 64)
  (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add))""")
)


@pytest.fixture
def fleet(tmp_path):
    found = FleetFolder(tmp_path)
    yield found
    found.close()


class Caller:
    """A client of tenant 7 at one front."""

    def __init__(self, fleet, pipeline):
        self.pipeline, self.headers = pipeline, bearer(fleet.token, 7)

    async def ask(self, method, path, body=b"", **more):
        headers = more.pop("headers", self.headers)
        return await ask(self.pipeline, method, path, headers=headers, body=body, **more)

    async def deploy(self, module=ADD, name="add"):
        """Deploy a version, and return the function's ID."""
        headers = self.headers | {"content-type": "application/wasm"}
        query = f"name={name}&if_exists=new_version"
        made = await self.ask("POST", "/functions", module, query=query, headers=headers)
        assert made.status < 300, made.body
        return made.json()["id"]

    async def add(self, reference="add", **more):
        """Call it with 5 and 3, and return what was answered."""
        return await self.ask("POST", f"/functions/{reference}/invoke", CALL, **more)


@asynccontextmanager
async def both(fleet):
    """A primary and a front, and a client of this."""
    async with fleet.primary() as (primary, _), fleet.front() as (front, pipeline):
        yield primary, front, Caller(fleet, pipeline)


def in_both(fleet, scenario):
    async def main():
        async with both(fleet) as parts:
            await scenario(*parts)

    asyncio.run(main())


def test_a_function_deployed_through_a_front_is_called_there(fleet):
    async def scenario(primary, front, caller):
        await caller.deploy()
        assert (await caller.add()).json()["result"] == [8]
        assert front.invocations.statistics().begun == 1
        assert primary.invocations.statistics().begun == 0

    in_both(fleet, scenario)


def test_a_new_version_holds_in_every_front_once_it_is_answered(fleet):
    async def main():
        async with both(fleet) as (_, _, caller), fleet.front(2) as (_, pipeline):
            other = Caller(fleet, pipeline)
            await caller.deploy()
            for each in (caller, other):
                assert (await each.add()).json()["result"] == [8]
            await caller.deploy(SUB)
            for each in (caller, other):
                assert (await each.add()).json()["result"] == [2]

    asyncio.run(main())


def test_a_revoked_token_is_refused_by_every_front_once_that_is_answered(fleet):
    async def scenario(primary, front, caller):
        await caller.deploy()
        made = await caller.ask("POST", "/tokens", b'{"name":"x","tenants":[7]}')
        headers = bearer(made.json()["token"])
        assert (await caller.add(headers=headers)).status == 200
        assert (await caller.ask("DELETE", f"/tokens/{made.json()['id']}")).status < 300
        assert (await caller.add(headers=headers)).status == 401

    in_both(fleet, scenario)


def test_a_change_is_acknowledged_without_a_front_that_has_ended(fleet):
    async def main():
        async with both(fleet) as (primary, _, caller):
            async with fleet.front(2):
                pass
            await caller.deploy()
            assert len(primary.fronts) == 1

    asyncio.run(main())


def test_metrics_of_all_processes_are_added_up(fleet):
    async def scenario(primary, front, caller):
        await caller.deploy()
        for _ in range(3):
            await caller.add()
        shown = (await caller.ask("GET", "/metrics")).body.decode()
        counts = dict(re.findall(r'http_requests_total\{.*?route="([^"]+)".*?\} (\S+)', shown))
        assert counts["/functions/:id/invoke"] == "3.0"
        assert counts["/functions"] == "1.0"
        assert "tensor_wasm_instance_spawns_total 3.0" in shown
        assert "tensor_wasm_fronts 1.0" in shown
        assert f'tensor_wasm_front_requests_total{{pid="{os.getpid()}"}} 3.0' in shown

    in_both(fleet, scenario)


def test_what_a_front_counted_stays_counted_when_it_has_ended(fleet):
    async def main():
        async with fleet.primary() as (primary, _):
            async with fleet.front() as (_, pipeline):
                caller = Caller(fleet, pipeline)
                await caller.deploy()
                await caller.add()
            shown = primary.metrics.render(await primary.fronts.metrics()).decode()
            assert "tensor_wasm_instance_spawns_total 1.0" in shown
            assert "tensor_wasm_fronts 0.0" in shown

    asyncio.run(main())


def test_usage_and_audit_of_a_front_are_written_by_the_primary(fleet):
    async def main():
        async with fleet.primary() as (primary, _):
            async with fleet.front() as (_, pipeline):
                caller = Caller(fleet, pipeline)
                await caller.deploy()
                for _ in range(3):
                    await caller.add()
            now_ms = primary.clock.unix_ms()
            used = await primary.usage.report(7, now_ms - HOUR_MS, now_ms)
            assert used.total.requests == 3
        lines = map(json.loads, (fleet.folder / "data" / "audit.log").read_text().splitlines())
        assert [line.get("action") for line in lines].count("invoke_function") == 3

    asyncio.run(main())


def test_the_end_of_a_stream_is_known_to_every_process(fleet):
    async def main():
        async with both(fleet) as (_, _, caller), fleet.front(2) as (_, pipeline):
            await caller.deploy(GUEST, "guest")
            streamed = await caller.ask("POST", "/functions/guest/invoke-stream", b'{"export":"main"}')
            assert streamed.status == 200
            name = streamed.headers["x-request-id"]
            found = await Caller(fleet, pipeline).ask("GET", f"/streams/{name}")
            assert found.json()["status"] == "done"

    asyncio.run(main())


def test_a_front_goes_on_while_the_primary_is_replaced(fleet):
    async def main():
        first, front = fleet.primary(), fleet.front()
        async with AsyncExitStack() as stack:
            await first.__aenter__()
            _, pipeline = await front.__aenter__()
            caller = Caller(fleet, pipeline)
            await caller.deploy()
            assert (await caller.add()).json()["result"] == [8]
            await first.__aexit__(None, None, None)
            assert (await caller.add()).json()["result"] == [8]
            deploying = asyncio.ensure_future(caller.deploy(SUB))
            await stack.enter_async_context(fleet.primary())
            stack.push_async_exit(front)
            await deploying
            assert (await caller.add()).json()["result"] == [2]

    asyncio.run(main())


def test_the_primary_knows_who_asked_a_front_and_believes_no_client(fleet):
    async def scenario(primary, front, caller):
        for headers in ({}, {"x-tensorwasm-relayed-client": "127.0.0.1"}):
            assert (await caller.ask("GET", "/metrics", client="10.0.0.1", headers=headers)).status == 401
            assert (await caller.ask("GET", "/metrics", client="127.0.0.1", headers=headers)).status == 200
        await caller.ask("DELETE", "/functions/none", client="10.1.2.3", certificate='CN=a "client", O=ü')
        await primary.close()
        last = json.loads((fleet.folder / "data" / "audit.log").read_text().splitlines()[-1])
        assert (last["peer_addr"], last["client_cert_subject"]) == ("10.1.2.3", 'CN=a "client", O=ü')

    in_both(fleet, scenario)


def test_bodies_and_answers_of_any_kind_pass(fleet):
    async def scenario(primary, front, caller):
        headers = caller.headers | {"content-type": "application/wasm"}
        chunks = [ADD[:20], ADD[20:]]
        made = await caller.ask("POST", "/functions", chunks=chunks, query="name=add", headers=headers)
        assert made.status < 300, made.body
        assert (await caller.add()).json()["result"] == [8]
        whole = await caller.ask("GET", "/functions")
        head = await caller.ask("HEAD", "/functions")
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(whole.body)))
        assert (await caller.ask("GET", "/functions/nothing%20there")).status == 404
        begun = await caller.ask("POST", "/sessions", b'{"function":"add"}')
        gone = await caller.ask("DELETE", f"/sessions/{begun.json()['id']}")
        assert (gone.status, gone.body) == (204, b"")

    in_both(fleet, scenario)


def test_a_timed_session_shows_its_spans_and_the_relay(fleet):
    async def scenario(primary, front, caller):
        await caller.deploy()
        session = (await caller.ask("POST", "/sessions", b'{"function":"add"}')).json()["id"]
        headers = caller.headers | {"x-tensorwasm-timing": "1"}
        called = await caller.ask("POST", f"/sessions/{session}/invoke", CALL, headers=headers)
        assert called.json()["result"] == [8]
        entries = (each.split(";dur=") for each in called.headers["server-timing"].split(", "))
        spans = {name: float(ms) for name, ms in entries}
        assert next(iter(spans)) == "relay"
        assert spans.keys() >= {"queue", "guest", "answer", "total"}
        assert spans["relay"] > 0
        assert sum(ms for name, ms in spans.items() if name != "total") <= spans["total"]

    in_both(fleet, scenario)


def test_an_idle_session_leaves_memory_for_a_call_that_waits_in_a_front(fleet):
    async def scenario(primary, front, caller):
        body = json.dumps({"quotas": {"memory_bytes": Limits().memory_bytes}}).encode()
        assert (await caller.ask("PATCH", "/tenants/7", body)).status == 200
        await caller.deploy(LARGE)
        session = (await caller.ask("POST", "/sessions", b'{"function":"add"}')).json()["id"]
        assert (await caller.ask("POST", f"/sessions/{session}/invoke", CALL)).json()["result"] == [8]
        assert primary.quotas.held("memory_bytes")[7] > 0
        assert (await caller.add()).json()["result"] == [8]
        assert not primary.quotas.held("memory_bytes")
        assert (await caller.ask("POST", f"/sessions/{session}/invoke", CALL)).json()["result"] == [8]

    in_both(fleet, scenario)


def test_a_body_that_breaks_off_is_the_clients_fault_and_costs_nobody_else(fleet):
    async def scenario(primary, front, caller):
        broken = RequestTimeout("the request did not arrive in full")
        headers = caller.headers | {"content-type": "application/wasm", "content-length": "100000"}
        asked = await caller.ask("POST", "/functions", chunks=[ADD, broken], query="name=add", headers=headers)
        assert asked.kind == "request_timeout"
        assert (await caller.ask("GET", "/functions")).status == 200

    in_both(fleet, scenario)


def test_a_client_that_leaves_takes_its_request_along(fleet):
    async def scenario(primary, front, caller):
        await caller.deploy(GUEST, "guest")
        begun = (await caller.ask("POST", "/sessions", b'{"function":"guest"}')).json()["id"]
        wire = FakeWire(
            "POST", f"/sessions/{begun}/invoke", headers=caller.headers | JSON | HOST, body=b'{"export":"spin"}'
        )
        caller.pipeline.start(Exchange(wire, time.perf_counter_ns()))
        await until(lambda: any(each.in_flight for each in primary.metrics.routes))
        wire.leave()
        await wire.answered.wait()
        assert wire.abandoned

    in_both(fleet, scenario)


def test_a_front_is_not_ready_while_the_data_folder_lacks_room(fleet):
    async def main():
        async with fleet.primary():
            fleet.environment["TENSOR_WASM_API_DISK_RESERVE"] = str(1 << 40)
            async with fleet.front() as (_, pipeline):
                answer = await Caller(fleet, pipeline).ask("GET", "/readyz")
                assert (answer.status, answer.json()["error"]["kind"]) == (503, "storage_full")

    asyncio.run(main())


class SlowRelay:
    """Answers requests once it may."""

    def __init__(self):
        self.may = asyncio.Event()

    async def forward(self, exchange):
        await self.may.wait()
        exchange.wire.answer(200, [], b"")


def test_what_was_relayed_while_a_front_opened_is_waited_for_until_it_ends_and_no_longer(fleet):
    async def scenario(primary, front, caller):
        relay = SlowRelay()
        first, application = RelayingApplication(relay), Application(front, ALL)
        early, late = FakeWire(path="/functions"), FakeWire(path="/functions")
        first.begin(early)
        first.begin(late)
        application.take_over(first)
        await application.drain(0.05)
        assert (early.status, late.status) == (503, 503), "they took longer than they may"
        first.begin(early := FakeWire(path="/functions"))
        relay.may.set()
        await asyncio.wait_for(application.drain(20.0), 5.0)
        assert early.status == 200

    in_both(fleet, scenario)
