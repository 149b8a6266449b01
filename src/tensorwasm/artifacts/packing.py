"""How an artifact's bytes lie where they are kept: as they are, or as one zstd frame. Nothing else is around them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.kinds import Kind
from tensorwasm.artifacts.store import Buffer, Digest
from tensorwasm.errors import ArtifactCorrupt

LEVEL: Final = 3
WORTH: Final = 0.9
"""What is not compressed to this part of its length stays as it is: reading it costs less."""
_SAMPLE_BYTES: Final = 64 << 10
_MAX_WINDOW_BYTES: Final = 64 << 20  # of a frame that is not ours; level 3 asks for 2 MiB


def pack(kind: Kind, data: memoryview) -> tuple[str, Buffer]:
    """Return an encoding and the bytes to keep: at most as many as there are."""
    if not kind.compressed or not _promising(data):
        return "raw", data
    packed = _zstandard().ZstdCompressor(level=LEVEL).compress(data)
    return ("zstd", packed) if len(packed) <= WORTH * data.nbytes else ("raw", data)


def _promising(data: memoryview) -> bool:
    """Whether the middle of a long artifact can be compressed; a short one is just tried."""
    if data.nbytes <= 4 * _SAMPLE_BYTES:
        return data.nbytes > 0
    middle = data.nbytes // 2
    sample = data[middle : middle + _SAMPLE_BYTES]
    return len(_zstandard().ZstdCompressor(level=1).compress(sample)) <= WORTH * _SAMPLE_BYTES


def unpack(kind: Kind, encoding: str, size_bytes: int, digest: Digest, packed: Buffer) -> memoryview:
    """Return an artifact's bytes, read-only, after they were found to be those that were put.

    A frame that says it holds more than the artifact's length is refused before anything is allocated for it.

    Args:
        kind: of the artifact.
        encoding: as `pack` returned it.
        size_bytes: the artifact's length.
        digest: its hash.
        packed: what was kept; raw bytes are returned in place, not copied.

    Raises:
        ArtifactCorrupt: they are not.
    """
    if size_bytes > kind.max_bytes:
        raise ArtifactCorrupt(f"a {kind.name} of {size_bytes} bytes is kept, which no {kind.name} can have")
    data = memoryview(_DECODERS[encoding](packed, size_bytes) if encoding in _DECODERS else b"").toreadonly()
    if data.nbytes != size_bytes or blake3(data) != digest:
        raise ArtifactCorrupt(f"the bytes kept for {digest.hex()} are not those that were put")
    return data


def _as_they_are(packed: Buffer, _size_bytes: int) -> Buffer:
    return packed


def _decompress(packed: Buffer, size_bytes: int) -> Buffer:
    """Return what a frame holds if it says that it is that long, else nothing."""
    zstandard = _zstandard()
    try:
        if zstandard.get_frame_parameters(packed).content_size != size_bytes:
            return b""
        frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        return bytes(frame.decompress(packed, max_output_size=size_bytes, allow_extra_data=False))
    except zstandard.ZstdError:
        return b""


_DECODERS: Final[Mapping[str, Callable[[Buffer, int], Buffer]]] = MappingProxyType(
    {"raw": _as_they_are, "zstd": _decompress}
)


def _zstandard() -> Any:
    return importlib.import_module("zstandard")
