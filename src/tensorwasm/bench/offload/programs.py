"""The programs: the 30 kernels of PolyBench/C 4.2.1 and five small computations, each in C and compiled to a module.

A module exports ``init`` and ``run``, which take the same sizes. What one pair of calls leaves in memory does not
depend on earlier pairs with sizes that are not larger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from tensorwasm.bench.harness import read_checkout, read_guest
from tensorwasm.errors import InvalidArgs

ProgramSize = Literal["small", "medium", "large", "extralarge"]

SIZES: Final[tuple[ProgramSize, ...]] = get_args(ProgramSize)

FOLDER: Final = "bench/guests/offload"
_SIZES: Final[Mapping[str, tuple[tuple[int, ...], ...]]] = {
    "2mm": ((40, 50, 70, 80), (180, 190, 210, 220), (800, 900, 1100, 1200), (1600, 1800, 2200, 2400)),
    "3mm": (
        *((40, 50, 60, 70, 80), (180, 190, 200, 210, 220)),
        *((800, 900, 1000, 1100, 1200), (1600, 1800, 2000, 2200, 2400)),
    ),
    "adi": ((40, 60), (100, 200), (500, 1000), (1000, 2000)),
    "atax": ((116, 124), (390, 410), (1900, 2100), (1800, 2200)),
    "bicg": ((116, 124), (390, 410), (1900, 2100), (1800, 2200)),
    "cholesky": ((120,), (400,), (2000,), (4000,)),
    "correlation": ((80, 100), (240, 260), (1200, 1400), (2600, 3000)),
    "covariance": ((80, 100), (240, 260), (1200, 1400), (2600, 3000)),
    "deriche": ((192, 128), (720, 480), (4096, 2160), (7680, 4320)),
    "doitgen": ((20, 25, 30), (40, 50, 60), (140, 150, 160), (220, 250, 270)),
    "durbin": ((120,), (400,), (2000,), (4000,)),
    "fdtd-2d": ((40, 60, 80), (100, 200, 240), (500, 1000, 1200), (1000, 2000, 2600)),
    "floyd-warshall": ((180,), (500,), (2800,), (5600,)),
    "gemm": ((60, 70, 80), (200, 220, 240), (1000, 1100, 1200), (2000, 2300, 2600)),
    "gemver": ((120,), (400,), (2000,), (4000,)),
    "gesummv": ((90,), (250,), (1300,), (2800,)),
    "gramschmidt": ((60, 80), (200, 240), (1000, 1200), (2000, 2600)),
    "heat-3d": ((40, 20), (100, 40), (500, 120), (1000, 200)),
    "jacobi-1d": ((40, 120), (100, 400), (500, 2000), (1000, 4000)),
    "jacobi-2d": ((40, 90), (100, 250), (500, 1300), (1000, 2800)),
    "lu": ((120,), (400,), (2000,), (4000,)),
    "ludcmp": ((120,), (400,), (2000,), (4000,)),
    "mvt": ((120,), (400,), (2000,), (4000,)),
    "nussinov": ((180,), (500,), (2500,), (5500,)),
    "seidel-2d": ((40, 120), (100, 400), (500, 2000), (1000, 4000)),
    "symm": ((60, 80), (200, 240), (1000, 1200), (2000, 2600)),
    "syr2k": ((60, 80), (200, 240), (1000, 1200), (2000, 2600)),
    "syrk": ((60, 80), (200, 240), (1000, 1200), (2000, 2600)),
    "trisolv": ((120,), (400,), (2000,), (4000,)),
    "trmm": ((60, 80), (200, 240), (1000, 1200), (2000, 2600)),
    "black-scholes": ((4000,), (100_000,), (1_000_000,), (8_000_000,)),
    "convolution": ((192, 128), (720, 480), (4096, 2160), (7680, 4320)),
    "k-means": ((4, 1000, 8, 4), (4, 10_000, 16, 8), (5, 100_000, 32, 16), (10, 500_000, 64, 16)),
    "mandelbrot": ((64, 48, 100), (320, 240, 200), (1600, 1200, 500), (3840, 2160, 1000)),
    "n-body": ((4, 128), (10, 512), (10, 4000), (10, 12_000)),
}
_UNROLLED: Final = 8
"""A multiple of how often a loop is unrolled."""
PROGRAMS: Final = tuple(_SIZES)

UNCOUNTED: Final = frozenset({"adi", "cholesky", "durbin", "gramschmidt", "ludcmp", "nussinov", "seidel-2d", "trisolv"})
"""Programs that the geometric means leave out."""


@dataclass(frozen=True, slots=True)
class BenchProgram:
    """A program with sizes.

    Attributes:
        sizes: arguments of ``init`` and ``run``.
    """

    name: str
    sizes: tuple[int, ...]
    wasm: bytes
    source: bytes
    header: bytes

    @property
    def other_sizes(self) -> tuple[int, ...]:
        """Sizes of about a half, for the call that makes the code ready.

        They have the same remainders as the sizes, for which compilers that unroll loops make other loops.
        """
        return tuple(size - (size - size // 2) // _UNROLLED * _UNROLLED for size in self.sizes)

    @property
    def digest(self) -> str:
        """A hash of everything that a figure of wasmtime or of a native compiler depends on."""
        parts = (self.wasm, self.source, self.header, repr((self.sizes, self.other_sizes)).encode())
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def read_programs(size: str, names: Sequence[str]) -> list[BenchProgram]:
    """Return programs by their names; raise `InvalidArgs`."""
    if size not in SIZES:
        raise InvalidArgs(f"there is no size {size[:64]!r}; there are {', '.join(SIZES)}")
    for name in names:
        if name not in _SIZES:
            raise InvalidArgs(f"there is no program {name[:64]!r}; there are {', '.join(PROGRAMS)}")
    header = read_checkout(f"{FOLDER}/program.h")
    return [
        BenchProgram(
            name,
            _SIZES[name][SIZES.index(size)],
            read_guest(f"offload/{name}"),
            read_checkout(f"{FOLDER}/{name}.c"),
            header,
        )
        for name in names
    ]


def code_digest() -> str:
    """Return a hash of the package's sources that make and run plans."""
    package = Path(__file__).resolve().parents[2]
    found = hashlib.sha256()
    for folder in ("offload", "guest/imports/offload"):
        for path in sorted((package / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
