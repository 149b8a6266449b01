"""The hash by which everything that is stored is known."""

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
    """Return a hasher with ``update(data)`` and ``digest()``, which has taken some bytes already.

    With more threads an update of a megabyte or more is hashed by several.
    """
    return importlib.import_module("blake3").blake3(data, max_threads=threads)
