"""Sealed files from memory, and under other keys."""

import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwasm.artifacts.keys import CipherKey, Ed25519Key, HmacKey, KeyRing
from tensorwasm.artifacts.sealed.blocks import BLOCK_BYTES
from tensorwasm.artifacts.sealed.header import Content
from tensorwasm.artifacts.sealed.reader import SealedFile
from tensorwasm.artifacts.sealed.writer import Sealing, renew_sealed, write_sealed
from tensorwasm.errors import Damaged, SealRefused, SigningNotConfigured, UnknownKey, Unsigned

OLD, NEW, PAIR = HmacKey(b"o" * 32), HmacKey(b"n" * 32), Ed25519Key(b"p" * 32)
FIRST, SECOND = CipherKey(b"1" * 32), CipherKey(b"2" * 32)
MODULE = b"m" * 32
PARTS = st.lists(
    st.sampled_from([b"", b"x", b"text " * 3000, bytes(BLOCK_BYTES + 5), bytes(range(256)) * 20000]), max_size=3
)


def written(parts, ring, sealing=Sealing()):  # noqa: B008 - frozen
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sealed"
        write_sealed(path, b"head", parts, ring, sealing, content=Content.SNAPSHOT, module_hash=MODULE)
        return memoryview(path.read_bytes())


def renewed(data, ring):
    file = io.BytesIO()
    done = renew_sealed(data, file, ring, content=Content.SNAPSHOT)
    if done is None:
        assert file.getvalue() == b""
        return None
    return done, memoryview(file.getvalue())


def read(data, ring):
    with SealedFile.open(data, ring, content=Content.SNAPSHOT) as sealed:
        sealed.check_content()
        return sealed.content_hash, sealed.read(0, sealed.header.content_bytes), sealed.header.module_hash


@settings(max_examples=40, deadline=None)
@given(
    parts=PARTS,
    encrypted=st.booleans(),
    level=st.sampled_from([None, 1]),
    signer=st.sampled_from([NEW, PAIR]),
)
def test_a_renewed_artifact_has_the_same_contents_under_the_new_keys_only(parts, encrypted, level, signer):
    before = KeyRing.of(OLD, ciphers=[FIRST] if encrypted else [])
    both = KeyRing.of(signer, OLD, ciphers=[SECOND, FIRST])
    after = KeyRing.of(signer, ciphers=[SECOND])
    data = written(parts, before, Sealing(level=level))
    done, new = renewed(data, both)
    assert read(new, after) == read(data, before)
    assert (done.content_hash, done.file_bytes, done.key_id) == (read(new, after)[0], len(new), signer.id)
    if not encrypted:
        assert new[256:] == data[256:]
    assert renewed(new, after) is None
    with pytest.raises(UnknownKey):
        read(new, before)


def test_an_artifact_signed_anew_under_an_old_encryption_key_is_renewed_too():
    data = written([b"x"], KeyRing.of(NEW, ciphers=[FIRST]))
    ring = KeyRing.of(NEW, ciphers=[SECOND, FIRST])
    assert read(renewed(data, ring)[1], KeyRing.of(NEW, ciphers=[SECOND]))[1] == b"headx"


@pytest.mark.parametrize("at", [0, 8, 100, 200, 256, 300, -1])
def test_renewal_signs_only_verified_artifacts(at):
    data = bytearray(written([b"text " * 3000], KeyRing.of(OLD)))
    data[at] ^= 1
    with pytest.raises(SealRefused):
        renewed(memoryview(data), KeyRing.of(NEW, OLD))


def test_untrusted_and_unsigned_files_are_not_renewed():
    with pytest.raises(UnknownKey):
        renewed(written([b"x"], KeyRing.of(OLD)), KeyRing.of(NEW))
    with pytest.raises(Unsigned):
        renewed(written([b"x"], KeyRing.of(OLD), Sealing(signed=False)), KeyRing.of(NEW, OLD))
    with pytest.raises(SigningNotConfigured):
        renewed(written([b"x"], KeyRing.of(OLD)), KeyRing.of(None, OLD))
    with pytest.raises(UnknownKey):
        renewed(written([b"x"], KeyRing.of(OLD, ciphers=[FIRST])), KeyRing.of(NEW, OLD))


@pytest.mark.parametrize("length", [0, 7, 255, 256, 300, -1])
def test_bytes_that_were_cut_are_refused(length):
    data = written([b"text " * 3000], KeyRing.of(OLD))
    with pytest.raises(SealRefused):
        read(data[:length], KeyRing.of(OLD))


def test_bytes_that_change_after_they_were_verified_are_noticed():
    ring = KeyRing.of(OLD)
    data = bytearray(written([b"text " * 3000], ring, Sealing(level=None)))
    with SealedFile.open(memoryview(data), ring, content=Content.SNAPSHOT) as sealed:
        data[data.index(b"text ", 4096)] ^= 1
        with pytest.raises(Damaged):
            sealed.read(0, 1000)
        with pytest.raises(Damaged):
            list(sealed.load_stored())


def test_closing_releases_the_bytes():
    ring = KeyRing.of(OLD)
    data = bytearray(written([b"x"], ring))
    sealed = SealedFile.open(memoryview(data), ring, content=Content.SNAPSHOT)
    with pytest.raises(BufferError):
        data.clear()
    sealed.close()
    sealed.close()
    data.clear()
    with pytest.raises(Damaged):
        sealed.read(0, 4)
