"""gzip of bodies, and entity tags of replies."""

import asyncio
import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.applications import ALPHA, BETA, bearer
from fakes.services import ADD
from fakes.wire import ask
from tensorwasm.errors import BodyTooLarge, InvalidRequest
from tensorwasm.server.http.bodies import BodyBudget, BodyMemory, too_large
from tensorwasm.server.http.replies import GZIP_BYTES, UnknownCoding, accepts_gzip, deflate, inflate, is_gzip
from tensorwasm.server.http.routing import Reply, Route
from tensorwasm.server.routes import ALL

LIMIT = 3 << 20


def unpacked(body, limit_bytes=LIMIT):
    """Return what a body stands for; it runs as a request does, which waits for nothing but what is long."""

    async def read():
        budget = BodyBudget(1 << 30)
        held = BodyMemory(budget, limit_bytes)
        try:
            return await inflate(body, held.hold)
        finally:
            held.close()
            assert budget.free_bytes == 1 << 30

    return asyncio.run(read())


BODIES = st.one_of(
    st.binary(max_size=5000),
    st.binary(min_size=1, max_size=64).flatmap(lambda part: st.integers(0, 40_000).map(lambda times: part * times)),
).filter(lambda body: len(body) <= LIMIT)


@given(BODIES, st.integers(0, 9))
def test_inflating_restores_the_compressed_body(body, level):
    assert unpacked(gzip.compress(body, level)) == body


@given(BODIES)
def test_deflating_is_read_by_gzip(body):
    assert gzip.decompress(asyncio.run(deflate(body))) == body


@given(BODIES.filter(lambda body: len(body) > 0), st.data())
def test_a_body_is_refused_by_its_decompressed_size(body, data):
    limit = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(BodyTooLarge):
        unpacked(gzip.compress(body), limit)


def test_a_decompression_bomb_is_stopped_at_the_limit():
    bomb, made = gzip.compress(bytes(200 << 20)), []

    def hold(size_bytes):
        made.append(size_bytes)
        if sum(made) > LIMIT:
            raise too_large(LIMIT)

    with pytest.raises(BodyTooLarge):
        asyncio.run(inflate(bomb, hold))
    assert len(bomb) < 300 << 10
    assert sum(made) <= LIMIT + (1 << 20)


@given(st.binary(max_size=3000), st.data())
def test_truncated_damaged_or_trailing_data_is_refused(body, data):
    packed = gzip.compress(body)
    cut = data.draw(st.integers(0, len(packed) - 1))
    for bad in (packed[:cut], packed + b"x", packed + gzip.compress(b""), b"\0" + packed, zlib.compress(body)):
        with pytest.raises(InvalidRequest):
            unpacked(bad)
    damaged = bytearray(packed)
    damaged[-5] ^= 1  # of the checksum
    with pytest.raises(InvalidRequest):
        unpacked(bytes(damaged))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_gzip_stream_or_refused(body):
    try:
        assert unpacked(b"\x1f\x8b\x08\x00" + body) == gzip.decompress(b"\x1f\x8b\x08\x00" + body)
    except InvalidRequest:
        return


@pytest.mark.parametrize("coding", ["gzip", " GZIP", "x-gzip"])
def test_gzip_is_known(coding):
    assert is_gzip(coding)


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "gzip;q=1", "zstd", "compress"])
def test_other_codings_are_not(coding):
    assert not is_gzip("identity")
    assert not is_gzip("")
    with pytest.raises(UnknownCoding):
        is_gzip(coding)


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        (None, False),
        ("", False),
        ("identity", False),
        ("gzip", True),
        ("GZip", True),
        ("br, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip;q=0.001", True),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("*;q=0, gzip", True),
        ("x-gzip", True),
        ("gzipped", False),
    ],
)
def test_accept_encoding_decides_about_gzip(header, taken):
    assert accepts_gzip(header) == taken


# ---------------------------------------------------------------- in the pipeline

GZIP = {"Content-Encoding": "gzip"}
TAKES = {"Accept-Encoding": "br, gzip"}
LONG = b'{"text":"' + b"all the same " * 20_000 + b'"}'
TEXTS = [b"{}".ljust(size) for size in (GZIP_BYTES, 5000)] + [LONG]


def echo(call):
    return Reply(call.raw)


ROUTES = (
    Route("POST", "/echo", echo, "Echo.", "g", "invoke", kind="invoke", action="do"),
    Route("POST", "/binary", lambda call: Reply(call.raw, content_type="application/octet-stream"), "Echo.", "g", None),
)


def run(test):
    return asyncio.run(test())


