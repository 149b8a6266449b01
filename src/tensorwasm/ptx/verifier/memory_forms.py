"""Accepted accesses to memory: loads, stores, atomic operations, copies, and rows of matrices.

Source: PTX ISA 9.7.9 (Data Movement and Conversion), 9.7.13 (Parallel Synchronization), 9.7.14 (Warp Level Matrix).
"""

from __future__ import annotations

import re
from typing import Final

from tensorwasm.ptx.model import Address, Instruction, Int
from tensorwasm.ptx.verifier.form import TYPES, AcceptedForm, MemoryAccess, are_values, require, words

MAX_MATRIX_STRIDE: Final = 1 << 17
"""Most elements from one row of a matrix in memory to the next."""

SHAPE: Final = re.compile(r"m\d{1,2}n\d{1,2}k\d{1,3}", re.ASCII)

_VECTORS: Final = {"v2": 2, "v4": 4, "v8": 8}
_ORDERS: Final = words("weak volatile relaxed acquire release acq_rel cta gpu sys")
_CACHES: Final = words("ca cg cs lu cv wb wt nc")
_ATOMIC_OPERATIONS: Final = words("and or xor cas exch add inc dec min max noftz")
_SPACES: Final = words("global shared local const param")
_ELEMENTS: Final = {"f16": 2, "bf16": 2, "f32": 4, "tf32": 4, "f64": 8, "s32": 4, "s8": 1, "u8": 1}
"""Bytes of the elements of matrices that ``wmma`` loads and stores."""
_MATRIX_ROWS: Final = 32
_MATRIX_COLUMNS: Final = 32


def _size(modifiers: tuple[str, ...], instruction: Instruction) -> tuple[str, int, frozenset[str]]:
    """Return the state space and the bytes of an access, and its other modifiers."""
    spaces = [word for word in modifiers if word in _SPACES]
    vectors = [word for word in modifiers if word in _VECTORS]
    require(len(spaces) == 1 and len(vectors) <= 1 and modifiers[-1] in TYPES, instruction)
    others = frozenset(modifiers[:-1]) - {*spaces, *vectors}
    require(len(others) + len(spaces) + len(vectors) + 1 == len(modifiers), instruction)
    return spaces[0], TYPES[modifiers[-1]] * (_VECTORS[vectors[0]] if vectors else 1), others


def load(instruction: Instruction) -> AcceptedForm:
    """Read a load."""
    space, size, others = _size(instruction.modifiers, instruction)
    require(others <= _ORDERS | _CACHES and len(instruction.operands) == 2, instruction)
    require(isinstance(instruction.operands[1], Address) and are_values(instruction.operands[0]), instruction)
    return AcceptedForm((MemoryAccess(1, space, size, size),))


def store(instruction: Instruction) -> AcceptedForm:
    """Read a store."""
    space, size, others = _size(instruction.modifiers, instruction)
    require(others <= _ORDERS | _CACHES and len(instruction.operands) == 2 and space != "const", instruction)
    require(isinstance(instruction.operands[0], Address) and are_values(instruction.operands[1]), instruction)
    return AcceptedForm((MemoryAccess(0, space, size, size),), writes=())


def atomic(instruction: Instruction) -> AcceptedForm:
    """Read an atomic operation, with a result or without."""
    at = 1 if instruction.opcode == "atom" else 0
    space, size, others = _size(instruction.modifiers, instruction)
    require(others <= _ORDERS | _ATOMIC_OPERATIONS and space in ("global", "shared"), instruction)
    require(at + 2 <= len(instruction.operands) <= at + 3, instruction)
    for index, operand in enumerate(instruction.operands):
        require(isinstance(operand, Address) if index == at else are_values(operand), instruction)
    return AcceptedForm((MemoryAccess(at, space, size, size),), writes=(0,) if at else ())


def copy(instruction: Instruction) -> AcceptedForm:
    """Read an asynchronous copy, or what waits for some."""
    named, operands = instruction.modifiers, instruction.operands
    if named in (("async", "commit_group"), ("async", "wait_all")):
        require(not operands, instruction)
        return AcceptedForm(writes=())
    if named == ("async", "wait_group"):
        require(len(operands) == 1 and isinstance(operands[0], Int), instruction)
        return AcceptedForm(writes=())
    require(named in (("async", "ca", "shared", "global"), ("async", "cg", "shared", "global")), instruction)
    require(3 <= len(operands) <= 4, instruction)
    size = operands[2].value if isinstance(operands[2], Int) else 0
    require(size in (4, 8, 16) and all(isinstance(each, Address) for each in operands[:2]), instruction)
    bounds: tuple[tuple[int, int, int], ...] = ()
    if len(operands) == 4 and isinstance(operands[3], Int):
        require(0 <= operands[3].value <= size, instruction)
    elif len(operands) == 4:
        bounds = ((3, size, 1),)
    return AcceptedForm(
        (MemoryAccess(0, "shared", size, size), MemoryAccess(1, "global", size, size)), writes=(), bounds=bounds
    )


def matrix_rows(instruction: Instruction) -> AcceptedForm:
    """Read ``ldmatrix`` or ``stmatrix``, whose addresses are those of rows."""
    named, load = instruction.modifiers, instruction.opcode == "ldmatrix"
    require(named[:3] == ("sync", "aligned", "m8n8") and named[-1] == "b16" and named[-2] == "shared", instruction)
    require(named[3:4] and named[3] in ("x1", "x2", "x4") and named[4:-2] in ((), ("trans",)), instruction)
    require(len(instruction.operands) == 2, instruction)
    values, address = instruction.operands if load else instruction.operands[::-1]
    require(isinstance(address, Address) and are_values(values), instruction)
    return AcceptedForm((MemoryAccess(1 if load else 0, "shared", 16, 16, row=True),), writes=(0,) if load else ())


def matrix_access(instruction: Instruction) -> AcceptedForm:
    """Read ``wmma.load`` or ``wmma.store``: rows of a matrix that are a stride apart."""
    named, operands = instruction.modifiers, instruction.operands
    kind, element = named[:2], _ELEMENTS.get(named[-1], 0)
    require(kind in (("load", "a"), ("load", "b"), ("load", "c"), ("store", "d")) and element, instruction)
    require(named[2:4] == ("sync", "aligned") and named[4] in ("row", "col") and len(named) == 8, instruction)
    require(SHAPE.fullmatch(named[5]) and named[6] in ("global", "shared"), instruction)
    at = 1 if kind[0] == "load" else 0
    require(2 <= len(operands) <= 3 and isinstance(operands[at], Address), instruction)
    require(are_values(operands[1 - at]), instruction)
    stride = operands[2] if len(operands) == 3 else Int(_MATRIX_COLUMNS)
    bounds: tuple[tuple[int, int, int], ...] = ()
    most = MAX_MATRIX_STRIDE
    if isinstance(stride, Int):
        most = stride.value
        require(0 <= most <= MAX_MATRIX_STRIDE and most * element % 16 == 0, instruction)
    else:
        require(named[6] == "global", instruction)
        bounds = ((2, most, 16 // element),)
    size = ((_MATRIX_ROWS - 1) * max(most, _MATRIX_COLUMNS) + _MATRIX_COLUMNS) * element
    return AcceptedForm((MemoryAccess(at, named[6], size, 16),), writes=(0,) if at else (), bounds=bounds)
