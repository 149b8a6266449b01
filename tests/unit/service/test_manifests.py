"""Manifests of kernels: signed, verified, and never two of them under one signature."""

import hashlib
import hmac
import struct
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.keys import HmacKey
from tensorwasm.errors import BadSignature, DigestMismatch, InvalidName, InvalidRequest, MalformedPtx
from tensorwasm.ptx import MAX_PTX_BYTES
from tensorwasm.service.kernels.manifests import (
    MAX_UNIX_MS,
    Manifest,
    check_manifest,
    check_text,
    envelope_1,
    envelope_2,
    require_digest,
    sign_manifest,
    verify_manifest,
)

KEY = HmacKey(b"k" * 32)
_characters = st.characters(categories=("L", "N", "P", "S"), exclude_characters="/")
_names = st.text(_characters, min_size=1, max_size=12).filter(lambda name: name.strip("."))
MANIFESTS = st.builds(
    Manifest,
    name=_names,
    version=_names,
    sm_version=st.integers(1, 9999),
    digest=st.binary(min_size=32, max_size=32),
    publisher=st.one_of(st.just(""), _names),
    published_unix_ms=st.integers(0, MAX_UNIX_MS),
)
ANY = st.builds(
    Manifest,
    name=st.text(max_size=4),
    version=st.text(max_size=4),
    sm_version=st.integers(0, 1 << 31),
    digest=st.binary(min_size=32, max_size=32),
    publisher=st.text(max_size=4),
    published_unix_ms=st.integers(0, 1 << 63),
)


@given(MANIFESTS)
def test_a_signature_verifies_under_its_own_key_only(manifest):
    signed = sign_manifest(manifest, KEY)
    assert verify_manifest(signed, KEY, whole=True) == 2
    with pytest.raises(BadSignature):
        verify_manifest(signed, HmacKey(b"l" * 32))


@given(MANIFESTS, MANIFESTS)
def test_no_field_can_be_changed(manifest, other):
    signed = sign_manifest(manifest, KEY)
    for field in fields(Manifest):
        if field.name != "signature" and getattr(other, field.name) != getattr(manifest, field.name):
            with pytest.raises(BadSignature):
                verify_manifest(replace(signed, **{field.name: getattr(other, field.name)}), KEY)
    for at in range(32):
        damaged = bytearray(signed.signature)
        damaged[at] ^= 1
        with pytest.raises(BadSignature):
            verify_manifest(replace(signed, signature=bytes(damaged)), KEY)


@given(ANY, ANY)
def test_different_manifests_have_different_second_envelopes(one, two):
    try:
        same = envelope_2(one) == envelope_2(two)
    except UnicodeEncodeError:  # such texts are refused before
        return
    assert same == (one == two)


def test_the_first_envelope_is_the_original_s_and_is_ambiguous_where_there_is_a_nul():
    manifest = Manifest(name="n", version="v", sm_version=90, digest=b"d" * 32, publisher="p")
    expected = hmac.new(b"k" * 32, b"n\0v\0" + struct.pack("<I", 90) + b"d" * 32, hashlib.sha256).digest()
    old = replace(manifest, signature=expected)
    assert KEY.sign(envelope_1(manifest)) == expected
    assert verify_manifest(old, KEY) == 1
    assert verify_manifest(replace(old, publisher="anybody"), KEY) == 1
    with pytest.raises(BadSignature):
        verify_manifest(old, KEY, whole=True)
    one = Manifest(name="a\0b", version="c", sm_version=90, digest=b"d" * 32)
    two = Manifest(name="a", version="b\0c", sm_version=90, digest=b"d" * 32)
    assert envelope_1(one) == envelope_1(two)
    for each in (one, two):
        with pytest.raises(BadSignature):
            verify_manifest(replace(each, signature=KEY.sign(envelope_1(each))), KEY)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        *(
            ("name", text, InvalidName)
            for text in ("", " ", "a\0b", "a\nb", "a\x1bb", "é" * 128, "\ud800", "a/b", ".", "..")
        ),
        ("version", "", InvalidName),
        ("publisher", "\u202e", InvalidName),
        ("sm_version", 0, InvalidRequest),
        ("sm_version", 10_000, InvalidRequest),
        ("published_unix_ms", -1, InvalidRequest),
        ("published_unix_ms", 1 << 63, InvalidRequest),
        ("digest", b"d" * 31, InvalidRequest),
        ("signature", b"s" * 31, InvalidRequest),
    ],
)
def test_invalid_manifests_are_refused(field, value, error):
    good = Manifest(name="n", version="v", sm_version=90, digest=b"d" * 32)
    check_manifest(good)
    with pytest.raises(error):
        check_manifest(replace(good, **{field: value}))


def test_texts_and_their_digests():
    manifest = Manifest(name="n", version="v", sm_version=90, digest=blake3(b".version 7.0"))
    require_digest(manifest, check_text(".version 7.0"))
    with pytest.raises(DigestMismatch):
        require_digest(manifest, b".version 7.1")
    for text in ("é", "x" * (MAX_PTX_BYTES + 1), "\ud800"):
        with pytest.raises(MalformedPtx):
            check_text(text)
