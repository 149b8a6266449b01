"""Offsets into the C structures that compiled host functions use, and the numbers they compare with.

All are NumPy uint64: Numba would take a plain Python integer as signed, and signed with unsigned goes through a double.
"""

from __future__ import annotations

import ctypes
import time
from collections import namedtuple
from enum import IntEnum
from typing import Any, Final

from numba import int32, uint8, uint64

from tensorwasm.gpu.device import limits
from tensorwasm.gpu.native import layout
from tensorwasm.guest.engine import capi
from tensorwasm.guest.imports import abi
from tensorwasm.guest.imports.suspension import CompletionList, Suspension, SuspensionKind
from tensorwasm.guest.native.structures import (
    CallDescriptor,
    CallStatus,
    Environment,
    GlobalWrite,
    Interpreter,
    WasmtimeFunctions,
)


def _offsets(structure: type[ctypes.Structure]) -> Any:
    """Return each field's offset under its name, and the structure's size as ``size``."""
    named = {field[0]: uint64(getattr(structure, field[0]).offset) for field in structure._fields_}
    named["size"] = uint64(ctypes.sizeof(structure))
    return namedtuple("Offsets", named)(**named)  # noqa: PYI024 - its fields are data


def _numbers(names: type[IntEnum]) -> Any:
    """Return an enumeration's numbers under their names."""
    return namedtuple("Numbers", names.__members__)(*map(uint64, names))  # noqa: PYI024 - its fields are data


ENV: Final = _offsets(Environment)
SESSION: Final = _offsets(layout.SessionLayout)
DRIVER: Final = _offsets(layout.DriverTable)
HEAD: Final = _offsets(layout.KernelHead)
PARAM: Final = _offsets(layout.ParamRow)
KERNEL: Final = _offsets(layout.KernelRow)
BUFFER: Final = _offsets(layout.BufferRow)
STREAM: Final = _offsets(layout.StreamRow)
GRAPH: Final = _offsets(layout.GraphRow)
CLEAR: Final = _offsets(layout.ClearRow)
OFFER: Final = _offsets(layout.OfferRow)
WINDOW: Final = _offsets(layout.WindowRow)
OUTPUT: Final = _offsets(layout.OutputRow)
SCRATCH: Final = _offsets(layout.Scratch)
WAIT: Final = _offsets(layout.Wait)
INTERPRETER: Final = _offsets(Interpreter)
WASMTIME: Final = _offsets(WasmtimeFunctions)
CALL: Final = _offsets(CallDescriptor)
WRITE: Final = _offsets(GlobalWrite)
SUSPENSION: Final = _offsets(Suspension)
COMPLETIONS: Final = _offsets(CompletionList)
VALUE: Final = uint64(capi.SIZES["wasmtime_val_t"])
VALUE_PAYLOAD: Final = uint64(capi.VALUE_PAYLOAD_OFFSET)
EXTERN_PAYLOAD: Final = uint64(capi.EXTERN_PAYLOAD_OFFSET)
EXTERN_MEMORY: Final = uint8(capi.EXTERN_MEMORY)
WAIT_PARAMS: Final = uint64(layout.WAIT_PARAMS)

NOTHING: Final = uint64((1 << 64) - 1)
ZERO: Final = uint64(0)
ONE: Final = uint64(1)
LOW: Final = uint64(0xFFFF_FFFF)
WORD: Final = uint64(8)
HALF: Final = uint64(4)
CELL: Final = uint64(capi.CELL_BYTES)

