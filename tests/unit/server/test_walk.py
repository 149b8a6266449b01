"""Every route there is, walked: who is let in, and that nobody learns what there is before he may."""

import asyncio
import re
import uuid

import pytest

from fakes.applications import ALPHA, ANY, BETA, bearer
from fakes.rsgi import ask
from fakes.services import ADD
from tensorwasm.server.routes import ALL
from tensorwasm.tenancy.principal import SCOPES, Principal

OPEN = {"/healthz", "/livez", "/readyz", "/metrics", "/openapi.json", "/docs"}
"""All that is open to everybody."""

UNKNOWN = str(uuid.UUID(int=0xABC, version=4))


def path_of(route, known=UNKNOWN):
    return re.sub(r"\{(\w+)\}", lambda found: "7" if found[1] == "tenant" else known, route.path)


def test_open_routes_are_those_and_no_others():
    assert {route.path for route in ALL if route.scope is None} == OPEN
    assert {route.scope for route in ALL if route.scope is not None} <= set(SCOPES)


def test_each_route_is_there_once_and_says_what_it_is():
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


def test_nobody_gets_in_without_a_token_and_nobody_with_anothers(served):
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


def test_nobody_gets_in_without_the_scope(served):
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


def test_what_is_anothers_is_denied_to_who_may_act_for_its_owner_no_more_than_to_others(served):
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
                assert (found.status, found.kind) == (403, "tenant_scope_denied"), path
                missing = await ask(
                    pipeline, route.method, path.replace(function, UNKNOWN), headers=bearer(ANY, 7), body=body
                )
                assert (missing.status, missing.kind) == (404, "not_found"), path
            mine = await ask(pipeline, "GET", f"/functions/{function}", headers=bearer(BETA))
            assert mine.status == 200

    asyncio.run(walk())


@pytest.mark.parametrize("path", sorted(OPEN))
def test_open_routes_answer_without_a_token(served, path):
    async def walk():
        async with served() as (_, pipeline):
            assert (await ask(pipeline, "GET", path)).status == 200

    asyncio.run(walk())
