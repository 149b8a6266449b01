"""What a card answered to the first straight-line programs, kept as a checksum for each register of each program.

The programs are made anew from their numbers; a digest of their text and of what they start from tells when that no
longer gives what the card ran.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MODULE = 200
"""Programs of a module."""
KEPT = 2_000
"""Programs whose answers are committed."""
FILE = Path(__file__).resolve().parents[1] / "golden" / "straight_lines.npz"


@dataclass(frozen=True, slots=True)
class Kept:
    """The committed file.

    Attributes:
        device: the card and its driver.
        texts: digest of each module and of its records.
        checksums: one for each register, ``(KEPT, registers)``.
    """

    device: str
    texts: tuple[str, ...]
    checksums: NDArray[np.uint32]

    def write(self, path: Path) -> None:
        """Write the file."""
        np.savez_compressed(
            path, device=np.array(self.device), texts=np.array(self.texts), checksums=self.checksums, allow_pickle=False
        )

    @classmethod
    def read(cls, path: Path = FILE) -> Kept:
        """Read the file."""
        with np.load(path, allow_pickle=False) as found:
            return cls(str(found["device"]), tuple(map(str, found["texts"])), found["checksums"])


def digest(text: str, given: NDArray[Any]) -> str:
    """Return what tells a module and what it starts from."""
    return hashlib.blake2b(text.encode() + given.tobytes(), digest_size=16).hexdigest()


def checksums(columns: Sequence[bytes]) -> list[int]:
    """Return the checksum of each register of one program."""
    return [zlib.crc32(column) for column in columns]
