"""Arguments and results, directed by the export's signature.

Integers are exact; floats keep every bit, a NaN's payload included. In JSON, infinities and NaNs are strings:
``"Infinity"``, ``"-Infinity"``, ``"NaN"``, and ``"nan:0x..."`` with the fraction bits for any NaN but the usual one,
each with ``-`` for the sign.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from tensorwasm.errors import InvalidArgs

Number = int | float

_MAX_SHOWN: Final = 40
_MAX_TEXT: Final = 400
_INTEGER: Final = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")
_NAN: Final = re.compile(r"([+-]?)nan(?::0x([0-9a-f]{1,13}))?")
_INFINITY: Final = re.compile(r"([+-]?)inf(inity)?")


@dataclass(frozen=True, slots=True)
class _FloatFormat:
    name: str
    bits: int
    fraction_bits: int
    float_code: str
    int_code: str

    @property
    def quiet_bit(self) -> int:
        """The fraction bit that a usual NaN has, alone."""
        return 1 << (self.fraction_bits - 1)

    @property
    def infinity(self) -> int:
        """Bits of positive infinity: every exponent bit."""
        return ((1 << (self.bits - 1 - self.fraction_bits)) - 1) << self.fraction_bits

    def to_bits(self, value: float) -> int:
        """Return the bits of a number that is not a NaN. Overflows like `struct.pack`."""
        bits: int = struct.unpack(self.int_code, struct.pack(self.float_code, value))[0]
        return bits

    def from_bits(self, bits: int) -> float:
        """Return the number with these bits, which are no NaN's."""
        value: float = struct.unpack(self.float_code, struct.pack(self.int_code, bits))[0]
        return value

    def nan_bits(self, negative: bool, fraction: int) -> int:  # noqa: FBT001 - a sign
        """Return the bits of a NaN."""
        return negative << (self.bits - 1) | self.infinity | fraction

    def is_nan(self, bits: int) -> bool:
        """Return whether bits are a NaN's."""
        return bits & ((1 << (self.bits - 1)) - 1) > self.infinity


_F32: Final = _FloatFormat("f32", 32, 23, "<f", "<I")
_F64: Final = _FloatFormat("f64", 64, 52, "<d", "<Q")
_NAN_SHIFT: Final = _F64.fraction_bits - _F32.fraction_bits


def encode(kinds: Sequence[str], args: Sequence[object]) -> list[int]:
    """Return the bits that a guest receives for each argument, as unsigned numbers.

    Integer parameters take an integer (signed or unsigned form) or its text; float parameters take a number or the text
    of one, ``"NaN"``, ``"Infinity"`` and ``"nan:0x..."`` included. A float parameter takes an integer only if its type
    can hold it exactly. `InvalidArgs` has index, type and value of one that does not fit.
    """
    if len(args) != len(kinds):
        takes = (
            f"{len(kinds)} argument{'' if len(kinds) == 1 else 's'} ({', '.join(kinds)})" if kinds else "no arguments"
        )
        raise InvalidArgs(f"the export takes {takes}; {len(args)} given")
    bits = []
    for index, (kind, value) in enumerate(zip(kinds, args, strict=True)):
        reader = _ENCODERS.get(kind)
        if reader is None:
            raise InvalidArgs(f"parameter {index} is a {kind}, which cannot be passed from outside")
        try:
            bits.append(reader(value))
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidArgs(f"argument {index} ({_show(value)}) is no {kind}: {error}") from None
    return bits


def decode(kinds: Sequence[str], cells: Sequence[int]) -> list[Number]:
    """Return the numbers of result bits, of which those above the type's width are ignored: NaNs keep their payload."""
    return [_DECODERS[kind](cell) for kind, cell in zip(kinds, cells, strict=True)]


def render(kinds: Sequence[str], values: Sequence[Number]) -> str:
    """Return results as a JSON array: integers exact, an f32 as the shortest decimal that reads back equal."""
    return f"[{', '.join(_render(kind, value) for kind, value in zip(kinds, values, strict=True))}]"


def parse(text: str) -> list[object]:
    """Read arguments from a JSON array, or raise `InvalidArgs`."""
    try:
        values = json.loads(text, parse_float=_parse_decimal, parse_int=_parse_integer)
    except (ValueError, RecursionError) as error:
        raise InvalidArgs(f"the arguments are not JSON: {str(error)[:_MAX_TEXT]}") from None
    if not isinstance(values, list):
        raise InvalidArgs("the arguments must be a JSON array, such as [1, 2.5]")
    return values


def _parse_integer(digits: str) -> int:
    if len(digits) > _MAX_TEXT:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _parse_decimal(digits: str) -> float:
    if len(digits) > _MAX_TEXT:
        raise ValueError(f"a number of {len(digits)} digits")
    return float(digits)


