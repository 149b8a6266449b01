import dataclasses
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed448, ed25519, x25519
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm import settings
from tensorwasm.artifacts import private_files
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.keys import (
    SIGNATURE_BYTES,
    Algorithm,
    CipherKey,
    Ed25519Key,
    Ed25519PublicKey,
    HmacKey,
    KeyRing,
    machine_key,
)
from tensorwasm.errors import InvalidKey, SigningNotConfigured, UnsafeFile

KINDS = [HmacKey, Ed25519Key]
SECRET = bytes(range(32))
OLD, NEW, OTHER = (bytes([n]) * 32 for n in (1, 2, 3))
PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()
PKCS8 = serialization.PrivateFormat.PKCS8
INFO = serialization.PublicFormat.SubjectPublicKeyInfo

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


def test_a_key_s_id_is_the_hash_of_its_public_bytes():
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


def test_concurrent_calls_get_the_same_key(state):
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
def test_files_of_another_user_are_refused(state, monkeypatch):
    machine_key("code")
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(UnsafeFile, match=f"belongs to user {uid}.*chown"):
        machine_key("code")
    with pytest.raises(UnsafeFile, match="belongs to user"):
        private_files.read_file(state / "keys" / "code", "the key", 32)


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
def test_a_key_file_of_another_length_is_refused_and_kept(state, length):
    machine_key("code")
    path = state / "keys" / "code"
    path.write_bytes(bytes(length))
    with pytest.raises((InvalidKey, UnsafeFile)):
        machine_key("code")
    assert path.stat().st_size == length


def test_an_unusable_state_folder_is_named_without_its_path(state, tmp_path):
    state.write_bytes(b"")
    with pytest.raises(UnsafeFile, match="state folder") as caught:
        machine_key("code")
    assert str(tmp_path) not in str(caught.value)


