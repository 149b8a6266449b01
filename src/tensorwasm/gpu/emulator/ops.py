"""What an instruction becomes before it runs: the contract between the lane engine and the instruction tables.

The engine owns registers, memory, control flow and divergence. A table turns one PTX instruction into an `Op` (each lane
for itself) or a `WarpOp` (32 lanes together), once, at load time; what it does not know it refuses there, by name.
Registers are stored as raw unsigned bits; the engine views them in the dtype of the PTX type that an op declares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]
"""One value per active lane, shape ``(lanes,)``; for a `WarpOp`, ``(warps, 32)``."""

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "pred": np.dtype(np.bool_),
    **{f"{kind}{bits}": np.dtype(f"uint{bits}") for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    # Packed and sub-byte types travel as their raw bits.
    **dict.fromkeys(("f16x2", "bf16x2", "u16x2", "s16x2", "tf32", "e4m3x4", "e5m2x4"), np.dtype(np.uint32)),
    **dict.fromkeys(("e4m3x2", "e5m2x2", "ue8m0x2"), np.dtype(np.uint16)),
}
"""NumPy type of each PTX type, as ops receive and return it."""


@dataclass(frozen=True, slots=True)
class Op:
    """An instruction that every lane executes for itself.

    Attributes:
        results: PTX types of the destination operands, in operand order (``p|q`` counts as two).
        sources: PTX types of the source operands, in operand order.
        run: takes one ``(lanes,)`` array per source, in ``DTYPES`` of its type, and returns one array per result
            (a bare array for one result). Never writes into its inputs. Raises nothing for any bits.
        reads_carry: a last ``pred`` source is the carry flag CC.CF.
        writes_carry: a last ``pred`` result is the carry flag.
    """

    results: tuple[str, ...]
    sources: tuple[str, ...]
    run: Callable[..., Lanes | tuple[Lanes, ...]]
    reads_carry: bool = False
    writes_carry: bool = False


class WarpMemory(Protocol):
    """Checked memory as a `WarpOp` sees it. Every access is bounds-, alignment-, initialisation- and race-checked."""

    def load(self, space: str, addresses: NDArray[np.uint64], dtype: np.dtype[Any]) -> Lanes:
        """Read one element per address; any shape ``(warps, 32, ...)``; axis 1 is the accessing lane.

        Args:
            space: ``shared``, ``global`` or ``generic``.
            addresses: byte addresses in that space.
            dtype: element type; addresses must be multiples of its size.
        """

    def store(self, space: str, addresses: NDArray[np.uint64], values: Lanes) -> None:
        """Write one element per address; shapes as in `load`."""


@dataclass(frozen=True, slots=True)
class WarpOp:
    """An instruction that the 32 lanes of a warp execute together; the engine runs it once all of them have arrived.

    Attributes:
        results: PTX types of the destination registers, vectors flattened in order.
        sources: PTX types of the source registers, vectors flattened in order; an address operand counts as one
            source of type ``u64`` (base plus offset already added).
        run: takes the memory and one ``(warps, 32)`` array per source, returns a tuple of one such array per result.
    """

    results: tuple[str, ...]
    sources: tuple[str, ...]
    run: Callable[..., tuple[Lanes, ...]]
