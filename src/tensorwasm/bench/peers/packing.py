"""Compressing with zstandard and putting that on the disk, by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

ZSTANDARD: Final = "zstandard level 3 + fsync"


def zstandard_to_disk(data: bytes, path: Path) -> Callable[[], float]:
    """Return what compresses and writes once, and answers in how many milliseconds.

    Args:
        data: to be compressed.
        path: of the file, which is replaced.
    """
    import zstandard  # noqa: PLC0415 - with what measures it

    def write() -> float:
        start = time.perf_counter_ns()
        with path.open("wb") as file:
            file.write(zstandard.ZstdCompressor(level=3).compress(data))
            file.flush()
            os.fsync(file.fileno())
        return (time.perf_counter_ns() - start) / 1e6

    return write
