"""How many values instructions take from the stack and leave there: all that a region may have, but for branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tensorwasm.offload.lanes import VECTOR_ACCESSES, VECTOR_EFFECTS
from tensorwasm.offload.nest import LOAD_BYTES, STORE_BYTES
from tensorwasm.offload.opcodes import ROWS

ACCESS_EFFECTS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(LOAD_BYTES, (1, 1)),
    **dict.fromkeys(STORE_BYTES, (2, 0)),
    **VECTOR_ACCESSES,
}
"""Of loads and stores; the first value is the address."""

NUMERIC_EFFECTS: Final[Mapping[str, tuple[int, int]]] = {
    **{name: (len(row.operands), 1) for name, row in ROWS.items()},
    **VECTOR_EFFECTS,
}
"""Of what computes a value of its operands."""

STACK_EFFECTS: Final[Mapping[str, tuple[int, int]]] = {
    "nop": (0, 0),
    "drop": (1, 0),
    "select": (3, 1),
    "select_t": (3, 1),
    "local.get": (0, 1),
    "local.set": (1, 0),
    "local.tee": (1, 1),
    "global.get": (0, 1),
    "memory.fill": (3, 0),
    "memory.copy": (3, 0),
    **{f"{kind}.const": (0, 1) for kind in ("i32", "i64", "f32", "f64")},
    **NUMERIC_EFFECTS,
    **ACCESS_EFFECTS,
}
