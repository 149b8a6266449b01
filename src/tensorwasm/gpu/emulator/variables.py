"""Module variables in global and constant memory, with their initial values.

Source: PTX ISA 5.4.4 (Initializers), 5.4.6 (Alignment).
"""

from __future__ import annotations

from collections.abc import Callable

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.emulator.operands import floating_bits, immediate_bits
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.ptx.layout import TYPE_BYTES
from tensorwasm.ptx.model import Float, Generic, Initial, Int, Masked, Name, Offset, Variable
from tensorwasm.watch import Watch

Place = Callable[[str], int]
"""Address of a variable or function by name."""


def initial_bytes(variable: Variable, place: Place, watch: Watch) -> bytes:
    """Return the first bytes of a variable; the rest is zero.

    Args:
        variable: with its initializer.
        place: finds what addresses in the initializer mean.
        watch: counts the elements.

    Raises:
        UnsupportedPtx: an element that the emulator lacks.
        InvokeTimeout: the deadline has passed.
    """
    if not variable.initializer:
        return b""
    size = TYPE_BYTES.get(variable.type)
    if size is None or size > 8:
        raise UnsupportedPtx(f"variables of type .{variable.type}", variable.position.line, variable.position.column)
    return b"".join(_element(one, variable, size, place) for one in watch.over(variable.initializer))


def _element(value: Initial, variable: Variable, size: int, place: Place) -> bytes:
    match value:
        case Int():
            bits = immediate_bits(value.value, variable.type if variable.type in DTYPES else f"b{size * 8}")
        case Float():
            bits = floating_bits(value.bits, value.width, variable.type)
        case Masked():
            shift = (value.mask & -value.mask).bit_length() - 1
            bits = (_address(value.address, place) & value.mask) >> shift
        case Name() | Offset() | Generic():
            bits = _address(value, place)
        case _:
            where = variable.position
            raise UnsupportedPtx(f"the initializer of {variable.name}", where.line, where.column)
    return (bits % (1 << 8 * size)).to_bytes(size, "little")


def _address(value: Name | Offset | Generic, place: Place) -> int:
    if isinstance(value, Name):
        return place(value.name)
    return place(value.base.name) + value.offset
