"""``vprintf``: prints for each thread, in the order of their lanes.

The second argument points to the values, each aligned to its own size: integers of 4 or 8 bytes, floating-point numbers
as doubles, addresses.

Source: CUDA C++ Programming Guide, "Formatted Output"; ISO C, 7.21.6.1 (The fprintf function).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from tensorwasm.gpu.emulator.execution.machine import SimtMachine
from tensorwasm.ptx.model import Instruction

PRINTER: Final = "vprintf"

_CONVERSION: Final = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\d+|\*)?(?:\.(?P<precision>\d+|\*)?(?P<dot>))?"
    r"(?P<length>hh|h|ll|l|j|z|t)?(?P<kind>[diouxXcspfFeEgGaA%])"
)
_LONG: Final = frozenset({"l", "ll", "j", "z", "t"})
_NARROW: Final = {"hh": 8, "h": 16}
_MAX_TEXT_BYTES: Final = 4096
_MAX_WIDTH: Final = 4096
_CHECK_BYTES: Final = 64
_U8, _U32, _U64 = np.dtype(np.uint8), np.dtype(np.uint32), np.dtype(np.uint64)


class _Values:
    """Reads the values of one thread, one after the other."""

    def __init__(self, machine: SimtMachine, site: Instruction, lane: int, address: int) -> None:
        self._machine, self._site = machine, site
        self._lane = np.array([lane], np.int64)
        self._at = address
        self.count = 0

    def load(self, address: int, dtype: np.dtype[np.uint8] | np.dtype[np.uint32] | np.dtype[np.uint64]) -> int:
        """Return the value at a generic address."""
        at = np.array([address & 0xFFFF_FFFF_FFFF_FFFF], np.uint64)
        return int(self._machine.memory.load("generic", self._site, self._lane, at, dtype)[0])

    def integer(self, bits: int) -> int:
        """Return the next value, unsigned."""
        size = bits // 8
        at = -(-self._at // size) * size
        self._at = at + size
        self.count += 1
        return self.load(at, _U64 if bits == 64 else _U32)

    def text(self, address: int) -> str:
        """Return the text that begins at an address and ends before its NUL, or where it is too long."""
        found = bytearray()
        while len(found) < _MAX_TEXT_BYTES:
            if len(found) % _CHECK_BYTES == 0:
                self._machine.launch.check()
            byte = self.load(address + len(found), _U8)
            if not byte:
                break
            found.append(byte)
        return found.decode("latin-1")


def print_lanes(machine: SimtMachine, site: Instruction, formats: np.ndarray, values: np.ndarray) -> list[int]:
    """Print for each active lane; return how many values each printed."""
    output = machine.launch.output
    counts: list[int] = []
    for lane, template, address in zip(machine.indices(), formats, values, strict=True):
        machine.launch.check()
        reader = _Values(machine, site, int(lane), int(address))
        if not output.truncated:
            text = _CONVERSION.sub(partial(_convert, values=reader), reader.text(int(template)))
            output.write(text.encode("latin-1", "replace"))
        counts.append(reader.count)
    return counts


def _convert(found: re.Match[str], values: _Values) -> str:
    kind, length = found["kind"], found["length"] or ""
    if kind == "%":
        return "%"
    flags, width = found["flags"], _number(found["width"], values)
    precision = None if found["dot"] is None else _number(found["precision"] or "0", values)
    if width is not None and width < 0:
        flags, width = flags + "-", -width
    shape = flags + ("" if width is None else str(min(width, _MAX_WIDTH)))
    if precision is not None and precision >= 0:
        shape += f".{min(precision, _MAX_WIDTH)}"
    return _KINDS[kind](values, shape, kind, length)


def _number(word: str | None, values: _Values) -> int | None:
    if word == "*":
        return _signed(values.integer(32), 32)
    return None if word is None else int(word[:6])


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _integer(values: _Values, shape: str, kind: str, length: str) -> str:
    bits = 64 if length in _LONG else 32
    raw = values.integer(bits)
    bits = _NARROW.get(length, bits)
    if kind in "di":
        return f"%{shape}d" % _signed(raw, bits)
    raw &= (1 << bits) - 1
    if kind == "u":
        return f"%{shape.replace('+', '').replace(' ', '')}d" % raw
    if kind == "o" and "#" in shape:
        return f"%{shape.replace('#', '')}s" % (f"0{raw:o}" if raw else "0")
    return f"%{shape if raw else shape.replace('#', '')}{kind}" % raw


def _real(values: _Values, shape: str, kind: str, _length: str) -> str:
    value = float(np.array([values.integer(64)], np.uint64).view(np.float64)[0])
    if kind in "aA":
        text = value.hex()
        return f"%{shape.partition('.')[0]}s" % (text.upper() if kind == "A" else text)
    if not np.isfinite(value):
        shape = shape.replace("0", "", 1) if shape.lstrip("-+ #").startswith("0") else shape
    return f"%{shape}{kind}" % value


def _character(values: _Values, shape: str, _kind: str, _length: str) -> str:
    return f"%{shape.partition('.')[0]}s" % chr(values.integer(32) & 0xFF)


def _text(values: _Values, shape: str, _kind: str, _length: str) -> str:
    address = values.integer(64)
    return f"%{shape}s" % (values.text(address) if address else "(null)")


def _pointer(values: _Values, shape: str, _kind: str, _length: str) -> str:
    address = values.integer(64)
    return f"%{shape.partition('.')[0]}s" % (f"{address:#x}" if address else "(nil)")


_KINDS: Final[dict[str, Callable[[_Values, str, str, str], str]]] = {
    **dict.fromkeys("diouxX", _integer),
    **dict.fromkeys("fFeEgGaA", _real),
    "c": _character,
    "s": _text,
    "p": _pointer,
}
