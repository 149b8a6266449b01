"""The least or greatest float that data selects, in any order.

``a[i] > m ? a[i] : m`` is ``max`` but for a NaN, and for a zero where the other sign is met too. So ``max`` finds it,
and whether the other zero was met is found beside it. Where that matters the result becomes a NaN, and as for every NaN
whose bits show, the region declines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorwasm.offload.nest import (
    Carried,
    Cell,
    Constant,
    Effect,
    Loop,
    Operation,
    SetCell,
    Statement,
    Value,
    ValueType,
)
from tensorwasm.offload.opcodes import WIDTH_BITS
from tensorwasm.offload.scheduling.reductions import Operator, Reduction

_MET = Operator("i32", "or")
_BITS: dict[ValueType, ValueType] = {"f32": "i32", "f64": "i64"}
_NAN = {"f32": 0x7FC00000, "f64": 0x7FF8000000000000}


@dataclass(frozen=True, slots=True)
class ZeroWatch:
    """Cells beside others of ``min`` or ``max`` that are 1 if the zero was met that it does not prefer."""

    operator: Operator
    cells: dict[Cell, Cell]

    def begin(self, cell: Cell) -> SetCell:
        """What sets the cell beside one, before the loop."""
        return SetCell(self.cells[cell], self._is_zero(Carried(cell), preferred=False))

    def step(self, effect: SetCell, source: Cell, found: Reduction) -> tuple[Effect, Effect]:
        """What sets a cell to a reduction of another one, and the cell beside it."""
        content: Value = Carried(source)
        met: Value = Carried(self.cells[source])
        for term in found.terms:
            content = self.operator.of(content, term)
            met = _MET.of(met, self._is_zero(term, preferred=False))
        return SetCell(effect.cell, content), SetCell(self.cells[effect.cell], met)

    def end(self, cell: Cell) -> SetCell:
        """What makes the content of a cell a NaN if that of its zero is open, and shows it, behind the loop."""
        kind, bits = self.operator.type, _BITS[self.operator.type]
        content, met = Carried(cell), Carried(self.cells[cell])
        both = Operation("i32", "i32.and", (met, self._is_zero(content, preferred=True)))
        open_ = Operation(kind, "select", (Constant(kind, _NAN[kind]), content, both))
        shown = Operation(bits, f"{bits}.reinterpret_{kind}", (open_,))
        return SetCell(cell, Operation(kind, f"{kind}.reinterpret_{bits}", (shown,)))

    def _is_zero(self, value: Value, *, preferred: bool) -> Value:
        kind = _BITS[self.operator.type]
        negative = preferred == (self.operator.name == "min")
        zero = Constant(kind, 1 << (WIDTH_BITS[kind] - 1) if negative else 0)
        shown = Operation(kind, f"{kind}.reinterpret_{self.operator.type}", (value,))
        return Operation("i32", f"{kind}.eq", (shown, zero))


def with_effects(loop: Loop, of: Callable[[Effect], tuple[Effect, ...]]) -> Loop:
    """The loop with others in place of all effects in it."""
    body: list[Loop | Statement] = []
    for item in loop.body:
        if isinstance(item, Loop):
            body.append(with_effects(item, of))
        else:
            effects = tuple(new for effect in item.effects for new in of(effect))
            body.append(Statement(item.number, item.domain, effects))
    return Loop(loop.counter, loop.trip, tuple(body))
