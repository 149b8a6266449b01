"""Special registers.

Source: PTX ISA 10 (Special Registers).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.emulator.geometry import WARP_LANES
from tensorwasm.gpu.emulator.lanes import Array, pick
from tensorwasm.gpu.emulator.machine import Machine

WARPS_PER_MULTIPROCESSOR: Final = 64
CLOCKS_PER_STEP: Final = 16

_U32: Final = np.dtype(np.uint32)
_U64: Final = np.dtype(np.uint64)


def _thread(axis: int) -> Callable[[Machine], Array]:
    def compute(machine: Machine) -> Array:
        x, y, _ = machine.launch.config.block
        thread = machine.geometry.thread
        return (thread % x, thread // x % y, thread // (x * y))[axis]

    return compute


def _block(axis: int) -> Callable[[Machine], Array]:
    def compute(machine: Machine) -> Array:
        geometry = machine.geometry
        x, y, _ = machine.launch.config.grid
        # A grid has less than 2**63 blocks.
        block = geometry.first_block + np.arange(geometry.blocks)
        return (block % x, block // x % y, block // (x * y))[axis].take(geometry.block)

    return compute


def _constant(read: Callable[[Machine], int]) -> Callable[[Machine], Array]:
    return lambda machine: np.full(machine.lanes, read(machine), np.uint64)


def _block_extent(axis: int) -> Callable[[Machine], Array]:
    return _constant(lambda machine: machine.launch.config.block[axis])


def _grid_extent(axis: int) -> Callable[[Machine], Array]:
    return _constant(lambda machine: machine.launch.config.grid[axis])


def _mask(compute: Callable[[Array], Array]) -> Callable[[Machine], Array]:
    return lambda machine: compute(machine.geometry.place.astype(np.uint64)) & np.uint64(0xFFFFFFFF)


_ONE: Final = np.uint64(1)
_FIXED: Final[dict[str, Callable[[Machine], Array]]] = {
    **{f"%tid.{name}": _thread(axis) for axis, name in enumerate("xyz")},
    **{f"%ctaid.{name}": _block(axis) for axis, name in enumerate("xyz")},
    **{f"%ntid.{name}": _block_extent(axis) for axis, name in enumerate("xyz")},
    **{f"%nctaid.{name}": _grid_extent(axis) for axis, name in enumerate("xyz")},
    **{f"%{name}.w": _constant(lambda _: 0) for name in ("tid", "ntid", "ctaid", "nctaid")},
    # Every block is a cluster of its own.
    **{f"%clusterid.{name}": _block(axis) for axis, name in enumerate("xyz")},
    **{f"%nclusterid.{name}": _grid_extent(axis) for axis, name in enumerate("xyz")},
    **{f"%cluster_ctaid.{name}": _constant(lambda _: 0) for name in "xyzw"},
    **{f"%cluster_nctaid.{name}": _constant(lambda _: 1) for name in "xyz"},
    **{f"%{name}.w": _constant(lambda _: 0) for name in ("clusterid", "nclusterid", "cluster_nctaid")},
    "%is_explicit_cluster": _constant(lambda _: 0),
    "%cluster_ctarank": _constant(lambda _: 0),
    "%cluster_nctarank": _constant(lambda _: 1),
    "%laneid": lambda machine: machine.geometry.place,
    "%warpid": lambda machine: machine.geometry.thread // WARP_LANES,
    "%nwarpid": _constant(lambda _: WARPS_PER_MULTIPROCESSOR),
    "%smid": lambda machine: (
        (machine.geometry.block + machine.geometry.first_block % machine.launch.info.multiprocessors)
        % machine.launch.info.multiprocessors
    ),
    "%nsmid": _constant(lambda machine: machine.launch.info.multiprocessors),
    "%gridid": _constant(lambda machine: machine.launch.number),
    "%lanemask_eq": _mask(lambda place: _ONE << place),
    "%lanemask_lt": _mask(lambda place: (_ONE << place) - _ONE),
    "%lanemask_le": _mask(lambda place: (_ONE << place + _ONE) - _ONE),
    "%lanemask_gt": _mask(lambda place: ~((_ONE << place + _ONE) - _ONE)),
    "%lanemask_ge": _mask(lambda place: ~((_ONE << place) - _ONE)),
    "%dynamic_smem_size": _constant(lambda machine: machine.launch.config.shared_bytes),
    "%total_smem_size": _constant(lambda machine: machine.launch.shared_bytes),
    "%aggr_smem_size": _constant(lambda machine: machine.launch.shared_bytes),
    **{f"%envreg{index}": _constant(lambda _: 0) for index in range(32)},
    **{f"%reserved_smem_offset_{name}": _constant(lambda _: 0) for name in ("begin", "end", "cap", "0", "1")},
    "%current_graph_exec": _constant(lambda _: 0),
}


def _clock(machine: Machine) -> int:
    return machine.steps * CLOCKS_PER_STEP


_MOVING: Final[dict[str, Callable[[Machine], int]]] = {
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
    """Return the width of a special register, 32 or 64.

    Raises:
        UnsupportedPtx: the emulator has none of that name.
    """
    if name not in _FIXED and name not in _MOVING:
        raise UnsupportedPtx(f"the emulator has no special register {name}")
    return 64 if name in _WIDE else 32


def read_special(name: str, dtype: np.dtype[Any]) -> Callable[[Machine], Array]:
    """Return a reader of a special register as ``dtype``: its low bits, or extended by zeros.

    Args:
        name: with its component, such as ``%tid.x``.
        dtype: an integer type, or bool for one of `PREDICATES`.

    Raises:
        UnsupportedPtx: the emulator has none of that name.
    """
    low = _U64 if width_bits(name) == 64 else _U32
    raw = np.dtype(f"uint{dtype.itemsize * 8}")
    moving = _MOVING.get(name)
    if moving is not None:
        bits = 8 * low.itemsize
        return lambda machine: (
            np.full(machine.count, moving(machine) & ((1 << bits) - 1), np.uint64).astype(raw).view(dtype)
        )
    compute, key = _FIXED[name], f"{name}:{dtype.str}"

    def read(machine: Machine) -> Array:
        values = machine.special.get(key)
        if values is None:
            values = compute(machine).astype(low).astype(raw).view(dtype)
            values.flags.writeable = False
            machine.special[key] = values
        return pick(values, machine.who)

    return read