KERNEL_MASK: Final = uint64(layout.KERNEL_ROWS - 1)
BUFFER_MASK: Final = uint64(layout.BUFFER_ROWS - 1)
STREAM_MASK: Final = uint64(layout.STREAM_ROWS - 1)
GRAPH_MASK: Final = uint64(layout.GRAPH_ROWS - 1)
STREAM_ROWS: Final = uint64(layout.STREAM_ROWS)
OFFER_ROWS: Final = uint64(layout.OFFER_ROWS)
CLEAR_ROWS: Final = uint64(layout.CLEAR_ROWS)
CLEARING_REFUSED: Final = uint64(layout.CLEARING_REFUSED)
LOAD_ROWS: Final = uint64(layout.LOAD_ROWS)
MAX_ARGV_BYTES: Final = uint64(layout.MAX_ARGV_BYTES)

MAX_AXIS_THREADS: Final = uint64(limits.MAX_BLOCK_THREADS_PER_AXIS)
MAX_THREADS: Final = uint64(limits.MAX_BLOCK_THREADS)
MAX_AXIS_BLOCKS: Final = uint64(limits.MAX_GRID_BLOCKS_PER_AXIS)
MAX_SHARED_BYTES: Final = uint64(limits.MAX_DYNAMIC_SHARED_BYTES)

TAG_PTR: Final = uint64(next(row.tag for row in abi.ARG_TAGS if row.name == "ptr"))
TAG_BUFFER: Final = uint64(next(row.tag for row in abi.ARG_TAGS if row.name == "buffer"))
TAGS: Final = uint64(64)
"""Above every tag."""
TAGS_OF_4: Final = uint64(sum(1 << row.tag for row in abi.ARG_TAGS if row.value_bytes == 4))
"""Bit n is set if tag n is followed by 4 bytes; the next two likewise."""
TAGS_OF_8: Final = uint64(sum(1 << row.tag for row in abi.ARG_TAGS if row.value_bytes == 8))
TAGS_OF_16: Final = uint64(sum(1 << row.tag for row in abi.ARG_TAGS if row.value_bytes == 16))

NO_DEADLINE_NS: Final = uint64(layout.NO_DEADLINE_NS)
PIECE_BYTES: Final = uint64(limits.GUARDED_PIECE_BYTES)
SHARES: Final = uint64(limits.MULTIPROCESSOR_SHARES)
SHARED_REGISTERS: Final = uint64(limits.MULTIPROCESSOR_REGISTERS)
UNLOOKED_NS: Final = uint64(limits.GUARDED_UNLOOKED_NS)
DEADLINE_NEAR_NS: Final = uint64(int(limits.DEADLINE_NEAR_S * 1e9))
YIELD_NEAR_NS: Final = uint64(abi.YIELD_NEAR_MS * 1_000_000)
MILLISECOND_NS: Final = uint64(1_000_000)
SECOND_NS: Final = uint64(1_000_000_000)
UNBOUNDED_MS: Final = uint64(abi.UNBOUNDED_MS)

VERDICT: Final = _numbers(abi.YieldVerdict)
STATUS: Final = _numbers(CallStatus)
WANTS: Final = _numbers(SuspensionKind)
FAILED: Final = uint64(abi.Code.INTERNAL & 0xFFFF_FFFF)
FAILED_LONG: Final = uint64(abi.Code.INTERNAL & 0xFFFF_FFFF_FFFF_FFFF)

BLOCK_BYTES: Final = uint64(256)
"""A staged window keeps its offset within such a block: no access needs more alignment."""
BLOCK_MASK: Final = uint64(255)

CLOCK: Final = int32(time.CLOCK_MONOTONIC)
SUCCESS: Final = int32(0)
NOT_READY: Final = int32(600)
"""``CUDA_ERROR_NOT_READY``. Source: CUDA Driver API, "Stream Management", cuStreamQuery."""

assert all(row.tag < TAGS and row.value_bytes in (4, 8, 16) for row in abi.ARG_TAGS)  # noqa: S101 - the tables above
assert all(  # noqa: S101 - masks rely on it
    count & (count - 1) == 0
    for count in (layout.KERNEL_ROWS, layout.BUFFER_ROWS, layout.STREAM_ROWS, layout.GRAPH_ROWS)
)
