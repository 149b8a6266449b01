"""The contract between the engine and the instruction tables of `alu` and `collective`.

The engine owns registers, memory, control flow and divergence. A table turns one PTX instruction into an `Op` (each
lane for itself), a `WarpOp` (32 lanes together) or a `LaneMemoryOp`, once, at load time, or refuses it by name.
Registers are stored as raw unsigned bits; the engine views them in the dtype of the PTX type that an op declares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

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
        results, sources: PTX types of the operands, in operand order (``p|q`` counts as two).
        run: takes one ``(lanes,)`` array per source, in ``DTYPES`` of its type, and returns one array per result
            (a bare array for one result). Never writes into its inputs. Raises nothing for any bits.
        reads_carry, writes_carry: the last ``pred`` source or result is the carry flag CC.CF.
    """

    results: tuple[str, ...]
    sources: tuple[str, ...]
    run: Callable[..., Lanes | tuple[Lanes, ...]]
    reads_carry: bool = False
    writes_carry: bool = False


class WarpMemory(Protocol):
    """Checked memory as a `WarpOp` sees it. Every access is bounds-, alignment-, initialisation- and race-checked."""

    def load(self, space: str, addresses: NDArray[np.uint64], dtype: np.dtype[Any]) -> Lanes:
        """Read one element per address; any shape ``(warps, n, ...)``; axis 1 is the accessing lane, of which n access.

        ``space`` is ``shared``, ``global`` or ``generic``; addresses must be multiples of the element's size.
        """

    def store(self, space: str, addresses: NDArray[np.uint64], values: Lanes) -> None:
        """Write one element per address; shapes as in `load`."""

    def fault(self, warp: int, lane: int, reason: str) -> NoReturn:
        """Raise `KernelFault` for lane 0 to 31 of a warp by index; the engine adds thread, instruction and position."""


@dataclass(frozen=True, slots=True)
class WarpOp:
    """An instruction that the 32 lanes of a warp execute together; the engine runs it once all of them have arrived.

    Attributes:
        results, sources: PTX types of the operands, vectors flattened in order; an address operand counts as one source
            of type ``u64`` (base plus offset already added).
        run: takes the memory and one ``(warps, 32)`` array per source; returns a tuple of one such array per result,
            None if there are no results.
    """

    results: tuple[str, ...]
    sources: tuple[str, ...]
    run: Callable[..., tuple[Lanes, ...] | None]


class LaneMemory(Protocol):
    """Checked memory as a `LaneMemoryOp` sees it. ``lanes`` are the accessing lanes: distinct indices into the batch.

    Every access is checked like an ordinary one of that lane: bounds, alignment, initialisation and, unless ``atomic``,
    races.
    """

    @property
    def queue(self) -> dict[str, Any]:
        """State of the ops between two runs: empty when a batch of lanes starts, dropped with it."""

    def load(
        self,
        space: str,
        lanes: NDArray[np.int64],
        addresses: NDArray[np.uint64],
        dtype: np.dtype[Any],
        count: int = 1,
        *,
        atomic: bool = False,
    ) -> Lanes:
        """Read ``count`` consecutive elements per lane as ``(lanes, count)``; here a lane may occur more than once.

        ``space`` is ``shared``, ``global`` or ``generic``, ``count`` a power of two; addresses, ``(lanes,)``, must be
        multiples of ``count * dtype.itemsize``. Two atomic accesses never race with each other.
        """

    def store(
        self,
        space: str,
        lanes: NDArray[np.int64],
        addresses: NDArray[np.uint64],
        values: Lanes,
        *,
        atomic: bool = False,
    ) -> None:
        """Write ``(lanes, count)`` values; otherwise as `load`. Where lanes overlap, the last one wins."""

    def unset(self, space: str, lanes: NDArray[np.int64], addresses: NDArray[np.uint64], size_bytes: int) -> None:
        """Make ``size_bytes`` (a power of two, also the alignment) per lane uninitialised; checked like a store."""

    def blocks(self, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a number per lane that is equal for lanes of one thread block, which share their shared memory."""

    def synchronize(self, lanes: NDArray[np.int64]) -> None:
        """Note that in the blocks of these lanes every access so far happens before every later one (race checks)."""

    def fault(self, lane: int, reason: str) -> NoReturn:
        """Raise `KernelFault` for one lane; the engine adds thread, instruction and position."""


@dataclass(frozen=True, slots=True)
class LaneMemoryOp:
    """An instruction that each active lane executes for itself on memory, with state between instructions.

    Attributes:
        results, sources: as in `WarpOp`; an immediate is an array like any other.
        run: takes the memory, the ids of the active lanes in ascending order and one ``(lanes,)`` array per source;
            returns a tuple of one such array per result.
        waits: the only result is a ``pred``; a lane that gets False waits for other lanes, which the engine lets run
            before this lane runs on.
    """

    results: tuple[str, ...]
    sources: tuple[str, ...]
    run: Callable[..., tuple[Lanes, ...] | None]
    waits: bool = False
