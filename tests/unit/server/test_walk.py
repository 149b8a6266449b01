"""Every route there is, walked: who is let in, and that nobody learns what there is before he may."""

import asyncio
import re
import uuid
from urllib.parse import quote

import msgspec
import pytest

from fakes.applications import ALPHA, ANY, BETA, bearer
from fakes.services import ADD
from fakes.wire import ask
from tensorwasm.server.routes import ALL
from tensorwasm.service.identity.identity import TenantChange
from tensorwasm.service.pages import CURSOR
from tensorwasm.tenancy.principal import SCOPES, Principal

OPEN = {"/healthz", "/livez", "/readyz", "/metrics", "/openapi.json", "/docs"}
"""All routes that need no token."""

UNKNOWN = str(uuid.UUID(int=0xABC, version=4))


def path_of(route, known=UNKNOWN):
    return re.sub(r"\{(\w+)\}", lambda found: "7" if found[1] == "tenant" else known, route.path)


def test_exactly_these_routes_are_open():
    assert {route.path for route in ALL if route.scope is None} == OPEN
    assert {route.scope for route in ALL if route.scope is not None} <= set(SCOPES)


def test_each_route_is_unique_and_described():
    assert len({(route.method, route.path) for route in ALL}) == len(ALL)
    for route in ALL:
        assert route.summary
        assert route.method in {"GET", "POST", "PUT", "PATCH", "DELETE", "WS"}
        assert route.method in {"GET", "WS"} or route.action, f"{route.path} changes something and is not in the log"


async def refused(pipeline, route, path, headers):
    found = await ask(pipeline, route.method, path, headers=headers)
    return found.status, found.kind if route.method != "WS" else None


def kind(route, name):
    return None if route.method == "WS" else name


def shape(route, name):
    """Errors of the OpenAI routes have another shape, without a kind at that place."""
    return None if route.openai else kind(route, name)


def test_requests_need_a_token_of_their_tenant(served):
    guarded = [route for route in ALL if route.scope is not None]

    async def walk():
        async with served() as (service, pipeline):
            function = (await service.functions.deploy(8, "theirs", ADD)).id
            for route in guarded:
                for known in (UNKNOWN, function):
                    path = path_of(route, known)
                    assert (await refused(pipeline, route, path, {}))[0] == 401, path
                    assert (await refused(pipeline, route, path, bearer("no-such-token-00000000")))[0] == 401, path
                    if route.tenant:
                        told = await refused(pipeline, route, path, bearer(ALPHA, 8))
                        assert told == (403, shape(route, "tenant_scope_denied")), path

    asyncio.run(walk())


def test_requests_need_the_scope(served):
    guarded = [route for route in ALL if route.scope is not None]

    async def walk():
        async with served() as (service, pipeline):
            everything = service.tokens._registry.admit(Principal("bearer", "operator", None, frozenset(SCOPES)))
            for scope in sorted({route.scope for route in guarded}):
                others = set(SCOPES) - {scope}
                token = (await service.tokens.create(everything, f"not {scope}", {7}, others)).text
                for route in guarded:
                    if route.scope == scope:
                        path = path_of(route)
                        told = await refused(pipeline, route, path, bearer(token, 7))
                        assert told == (403, shape(route, "scope_denied")), path

    asyncio.run(walk())


def test_another_tenants_records_look_as_if_they_did_not_exist(served):
    """A token for all tenants that says it acts for 7 does not reach what is 8's."""
    own = [route for route in ALL if route.path.startswith("/functions/{id}") and route.method != "WS"]
    bodies = {"PUT": b'{"name":"x"}', "PATCH": b'{"current":1}', "POST": b"{}"}

    async def walk():
        async with served() as (service, pipeline):
            function = (await service.functions.deploy(8, "theirs", ADD)).id
            for route in own:
                body = b'{"version":1}' if "alias" in route.path else bodies.get(route.method, b"")
                path = route.path.replace("{id}", function).replace("{alias}", "prod")
                found = await ask(pipeline, route.method, path, headers=bearer(ANY, 7), body=body)
                missing = await ask(
                    pipeline, route.method, path.replace(function, UNKNOWN), headers=bearer(ANY, 7), body=body
                )
                assert (missing.status, missing.kind) == (404, "not_found"), path
                assert (found.status, found.body) == (missing.status, missing.body), path
            mine = await ask(pipeline, "GET", f"/functions/{function}", headers=bearer(BETA))
            assert mine.status == 200

    asyncio.run(walk())


