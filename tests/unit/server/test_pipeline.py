"""What every request goes through, around its handler."""

import asyncio
import gc
import json
import uuid
import weakref

import msgspec
import pytest

from fakes.applications import ALPHA, ANY, BETA, bearer
from fakes.wire import FakeWire, ask
from tensorwasm.errors import DatabaseUnavailable, GuestTrap, HostError, InternalError, RequestTimeout
from tensorwasm.server.exchange import Exchange
from tensorwasm.server.http.head import ONCE
from tensorwasm.server.http.routing import Reply, Route, StreamedReply, StreamEnd
from tensorwasm.server.http.schemas import Invoke
from tensorwasm.server.routes.jobs import InvokeLater
from tensorwasm.server.routes.sessions import InvokeSession
from tensorwasm.tenancy.audit import verify
from tensorwasm.tenancy.quotas import TenantPolicy


class Body(msgspec.Struct):
    text: str = ""


def route(handle, method="POST", path="/do", **more):
    options = {"scope": "invoke", "kind": "invoke", "request": Body, "optional_body": True, "action": "do"} | more
    return Route(method, path, handle, "Do.", "things", **options)


def echo(call):
    return Reply({"tenant": call.tenant, "text": call.body.text if call.body else None, "query": dict(call.query)})


async def echo_slowly(call):
    await asyncio.sleep(0)
    return echo(call)


JSON = {"Content-Type": "application/json"}
ECHO = (route(echo), route(echo_slowly, path="/slowly"), route(echo, "GET", request=None, action=None))


def run(test):
    return asyncio.run(test())


def test_an_answer_has_its_names(served):
    async def test():
        async with served(ECHO) as (_, pipeline):
            for path in ("/do", "/slowly"):
                found = await ask(pipeline, "POST", path, headers=bearer(ALPHA), query="a=1&b=&a=2&c=%20x")
                assert (found.status, found.json()["tenant"]) == (200, 7)
                assert found.json()["query"] == {"a": "2", "b": "", "c": " x"}
                assert uuid.UUID(found.headers["x-request-id"]).version == 4
                assert found.headers["x-trace-id"] == ""
            trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA) | trace)
            assert found.headers["x-trace-id"] == "4bf92f3577b34da6a3ce929d0e0e4736"

    run(test)


@pytest.mark.parametrize(
    ("token", "named", "status", "tenant"),
    [
        (ALPHA, None, 200, 7),
        (ALPHA, "7", 200, 7),
        (ALPHA, "007", 200, 7),
        (ALPHA, "8", 403, None),
        (ANY, None, 200, 0),
        (ANY, str(2**64 - 1), 200, 2**64 - 1),
        (ANY, str(2**64), 400, None),
        (ANY, "-1", 400, None),
        (ANY, "+1", 400, None),
        (ANY, "1.0", 400, None),
        (ANY, "٣", 400, None),
        (ANY, "", 400, None),
        (ANY, "7, 8", 400, None),
        (ANY, "0" * 400, 400, None),
    ],
)
def test_the_tenant_is_the_named_one_or_the_only_one(served, token, named, status, tenant):
    async def test():
        async with served(ECHO) as (_, pipeline):
            headers = bearer(token) | ({} if named is None else {"X-TensorWasm-Tenant": named})
            found = await ask(pipeline, "POST", "/do", headers=headers)
            assert found.status == status
            assert found.kind == {200: None, 400: "missing_tenant", 403: "tenant_scope_denied"}[status]
            if tenant is not None:
                assert found.json()["tenant"] == tenant

    run(test)


def test_the_tenant_may_have_to_be_named(served):
    async def test():
        async with served(ECHO, TENSOR_WASM_API_REQUIRE_TENANT="1") as (_, pipeline):
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA))
            assert (found.status, found.kind) == (400, "missing_tenant")
            assert (await ask(pipeline, "POST", "/do", headers=bearer(ALPHA, 7))).status == 200

    run(test)


def test_a_disabled_tenant_is_not_served(served):
    async def test():
        async with served(ECHO) as (service, pipeline):
            service.identities.policies[7] = TenantPolicy(disabled=True)
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA))
            assert (found.status, found.kind) == (403, "tenant_scope_denied")

    run(test)


def test_a_rate_limited_tenant_gets_retry_after_and_other_tenants_are_not_limited(served):
    async def test():
        async with served(ECHO) as (service, pipeline):
            service.identities.policies[7] = TenantPolicy(quotas={"qps": 1, "burst": 3})
            told = [await ask(pipeline, "POST", "/do", headers=bearer(ALPHA)) for _ in range(4)]
            assert [each.status for each in told] == [200, 200, 200, 429]
            assert told[-1].kind == "rate_limited"
            assert int(told[-1].headers["retry-after"]) >= 1
            assert (await ask(pipeline, "POST", "/do", headers=bearer(BETA))).status == 200

    run(test)


