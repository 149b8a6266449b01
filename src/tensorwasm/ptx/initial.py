"""Constants as bits, and the initial contents of variables.

Source: PTX ISA 4.5 (Constants), 5.4.4 (Initializers).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Final

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.ptx.layout import ELEMENT_BYTES, TYPE_BYTES
from tensorwasm.ptx.model import Float, Generic, Initial, Int, Masked, Name, Offset, Variable
from tensorwasm.watch import UNLIMITED, Watch

AddressOf = Callable[[str], int]
"""Address of a variable or function by name."""

_BITS: Final = {"pred": 8, "ue8m0x2": 16, **{kind: 8 * size for kind, size in ELEMENT_BYTES.items()}}


def immediate_bits(value: int, ptx_type: str) -> int:
    """Return an integer constant as bits of a type: its value for floats, else two's complement."""
    if ptx_type in ("f32", "f64"):
        return _float_bits(float(value), int(ptx_type[1:]))
    return value & ((1 << _BITS[ptx_type]) - 1)


def floating_bits(bits: int, width: int, ptx_type: str) -> int:
    """Return a floating-point constant as bits of a type, converted if ``ptx_type`` is the other precision."""
    target = _BITS[ptx_type]
    if target == width:
        return bits
    value = struct.unpack("<f" if width == 32 else "<d", bits.to_bytes(width // 8, "little"))[0]
    if target in (32, 64):
        return _float_bits(value, target)
    raise MalformedPtx(f"a floating-point constant where .{ptx_type} is expected")


def initial_bytes(variable: Variable, address_of: AddressOf, watch: Watch = UNLIMITED) -> bytes:
    """Return the first bytes of a variable; the rest is zero.

    Raises:
        UnsupportedPtx: a type or an initial value that is not supported, or what ``address_of`` raises.
        MalformedPtx: a floating-point constant of a type that holds none.
        InvokeTimeout: the watch's deadline passed.
    """
    if not variable.initializer:
        return b""
    size = TYPE_BYTES.get(variable.type)
    if size is None or size > 8:
        raise UnsupportedPtx(f"variables of type .{variable.type}", *variable.position)
    return b"".join(_element(one, variable, size, address_of) for one in watch.over(variable.initializer))


def _element(value: Initial, variable: Variable, size: int, address_of: AddressOf) -> bytes:
    match value:
        case Int():
            bits = immediate_bits(value.value, variable.type)
        case Float():
            bits = floating_bits(value.bits, value.width, variable.type)
        case Masked():
            shift = (value.mask & -value.mask).bit_length() - 1
            bits = (_address(value.address, address_of) & value.mask) >> shift
        case Name() | Offset() | Generic():
            bits = _address(value, address_of)
        case _:
            raise UnsupportedPtx(f"the initializer of {variable.name}", *variable.position)
    return (bits % (1 << 8 * size)).to_bytes(size, "little")


def _address(value: Name | Offset | Generic, address_of: AddressOf) -> int:
    return address_of(value.name) if isinstance(value, Name) else address_of(value.base.name) + value.offset


def _float_bits(value: float, width: int) -> int:
    """Return the IEEE bits of a number in single (32) or double (64) precision."""
    return int.from_bytes(bytes(ctypes.c_float(value) if width == 32 else ctypes.c_double(value)), "little")
