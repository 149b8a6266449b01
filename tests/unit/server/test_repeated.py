"""Calls whose head and body came before: nothing differs from how they are answered the first time."""

import asyncio
import gc
import itertools
import json
import time
import weakref
from contextlib import AsyncExitStack

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from wasmtime import wat2wasm

from fakes.applications import ANY, bearer, read_record, serving
from fakes.wire import FakeWire, ask
from tensorwasm.runtime.invoke.inline import slice_budget
from tensorwasm.server.exchange import Exchange
from tensorwasm.server.http.head import MAX_KEPT_BYTES, MOST_KEPT, limit_fields, limit_lines
from tensorwasm.tenancy.quotas import TenantPolicy

GUEST = bytes(
    wat2wasm("""(module (memory (export "memory") 1) (global $n (mut i32) (i32.const 0))
  (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add)
  (func (export "count") (result i32) (global.set $n (i32.add (global.get $n) (i32.const 1))) (global.get $n))
  (func (export "none"))
  (func (export "half") (param f64) (result f64) local.get 0 f64.const 0.5 f64.mul)
  (func (export "trap") unreachable))""")
)
BODIES = [
    b'{"export":"add","args":[2,3]}',
    b'{"export":"add","args":[4294967295,"0x10"]}',
    b'{"export":"count"}',
    b'{"export":"none"}',
    b'{"export":"half","args":["nan:0x1"]}',
    b'{"export":"trap"}',
    b'{"export":"missing"}',
    b'{"export":"add","args":[1]}',
    b'{"export":"add","args":[1.5,true]}',
    b'{"export":"add","args":[[],{}]}',
    b'{"export":"add","args":[2,3],"deadline_ms":60000}',
    b'{"export":"add","args":[2,3],"input_b64":"eA=="}',
    b'{"export":"add","args":[2,3],"input":"x","env":{"a":"b"}}',
    b'{"export":"add","args":[2,3],"env":{"":"b"}}',
    b'{"args":' + b"[1," * 300 + b"1" + b"]" * 300 + b"}",
    b"{",
    b"",
]
MORE = [
    {},
    {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    {"x-request-id": "mine"},
    {"x-tensorwasm-deadline-ms": "60000"},
    {"x-tensorwasm-deadline-ms": "soon"},
    {"origin": "https://elsewhere.example"},
    {"accept-encoding": "gzip"},
    {"content-type": "text/plain"},
]
POLICIES = [
    {},
    {"qps": 0, "burst": 3},
    {"qps": 0, "burst": 100},
    {"qps": 0},
    {"requests": 0},
    {"requests": 9},
    {"instances": 0},
    {"memory_bytes": 1},
    {"instances": 5, "memory_bytes": 1 << 40},
    None,
]
CALLS = st.tuples(st.sampled_from(range(len(MORE))), st.sampled_from(range(len(BODIES))), st.integers(1, 3))
STEPS = st.lists(st.one_of(CALLS, st.sampled_from(POLICIES), st.sampled_from(["gone", "back"])), max_size=12)


class Side:
    """One of two services: the one knows heads, as a connection does, and to the other each one is new."""

    def __init__(self, service, pipeline, *, repeats):
        self.service, self.pipeline, self._repeats = service, pipeline, repeats
        self._heads = {}
        self.records = []
        self.used = []
        service.audit.append = lambda record: self.records.append(read_record(record))
        service.invocations._note = lambda *amounts: self.used.append((*amounts[:3], *amounts[4:]))

    async def deploy(self, tenant, name="guest"):
        headers = bearer(ANY, tenant) | {"content-type": "application/wasm"}
        made = await ask(self.pipeline, "POST", "/functions", query=f"name={name}", headers=headers, body=GUEST)
        self.records.clear()
        self._heads.clear()
        return made.json()["id"]

    async def call(self, tenant, path, more, body):
        given = {"host": "localhost", "content-type": "application/json"} | MORE[more]
        headers = {name.lower(): value for name, value in bearer(ANY, tenant).items()} | given
        wire = FakeWire("POST", path, headers=headers, body=body)
        slice_budget()._free_ns = 0  # a machine that is busy would send calls elsewhere
        if self._repeats:
            wire.head = self._heads.setdefault((path, more), wire.head)
            self.pipeline.begin(wire)
        else:
            self.pipeline.start(Exchange(wire, time.perf_counter_ns()))
        await asyncio.wait_for(wire.answered.wait(), 30)
        return wire

    def told(self, wire):
        """Return what a client was told, without what names one request or the function of one side."""
        fields = {name: value for name, value in wire.headers.pairs if name != "x-request-id" or value == "mine"}
        body = json.loads(wire.body) if wire.body else None
        if body is not None and "function_id" in body:
            body["function_id"] = "the function"
        return wire.status, list(fields.items()), body

    def noted(self, function):
        """Return what a service noted since it was last asked."""
        found = [
            (
                each.actor and bytes(each.actor),
                each.action,
                {name: "the function" if value == function else value for name, value in each.resource.items()},
                bytes(each.outcome),
                each.peer_addr,
                each.client_cert_subject,
                each.request_id == "mine",
            )
            for each in self.records
        ]
        used, self.used = self.used, []
        self.records.clear()
        series = {
            (*counts.labels, status): sum(each[:-1])
            for counts in self.service.metrics.routes
            for status, each in counts.series.items()
        }
        flying = sum(counts.in_flight for counts in self.service.metrics.routes)
        statistics = self.service.invocations.statistics()
        quotas = self.service.admission.quotas
        return (
            found,
            series,
            flying,
            used,
            statistics.running,
            statistics.begun,
            quotas.refusals(),
            quotas.held("requests"),
        )


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """Return what runs a coroutine, and the two services."""
    with asyncio.Runner() as runner:
        opened = AsyncExitStack()

        async def open_():
            found = []
            for repeats in (False, True):
                folder = tmp_path_factory.mktemp("service")
                service, pipeline = await opened.enter_async_context(serving(folder))
                found.append(Side(service, pipeline, repeats=repeats))
            return found

        yield runner.run, runner.run(open_())
        runner.run(opened.aclose())


tenants = itertools.count(100)


def thrice(more, body):
    return more, body, 3


@example(steps=[thrice(more, 0) for more in range(len(MORE))])
@example(steps=[thrice(0, body) for body in range(len(BODIES))])
@example(steps=[step for policy in POLICIES for step in (policy, thrice(0, 0), thrice(0, 5))])
@pytest.mark.timeout(400)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_nothing_differs_from_a_call_that_comes_for_the_first_time(sides, steps):
    run, both = sides

    async def test():
        tenant = next(tenants)
        ids = [await side.deploy(tenant) for side in both]
        for side in both:
            side.service.identities.policies[tenant] = TenantPolicy()
        for step in steps:
            told = []
            for side, function in zip(both, ids, strict=True):
                told.append(await act(side, tenant, function, step))
                told.append(side.noted(function))
            assert told[0] == told[2]
            assert told[1] == told[3]

    async def act(side, tenant, function, step):
        policies = side.service.identities.policies
        if isinstance(step, tuple):
            more, body, times = step
            path = f"/functions/{function}/invoke"
            return [side.told(await side.call(tenant, path, more, BODIES[body])) for _ in range(times)]
        if step == "gone":
            side.service.admission.authenticator.developing = True
        elif step == "back":
            side.service.admission.authenticator.developing = False
        elif step is None:
            policies[tenant] = TenantPolicy(disabled=True)
        else:
            policies[tenant] = TenantPolicy(quotas=step)
        return None

    try:
        run(test())
    finally:
        for side in both:
            side.service.admission.authenticator.developing = False


def test_repeated_calls_do_not_go_the_whole_way(sides, monkeypatch):
    run, (_, side) = sides

    async def test():
        tenant = next(tenants)
        path = f"/functions/{await side.deploy(tenant)}/invoke"
        for more in (0, 1, 2, 6):
            first = await side.call(tenant, path, more, BODIES[0])
            monkeypatch.setattr(side.pipeline, "start", None)
            again = await side.call(tenant, path, more, BODIES[0])
            assert (first.status, first.json()) == (again.status, again.json())
            monkeypatch.undo()

    run(test())


def test_few_bodies_of_a_head_are_kept_and_no_long_ones(sides):
    run, (_, side) = sides

    async def test():
        tenant = next(tenants)
        path = f"/functions/{await side.deploy(tenant)}/invoke"
        for n in range(5 * MOST_KEPT):
            found = await side.call(tenant, path, 0, b'{"export":"add","args":[2,%d]}' % n)
            assert found.json()["result"] == [2 + n]
            assert 0 < len(found.head.plan.calls) <= MOST_KEPT
        kept = set(found.head.plan.calls)
        await side.call(tenant, path, 0, BODIES[0] + b" " * MAX_KEPT_BYTES)
        assert set(found.head.plan.calls) == kept

    run(test())


def test_the_function_that_a_reference_leads_to_may_change_between_two_calls(sides):
    run, both = sides

    async def test():
        tenant = next(tenants)
        for side in both:
            one, two = [await side.deploy(tenant, name) for name in ("one", "two")]
            for function in (one, two, one):
                path = f"/functions/{function}/invoke"
                for _ in range(3):
                    assert (await side.call(tenant, path, 0, BODIES[0])).json()["function_id"] == function
            gone = await ask(side.pipeline, "DELETE", f"/functions/{one}", headers=bearer(ANY, tenant))
            assert gone.status == 204
            for _ in range(2):
                assert (await side.call(tenant, f"/functions/{one}/invoke", 0, BODIES[0])).status == 404

    run(test())


def test_an_error_of_a_repeated_call_holds_on_to_nothing(sides):
    run, (_, side) = sides

    async def test():
        tenant = next(tenants)
        path = f"/functions/{await side.deploy(tenant)}/invoke"
        gc.disable()
        try:
            for body in (BODIES[0], BODIES[6], BODIES[7]):
                left = []
                for _ in range(3):
                    wire = await side.call(tenant, path, 0, body)
                    left.append(weakref.ref(wire))
                    del wire
                await asyncio.sleep(0)
                assert [each() for each in left] == [None] * 3
        finally:
            gc.enable()

    run(test())


NUMBERS = st.integers(0, (1 << 63) - 1)


@given(st.lists(st.tuples(st.sampled_from(["tenant", "token"]), NUMBERS, NUMBERS, st.floats(0, 1e18)), max_size=3))
def test_the_lines_of_limits_are_their_fields(standings):
    assert limit_lines(standings) == "".join(f"{name}: {value}\r\n" for name, value in limit_fields(standings))
