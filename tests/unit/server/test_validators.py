"""Entity tags: an answer that a client has already is not sent again, and one that it has not always is."""

import asyncio
import gzip
import json

import pytest

from fakes.applications import ALPHA, BETA, bearer
from fakes.rsgi import ask
from fakes.services import ADD
from tensorwasm.server.routes import ALL

TAGGED = {"/openapi.json", "/docs", "/functions", "/functions/{id}", "/functions/{id}/versions", "/jobs", "/jobs/{id}"}
TAGGED |= {"/sessions", "/sessions/{id}", "/snapshots", "/snapshots/{id}", "/snapshots/{id}/content", "/kernels"}
TAGGED |= {"/kernels/{name}/{version}", "/v1/models", "/v1/models/{id}", "/tenants", "/tenants/{tenant}"}
TAGGED |= {"/tokens", "/tokens/{id}"}


def test_what_is_read_again_and_again_has_a_tag_and_nothing_else_has():
    assert {route.path for route in ALL if route.etag} == TAGGED
    assert all(route.method == "GET" for route in ALL if route.etag)


def test_who_has_it_is_told_so_until_it_changes(served):
    async def walk():
        async with served() as (service, pipeline):
            function = (await service.functions.deploy(7, "mine", ADD)).id
            path = f"/functions/{function}"

            async def see(**headers):
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                return await ask(pipeline, "GET", path, headers=bearer(ALPHA) | named)

            tag = (await see()).headers["etag"]
            for known in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*", f'"x"\n{tag}'):
                found = await see(if_none_match=known)
                assert (found.status, found.body, found.headers["etag"]) == (304, b"", tag)
                assert "content-type" not in found.headers
            for other in ('"x"', "", tag[:-2] + '"'):
                assert (await see(if_none_match=other)).status == 200
            await service.functions.update(7, function, name="other")
            found = await see(if_none_match=tag)
            assert (found.status, found.json()["name"]) == (200, "other")
            assert found.headers["etag"] != tag

    asyncio.run(walk())


def test_a_tag_is_of_the_answer_however_it_is_sent_and_whoever_asks(served):
    async def walk():
        async with served() as (service, pipeline):
            for _ in range(20):
                await service.functions.deploy(7, "mine", ADD)
            plain = await ask(pipeline, "GET", "/functions", headers=bearer(ALPHA))
            packed = await ask(pipeline, "GET", "/functions", headers=bearer(ALPHA) | {"Accept-Encoding": "gzip"})
            assert gzip.decompress(packed.body) == plain.body
            assert packed.headers["etag"] == plain.headers["etag"]
            other = await ask(
                pipeline, "GET", "/functions", headers=bearer(BETA) | {"If-None-Match": plain.headers["etag"]}
            )
            assert (other.status, json.loads(other.body)["functions"]) == (200, [])

    asyncio.run(walk())


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
def test_what_is_open_has_a_tag_too(served, path):
    async def walk():
        async with served() as (_, pipeline):
            tag = (await ask(pipeline, "GET", path)).headers["etag"]
            assert (await ask(pipeline, "GET", path, headers={"If-None-Match": tag})).status == 304

    asyncio.run(walk())
