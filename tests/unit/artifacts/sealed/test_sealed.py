import dataclasses
import os
import struct
import tempfile
import threading
import time
import tracemalloc
from contextlib import contextmanager
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.keys import Algorithm, CipherKey, Ed25519Key, HmacKey, KeyRing
from tensorwasm.artifacts.sealed import blocks, header, reader
from tensorwasm.artifacts.sealed.blocks import BLOCK_BYTES, MAX_THREADS, count_threads, map_in_order
from tensorwasm.artifacts.sealed.header import Content
from tensorwasm.artifacts.sealed.reader import SealedFile
from tensorwasm.artifacts.sealed.writer import Sealing, write_sealed
from tensorwasm.errors import (
    Damaged,
    InvalidArgs,
    NotSealed,
    SealRefused,
    SignatureInvalid,
    SigningNotConfigured,
    TooLarge,
    UnknownKey,
    UnknownVersion,
    Unsigned,
    WrongContent,
    WrongKeyKind,
    WrongModule,
)

SECRET = bytes(range(32))
HMAC, PAIR, CIPHER = HmacKey(SECRET), Ed25519Key(SECRET), CipherKey(SECRET)
RINGS = {
    "hmac": KeyRing.of(HMAC),
    "ed25519": KeyRing.of(PAIR),
    "encrypted": KeyRing.of(HMAC, ciphers=[CIPHER]),
}
RING = RINGS["hmac"]
MODULE = b"m" * 32
HEAD, REST = b"head" * 9, (b"rest of it" * 20, b"\0" * 50)
PLAIN = Sealing(level=None, threads=1)


def write(path, ring=RING, sealing=Sealing(threads=1), head=HEAD, rest=REST, module_hash=MODULE):  # noqa: B008 - frozen
    return write_sealed(path, head, rest, ring, sealing, content=Content.SNAPSHOT, module_hash=module_hash)


def open_(path, ring=RING, **options):
    return SealedFile.open(path, ring, content=Content.SNAPSHOT, **{"module_hash": MODULE, "threads": 1} | options)


def content_of(path, ring=RING, **options):
    with open_(path, ring, **options) as sealed:
        return sealed.read(0, sealed.header.content_bytes)


def forge(path, key=HMAC, **fields):
    """Sign a header that says something else."""
    data = path.read_bytes()
    with open_(path, module_hash=None) as sealed:
        changed = dataclasses.replace(sealed.header, **fields)
    path.write_bytes(changed.sign(key) + data[header.HEADER_BYTES :])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sealed"


@pytest.fixture
def untouched(monkeypatch):
    """From its call on, make whatever decrypts, decompresses or parses fail the test."""

    def touched(*_):
        raise AssertionError("something was read before it was verified")

    def arm():
        monkeypatch.setattr(blocks, "_decompress", touched)
        monkeypatch.setattr(blocks, "_zstd", touched)
        monkeypatch.setattr(blocks.Coder, "decrypt", touched)
        monkeypatch.setattr(reader, "_read_directory", touched)

    return arm


@contextmanager
def changed(path, at, byte):
    """Change a byte of a file in place, for a while."""
    with path.open("r+b", buffering=0) as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ byte]))
        try:
            yield
        finally:
            file.seek(at)
            file.write(old)


