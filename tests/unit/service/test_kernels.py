"""The registry of kernels: who may publish, in which order what is wrong is said, and what is given out."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import update

from fakes.live_sessions import FakeDesk
from strategies.kernels import AFFINE, FILL
from tensorwasm.artifacts.keys import HmacKey
from tensorwasm.database.schema import KERNELS
from tensorwasm.errors import (
    AlreadyRegistered,
    ArtifactCorrupt,
    BadSignature,
    DigestMismatch,
    InvalidName,
    InvalidRequest,
    KernelRegistryNotConfigured,
    MalformedPtx,
    NotFound,
    PublishDisabled,
    PublisherNotAllowed,
    PublishScopeRequired,
)
from tensorwasm.service.kernels.kernels import Kernels
from tensorwasm.service.kernels.manifests import Manifest, digest_of, envelope_1, sign_manifest
from tensorwasm.tenancy.principal import Principal

KEY = HmacKey(b"k" * 32)
PUBLISHER = Principal("bearer", "p", None, frozenset({"kernels:publish"}))
USER = Principal("bearer", "u", None)
TEXT = FILL if isinstance(FILL, str) else FILL.decode()
OTHER = AFFINE if isinstance(AFFINE, str) else AFFINE.decode()


def manifest(ptx=TEXT, **more):
    said = {"name": "fill", "version": "1", "sm_version": 90, "publisher": "us", "published_unix_ms": 5} | more
    return sign_manifest(Manifest(digest=digest_of(ptx.encode()), **said), KEY)


def tell(story, key=KEY, **options):
    async def run():
        database = FakeDesk()
        await story(Kernels(database, key, **options), database)

    asyncio.run(run())


def test_a_kernel_is_published_listed_and_fetched():
    async def story(kernels, _database):
        for number in ("1", "2", "10"):
            await kernels.publish(PUBLISHER, "", manifest(version=number), TEXT)
        await kernels.publish(PUBLISHER, "", manifest(OTHER, name="affine"), OTHER)
        found = await kernels.list()
        assert [(each.name, each.version, each.ptx) for each in found] == [
            ("affine", "1", ""),
            ("fill", "1", ""),
            ("fill", "10", ""),
            ("fill", "2", ""),
        ]
        assert [each.version for each in await kernels.list(2, 1)] == ["10"]
        assert await kernels.list(9, 1 << 40) == ()
        assert (await kernels.get("affine", "1")).ptx == OTHER
        with pytest.raises(NotFound):
            await kernels.get("affine", "2")
        for offset, limit in ((-1, 1), (0, -1), (1 << 63, 1)):
            with pytest.raises(InvalidRequest):
                await kernels.list(offset, limit)

    tell(story)


def test_checks_are_made_in_order():
    bad_digest = replace(manifest(), digest=b"d" * 32)
    bad_signature = replace(manifest(publisher="them"), signature=b"s" * 32)
    torn = ".version 7.0 .target sm_90 .address_size 64 .visible"

    async def story(kernels, _database):
        await kernels.publish(PUBLISHER, "", manifest(), TEXT)
        for error, given, text in (
            (InvalidName, replace(bad_digest, name="a\0b"), TEXT),
            (MalformedPtx, bad_digest, "é"),
            (DigestMismatch, replace(bad_digest, signature=b"s" * 32), TEXT),
            (BadSignature, bad_signature, TEXT),
            (PublisherNotAllowed, manifest(torn, publisher="them"), torn),
            (MalformedPtx, manifest(torn), torn),
            (AlreadyRegistered, manifest(), TEXT),
        ):
            with pytest.raises(error):
                await kernels.publish(PUBLISHER, "", given, text)
        assert len(await kernels.list()) == 1

    tell(story, publishers=["us"])


def test_capabilities_that_may_publish_kernels():
    async def story(kernels, _database):
        dev = Principal("dev", "dev", None, frozenset({"kernels:publish"}))
        with pytest.raises(PublishDisabled):
            await kernels.publish(dev, "listed", manifest(), TEXT)
        for token in ("", "liste", "listedx"):
            with pytest.raises(PublishScopeRequired):
                await kernels.publish(USER, token, manifest(), TEXT)
        await kernels.publish(USER, "listed", manifest(), TEXT)
        assert "listed" not in repr(vars(kernels))

    tell(story, tokens=["listed", "other"])


def test_without_a_key_there_is_no_registry():
    async def story(kernels, _database):
        for ask in (kernels.publish(PUBLISHER, "", manifest(), TEXT), kernels.list(), kernels.get("fill", "1")):
            with pytest.raises(KernelRegistryNotConfigured):
                await ask

    tell(story, key=None)


def test_envelope_1_is_accepted_unless_publishers_are_listed():
    old = replace(manifest(), signature=KEY.sign(envelope_1(manifest())))

    async def take(kernels, _database):
        await kernels.publish(PUBLISHER, "", old, TEXT)
        assert (await kernels.get("fill", "1")).signature == old.signature

    async def refuse(kernels, _database):
        with pytest.raises(BadSignature):
            await kernels.publish(PUBLISHER, "", old, TEXT)

    tell(take)
    tell(refuse, publishers=["us"])


def test_a_tampered_row_is_not_returned():
    async def change(database, **values):
        await database.write(lambda connection: connection.execute(update(KERNELS).values(**values)))

    async def story(kernels, database):
        await kernels.publish(PUBLISHER, "", manifest(), TEXT)
        await change(database, publisher="them")
        with pytest.raises(BadSignature):
            await kernels.get("fill", "1")
        await change(database, publisher="us", ptx=OTHER)
        with pytest.raises(ArtifactCorrupt):
            await kernels.get("fill", "1")
        await change(database, ptx=TEXT)
        with pytest.raises(BadSignature):
            await Kernels(database, HmacKey(b"l" * 32)).get("fill", "1")

    tell(story)
