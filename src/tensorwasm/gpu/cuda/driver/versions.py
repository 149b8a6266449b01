"""Releases of CUDA, the driver, ptxas and the PTX ISA that go together.

Source: PTX ISA, "Release Notes" (PTX release history, target support); CUDA Toolkit Release Notes, "CUDA Toolkit and
Corresponding Driver Versions"; CUDA Compatibility, "Minor Version Compatibility".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

Version = tuple[int, ...]

MINIMUM_CUDA: Final = (12, 0)
"""Oldest CUDA a driver must support; driver 525 is the first."""

MINIMUM_CAPABILITY: Final = (7, 0)
"""Oldest compute capability that is supported: Volta, the first with independent thread scheduling."""

ISA_BY_CUDA: Final[dict[Version, tuple[int, int]]] = {
    (11, 0): (7, 0),
    (11, 1): (7, 1),
    (11, 2): (7, 2),
    (11, 3): (7, 3),
    (11, 4): (7, 4),
    (11, 5): (7, 5),
    (11, 6): (7, 6),
    (11, 7): (7, 7),
    (11, 8): (7, 8),
    (12, 0): (8, 0),
    (12, 1): (8, 1),
    (12, 2): (8, 2),
    (12, 3): (8, 3),
    (12, 4): (8, 4),
    (12, 5): (8, 5),
    (12, 7): (8, 6),
    (12, 8): (8, 7),
    (12, 9): (8, 8),
    (13, 0): (9, 0),
    (13, 1): (9, 1),
    (13, 2): (9, 2),
    (13, 3): (9, 3),
    (13, 4): (9, 4),
    (13, 5): (9, 5),
}
"""Newest PTX ISA of each CUDA release that brought one (12.6 brought none)."""


@dataclass(frozen=True, slots=True)
class DriverFloor:
    """Oldest driver on each system that a toolkit release was made for."""

    cuda: tuple[int, int]
    linux: Version
    windows: Version


DRIVER_FLOORS: Final = (
    DriverFloor((12, 0), (525, 60, 13), (527, 41)),
    DriverFloor((12, 1), (530, 30, 2), (531, 14)),
    DriverFloor((12, 2), (535, 54, 3), (536, 25)),
    DriverFloor((12, 3), (545, 23, 6), (545, 84)),
    DriverFloor((12, 4), (550, 54, 14), (551, 61)),
    DriverFloor((12, 5), (555, 42, 2), (555, 85)),
    DriverFloor((12, 6), (560, 28, 3), (560, 81)),
    DriverFloor((12, 8), (570, 26), (570, 65)),
    DriverFloor((12, 9), (575, 51, 3), (576, 2)),
    DriverFloor((13, 0), (580, 65, 6), (580, 88)),
    DriverFloor((13, 2), (590, 42, 1), (591, 86)),
)
"""In ascending order."""

_ARCHITECTURES: Final[dict[int, tuple[Version, Version | None]]] = {
    70: ((9, 0), (12, 9)),
    72: ((9, 2), (12, 9)),
    75: ((10, 0), None),
    80: ((11, 0), None),
    86: ((11, 1), None),
    87: ((11, 4), None),
    88: ((13, 0), None),
    89: ((11, 8), None),
    90: ((11, 8), None),
    100: ((12, 8), None),
    101: ((12, 8), (12, 9)),
    103: ((12, 9), None),
    110: ((13, 0), None),
    120: ((12, 8), None),
    121: ((12, 9), None),
}
"""First and last toolkit release (None: still current) whose ptxas generates code for sm_N."""


def parse_version(text: str) -> Version | None:
    """Return the first dotted number in a text: (580, 159, 3) for ``"driver 580.159.03"``. None if there is none."""
    found = re.search(r"\d{1,6}(?:\.\d{1,6}){1,3}", text)
    return tuple(int(part) for part in found.group().split(".")) if found else None


def spell_version(version: Version) -> str:
    """Return ``12.4`` for (12, 4); a driver's later parts keep their two digits: ``525.60.13``, ``530.30.02``."""
    head, *rest = version
    width = 2 if head >= 100 else 1
    return ".".join([str(head), *(f"{part:0{width}}" for part in rest)])


def cuda_version(number: int) -> tuple[int, int]:
    """Return (13, 0) for the 13000 of ``cuDriverGetVersion``."""
    return number // 1000, number % 1000 // 10


def isa_version(cuda: Version) -> tuple[int, int]:
    """Return the newest PTX ISA that a driver or ptxas of a CUDA release accepts.

    A release newer than the table gets the newest entry, which it accepts at least; one older gets (6, 0).
    """
    return max((isa for release, isa in ISA_BY_CUDA.items() if release <= cuda), default=(6, 0))


def driver_floor(cuda: Version, *, windows: bool = False) -> Version:
    """Return the oldest driver for a toolkit release: the row of that release, or the last one before it."""
    rows = [row for row in DRIVER_FLOORS if row.cuda <= cuda] or [DRIVER_FLOORS[0]]
    return rows[-1].windows if windows else rows[-1].linux


def toolkits_for(capability: tuple[int, int]) -> tuple[Version, Version | None] | None:
    """Return the first and last (None: still current) toolkit release for a compute capability, None if unknown."""
    return _ARCHITECTURES.get(capability[0] * 10 + capability[1])


def assembles(release: Version, capability: tuple[int, int]) -> bool:
    """Return whether the ptxas of a toolkit release generates code for a compute capability; False for unknown ones."""
    known = toolkits_for(capability)
    return known is not None and known[0] <= release and (known[1] is None or release <= known[1])