@pytest.mark.parametrize("text", [b"{}", *TEXTS], ids=len)
def test_short_and_long_compressed_bodies_are_served(served, text):
    async def test():
        async with served(ROUTES) as (_, pipeline):
            free_bytes, packed = pipeline.budget.free_bytes, gzip.compress(text)
            for given in ({"body": packed}, {"chunks": [packed[:10], packed[10:]]}):
                found = await ask(pipeline, "POST", "/echo", headers=bearer(ALPHA) | GZIP, **given)
                assert (found.status, found.body) == (200, text)
                while pipeline.tasks:  # noqa: ASYNC110 - it knows of no event
                    await asyncio.sleep(0)
                assert pipeline.budget.free_bytes == free_bytes

    run(test)


def test_a_compressed_body_counts_by_its_decompressed_size(served):
    async def test():
        async with served(ROUTES, max_body_bytes=10_000) as (_, pipeline):
            free_bytes = pipeline.budget.free_bytes
            for size, status in ((10_000, 200), (10_001, 413), (1 << 24, 413)):
                packed = gzip.compress(bytes(size))
                for given in ({"body": packed}, {"chunks": [packed]}):
                    found = await ask(pipeline, "POST", "/echo", headers=bearer(ALPHA) | GZIP, **given)
                    if len(packed) <= 10_000:
                        assert found.status == status, size
            while pipeline.tasks:  # noqa: ASYNC110 - it knows of no event
                await asyncio.sleep(0)
            assert pipeline.budget.free_bytes == free_bytes

    run(test)


def test_the_refusal_of_another_coding_names_gzip(served):
    async def test():
        async with served(ROUTES) as (_, pipeline):
            found = await ask(pipeline, "POST", "/echo", headers=bearer(ALPHA) | {"Content-Encoding": "br"}, body=b"x")
            assert (found.status, found.kind) == (415, "unsupported_media_type")
            assert found.headers["accept-encoding"] == "gzip"
            found = await ask(pipeline, "POST", "/echo", headers=bearer(ALPHA) | GZIP, body=b"x")
            assert (found.status, found.kind) == (400, "invalid_request")

    run(test)


@pytest.mark.parametrize("text", TEXTS, ids=len)
def test_a_reply_is_compressed_if_the_client_accepts_it(served, text):
    async def test():
        async with served(ROUTES) as (_, pipeline):
            for asking, packed in ((TAKES, True), ({"Accept-Encoding": "br"}, False), ({}, False)):
                found = await ask(pipeline, "POST", "/echo", headers=bearer(ALPHA) | asking, body=text)
                assert ("content-encoding" in found.headers) == packed
                assert found.headers["vary"] == "Accept-Encoding"
                assert (gzip.decompress(found.body) if packed else found.body) == text

    run(test)


def test_short_and_binary_replies_are_not_compressed(served):
    async def test():
        async with served(ROUTES) as (_, pipeline):
            for path, text in (("/echo", b"{}".ljust(GZIP_BYTES - 1)), ("/binary", LONG)):
                found = await ask(pipeline, "POST", path, headers=bearer(ALPHA) | TAKES, body=text)
                assert found.body == text
                assert "content-encoding" not in found.headers
                assert "vary" not in found.headers

    run(test)


def test_cors_and_compression_share_one_vary_header(served):
    page = "https://app.example.org"

    async def test():
        async with served(ROUTES, TENSOR_WASM_API_CORS_ALLOWED_ORIGINS=page) as (_, pipeline):
            asking = bearer(ALPHA) | TAKES | {"Origin": page}
            found = await ask(pipeline, "POST", "/echo", headers=asking, body=LONG)
            assert found.headers["vary"] == "Accept-Encoding, Origin"

    run(test)


TAGGED = {"/openapi.json", "/docs", "/functions", "/functions/{id}", "/functions/{id}/versions", "/jobs", "/jobs/{id}"}
TAGGED |= {"/sessions", "/sessions/{id}", "/snapshots", "/snapshots/{id}", "/snapshots/{id}/content", "/kernels"}
TAGGED |= {"/kernels/{name}/{version}", "/v1/models", "/v1/models/{id}", "/tenants", "/tenants/{tenant}"}
TAGGED |= {"/tokens", "/tokens/{id}"}


def test_exactly_these_routes_have_entity_tags():
    assert {route.path for route in ALL if route.etag} == TAGGED
    assert all(route.method == "GET" for route in ALL if route.etag)


def test_a_known_tag_gets_304_until_the_reply_changes(served):
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


def test_a_tag_depends_on_the_reply_alone(served):
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
def test_open_routes_have_tags_too(served, path):
    async def walk():
        async with served() as (_, pipeline):
            tag = (await ask(pipeline, "GET", path)).headers["etag"]
            assert (await ask(pipeline, "GET", path, headers={"If-None-Match": tag})).status == 304

    asyncio.run(walk())