def test_a_tenant_has_so_many_requests_in_flight(served):
    async def test():
        held = asyncio.Event()

        async def wait(call):
            await held.wait()
            return Reply()

        async with served((route(wait),)) as (service, pipeline):
            service.identities.policies[7] = TenantPolicy(quotas={"requests": 1})
            first = asyncio.ensure_future(ask(pipeline, "POST", "/do", headers=bearer(ALPHA)))
            await asyncio.sleep(0)
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA))
            assert (found.status, found.kind) == (429, "quota_exceeded")
            assert "requests" in found.json()["error"]["message"]
            held.set()
            assert (await first).status == 200
            assert (await ask(pipeline, "POST", "/do", headers=bearer(ALPHA))).status == 200

    run(test)


def test_unknown_paths_and_methods_say_so_without_credentials(served):
    async def test():
        async with served(ECHO) as (_, pipeline):
            found = await ask(pipeline, "GET", "/nothing")
            assert (found.status, found.kind, found.headers["x-tensorwasm-route"]) == (404, "not_found", "none")
            found = await ask(pipeline, "DELETE", "/do")
            assert (found.status, found.kind, found.headers["allow"]) == (
                405,
                "method_not_allowed",
                "GET, HEAD, OPTIONS, POST",
            )
            found = await ask(pipeline, "OPTIONS", "/do")
            assert (found.status, found.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
            assert (await ask(pipeline, "OPTIONS", "/nothing")).status == 404
            assert (await ask(pipeline, "HEAD", "/do", headers=bearer(ALPHA))).status == 200

    run(test)


def test_a_body_over_the_cap_is_refused_before_it_is_read_and_while_it_is(served):
    async def test():
        async with served(ECHO, max_body_bytes=1000) as (_, pipeline):
            free_bytes = pipeline.budget.free_bytes
            declared = bearer(ALPHA) | {"Content-Length": "1001"}
            found = await ask(pipeline, "POST", "/do", headers=declared, chunks=[asyncio.Event()])
            assert (found.status, found.kind) == (413, "body_too_large")
            for sizes, status in (((400, 400, 200), 200), ((400, 400, 201), 413)):
                parts = [b"{}".ljust(sizes[0]), *(b" " * size for size in sizes[1:])]
                found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA), chunks=parts)
                assert found.status == status, sizes
            assert pipeline.budget.free_bytes == free_bytes

    run(test)


def test_a_body_that_is_cut_off_is_not_taken_for_whole(served):
    """Half of a module can be a module."""

    async def test():
        async with served(ECHO) as (_, pipeline):
            parts = [b'{"text":""}', RequestTimeout("the client has gone")]
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA) | JSON, chunks=parts)
            assert (found.status, found.kind) == (408, "request_timeout")

    run(test)


@pytest.mark.parametrize("chunks", [None, [b"x" * 20000]])
def test_nothing_of_a_request_is_held_once_it_is_answered(served, chunks):
    """The server keeps a connection whose body has not all come for as long as the request is held."""

    async def test():
        async with served(ECHO) as (_, pipeline):
            gc.disable()
            try:
                for asking in (bearer(ALPHA) | JSON, JSON):
                    made = weakref.ref(await ask(pipeline, "POST", "/do", headers=asking, chunks=chunks, body=b"["))
                    while pipeline.tasks:  # noqa: ASYNC110 - it knows of no event
                        await asyncio.sleep(0)
                    assert made() is None
            finally:
                gc.enable()

    run(test)


def test_a_body_counts_until_its_request_is_answered(served):
    """A guest that is streamed has its input as long as it runs."""

    async def test():
        sending, go = asyncio.Event(), asyncio.Event()

        async def send(out):
            sending.set()
            await go.wait()
            return StreamEnd()

        async def begin(call):
            await asyncio.sleep(0)
            return StreamedReply(send, "text/plain")

        async with served((route(begin),)) as (_, pipeline):
            free_bytes = pipeline.budget.free_bytes
            body = b'{"text":"' + b"x" * 991 + b'"}'
            asking = asyncio.ensure_future(
                ask(
                    pipeline,
                    "POST",
                    "/do",
                    headers=bearer(ALPHA) | JSON,
                    chunks=[body],
                )
            )
            await sending.wait()
            assert pipeline.budget.free_bytes == free_bytes - len(body)
            go.set()
            while pipeline.tasks:  # noqa: ASYNC110 - it knows of no event
                await asyncio.sleep(0)
            assert pipeline.budget.free_bytes == free_bytes
            asking.cancel()

    run(test)


