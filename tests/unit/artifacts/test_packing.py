import os
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.packing import KINDS, find_kind, pack, unpack
from tensorwasm.errors import ArtifactCorrupt, InvalidArgs

MODULE = KINDS["module"]


@given(st.binary(max_size=2000), st.integers(1, 50), st.sampled_from(sorted(KINDS)))
def test_bytes_come_back(part, times, name):
    data = part * times
    encoding, packed = pack(KINDS[name], memoryview(data))
    assert len(packed) <= len(data)
    assert unpack(KINDS[name], encoding, len(data), blake3(data), packed) == data


def test_compressible_data_is_compressed_if_its_kind_allows():
    data = memoryview(b"text " * 100_000)
    assert pack(KINDS["kernel"], data)[0] == "zstd"
    assert pack(KINDS["code"], data) == ("raw", data)


@pytest.mark.parametrize("length", [0, 1, 10_000, 1 << 20])
def test_incompressible_data_stays_unchanged(length):
    data = memoryview(os.urandom(length))
    assert pack(MODULE, data) == ("raw", data)


def test_raw_bytes_are_not_copied():
    data = memoryview(bytes(1 << 20))
    view = unpack(KINDS["code"], "raw", data.nbytes, blake3(data), data)
    assert view.obj is data.obj


def bomb():
    """Return frames of few bytes that say, or turn out, to hold many."""
    stated = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    unstated = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 << 20))
    huge = b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + (2**63).to_bytes(8, "little") + b"\x01\x00\x00"
    window = b"\x28\xb5\x2f\xfd\x80" + bytes([0xF8]) + (10).to_bytes(4, "little") + b"\x51\x00\x00" + b"0" * 10
    return [stated, unstated, huge, window, stated[:10], stated + b"x", b"", b"\x28\xb5\x2f\xfd", *map(bytes, range(9))]


@pytest.mark.parametrize("packed", bomb(), ids=range(len(bomb())))
def test_a_decompression_bomb_allocates_nothing(packed):
    tracemalloc.start()
    try:
        with pytest.raises(ArtifactCorrupt):
            unpack(MODULE, "zstd", 10, bytes(32), packed)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_frame_that_holds_more_than_it_says_is_refused():
    frame = bytearray(zstandard.ZstdCompressor().compress(b"a" * 1000))
    at = frame.index((1000 - 256).to_bytes(2, "little"))
    frame[at : at + 2] = (300 - 256).to_bytes(2, "little")
    assert zstandard.get_frame_parameters(bytes(frame)).content_size == 300
    with pytest.raises(ArtifactCorrupt):
        unpack(MODULE, "zstd", 300, blake3(b"a" * 300), bytes(frame))


@pytest.mark.parametrize("size_bytes", [MODULE.max_bytes + 1, 1 << 62])
def test_reader_and_writer_have_the_same_cap(size_bytes):
    with pytest.raises(ArtifactCorrupt):
        unpack(MODULE, "raw", size_bytes, bytes(32), b"")


def test_unknown_encodings_and_kinds_are_refused():
    with pytest.raises(ArtifactCorrupt):
        unpack(MODULE, "brotli", 1, blake3(b"x"), b"x")
    with pytest.raises(InvalidArgs, match="module, code"):
        find_kind("tarball")
