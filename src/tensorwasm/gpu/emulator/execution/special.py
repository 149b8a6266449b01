"""Special registers.

Source: PTX ISA 10 (Special Registers).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.emulator.execution.machine import SimtMachine
from tensorwasm.gpu.emulator.lanes import WARP_LANES, Array, pick

WARPS_PER_MULTIPROCESSOR: Final = 64
CLOCKS_PER_STEP: Final = 16

Compute = Callable[[SimtMachine], Array]
"""Computes a special register of every lane of the batch."""


def _coordinate(index: Array, extent: tuple[int, int, int], axis: int) -> Array:
    x, y, _ = extent
    return (index % x, index // x % y, index // (x * y))[axis]


def _thread(axis: int) -> Compute:
    return lambda machine: _coordinate(machine.geometry.thread, machine.launch.config.block, axis)


def _block(axis: int) -> Compute:
    def compute(machine: SimtMachine) -> Array:
        geometry = machine.geometry
        block = geometry.first_block + np.arange(geometry.blocks)  # a grid has less than 2**63 blocks
        return _coordinate(block, machine.launch.config.grid, axis).take(geometry.block)

    return compute


def _same(read: Callable[[SimtMachine], int]) -> Compute:
    """Return one value for all lanes."""
    return lambda machine: np.full(machine.lanes, read(machine), np.uint64)


def _block_extent(axis: int) -> Compute:
    return _same(lambda machine: machine.launch.config.block[axis])


def _grid_extent(axis: int) -> Compute:
    return _same(lambda machine: machine.launch.config.grid[axis])


def _mask(compute: Callable[[Array], Array]) -> Compute:
    return lambda machine: compute(machine.geometry.laneid.astype(np.uint64)) & np.uint64(0xFFFFFFFF)


_ZERO: Final = _same(lambda _: 0)
_UNIT: Final = _same(lambda _: 1)
_SHARED_BYTES: Final = _same(lambda machine: machine.launch.shared_bytes)
_ONE: Final = np.uint64(1)
_FIXED: Final[dict[str, Compute]] = {
    **{f"%tid.{name}": _thread(axis) for axis, name in enumerate("xyz")},
    **{f"%ctaid.{name}": _block(axis) for axis, name in enumerate("xyz")},
    **{f"%ntid.{name}": _block_extent(axis) for axis, name in enumerate("xyz")},
    **{f"%nctaid.{name}": _grid_extent(axis) for axis, name in enumerate("xyz")},
    **{f"%{name}.w": _ZERO for name in ("tid", "ntid", "ctaid", "nctaid")},
    # Every block is a cluster of its own.
    **{f"%clusterid.{name}": _block(axis) for axis, name in enumerate("xyz")},
    **{f"%nclusterid.{name}": _grid_extent(axis) for axis, name in enumerate("xyz")},
    **{f"%cluster_ctaid.{name}": _ZERO for name in "xyzw"},
    **{f"%cluster_nctaid.{name}": _UNIT for name in "xyz"},
    **{f"%{name}.w": _ZERO for name in ("clusterid", "nclusterid", "cluster_nctaid")},
    "%is_explicit_cluster": _ZERO,
    "%cluster_ctarank": _ZERO,
    "%cluster_nctarank": _UNIT,
    "%laneid": lambda machine: machine.geometry.laneid,
    "%warpid": lambda machine: machine.geometry.thread // WARP_LANES,
    "%nwarpid": _same(lambda _: WARPS_PER_MULTIPROCESSOR),
    "%smid": lambda machine: (
        (machine.geometry.block + machine.geometry.first_block % machine.launch.info.multiprocessors)
        % machine.launch.info.multiprocessors
    ),
    "%nsmid": _same(lambda machine: machine.launch.info.multiprocessors),
    "%gridid": _same(lambda machine: machine.launch.number),
    "%lanemask_eq": _mask(lambda laneid: _ONE << laneid),
    "%lanemask_lt": _mask(lambda laneid: (_ONE << laneid) - _ONE),
    "%lanemask_le": _mask(lambda laneid: (_ONE << laneid + _ONE) - _ONE),
    "%lanemask_gt": _mask(lambda laneid: ~((_ONE << laneid + _ONE) - _ONE)),
    "%lanemask_ge": _mask(lambda laneid: ~((_ONE << laneid) - _ONE)),
    "%dynamic_smem_size": _same(lambda machine: machine.launch.config.shared_bytes),
    "%total_smem_size": _SHARED_BYTES,
    "%aggr_smem_size": _SHARED_BYTES,
    **{f"%envreg{index}": _ZERO for index in range(32)},
    **{f"%reserved_smem_offset_{name}": _ZERO for name in ("begin", "end", "cap", "0", "1")},
    "%current_graph_exec": _ZERO,
}
"""Registers that keep their value; computed once per batch."""


def _clock(machine: SimtMachine) -> int:
    return machine.steps * CLOCKS_PER_STEP


_CHANGING: Final[dict[str, Callable[[SimtMachine], int]]] = {
    "%clock": _clock,
    "%clock64": _clock,
    "%clock_hi": lambda machine: _clock(machine) >> 32,
    "%globaltimer": lambda _: time.time_ns(),
    "%globaltimer_lo": lambda _: time.time_ns(),
    "%globaltimer_hi": lambda _: time.time_ns() >> 32,
}
PREDICATES: Final = frozenset({"%is_explicit_cluster"})
"""Special registers that are predicates; ptxas takes them for nothing else."""

_WIDE: Final = frozenset({"%clock64", "%globaltimer", "%gridid", "%current_graph_exec"})


def width_bits(name: str) -> int:
    """Return the width of a special register, 32 or 64."""
    if name not in _FIXED and name not in _CHANGING:
        raise UnsupportedPtx(f"the emulator has no special register {name}")
    return 64 if name in _WIDE else 32


def read_special(name: str, dtype: np.dtype[Any]) -> Compute:
    """Return a reader of a special register of the active lanes: its low bits, or extended by zeros.

    The name has its component, such as ``%tid.x``; the type is an integer type, or bool for one of `PREDICATES`.
    """
    bits = width_bits(name)
    low, raw = np.dtype(f"uint{bits}"), np.dtype(f"uint{dtype.itemsize * 8}")
    changing = _CHANGING.get(name)
    if changing is not None:
        return lambda machine: (
            np.full(machine.count, changing(machine) & ((1 << bits) - 1), np.uint64).astype(raw).view(dtype)
        )
    compute, key = _FIXED[name], f"{name}:{dtype.str}"

    def read(machine: SimtMachine) -> Array:
        values = machine.special.get(key)
        if values is None:
            values = compute(machine).astype(low).astype(raw).view(dtype)
            values.flags.writeable = False
            machine.special[key] = values
        return pick(values, machine.active)

    return read