def test_a_body_that_does_not_come_is_a_timeout_long_or_short(served):
    async def test():
        async with served(ECHO, TENSOR_WASM_API_REQUEST_TIMEOUT="0.01") as (_, pipeline):
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA), chunks=[b"{", asyncio.Event()])
            assert (found.status, found.kind) == (408, "request_timeout")
            late = RequestTimeout("it did not come")
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA), body=b"{", broken=late)
            assert (found.status, found.kind) == (408, "request_timeout")

    run(test)


def test_a_bug_is_an_answer_that_says_nothing_and_a_line_in_the_log(served, caplog):
    def break_down(call):
        raise RuntimeError("secret detail at /etc/somewhere")

    async def break_later(call):
        break_down(call)

    async def test():
        async with served((route(break_down), route(break_later, path="/later"))) as (_, pipeline):
            for path in ("/do", "/later"):
                caplog.clear()
                found = await ask(pipeline, "POST", path, headers=bearer(ALPHA))
                assert (found.status, found.kind) == (500, "internal")
                assert b"secret" not in found.body
                assert b"Traceback" not in found.body
                assert found.headers["x-request-id"] in caplog.text
                assert "secret detail" in caplog.text

    run(test)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (DatabaseUnavailable("host=10.0.0.1 password=x"), 503, "the server could not do this"),
        (InternalError("at 0x7f00"), 500, "the server could not do this"),
        (GuestTrap("at offset 0x55 in /srv/module", "unreachable"), 500, "the guest trapped: unreachable"),
        (GuestTrap("engine detail"), 500, "the guest failed"),
    ],
)
def test_internal_details_are_logged_and_not_answered(served, caplog, error, status, message):
    def fail(call):
        raise error

    async def test():
        async with served((route(fail),)) as (_, pipeline):
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA))
            assert (found.status, found.json()) == (status, {"error": {"kind": error.kind, "message": message}})
            of_this_machine = isinstance(error, HostError)
            assert (f"{found.headers['x-request-id']}: {error.kind}: {error.message}" in caplog.text) == of_this_machine

    run(test)


def test_a_server_that_goes_down_takes_nothing_new_and_lets_what_runs_end(served):
    async def test():
        held = asyncio.Event()

        async def wait(call):
            await held.wait()
            return Reply({"done": True})

        async def wait_for_ever(call):
            await asyncio.Event().wait()
            return Reply()

        probe = Route("GET", "/livez", lambda call: Reply({}), "s", "g", None, kind="probes", tenant=False)
        routes = (route(wait), route(wait_for_ever, path="/ever"), probe)
        async with served(routes) as (_, pipeline):
            first = asyncio.ensure_future(ask(pipeline, "POST", "/do", headers=bearer(ALPHA)))
            never = asyncio.ensure_future(ask(pipeline, "POST", "/ever", headers=bearer(ALPHA)))
            await asyncio.sleep(0)
            pipeline.draining = True
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA))
            assert (found.status, found.kind, found.headers["retry-after"]) == (503, "draining", "1")
            assert (await ask(pipeline, "GET", "/livez")).status == 200
            held.set()
            assert (await first).json() == {"done": True}
            for task in list(pipeline.tasks):
                task.cancel()
            assert (await never).kind == "draining"

    run(test)


def test_a_client_that_leaves_ends_what_it_asked_for_and_frees_its_place(served):
    async def test():
        ended = asyncio.Event()

        async def wait(call):
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with served((route(wait),)) as (service, pipeline):
            wire = FakeWire("POST", "/do", headers={"host": "x", "authorization": f"Bearer {ALPHA}"})
            pipeline.start(Exchange(wire, 0))
            while not wire.leaving:  # noqa: ASYNC110 - it knows of no event
                await asyncio.sleep(0)
            assert service.quotas.usage(7)["requests"] == 1
            wire.leave()
            await ended.wait()
            while pipeline.tasks:  # noqa: ASYNC110 - the same
                await asyncio.sleep(0)
            assert service.quotas.usage(7)["requests"] == 0
            assert (wire.status, wire.abandoned) == (None, True)
            text = service.metrics.render().decode()
            assert 'status="499"' in text

    run(test)