def test_every_reply_to_an_allowed_page_has_the_headers_once(served):
    """`FakeProto` takes no field twice: a browser reads two of `Access-Control-Allow-Origin` as none."""
    page = "https://app.example.org"
    asking = {
        "Origin": page,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    plain = [route for route in ALL if route.method != "WS"]

    async def walk():
        async with served(TENSOR_WASM_API_CORS_ALLOWED_ORIGINS=page) as (service, pipeline):
            function = (await service.functions.deploy(7, "mine", ADD)).id
            for route in plain:
                for method in (route.method, "OPTIONS", "BREW"):
                    for known in (UNKNOWN, function):
                        for given in ({}, bearer(ANY, 7), bearer(ALPHA, 8)):
                            path = path_of(route, known)
                            asked = {"version": "1.0", "headers": asking | given}
                            found = await ask(pipeline, method, path, **asked)
                            assert found.headers["access-control-allow-origin"] == page, (method, path)
                            assert "Origin" in found.headers["vary"], (method, path)

    asyncio.run(walk())


def numbers_beside(schema):
    """Return what a number is that a query may have, and what is none."""
    least, most = schema["minimum"], schema.get("maximum")
    good = [str(least), *([str(most)] if most is not None else ["0.5", "1e1", "59"])]
    bad = ["", " ", "x", "-1", "1_0", "٣", "0x1", "nan", str(least - 1)]
    return good, bad + ([str(most + 1), "1.5", "1e1"] if most is not None else ["1e999"])


def texts_beside(schema):
    if "enum" in schema:
        return list(schema["enum"]), ["", "x"]
    if schema.get("pattern") == CURSOR:
        return ["", f"0.{UNKNOWN}"], ["x", "0.", f"-1.{UNKNOWN}", f"{'9' * 16}.{UNKNOWN}", "0." + "x" * 36]
    return [], []


def beside(schema):
    if "anyOf" in schema:
        good, bad = numbers_beside(schema["anyOf"][0])
        return ["", *good], [each for each in bad if each]
    return (texts_beside if "minimum" not in schema else numbers_beside)(schema)


def test_queries_are_accepted_exactly_as_documented(served):
    tried = [(route, name, param) for route in ALL for name, param in route.query.items()]

    async def walk():
        async with served(TENSOR_WASM_API_KERNEL_HMAC_KEY="5e" * 32) as (service, pipeline):
            function = (await service.functions.deploy(7, "mine", ADD)).id
            everything = service.tokens._registry.admit(Principal("bearer", "operator", None, frozenset(SCOPES)))
            token = (await service.tokens.create(everything, "all", None, SCOPES)).text
            often = TenantChange(quotas={"qps": 1_000_000, "burst": 1_000_000})
            await service.tenants.update(everything, 7, often)
            for route, name, param in tried:
                if route.method != "GET" or route.path == "/jobs/{id}/wait":
                    continue
                for texts, statuses in zip(beside(param.schema), ({200}, {400}), strict=True):
                    for text in texts:
                        query = f"{name}={quote(text)}"
                        if name == "since_unix_ms" and text.isdecimal():
                            query += f"&until_unix_ms={text}"
                        found = await ask(
                            pipeline, "GET", path_of(route, function), headers=bearer(token, 7), query=query
                        )
                        assert found.status in statuses, (route.path, query, found.body)

    asyncio.run(walk())


def test_every_route_with_changes_declares_its_body():
    """What is sent is never ignored; of a body with DELETE nobody knows what it should mean (RFC 9110, 9.3.5)."""
    assert not [route.path for route in ALL if route.method in {"POST", "PUT", "PATCH"} and route.request is None]


def test_unknown_fields_are_refused_on_our_routes_and_ignored_for_openais_clients():
    def structs(kind):
        if isinstance(kind, msgspec.inspect.StructType):
            yield kind.cls
        for part in [field.type for field in getattr(kind, "fields", ())] + list(getattr(kind, "types", ())):
            yield from structs(part)
        if hasattr(kind, "item_type"):
            yield from structs(kind.item_type)

    for route in ALL:
        if route.request not in {None, bytes}:
            for each in structs(msgspec.inspect.type_info(route.request)):
                assert each.__struct_config__.forbid_unknown_fields != route.openai, (route.path, each)


@pytest.mark.parametrize("path", sorted(OPEN))
def test_open_routes_answer_without_a_token(served, path):
    async def walk():
        async with served() as (_, pipeline):
            assert (await ask(pipeline, "GET", path)).status == 200

    asyncio.run(walk())
