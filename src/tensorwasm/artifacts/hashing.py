"""The hash that identifies everything that is stored."""

from __future__ import annotations

import importlib
from typing import Any, Final

HASH_BYTES: Final = 32


def blake3(data: bytes | bytearray | memoryview) -> bytes:
    """Return the BLAKE3 hash of some bytes: 32 bytes.

    Source: "BLAKE3: one function, fast everywhere", O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020.
    """
    return bytes(hasher(data).digest())


def hasher(data: bytes | bytearray | memoryview = b"", *, threads: int = 1) -> Any:
    """Return a hasher with ``update(data)`` and ``digest()``; more threads hash updates of a megabyte or more."""
    return importlib.import_module("blake3").blake3(data, max_threads=threads)
