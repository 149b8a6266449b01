"""Snapshots captured and restored: intact, changed, cut, and of other tenants, keys and functions."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.services import COUNTER, START, opened
from tensorwasm.artifacts.keys import CipherKey, HmacKey, KeyRing, machine_key
from tensorwasm.artifacts.snapshot.file import SnapshotFile
from tensorwasm.errors import (
    Conflict,
    InvalidKey,
    NotFound,
    SignatureInvalid,
    SnapshotKeyMissing,
    TooLarge,
    UnknownKey,
    WrongModule,
)
from tensorwasm.service.sessions.entries import SessionCall
from tensorwasm.service.snapshot_keys import SnapshotKeys, parse_hex_key
from tensorwasm.service.snapshots.snapshots import SnapshotFiles, snapshot_name

MINE, THEIRS = 1, 2
CLIENT_KEY = b"c" * 32
NEW_ID = "33333333-3333-4333-8333-333333333333"


@pytest.fixture
def tell(tmp_path, runtime):
    """Run a test with a service in which two tenants have the same counter, and one of them counted to 3."""

    def tell(story, **environment):
        async def run():
            async with opened(tmp_path, runtime=runtime, environment=environment) as service:
                mine = await service.functions.deploy(MINE, "counter", COUNTER)
                await service.functions.deploy(THEIRS, "counter", COUNTER)
                which = (await service.sessions.open(MINE, mine.id)).record.id
                for _ in range(3):
                    await count(service, which)
                return await story(service, mine.id, which)

        return asyncio.run(run())

    return tell


async def count(service, which, tenant=MINE):
    return (await service.sessions.call(tenant, which, SessionCall())).values[0]


def test_a_snapshot_is_stored_fetched_restored_and_deleted(tell):
    async def story(service, function_id, which):
        record = await service.snapshots.save(MINE, which)
        assert (record.function_id, record.version, record.session_id) == (function_id, 1, which)
        assert await count(service, which) == 4
        assert await service.snapshots.list(MINE) == (record,)
        assert await service.snapshots.list(THEIRS) == ()
        data = await service.snapshots.content(MINE, record.id)
        assert len(data) == record.size_bytes
        await service.sessions.end(MINE, which)
        restored = await service.snapshots.restore(MINE, record.id)
        assert restored.session.record.status == "saved"
        assert await count(service, restored.session.record.id) == 4
        brought = await service.snapshots.restore_file(MINE, data)
        assert await count(service, brought.session.record.id) == 4
        await service.snapshots.delete(MINE, record.id)
        for ask in (service.snapshots.get, service.snapshots.content, service.snapshots.delete):
            with pytest.raises(NotFound):
                await ask(MINE, record.id)
        assert await count(service, restored.session.record.id) == 5

    tell(story)


def test_two_snapshots_of_an_unchanged_session_share_a_file(tell):
    async def story(service, _function_id, which):
        first, second = await service.snapshots.save(MINE, which), await service.snapshots.save(MINE, which)
        assert first.content_hash == second.content_hash
        await service.snapshots.delete(MINE, first.id)
        restored = await service.snapshots.restore(MINE, second.id)
        assert await count(service, restored.session.record.id) == 4

    tell(story)


def test_a_fresh_instance_is_captured_after_its_start_function(tell):
    async def story(service, function_id, _which):
        captured = await service.snapshots.capture_fresh(MINE, function_id)
        brought = await service.snapshots.restore_file(MINE, captured.data, session_id=NEW_ID)
        assert brought.session.record.id == NEW_ID
        assert (await service.sessions.call(MINE, NEW_ID, SessionCall(export="begun"))).values == (41,)
        assert await count(service, NEW_ID) == 1
        with pytest.raises(Conflict):
            await service.snapshots.restore_file(MINE, captured.data, session_id=NEW_ID)
        assert service.quotas.usage(MINE)["instances"] == service.sessions.in_memory == 2

    tell(story)


def test_another_tenant_can_use_neither_snapshots_nor_files(tell):
    async def story(service, _function_id, which):
        record = await service.snapshots.save(MINE, which)
        for ask in (
            service.snapshots.get,
            service.snapshots.content,
            service.snapshots.delete,
            service.snapshots.restore,
        ):
            with pytest.raises(NotFound):
                await ask(THEIRS, record.id)
        with pytest.raises(NotFound):
            await service.snapshots.capture_session(THEIRS, which)
        data = await service.snapshots.content(MINE, record.id)
        with pytest.raises(SignatureInvalid):
            await service.snapshots.restore_file(THEIRS, data)
        assert await service.sessions.list(THEIRS) == ()

    tell(story)


def test_a_client_s_key_is_required_as_well_as_the_service_s(tell):
    async def story(service, _function_id, which):
        captured = await service.snapshots.capture_session(MINE, which, client_key=CLIENT_KEY)
        plain = await service.snapshots.capture_session(MINE, which)
        for data, key in ((captured.data, b""), (captured.data, b"d" * 32), (plain.data, CLIENT_KEY)):
            with pytest.raises(SignatureInvalid):
                await service.snapshots.restore_file(MINE, data, client_key=key)
        with pytest.raises(SignatureInvalid):
            await service.snapshots.restore_file(THEIRS, captured.data, client_key=CLIENT_KEY)
        with pytest.raises(UnknownKey):  # it alone signs nothing that is taken
            SnapshotFile.open(captured.data, KeyRing.of(HmacKey(CLIENT_KEY)))
        brought = await service.snapshots.restore_file(MINE, captured.data, client_key=CLIENT_KEY)
        assert await count(service, brought.session.record.id) == 4

    tell(story)


def test_changed_cut_and_foreign_files_are_refused_with_one_error(tell):
    async def story(service, function_id, which):
        data = bytes((await service.snapshots.capture_session(MINE, which)).data)
        elsewhere = SnapshotKeys(HmacKey(b"e" * 32))
        forged = SnapshotFiles(service.store, elsewhere)
        live = service.sessions._queue.find(MINE, which).live
        bad = [b"", b"\0" * 300, data[:-1], data + b"\0", data[: len(data) // 2], data[:256], forged.seal(MINE, live)]
        for each in bad:
            with pytest.raises(SignatureInvalid) as refused:
                await service.snapshots.restore_file(MINE, memoryview(each), reference=function_id)
            messages.add(refused.value.message)
        for at in range(0, len(data), max(1, len(data) // 40)):
            changed = bytearray(data)
            changed[at] ^= 0x40
            with pytest.raises(SignatureInvalid) as refused:
                await service.snapshots.restore_file(MINE, memoryview(bytes(changed)))
            messages.add(refused.value.message)
        assert len(await service.sessions.list(MINE)) == 1

    messages: set[str] = set()
    tell(story)
    assert len(messages) == 1


def test_a_snapshot_is_restored_only_in_functions_with_its_module(tell):
    async def story(service, function_id, which):
        data = (await service.snapshots.capture_session(MINE, which)).data
        other = await service.functions.deploy(MINE, "other", START)
        with pytest.raises(WrongModule):
            await service.snapshots.restore_file(MINE, data, reference=other.id)
        await service.functions.update(MINE, function_id, module=START)
        with pytest.raises(WrongModule):
            await service.snapshots.restore_file(MINE, data, reference=function_id)
        brought = await service.snapshots.restore_file(MINE, data)  # an earlier version has it
        assert brought.session.record.version == 1
        await service.functions.delete(MINE, function_id)
        with pytest.raises(NotFound):
            await service.snapshots.restore_file(MINE, data)

    tell(story)


def test_too_much_content_is_refused_before_it_is_read(tell):
    async def story(service, _function_id, which):
        data = (await service.snapshots.capture_session(MINE, which)).data
        small = SnapshotFiles(service.store, service.snapshots.files.keys, max_content_bytes=100)
        with pytest.raises(TooLarge):
            small.open_upload(MINE, data)
        with pytest.raises(SignatureInvalid):
            small.open_upload(THEIRS, data)

    tell(story)


def test_saves_under_a_missing_key_are_reported_as_such(tell, tmp_path, runtime):
    async def save(service, _function_id, which):
        return which, (await service.snapshots.save(MINE, which)).id

    which, snapshot_id = tell(save)

    async def again():
        own = {"TENSOR_WASM_API_SNAPSHOT_HMAC_KEY": "11" * 32}
        async with opened(tmp_path, runtime=runtime, environment=own) as service:
            with pytest.raises(SnapshotKeyMissing):
                await count(service, which)
            with pytest.raises(SnapshotKeyMissing):
                await service.snapshots.restore(MINE, snapshot_id)

    asyncio.run(again())


def test_files_that_no_row_refers_to_are_deleted(tell):
    async def story(service, _function_id, which):
        kept, lost = await service.snapshots.save(MINE, which), await service.snapshots.save(MINE, which)
        from tensorwasm.database.snapshots import delete_snapshot  # noqa: PLC0415 - what a crash leaves

        await service.database.write(delete_snapshot, lost.id)
        assert await service.snapshots.tidy(0) == 0
        assert await service.snapshots.tidy(1 << 62) == 1
        assert snapshot_name(kept.id) in service.store.names(str(MINE))
        assert await service.sessions.tidy(1 << 62) == 0

    tell(story)


def test_a_malformed_key_prevents_the_start(tmp_path, runtime):
    async def run(name):
        async with opened(tmp_path, runtime=runtime, environment={name: "12" * 31 + "1x"}):
            pass

    for name in ("TENSOR_WASM_API_SNAPSHOT_HMAC_KEY", "TENSOR_WASM_API_KERNEL_HMAC_KEY"):
        with pytest.raises(InvalidKey, match=name) as refused:
            asyncio.run(run(name))
        assert "1212" not in refused.value.message


@given(tenants=st.lists(st.integers(0, (1 << 64) - 1), min_size=2, max_size=6, unique=True), key=st.binary(max_size=32))
@settings(max_examples=50)
def test_every_tenant_and_client_has_its_own_key(tenants, key):
    seals = SnapshotKeys(HmacKey(b"m" * 32))
    padded = key.ljust(32, b"\1")
    ids = {seals.ring(tenant).require_signer().id for tenant in tenants}
    ids |= {seals.ring(tenant, padded).require_signer().id for tenant in tenants}
    assert len(ids) == 2 * len(tenants)
    assert SnapshotKeys(HmacKey(b"m" * 32)).ring(tenants[0]).require_signer().id in ids
    assert SnapshotKeys(HmacKey(b"n" * 32)).ring(tenants[0]).require_signer().id not in ids


def test_without_a_setting_the_data_folder_s_key_signs_and_ciphers_are_optional(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_STATE_DIR", str(tmp_path))
    assert SnapshotKeys.kept("", tmp_path) is None
    own = SnapshotKeys.from_settings("", tmp_path).ring(5).require_signer().id
    kept = SnapshotKeys.kept("", tmp_path)
    assert kept is not None
    assert own == kept.ring(5).require_signer().id
    assert SnapshotKeys.from_settings("ab" * 32, tmp_path).ring(5).require_signer().id != own
    ring = SnapshotKeys(HmacKey(b"m" * 32), (CipherKey(b"x" * 32),)).ring(5)
    assert list(ring.ciphers) == [CipherKey(b"x" * 32).id]
    assert "6d6d" not in repr(SnapshotKeys(HmacKey(b"m" * 32)))


def test_an_earlier_release_s_key_is_copied_from_the_state_folder_with_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TENSOR_WASM_STATE_DIR", str(tmp_path / "state"))
    old = SnapshotKeys(machine_key("service-snapshot"))
    data = tmp_path / "data"
    found = SnapshotKeys.from_settings("", data)
    assert found.id == old.id
    assert "copied from the state folder" in caplog.text
    monkeypatch.setenv("TENSOR_WASM_STATE_DIR", str(tmp_path / "empty"))
    kept = SnapshotKeys.kept("", data)
    assert kept is not None
    assert kept.id == old.id
    secret = tmp_path / "secret"
    secret.write_text("ab" * 32 + "\n")
    secret.chmod(0o600)
    assert SnapshotKeys.from_settings(str(secret), data).id == SnapshotKeys.from_settings("ab" * 32, data).id != old.id


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "g" * 64, "é" * 64, "0" * 63 + "\n", " " + "0" * 63])
def test_an_invalid_key_is_refused_without_showing_it(text):
    with pytest.raises(InvalidKey) as refused:
        parse_hex_key("KEY", text)
    assert not text or text not in refused.value.message