def _show(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if not isinstance(value, (str, int, float)) and value is not None:
        return f"a {type(value).__name__}"
    text = repr(value[: _MAX_SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def _encode_integer(bits: int, value: object) -> int:
    if isinstance(value, str):
        value = _integer_from_text(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("an integer is needed")
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise ValueError(f"it does not fit {bits} bits")
    return value & ((1 << bits) - 1)


def _integer_from_text(text: str) -> int:
    if len(text) > _MAX_TEXT or not _INTEGER.fullmatch(text.strip()):
        raise ValueError("the text is no integer")
    stripped = text.strip()
    return int(stripped, 16 if "x" in stripped.lower() else 10)


def _encode_float(form: _FloatFormat, value: object) -> int:
    if isinstance(value, str):
        return _float_from_text(form, value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("a number is needed")
    if isinstance(value, int):
        return _float_from_integer(form, value)
    if math.isnan(value):
        return _narrow_nan(form, value)
    return form.to_bits(value)


def _float_from_integer(form: _FloatFormat, value: int) -> int:
    if value.bit_length() > 1024:
        raise ValueError(f"it does not fit {form.name}")
    bits = form.to_bits(float(value))
    if form.from_bits(bits) != value:
        raise ValueError(f"{form.name} cannot hold this integer exactly; write it with a decimal point to round it")
    return bits


def _float_from_text(form: _FloatFormat, text: str) -> int:
    if len(text) > _MAX_TEXT:
        raise ValueError("the text is too long")
    word = text.strip().lower()
    if match := _INFINITY.fullmatch(word):
        return form.nan_bits(match[1] == "-", 0)
    if match := _NAN.fullmatch(word):
        fraction = form.quiet_bit if match[2] is None else int(match[2], 16)
        if not 0 < fraction < 1 << form.fraction_bits:
            raise ValueError(f"a NaN's payload is 1 to {(1 << form.fraction_bits) - 1:#x}")
        return form.nan_bits(match[1] == "-", fraction)
    if "_" in word:
        raise ValueError("the text is no number")
    value = float(word)
    if math.isinf(value):
        raise ValueError(f"it does not fit {form.name}")
    return form.to_bits(value)


def _narrow_nan(form: _FloatFormat, value: float) -> int:
    bits = _F64.to_bits(value)
    if form is _F64:
        return bits
    fraction = (bits & ((1 << _F64.fraction_bits) - 1)) >> _NAN_SHIFT
    return form.nan_bits(bool(bits >> 63), fraction or form.quiet_bit)


def _decode_integer(bits: int, cell: int) -> int:
    cell &= (1 << bits) - 1
    return cell - (1 << bits) if cell >> (bits - 1) else cell


def _decode_float(form: _FloatFormat, cell: int) -> float:
    bits = cell & ((1 << form.bits) - 1)
    if form is _F32 and form.is_nan(bits):
        # By hand: a conversion by the processor would make a signalling NaN a quiet one.
        fraction = bits & ((1 << _F32.fraction_bits) - 1)
        return _F64.from_bits(_F64.nan_bits(bool(bits >> 31), fraction << _NAN_SHIFT))
    return form.from_bits(bits)


def _render(kind: str, value: Number) -> str:
    form = _FORMATS.get(kind)
    if form is None:
        return str(value)
    bits = _encode_float(form, float(value))
    if form.is_nan(bits):
        sign = "-" if bits >> (form.bits - 1) else ""
        fraction = bits & ((1 << form.fraction_bits) - 1)
        return f'"{sign}NaN"' if fraction == form.quiet_bit else f'"{sign}nan:{fraction:#x}"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return _shortest_f32(float(value)) if form is _F32 else repr(float(value))


def _shortest_f32(value: float) -> str:
    bits = _F32.to_bits(value)
    for digits in range(1, 10):  # nine always suffice
        text = f"{value:.{digits}g}"
        if math.isfinite(float(text)) and _same_f32(text, bits):
            break
    plain = repr(float(text))
    return plain if _same_f32(plain, bits) else str(Decimal(text))


def _same_f32(text: str, bits: int) -> bool:
    try:
        return _F32.to_bits(float(text)) == bits
    except OverflowError:
        return False


_FORMATS: Final = {"f32": _F32, "f64": _F64}
_ENCODERS: Final[dict[str, Callable[[object], int]]] = {
    "i32": lambda value: _encode_integer(32, value),
    "i64": lambda value: _encode_integer(64, value),
    "f32": lambda value: _encode_float(_F32, value),
    "f64": lambda value: _encode_float(_F64, value),
}
_DECODERS: Final[dict[str, Callable[[int], Number]]] = {
    "i32": lambda cell: _decode_integer(32, cell),
    "i64": lambda cell: _decode_integer(64, cell),
    "f32": lambda cell: _decode_float(_F32, cell),
    "f64": lambda cell: _decode_float(_F64, cell),
}
