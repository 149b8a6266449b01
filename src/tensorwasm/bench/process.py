"""What this process holds, as Linux tells it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwasm.errors import InternalError

_SELF: Final = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Holdings:
    """A snapshot.

    Attributes:
        resident_bytes: memory.
        descriptors: open files.
        mappings: ranges of the address space.
    """

    resident_bytes: int
    descriptors: int
    mappings: int

    @classmethod
    def read(cls) -> Holdings:
        """Return what there is now.

        Raises:
            InternalError: the system does not tell.
        """
        try:
            descriptors = len(os.listdir(_SELF / "fd")) - 1  # noqa: PTH208 - names are enough; one is this listing's own
            return cls(resident_bytes(), descriptors, (_SELF / "maps").read_bytes().count(b"\n"))
        except OSError:
            raise InternalError("only Linux tells what a process holds") from None


def resident_bytes() -> int:
    """Return how much memory is resident.

    Raises:
        InternalError: the system does not tell.
    """
    try:
        pages = int((_SELF / "statm").read_text().split()[1])
    except OSError:
        raise InternalError("only Linux tells how much memory is resident") from None
    return pages * os.sysconf("SC_PAGE_SIZE")
