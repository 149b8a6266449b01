import dataclasses
import os

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed448, ed25519, x25519

from tensorwasm import settings
from tensorwasm.artifacts.keys import Ed25519Key, Ed25519PublicKey, HmacKey, machine_key
from tensorwasm.artifacts.ring import CipherKey, KeyRing
from tensorwasm.errors import InvalidKey, SigningNotConfigured, UnsafeFile

OLD, NEW, OTHER = (bytes([n]) * 32 for n in (1, 2, 3))
PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()
PKCS8 = serialization.PrivateFormat.PKCS8
INFO = serialization.PublicFormat.SubjectPublicKeyInfo

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")


@pytest.fixture
def given(tmp_path, monkeypatch):
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


def test_nothing_set_signs_with_the_machines_own(given):
    ring = given()
    assert ring.signer.id == machine_key("snapshot").id != machine_key("code").id
    assert list(ring.verifiers) == [ring.signer.id]
    assert not ring.ciphers


def test_keys_as_text(given):
    ring = given(f"hmac:{NEW.hex()}", f"{OLD.hex()}, ed25519:{OTHER.hex()} ,", f"{NEW.hex()},{OLD.hex()}")
    assert ring.signer.id == HmacKey(NEW).id
    assert set(ring.verifiers) == {HmacKey(NEW).id, HmacKey(OLD).id, Ed25519Key(OTHER).id}
    assert ring.require_cipher().id == CipherKey(NEW).id
    assert list(ring.ciphers) == [CipherKey(NEW).id, CipherKey(OLD).id]
    assert given(NEW.hex().upper()).signer.id == HmacKey(NEW).id


@pytest.mark.parametrize("form", ["raw", "hex", "pem"])
def test_keys_in_files(given, kept, form):
    secret = kept("secret", {"raw": NEW, "hex": NEW.hex().encode() + b"\n", "pem": pem()}[form])
    raw = Ed25519Key(NEW).public.raw
    public = kept("public", {"raw": raw, "hex": raw.hex().encode(), "pem": public_pem()}[form], 0o644)
    assert given(f"ed25519:{secret}").signer.id == Ed25519Key(NEW).id
    trusting = given(OLD.hex(), f"ed25519-public:{public}")
    assert isinstance(trusting.verifiers[Ed25519Key(NEW).id], Ed25519PublicKey)
    if form != "pem":
        assert given(secret).signer.id == given(f"hmac:{secret}").signer.id == HmacKey(NEW).id
        assert given(cipher=secret).require_cipher().id == CipherKey(NEW).id


@pytest.mark.parametrize("text", [OLD.hex()[:-1], OLD.hex() + "0", "hmac:", "ed25519:", "hmac:x\0y", "secret!" * 9])
def test_what_is_no_key_is_refused_by_its_setting_and_not_shown(given, text):
    with pytest.raises((InvalidKey, UnsafeFile), match="TENSOR_WASM_SNAPSHOT_KEY") as caught:
        given(text)
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
def test_a_file_with_another_kind_of_key_is_refused(given, kept, kind, data):
    with pytest.raises((InvalidKey, UnsafeFile), match="the file that TENSOR_WASM_SNAPSHOT_KEY names"):
        given(f"{kind}:{kept('key', data)}")


@posix
def test_a_secret_that_others_may_read_and_a_public_key_that_others_may_write_are_refused(given, kept):
    with pytest.raises(UnsafeFile, match="chmod 600"):
        given(kept("secret", NEW, 0o640))
    with pytest.raises(UnsafeFile, match="chmod 600"):
        given(cipher=kept("secret", NEW, 0o604))
    with pytest.raises(UnsafeFile, match="chmod"):
        given(trust=f"ed25519-public:{kept('public', public_pem(), 0o666)}")


def test_a_public_key_cannot_sign(given):
    with pytest.raises(InvalidKey, match="public"):
        given(f"ed25519-public:{Ed25519Key(NEW).public.raw.hex()}")


def test_a_cipher_key_shows_no_secret():
    assert NEW.hex() not in repr(CipherKey(NEW))
    assert repr(CipherKey(NEW).secret) not in repr(KeyRing.of(HmacKey(OLD), ciphers=[CipherKey(NEW)]))
    with pytest.raises(InvalidKey, match="32"):
        CipherKey(NEW[:31])