def test_the_state_folder_follows_the_environment(monkeypatch, tmp_path):
    unset = dataclasses.replace(settings.current(), state="")
    monkeypatch.setattr(settings, "current", lambda: unset)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert settings.state_dir() == tmp_path / "tensor-wasm"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert settings.state_dir() == tmp_path / ".local" / "state" / "tensor-wasm"


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Set the settings of keys; return their ring."""

    def read(key="", trust="", cipher=""):
        changed = dataclasses.replace(
            settings.current(),
            state=str(tmp_path / "state"),
            snapshot_key=key,
            snapshot_trust=trust,
            snapshot_cipher_key=cipher,
        )
        monkeypatch.setattr(settings, "current", lambda: changed)
        return KeyRing.from_settings()

    return read


@pytest.fixture
def kept(tmp_path):
    """Write a file with a mode; return its path as text."""

    def write(name, data, mode=0o600):
        path = tmp_path / name
        path.write_bytes(data)
        path.chmod(mode)
        return str(path)

    return write


def pem(seed=NEW):
    return ed25519.Ed25519PrivateKey.from_private_bytes(seed).private_bytes(PEM, PKCS8, PLAIN)


def public_pem(seed=NEW):
    return ed25519.Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes(PEM, INFO)


def test_the_new_key_signs_and_both_verify():
    ring = KeyRing.of(HmacKey(NEW), HmacKey(OLD))
    assert ring.require_signer().id == HmacKey(NEW).id
    assert set(ring.verifiers) == {HmacKey(NEW).id, HmacKey(OLD).id}
    signature = HmacKey(OLD).sign(b"made before")
    assert ring.verifiers[HmacKey(OLD).id].verify(b"made before", signature)


def test_a_ring_may_only_verify():
    ring = KeyRing.of(None, Ed25519Key(NEW).public)
    with pytest.raises(SigningNotConfigured, match="TENSOR_WASM_SNAPSHOT_KEY"):
        ring.require_signer()
    with pytest.raises(SigningNotConfigured, match="TENSOR_WASM_SNAPSHOT_CIPHER_KEY"):
        ring.require_cipher()


def test_a_public_key_is_never_a_secret():
    public = Ed25519Key(NEW).public
    with pytest.raises(InvalidKey, match="two kinds"):
        KeyRing.of(HmacKey(public.raw), public)


def test_a_pair_and_its_public_half_are_one_key():
    ring = KeyRing.of(Ed25519Key(NEW), Ed25519Key(NEW).public)
    assert list(ring.verifiers) == [Ed25519Key(NEW).id]


def test_without_settings_the_machine_s_key_signs(configured):
    ring = configured()
    assert ring.signer.id == machine_key("snapshot").id != machine_key("code").id
    assert list(ring.verifiers) == [ring.signer.id]
    assert not ring.ciphers


def test_keys_are_read_from_text(configured):
    ring = configured(f"hmac:{NEW.hex()}", f"{OLD.hex()}, ed25519:{OTHER.hex()} ,", f"{NEW.hex()},{OLD.hex()}")
    assert ring.signer.id == HmacKey(NEW).id
    assert set(ring.verifiers) == {HmacKey(NEW).id, HmacKey(OLD).id, Ed25519Key(OTHER).id}
    assert ring.require_cipher().id == CipherKey(NEW).id
    assert list(ring.ciphers) == [CipherKey(NEW).id, CipherKey(OLD).id]
    assert configured(NEW.hex().upper()).signer.id == HmacKey(NEW).id


@pytest.mark.parametrize("form", ["raw", "hex", "pem"])
def test_keys_are_read_from_files(configured, kept, form):
    secret = kept("secret", {"raw": NEW, "hex": NEW.hex().encode() + b"\n", "pem": pem()}[form])
    raw = Ed25519Key(NEW).public.raw
    public = kept("public", {"raw": raw, "hex": raw.hex().encode(), "pem": public_pem()}[form], 0o644)
    assert configured(f"ed25519:{secret}").signer.id == Ed25519Key(NEW).id
    trusting = configured(OLD.hex(), f"ed25519-public:{public}")
    assert isinstance(trusting.verifiers[Ed25519Key(NEW).id], Ed25519PublicKey)
    if form != "pem":
        assert configured(secret).signer.id == configured(f"hmac:{secret}").signer.id == HmacKey(NEW).id
        assert configured(cipher=secret).require_cipher().id == CipherKey(NEW).id


@pytest.mark.parametrize("text", [OLD.hex()[:-1], OLD.hex() + "0", "hmac:", "ed25519:", "hmac:x\0y", "secret!" * 9])
def test_an_invalid_key_is_refused_by_its_setting_s_name_and_not_shown(configured, text):
    with pytest.raises((InvalidKey, UnsafeFile), match="TENSOR_WASM_SNAPSHOT_KEY") as caught:
        configured(text)
    assert OLD.hex()[:-1] not in str(caught.value)
    assert "secret!" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("hmac", pem()),
        ("ed25519", public_pem()),
        ("ed25519", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
        ("ed25519", ed448.Ed448PrivateKey.generate().private_bytes(PEM, PKCS8, PLAIN)),
        ("ed25519", x25519.X25519PrivateKey.generate().private_bytes(PEM, PKCS8, PLAIN)),
        (
            "ed25519",
            ed25519.Ed25519PrivateKey.generate().private_bytes(
                PEM, PKCS8, serialization.BestAvailableEncryption(b"password")
            ),
        ),
        ("ed25519", b""),
        ("hmac", b"\n" * 20000),
    ],
)
def test_a_file_with_another_kind_of_key_is_refused(configured, kept, kind, data):
    with pytest.raises((InvalidKey, UnsafeFile), match="the file that TENSOR_WASM_SNAPSHOT_KEY names"):
        configured(f"{kind}:{kept('key', data)}")


@posix
def test_a_secret_that_others_may_read_and_a_public_key_that_others_may_write_are_refused(configured, kept):
    with pytest.raises(UnsafeFile, match="chmod 600"):
        configured(kept("secret", NEW, 0o640))
    with pytest.raises(UnsafeFile, match="chmod 600"):
        configured(cipher=kept("secret", NEW, 0o604))
    with pytest.raises(UnsafeFile, match="chmod"):
        configured(trust=f"ed25519-public:{kept('public', public_pem(), 0o666)}")


def test_a_public_key_cannot_sign(configured):
    with pytest.raises(InvalidKey, match="public"):
        configured(f"ed25519-public:{Ed25519Key(NEW).public.raw.hex()}")


def test_a_cipher_key_shows_no_secret():
    assert NEW.hex() not in repr(CipherKey(NEW))
    assert repr(CipherKey(NEW).raw) not in repr(KeyRing.of(HmacKey(OLD), ciphers=[CipherKey(NEW)]))
    with pytest.raises(InvalidKey, match="32"):
        CipherKey(NEW[:31])
