import dataclasses
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm import settings
from tensorwasm.artifacts import private
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.keys import (
    SIGNATURE_BYTES,
    Algorithm,
    Ed25519Key,
    Ed25519PublicKey,
    HmacKey,
    machine_key,
)
from tensorwasm.errors import InvalidKey, UnsafeFile

KINDS = [HmacKey, Ed25519Key]
SECRET = bytes(range(32))

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A state folder that is not there yet."""
    changed = dataclasses.replace(settings.current(), state=str(tmp_path / "state"))
    monkeypatch.setattr(settings, "current", lambda: changed)
    return tmp_path / "state"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", KINDS)
@given(message=st.binary(), secret=st.binary(min_size=32, max_size=32), data=st.data())
def test_a_signature_is_of_one_key_and_one_message(kind, message, secret, data):
    key = kind(secret)
    signature = key.sign(message)
    assert len(signature) == SIGNATURE_BYTES[key.algorithm]
    assert key.verify(message, signature)
    bit = data.draw(st.integers(0, 8 * len(signature) - 1))
    damaged = bytearray(signature)
    damaged[bit // 8] ^= 1 << bit % 8
    assert not key.verify(message, bytes(damaged))
    assert not key.verify(message + b"\0", signature)
    assert not key.verify(message, signature[:-1])
    assert not kind(bytes(31) + bytes([secret[0] ^ 1])).verify(message, signature)


def test_hmac_is_that_of_rfc_4231():
    # Test case 1 has a key of 20 bytes, which HMAC pads with zeros: so does a key of 32 with 12 of them.
    key = HmacKey(b"\x0b" * 20 + bytes(12))
    assert key.sign(b"Hi There").hex() == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"


def test_ed25519_is_that_of_rfc_8032():
    key = Ed25519Key(bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"))
    assert key.public.raw.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert key.sign(b"\x72").hex().startswith("92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da")


def test_a_key_is_known_by_the_hash_of_what_may_be_shown():
    assert HmacKey(SECRET).id == blake3(SECRET)[:8].hex()
    pair = Ed25519Key(SECRET)
    assert pair.id == pair.public.id == blake3(pair.public.raw)[:8].hex()
    assert (pair.algorithm, HmacKey.algorithm) == (Algorithm.ED25519, Algorithm.HMAC_SHA256)


@pytest.mark.parametrize("kind", [*KINDS, Ed25519PublicKey])
@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_key_has_32_bytes(kind, length):
    with pytest.raises(InvalidKey, match=f"32 bytes, not {length}"):
        kind(bytes(length))


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_shows_no_secret(kind):
    shown = repr(kind(SECRET)) + str(kind(SECRET))
    assert SECRET.hex() not in shown
    assert kind(SECRET).id in shown
    assert not hasattr(kind(SECRET), "__dict__")


@posix
def test_the_machine_makes_a_key_once_for_each_purpose(state):
    key = machine_key("code")
    path = state / "keys" / "code"
    assert key.id == machine_key("code").id != machine_key("snapshot").id
    assert HmacKey(path.read_bytes()).id == key.id
    assert path.stat().st_mode & 0o777 == 0o600
    assert [f.stat().st_mode & 0o777 for f in (state, path.parent)] == [0o700, 0o700]
    assert names(path.parent) == ["code", "snapshot"]


def test_all_who_ask_at_once_get_the_same_key(state):
    with ThreadPoolExecutor(16) as threads:
        assert len({key.id for key in threads.map(machine_key, ["code"] * 64)}) == 1
    assert names(state / "keys") == ["code"]


def test_another_process_gets_the_same_key(state):
    code = "from tensorwasm.artifacts.keys import machine_key; print(machine_key('code').id)"
    environment = os.environ | {"TENSOR_WASM_STATE_DIR": str(state)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == machine_key("code").id


@pytest.mark.parametrize("purpose", ["", "../code", "Code", "a" * 33, "a/b", ".", "code\n", "\0"])
def test_a_purpose_is_a_word(state, purpose):
    with pytest.raises(InvalidKey, match="purpose"):
        machine_key(purpose)
    assert not state.exists()


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o601])
def test_a_key_that_others_may_touch_is_refused(state, mode):
    machine_key("code")
    (state / "keys" / "code").chmod(mode)
    with pytest.raises(UnsafeFile, match="chmod 600"):
        machine_key("code")


@posix
@pytest.mark.parametrize("mode", [0o750, 0o705, 0o720, 0o711])
def test_a_folder_of_keys_that_others_may_enter_is_refused(state, mode):
    machine_key("code")
    (state / "keys").chmod(mode)
    with pytest.raises(UnsafeFile, match="chmod 700"):
        machine_key("code")


@posix
def test_a_state_folder_may_be_read_by_others_but_not_written(state):
    state.mkdir(mode=0o755)
    machine_key("code")
    state.chmod(0o777)
    with pytest.raises(UnsafeFile, match="chmod go-w"):
        machine_key("code")


@posix
def test_what_belongs_to_somebody_else_is_refused(state, monkeypatch):
    machine_key("code")
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(UnsafeFile, match=f"belongs to user {uid}.*chown"):
        machine_key("code")
    with pytest.raises(UnsafeFile, match="belongs to user"):
        private.read_file(state / "keys" / "code", "the key", 32)


@posix
def test_links_pipes_and_files_in_the_wrong_place_are_refused(state, tmp_path):
    machine_key("code")
    (state / "keys" / "link").symlink_to(state / "keys" / "code")
    os.mkfifo(state / "keys" / "pipe", 0o600)
    (state / "keys" / "folder").mkdir(mode=0o700)
    for purpose in ("link", "pipe", "folder"):
        with pytest.raises(UnsafeFile):
            machine_key(purpose)
    (state / "keys").rename(tmp_path / "elsewhere")
    (state / "keys").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFile, match="link"):
        machine_key("code")


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_that_was_cut_or_grew_is_refused_and_kept(state, length):
    machine_key("code")
    path = state / "keys" / "code"
    path.write_bytes(bytes(length))
    with pytest.raises((InvalidKey, UnsafeFile)):
        machine_key("code")
    assert path.stat().st_size == length


def test_a_place_where_nothing_can_be_made_is_named_without_its_path(state, tmp_path):
    state.write_bytes(b"")
    with pytest.raises(UnsafeFile, match="state folder") as caught:
        machine_key("code")
    assert str(tmp_path) not in str(caught.value)


def test_where_the_state_is(monkeypatch, tmp_path):
    unset = dataclasses.replace(settings.current(), state="")
    monkeypatch.setattr(settings, "current", lambda: unset)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert settings.state_dir() == tmp_path / "tensor-wasm"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert settings.state_dir() == tmp_path / ".local" / "state" / "tensor-wasm"
