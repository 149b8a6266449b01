"""The kinds of artifacts, and how their bytes are stored: as they are, or as one bare zstd frame."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.values import Buffer, Digest
from tensorwasm.errors import ArtifactCorrupt, InvalidArgs
from tensorwasm.values import MIB

LEVEL: Final = 3
WORTH: Final = 0.9
"""What is not compressed to this part of its length is stored as it is: reading it costs less."""
_SAMPLE_BYTES: Final = 64 << 10
_MAX_WINDOW_BYTES: Final = 64 << 20  # of a frame that is not ours; level 3 needs 2 MiB


@dataclass(frozen=True, slots=True)
class ArtifactKind:
    """A kind of artifact: its longest length, and whether it is compressed when that makes it smaller.

    What is mapped and run, or compressed already, is stored as it is.
    """

    name: str
    max_bytes: int
    compressed: bool


KINDS: Final[Mapping[str, ArtifactKind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            ArtifactKind("module", 256 * MIB, compressed=True),
            ArtifactKind("code", 1024 * MIB, compressed=False),
            ArtifactKind("image", 16384 * MIB, compressed=False),
            ArtifactKind("kernel", 16 * MIB, compressed=True),
            ArtifactKind("cubin", 64 * MIB, compressed=True),
            ArtifactKind("snapshot", 16384 * MIB, compressed=False),
        )
    }
)


def find_kind(name: str) -> ArtifactKind:
    """Return a kind; InvalidArgs if there is none of that name."""
    if name not in KINDS:
        raise InvalidArgs(f"an artifact is one of {', '.join(KINDS)}, not {str(name)[:32]!r}")
    return KINDS[name]


def pack(kind: ArtifactKind, data: memoryview) -> tuple[str, Buffer]:
    """Return an encoding and the bytes to store, at most as many as given."""
    if not kind.compressed or not _is_promising(data):
        return "raw", data
    packed = _zstandard().ZstdCompressor(level=LEVEL).compress(data)
    return ("zstd", packed) if len(packed) <= WORTH * data.nbytes else ("raw", data)


def _is_promising(data: memoryview) -> bool:
    """Whether the middle of a long artifact can be compressed; a short one is worth the attempt."""
    if data.nbytes <= 4 * _SAMPLE_BYTES:
        return data.nbytes > 0
    middle = data.nbytes // 2
    sample = data[middle : middle + _SAMPLE_BYTES]
    return len(_zstandard().ZstdCompressor(level=1).compress(sample)) <= WORTH * _SAMPLE_BYTES


def unpack(kind: ArtifactKind, encoding: str, size_bytes: int, digest: Digest, packed: Buffer) -> memoryview:
    """Return an artifact's bytes, read-only, after verifying length and hash, ArtifactCorrupt otherwise.

    A frame that declares another length is refused before anything is allocated for it. Raw bytes are not copied.
    """
    if size_bytes > kind.max_bytes:
        raise ArtifactCorrupt(f"a {kind.name} of {size_bytes} bytes is stored, longer than any {kind.name}")
    data = packed if encoding == "raw" else _decompress(packed, size_bytes) if encoding == "zstd" else b""
    view = memoryview(data).toreadonly()
    if view.nbytes != size_bytes or blake3(view) != digest:
        raise ArtifactCorrupt(f"the bytes stored for {digest.hex()} are not those that were put")
    return view


def _decompress(packed: Buffer, size_bytes: int) -> bytes:
    """Return the content of a frame that declares this length; nothing if it does not."""
    zstandard = _zstandard()
    with suppress(zstandard.ZstdError):
        if zstandard.get_frame_parameters(packed).content_size == size_bytes:
            frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
            return bytes(frame.decompress(packed, max_output_size=size_bytes, allow_extra_data=False))
    return b""


def _zstandard() -> Any:
    return importlib.import_module("zstandard")