def test_everything_is_counted_and_what_counts_is_written_down(served, tmp_path):
    async def test():
        async with served(ECHO) as (service, pipeline):
            await ask(pipeline, "POST", "/do", headers=bearer(ALPHA))
            await ask(pipeline, "POST", "/do", headers=bearer(ALPHA, 8))
            await ask(pipeline, "POST", "/do")
            await ask(pipeline, "GET", "/do", headers=bearer(ALPHA))
            await ask(pipeline, "GET", "/nothing")
            text = service.metrics.render().decode()
            for labels in (
                'method="POST",route="/do",status="200"',
                'method="POST",route="/do",status="401"',
                'method="POST",route="/do",status="403"',
                'method="GET",route="/do",status="200"',
                'method="unknown",route="unknown",status="404"',
            ):
                assert f"tensor_wasm_http_requests_total{{{labels}}} 1.0" in text
            assert not any(line.in_flight for line in service.metrics.routes)
            path = service.folder / "audit.log"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        records = [line for line in lines if "action" in line]
        assert [(each["outcome"]["status_code"], each["action"]) for each in records] == [
            (200, "do"),
            (403, "do"),
            (401, "do"),
        ]
        assert records[0]["resource"]["tenant_id"] == 7
        assert records[0]["peer_addr"] == "127.0.0.1"
        assert records[2]["actor"] is None
        assert ALPHA not in path.read_text()
        assert not verify(path).findings

    run(test)


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "", "9" * 20])
def test_a_deadline_that_is_none_is_refused(served, text):
    async def test():
        async with served(ECHO) as (_, pipeline):
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA) | {"X-TensorWasm-Deadline-Ms": text})
            assert (found.status, found.kind) == (400, "invalid_request")

    run(test)


def test_a_deadline_is_no_later_than_the_operator_allows(served):
    seen = []

    def look(call):
        seen.append(call.deadline.remaining_s())
        return Reply({})

    async def test():
        async with served((route(look),), TENSOR_WASM_API_MAX_DEADLINE="10") as (_, pipeline):
            for text in ("5000", "999999999"):
                await ask(pipeline, "POST", "/do", headers=bearer(ALPHA) | {"X-TensorWasm-Deadline-Ms": text})
            await ask(pipeline, "POST", "/do", headers=bearer(ALPHA))

    run(test)
    assert 4 < seen[0] <= 5 < seen[1] <= 10
    assert seen[2] == float("inf")


@pytest.mark.parametrize("name", sorted(ONCE))
def test_a_field_that_counts_once_is_refused_twice(served, name):
    async def test():
        async with served(ECHO) as (_, pipeline):
            mine = bearer(ALPHA) | JSON
            found = await ask(pipeline, "POST", "/do", headers=mine | {name: "application/json\nBearer x"})
            assert (found.status, found.kind) == (400, "invalid_request")
            assert name in found.json()["error"]["message"]

    run(test)


def test_a_request_of_http_1_1_has_a_host(served):
    async def test():
        async with served(ECHO) as (_, pipeline):
            for version, status in (("1.1", 400), ("1.0", 200)):
                wire = FakeWire("POST", "/do", headers={"authorization": f"Bearer {ALPHA}"}, version=version)
                pipeline.start(Exchange(wire, 0))
                assert wire.status == status, version

    run(test)


@pytest.mark.parametrize("name", ["a", "01HZX-req_7.b:c=d", "A" * 128, str(uuid.UUID(int=7))])
def test_a_clients_own_name_of_its_request_is_kept(served, name):
    async def test():
        async with served(ECHO) as (_, pipeline):
            for asking in (bearer(ALPHA), {}):
                found = await ask(pipeline, "POST", "/do", headers=asking | {"X-Request-Id": name})
                assert found.headers["x-request-id"] == name

    run(test)


@pytest.mark.parametrize("name", ["", " ", "..", "a/b", "a b", "é", "a\tb", "A" * 129, "-a", '"a"', "a,b"])
def test_a_name_that_no_log_should_have_is_replaced(served, name):
    async def test():
        async with served(ECHO) as (_, pipeline):
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA) | {"X-Request-Id": name})
            assert uuid.UUID(found.headers["x-request-id"]).version == 4

    run(test)


def test_every_answer_says_how_often_one_may_still_ask(served):
    async def test():
        async with served(ECHO) as (service, pipeline):
            service.identities.policies[7] = TenantPolicy(quotas={"qps": 2, "burst": 3})
            told = [await ask(pipeline, "POST", "/do", headers=bearer(ALPHA)) for _ in range(4)]
            assert {each.headers["ratelimit-policy"] for each in told} == {'"tenant";q=3;w=2'}
            assert [each.headers["ratelimit"] for each in told[:2]] == ['"tenant";r=2;t=1', '"tenant";r=1;t=1']
            assert (told[-1].status, told[-1].headers["ratelimit"]) == (429, '"tenant";r=0;t=2')
            assert "ratelimit" not in (await ask(pipeline, "POST", "/do")).headers

    run(test)


