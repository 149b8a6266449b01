"""What a case of the corpus is: one launch of one kernel, with inputs, a reference in NumPy and a tolerance."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Dim3 = tuple[int, int, int]
Scale = Literal["small", "large"]

FOLDER: Final = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Buffer:
    """An argument that is the address of an array.

    Attributes:
        array: what the device's memory holds before the launch.
        written: whether the kernel writes it.
    """

    array: Array
    written: bool = False


Argument = Buffer | np.generic


@dataclass(frozen=True)
class Case:
    """One launch of one kernel.

    Attributes:
        path: of the PTX text, below this folder.
        grid: blocks in x, y and z.
        block: threads in x, y and z.
        make: draws the arguments.
        reference: takes the arguments, arrays for buffers, and returns what the launch leaves in them, by index.
        shared_bytes: dynamic shared memory.
        rtol: relative tolerance; with ``atol`` 0 the results are exact.
        atol: absolute tolerance.
    """

    name: str
    path: str
    entry: str
    grid: Dim3
    block: Dim3
    make: Callable[[np.random.Generator], list[Argument]]
    reference: Callable[..., dict[int, Array]]
    shared_bytes: int = 0
    rtol: float = 0.0
    atol: float = 0.0

    def text(self) -> str:
        """Return the PTX."""
        return (FOLDER / self.path).read_text(encoding="ascii")

    def arguments(self) -> list[Argument]:
        """Return new arguments with the same contents at every call."""
        return self.make(np.random.default_rng(zlib.crc32(self.name.encode())))

    def expected(self, arguments: Sequence[Argument]) -> dict[int, Array]:
        """Return what the launch leaves in buffers, by the argument's index.

        A written buffer that depends on the order of threads is not among them.
        """
        return self.reference(*(each.array if isinstance(each, Buffer) else each for each in arguments))


def floats(random: np.random.Generator, *shape: int) -> Array:
    """Draw numbers from -1 to 1."""
    return random.random(shape, np.float32) * np.float32(2) - np.float32(1)


def zeros(*shape: int, dtype: Any = np.float32) -> Buffer:
    """Return a buffer of zeros that the kernel writes."""
    return Buffer(np.zeros(shape, dtype), written=True)


def blocks_for(items: int, per_block: int) -> int:
    """Return how many blocks take all items."""
    return -(-items // per_block)


def cuda_case(name: str, grid: Dim3, block: Dim3, make: Any, reference: Any, **options: Any) -> Case:
    """Return the case of a kernel in ``cuda_cpp/``, whose file and entry have its name."""
    return Case(name, f"cuda_cpp/{name}.ptx", name, grid, block, make, reference, **options)