@given(
    head=st.binary(max_size=50),
    rest=st.lists(st.binary(max_size=300), max_size=4),
    ring=st.sampled_from(sorted(RINGS)),
    level=st.none() | st.integers(1, 4),
    data=st.data(),
)
def test_sealed_data_is_read_back(head, rest, ring, level, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sealed"
        digest = write(path, RINGS[ring], Sealing(level), head, rest)
        whole = head + b"".join(rest)
        with open_(path, RINGS[ring]) as sealed:
            assert (sealed.header.head_bytes, sealed.header.content_bytes) == (len(head), len(whole))
            assert sealed.content_hash == digest.content_hash
            assert sealed.file_bytes == digest.file_bytes == path.stat().st_size
            start = data.draw(st.integers(0, len(whole)))
            length = data.draw(st.integers(0, len(whole) - start))
            assert sealed.read(start, length) == whole[start : start + length]
            sealed.check_content()
            for bad in ((0, len(whole) + 1), (-1, 1), (len(whole), 1)):
                with pytest.raises(IndexError):
                    sealed.read(*bad)


@given(st.lists(st.integers(0, 3 * BLOCK_BYTES // 2), max_size=5))
@settings(max_examples=20)
def test_blocks_are_cut_without_loss(lengths):
    content = memoryview(bytes(sum(lengths)))
    ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    parts = [content[a:b] for a, b in pairwise(ends)]
    found = [sum(map(len, block)) for block in blocks.cut(parts)]
    assert sum(found) == len(content)
    assert all(size == BLOCK_BYTES for size in found[:-1])
    assert all(0 < size <= BLOCK_BYTES for size in found)


@pytest.mark.parametrize("ring", RINGS)
@pytest.mark.parametrize("level", [None, 3])
def test_a_flipped_byte_is_refused_before_anything_is_read(path, untouched, ring, level):
    write(path, RINGS[ring], Sealing(level))
    untouched()
    for at in range(path.stat().st_size):
        with changed(path, at, 1 << at % 8), pytest.raises(SealRefused):
            open_(path, RINGS[ring])
    with pytest.raises(AssertionError):  # the spies see what is verified
        open_(path, RINGS[ring])


@pytest.mark.parametrize("ring", RINGS)
def test_a_cut_or_longer_file_is_refused_before_anything_is_read(path, untouched, ring):
    write(path, RINGS[ring])
    untouched()
    good = path.read_bytes()
    for end in reversed(range(len(good))):
        os.truncate(path, end)
        with pytest.raises(SealRefused):
            open_(path, RINGS[ring])
    for at in (0, 8, 191, 192, 255, 256, len(good) - 1, len(good)):
        for extra in (b"\0", b"\x01", good):
            path.write_bytes(good[:at] + extra + good[at:])
            with pytest.raises(SealRefused):
                open_(path, RINGS[ring])


@pytest.mark.parametrize("encrypted", [False, True])
def test_damage_shows_without_a_signature_too(path, untouched, encrypted):
    ring = KeyRing.of(None, ciphers=[CIPHER])
    write(path, ring, Sealing(signed=False, encrypted=encrypted))
    untouched()
    for at in range(path.stat().st_size):
        with changed(path, at, 0x10), pytest.raises(SealRefused):
            open_(path, ring, allow_unsigned=True)


def test_unsigned_files_are_written_and_accepted_only_if_asked_for(path):
    with pytest.raises(SigningNotConfigured):
        write(path, KeyRing.of(None))
    assert not path.exists()
    write(path, KeyRing.of(None), Sealing(signed=False))
    with pytest.raises(Unsigned):
        open_(path)
    with pytest.raises(Unsigned):
        open_(path, KeyRing.of(None))
    assert content_of(path, allow_unsigned=True) == HEAD + b"".join(REST)


def test_a_signature_cannot_be_taken_off(path):
    write(path)
    with open_(path) as sealed:
        bare = dataclasses.replace(sealed.header, algorithm=None, key_id="").sign(None)
    path.write_bytes(bare + path.read_bytes()[header.HEADER_BYTES :])
    with pytest.raises(Unsigned):
        open_(path)


@pytest.mark.parametrize("ring", RINGS)
def test_another_key_is_unknown(path, untouched, ring):
    write(path, RINGS[ring])
    untouched()
    for other in (KeyRing.of(None), KeyRing.of(HmacKey(b"x" * 32)), KeyRing.of(Ed25519Key(b"x" * 32))):
        with pytest.raises(UnknownKey):
            open_(path, other)


def test_a_key_of_another_kind_is_refused(path, untouched):
    write(path)
    with changed(path, 14, Algorithm.HMAC_SHA256 ^ Algorithm.ED25519), pytest.raises(WrongKeyKind):
        open_(path)
    # The secret of one who has only the public key: signed by HMAC with what everybody knows.
    public = HmacKey(PAIR.public.raw)
    write(path, KeyRing.of(public))
    assert public.id == PAIR.id
    untouched()
    with pytest.raises(WrongKeyKind):
        open_(path, KeyRing.of(None, PAIR.public))


def test_a_signature_by_another_key_of_that_id_is_invalid(path):
    write(path)
    data = path.read_bytes()
    signature = HmacKey(b"x" * 32).sign(data[: header.SIGNED_BYTES])
    path.write_bytes(data[: header.SIGNED_BYTES] + signature + data[header.SIGNED_BYTES + 32 :])
    with pytest.raises(SignatureInvalid):
        open_(path)


def test_keys_are_rotated(path, tmp_path):
    old, new = HmacKey(b"o" * 32), Ed25519Key(b"n" * 32)
    both = KeyRing.of(new, old, ciphers=[CipherKey(b"2" * 32), CipherKey(b"1" * 32)])
    write(path, KeyRing.of(old, ciphers=[CipherKey(b"1" * 32)]))
    later = tmp_path / "later"
    write(later, both)
    assert content_of(path, both) == content_of(later, both)
    with open_(later, both) as sealed:
        assert (sealed.header.key_id, sealed.header.cipher_id) == (new.id, CipherKey(b"2" * 32).id)
    after = KeyRing.of(new, ciphers=[CipherKey(b"2" * 32)])
    assert content_of(later, after)
    with pytest.raises(UnknownKey, match=old.id):
        open_(path, after)
    with pytest.raises(UnknownKey, match="encrypted"):
        open_(later, KeyRing.of(new, old))


def test_another_version_module_or_content_is_named(path, untouched):
    write(path)
    untouched()
    with pytest.raises(WrongModule, match=MODULE.hex()):
        open_(path, module_hash=b"n" * 32)
    with pytest.raises(WrongContent):
        SealedFile.open(path, RING, content=_Other.CODE, module_hash=MODULE)
    good = path.read_bytes()
    for version in (0, 2, 65535):
        path.write_bytes(good[:8] + struct.pack("<H", version) + good[10:])
        with pytest.raises(UnknownVersion, match=str(version)):
            open_(path)


class _Other(IntEnum):
    CODE = 2


def test_a_file_can_be_verified_without_the_cipher_key(path):
    write(path, RINGS["encrypted"])
    assert b"rest of it" not in path.read_bytes()
    with pytest.raises(UnknownKey, match=CIPHER.id):
        open_(path)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(Damaged):
        open_(path)


def test_encrypted_files_reveal_nothing_of_their_content(path, tmp_path):
    ring, again = RINGS["encrypted"], tmp_path / "again"
    zeros = bytes(40_000)
    one, two = write(path, ring, PLAIN, rest=[zeros]), write(again, ring, PLAIN, rest=[zeros])
    assert one.content_hash == two.content_hash
    assert one.content_hash not in path.read_bytes() + again.read_bytes()
    assert blake3(HEAD) not in path.read_bytes()
    body, other = (p.read_bytes()[header.HEADER_BYTES :] for p in (path, again))
    assert sum(a == b for a, b in zip(body, other, strict=True)) < len(body) / 32
    assert content_of(path, ring) == content_of(again, ring)


def test_encrypted_parts_belong_to_one_file(path):
    ring = KeyRing.of(None, ciphers=[CIPHER])
    write(path, ring, Sealing(signed=False))
    with open_(path, ring, allow_unsigned=True) as sealed:
        moved = dataclasses.replace(sealed.header, module_hash=b"n" * 32)
    path.write_bytes(moved.sign(None) + path.read_bytes()[header.HEADER_BYTES :])
    with pytest.raises(Damaged):
        open_(path, ring, allow_unsigned=True, module_hash=b"n" * 32)


def test_a_ring_with_a_cipher_key_encrypts_by_default(path):
    write(path, RINGS["encrypted"], Sealing(encrypted=False))
    assert content_of(path) == HEAD + b"".join(REST)
    with pytest.raises(SigningNotConfigured):
        write(path, RING, Sealing(encrypted=True))


def quickly(use, error):
    """Check that something is refused in milliseconds and next to no memory."""
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(error):
        use()
    took_s, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took_s < 0.5
    assert peak < 1 << 20


@pytest.mark.parametrize("field", ["content_bytes", "head_bytes", "directory_bytes", "body_bytes"])
@pytest.mark.parametrize("value", [1 << 62, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("key", [HMAC, HmacKey(b"x" * 32)], ids=["signed", "forged"])
def test_huge_sizes_allocate_nothing(path, field, value, key):
    write(path)
    forge(path, key, **{field: value})
    quickly(lambda: open_(path), (TooLarge, SealRefused))


@pytest.mark.parametrize("fields", [
    {"content_bytes": 1 << 30},
    {"head_bytes": 1 << 26, "content_bytes": 1 << 30},
    {"directory_bytes": 5 << 20},
    {"directory_bytes": 1},
    {"directory_bytes": 88},
    {"body_bytes": 1 << 30},
    {"head_bytes": len(HEAD) - 1},
    {"content_hash": bytes(32)},
    {"salt": b"s" * 32},
    {"body_hash": bytes(32)},
])  # fmt: skip
def test_signed_contradictions_are_refused(path, fields):
    write(path)
    forge(path, **fields)
    quickly(lambda: open_(path), SealRefused)


@pytest.mark.parametrize("at", range(8, 16))
def test_signed_numbers_without_meaning_are_refused(path, at):
    write(path)
    data = bytearray(path.read_bytes())
    data[at] = 0x7F
    data[header.SIGNED_BYTES : header.SIGNED_BYTES + 32] = HMAC.sign(bytes(data[: header.SIGNED_BYTES]))
    path.write_bytes(data)
    with pytest.raises(SealRefused):
        open_(path)


ENTRIES = {
    "a block without length": {"raw_bytes": 0},
    "a block without end": {"raw_bytes": (1 << 32) - 1},
    "no such codec": {"codec": 3},
    "bytes before the body": {"at_bytes": 0},
    "bytes beyond the body": {"at_bytes": 1 << 62},
    "bytes far beyond": {"at_bytes": (1 << 64) - 1},
    "too many bytes": {"stored_bytes": (1 << 32) - 1},
    "no bytes": {"stored_bytes": 0},
    "zeros that are stored": {"codec": 2},
    "compressed and not smaller": {"codec": 1},
    "another content": {"content_hash": bytes(32)},
}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_signed_directory_that_contradicts_itself_is_refused(path, monkeypatch, name):
    pack = blocks.ENTRY.pack

    class Entry:
        @staticmethod
        def pack(*fields):
            return pack(*blocks.BlockEntry(*fields)._replace(**ENTRIES[name]))

    with monkeypatch.context() as patch:
        patch.setattr("tensorwasm.artifacts.sealed.writer.ENTRY", Entry)
        if name == "another content":
            patch.setattr("tensorwasm.artifacts.sealed.writer.hash_content", lambda *_: b"x" * 32)
        write(path, sealing=PLAIN, rest=())
    quickly(lambda: open_(path), NotSealed)


def bomb(length):
    return blocks._zstd().ZstdCompressor(level=3).compress(bytes(length))


@pytest.mark.parametrize("frame", [
    bomb(256 << 20), bomb(5000), bomb(10), b"", b"\0" * 40, b"no frame at all!", bomb(100)[:-3],
], ids=["huge", "large", "short", "empty", "zeros", "text", "cut"])  # fmt: skip
def test_a_signed_bomb_fills_no_more_than_its_block(path, monkeypatch, frame):
    rest = b"ab" * 10_000
    with monkeypatch.context() as patch:
        patch.setattr(blocks.Coder, "_compress", lambda *_: (blocks.Codec.ZSTD, frame))
        write(path, head=b"", rest=[rest])
    quickly(lambda: content_of(path), SealRefused)


def test_a_huge_decompression_window_is_refused(path, monkeypatch):
    parameters = blocks._zstd().ZstdCompressionParameters(window_log=27, compression_level=1)
    packer = blocks._zstd().ZstdCompressor(compression_params=parameters).compressobj()
    frame = packer.compress(b"ab" * 10_000) + packer.flush()
    with monkeypatch.context() as patch:
        patch.setattr(blocks.Coder, "_compress", lambda *_: (blocks.Codec.ZSTD, frame))
        write(path, head=b"", rest=[b"ab" * 10_000])
    quickly(lambda: content_of(path), Damaged)


@pytest.mark.parametrize("level", [None, 3])
def test_a_file_that_changes_after_it_was_verified_is_an_error(path, level):
    rest = os.urandom(1000) + bytes(5000)
    write(path, sealing=Sealing(level), head=b"", rest=[rest])
    with open_(path) as sealed:
        good = path.read_bytes()
        at = sealed._blocks[0].at_bytes
        with path.open("r+b") as file:
            file.seek(at + 100)
            file.write(bytes([good[at + 100] ^ 1]))
        with pytest.raises(Damaged, match="while it was read"):
            sealed.read(0, len(rest))
        os.truncate(path, at + 10)
        with pytest.raises(Damaged, match="cut"):
            sealed.read(0, len(rest))


def test_a_faulty_writer_is_found_by_the_last_check(path, monkeypatch):
    encode = blocks.Coder.encode

    def lie(self, index, parts):
        block, stored = encode(self, index, parts)
        return block._replace(content_hash=blake3(b"something else")), stored

    with monkeypatch.context() as patch:
        patch.setattr(blocks.Coder, "encode", lie)
        write(path)
    with open_(path) as sealed, pytest.raises(Damaged, match="another content"):
        sealed.check_content()


def test_writer_and_reader_keep_the_same_caps(path, monkeypatch):
    rest = [b"x" * (1000 - len(HEAD))]
    for cap, least in (("MAX_CONTENT_BYTES", 1000), ("MAX_HEAD_BYTES", len(HEAD))):
        with monkeypatch.context() as patch:
            patch.setattr(header, cap, least)
            write(path, rest=rest)
            assert len(content_of(path)) == 1000
            patch.setattr(header, cap, least - 1)
            with pytest.raises(TooLarge):
                open_(path)
            path.unlink()
            with pytest.raises(TooLarge):
                write(path, rest=rest)
            assert not path.exists()


@given(st.integers(0, 5 * 64), st.integers(0, 3 * 64), st.booleans())
def test_no_content_within_its_cap_makes_a_file_beyond_it(size, head, encrypted):
    # With blocks of 64 bytes and random content, which does not shrink.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(blocks, "BLOCK_BYTES", 64)
        path, ring = Path(folder) / "sealed", RINGS["encrypted" if encrypted else "hmac"]
        digest = write(path, ring, head=os.urandom(head), rest=[os.urandom(size)])
        most = (head + size) // 64 + 2
        slack = most * (header.TAG_BYTES + header.PAGE_BYTES + header.ENTRY_BYTES) + header.TAG_BYTES
        assert digest.file_bytes <= header.HEADER_BYTES + head + size + slack
    assert header.MAX_BLOCKS == header.MAX_CONTENT_BYTES // BLOCK_BYTES + 2


def test_zeros_and_what_was_there_already_are_not_stored(path):
    random = os.urandom(BLOCK_BYTES)
    rest = [bytes(3 * BLOCK_BYTES), random, random, random, b"\0" * 100]
    digest = write(path, sealing=Sealing(), rest=rest)
    assert digest.file_bytes < BLOCK_BYTES + 20_000
    assert content_of(path, threads=2) == HEAD + b"".join(rest)
    encrypted = write(path, RINGS["encrypted"], rest=rest)
    assert encrypted.file_bytes > 3 * BLOCK_BYTES  # equal blocks show nothing
    assert content_of(path, RINGS["encrypted"], threads=2) == HEAD + b"".join(rest)


def test_uncompressed_parts_are_aligned_to_pages(path):
    write(path, rest=[os.urandom(2 * BLOCK_BYTES)])
    with open_(path) as sealed:
        raw = [block for block in sealed._blocks if block.codec == blocks.Codec.RAW]
        assert len(raw) == 2
        assert all(block.at_bytes % 4096 == 0 for block in raw)


def test_a_path_that_is_not_a_file_is_refused_at_once(tmp_path, path):
    with pytest.raises((SealRefused, OSError)):
        open_(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(NotSealed):
            open_(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        open_(path)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(400))
    with pytest.raises(NotSealed):
        open_(path)
    with path.open("wb") as file:
        file.truncate(header.MAX_FILE_BYTES + 1)  # sparse
    quickly(lambda: open_(path), TooLarge)


def test_no_descriptor_is_left_behind(path):
    write(path)
    good = path.read_bytes()
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc").exists() else 0
    for at in (0, 20, 100, 200, 300, len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(SealRefused):
            open_(path)
    assert (len(list(Path("/proc/self/fd").iterdir())) if Path("/proc").exists() else 0) == before


def test_threads_take_turns_on_files_without_reads_at_an_offset(path, monkeypatch):
    content = os.urandom(1 << 20) * 13
    write(path, rest=[content], sealing=Sealing(threads=3))
    monkeypatch.delattr(os, "preadv", raising=False)
    assert content_of(path, threads=3) == HEAD + content


@pytest.mark.parametrize("level", [0, -1, 23])
def test_a_level_is_one_of_zstds(level):
    with pytest.raises(InvalidArgs):
        Sealing(level=level)


def test_extents_go_where_they_belong_from_any_number_of_threads(path):
    content = os.urandom(1 << 20) * 9 + os.urandom(12345)
    write(path, head=b"", rest=[content], sealing=Sealing(threads=3))
    for threads in (1, 3):
        with open_(path, threads=threads) as sealed:
            into = bytearray(len(content))
            view = memoryview(into)
            cuts = [0, 5, 4096, BLOCK_BYTES - 1, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 7, len(content)]
            sealed.read_into((a, view[a:b]) for a, b in pairwise(cuts))
            assert into == content


@given(st.lists(st.integers(), max_size=40), st.integers(1, 5))
def test_results_come_in_order(items, threads):
    assert list(map_in_order(lambda n: n * 2, items, threads)) == [n * 2 for n in items]


def test_an_error_ends_the_rest():
    done = []
    gate = threading.Barrier(2, timeout=10)

    def work(n):
        if n < 2:
            gate.wait()
        if n == 0:
            raise KeyError(n)
        done.append(n)

    with pytest.raises(KeyError):
        list(map_in_order(work, range(1000), 2))
    assert len(done) < 100


def test_threads_are_bounded():
    assert [count_threads(n, 1 << 30) for n in (-1, 0, 1, 3, 10**9)] == [1, 1, 1, 3, MAX_THREADS]
    assert 1 <= count_threads(None, 1 << 30) <= MAX_THREADS
    assert count_threads(3, BLOCK_BYTES) == 1