def test_a_request_for_two_hosts_is_for_none(served):
    async def test():
        async with served(ECHO, TENSOR_WASM_API_TRUSTED_HOSTS="api.example.org") as (_, pipeline):
            twice = {"Host": "api.example.org\nevil.example"}
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA) | twice)
            assert (found.status, found.kind) == (400, "invalid_request")

    run(test)


def test_hosts_and_pages_are_held_against_the_operators_lists(served):
    lists = {
        "TENSOR_WASM_API_TRUSTED_HOSTS": "api.example.org",
        "TENSOR_WASM_API_CORS_ALLOWED_ORIGINS": "https://app.example.org",
    }
    host, page = {"Host": "api.example.org"}, {"Origin": "https://app.example.org"}

    async def test():
        async with served(ECHO, **lists) as (_, pipeline):
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA) | {"Host": "evil.example"})
            assert (found.status, found.kind) == (421, "host_denied")
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA), host="api.example.org")
            assert found.status == 200
            found = await ask(pipeline, "POST", "/do", headers=bearer(ALPHA) | host | page)
            assert found.headers["access-control-allow-origin"] == "https://app.example.org"
            refused = await ask(pipeline, "POST", "/do", headers=host | page)
            assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "https://app.example.org")
            asked = await ask(pipeline, "OPTIONS", "/do", headers=host | page)
            assert (asked.status, "POST" in asked.headers["access-control-allow-methods"]) == (204, True)
            assert asked.headers["access-control-allow-origin"] == "https://app.example.org"
            other = await ask(pipeline, "OPTIONS", "/do", headers=host | {"Origin": "https://evil.example"})
            assert "access-control-allow-origin" not in other.headers
            for each in (found, refused, asked, other):
                assert each.headers["vary"] == "Origin"

    run(test)


def test_whoever_waits_for_a_place_gets_one(served):
    """With all places of a class taken, a request waits for its turn, and does not hold up another class."""

    async def test():
        held, begun = asyncio.Event(), []

        async def wait(call):
            begun.append(1)
            await held.wait()
            return Reply({})

        routes = (route(wait, kind="writes"), route(echo, path="/other"))
        async with served(routes) as (_, pipeline):
            asked = [asyncio.ensure_future(ask(pipeline, "POST", "/do", headers=bearer(ALPHA))) for _ in range(20)]
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(begun) == 8  # of 16: who keeps his places keeps nobody else out
            assert (await ask(pipeline, "POST", "/other", headers=bearer(ALPHA))).status == 200
            asked.append(asyncio.ensure_future(ask(pipeline, "POST", "/do", headers=bearer(BETA))))
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(begun) == 9
            held.set()
            assert {(await each).status for each in asked} == {200}
            assert len(begun) == 21

    run(test)


@pytest.mark.parametrize(
    ("request_type", "sent", "headers", "status"),
    [
        (Invoke, {"deadline_ms": 30}, {}, 504),
        (InvokeSession, {"deadline_ms": 30}, {"X-TensorWasm-Deadline-Ms": "60000"}, 504),
        (Invoke, {"deadline_ms": 60_000}, {"X-TensorWasm-Deadline-Ms": "30"}, 504),
        (InvokeLater, {"deadline_ms": 30}, {}, 200),  # an attempt's, which begins later
        (Invoke, {}, {}, 200),
    ],
)
def test_the_time_that_a_body_gives_begins_before_its_request_waits_for_a_place(
    served, request_type, sent, headers, status
):
    async def test():
        held = asyncio.Event()

        async def wait(call):
            await held.wait()
            return Reply({})

        async def at_once(call):
            await asyncio.sleep(0)
            return Reply({})

        routes = (route(wait, kind="writes"), route(at_once, path="/timed", kind="writes", request=request_type))
        async with served(routes) as (_, pipeline):
            holding = [asyncio.ensure_future(ask(pipeline, "POST", "/do", headers=bearer(ALPHA))) for _ in range(8)]
            for _ in range(5):
                await asyncio.sleep(0)
            body = json.dumps(sent).encode()
            late = asyncio.ensure_future(
                ask(pipeline, "POST", "/timed", body=body, headers=bearer(ALPHA) | JSON | headers)
            )
            if status == 200:
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not late.done()
                held.set()
            found = await asyncio.wait_for(late, 20)
            assert found.status == status
            held.set()
            await asyncio.gather(*holding)

    run(test)
