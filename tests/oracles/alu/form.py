"""Mnemonics taken apart, and integers of fixed width."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oracles.formats import FORMATS

Judge = Callable[..., tuple[Any, ...]]
_TYPE = re.compile(r"pred|[bus]\d+(x2)?|b?f\d+(x2)?|tf32|e\dm\dx2")


@dataclass(frozen=True)
class Form:
    """A mnemonic, taken apart."""

    opcode: str
    flags: tuple[str, ...]
    types: tuple[str, ...]

    @staticmethod
    def of(mnemonic: str) -> Form:
        opcode, *rest = mnemonic.split(".")
        types = tuple(word for word in rest if _TYPE.fullmatch(word))
        return Form(opcode, tuple(word for word in rest if word not in types), types)

    @property
    def mode(self) -> str:
        return next((flag for flag in self.flags if flag in {"rn", "rz", "rm", "rp", "rna"}), "rn")

    @property
    def last(self) -> str:
        return self.types[-1]

    def one_of(self, *flags: str) -> str | None:
        return next((flag for flag in self.flags if flag in flags), None)


def width(type_: str) -> int:
    return FORMATS[type_].width if type_ in FORMATS else int(re.sub(r"\D", "", type_))


def is_float(type_: str) -> bool:
    return type_ in FORMATS


def signed(bits: int, size: int) -> int:
    return bits - (1 << size) if bits >> (size - 1) else bits


def integer(bits: int, type_: str) -> int:
    return signed(bits, width(type_)) if type_[0] == "s" else bits


def wrap(value: int, size: int) -> int:
    return value & ((1 << size) - 1)


def bounds(type_: str) -> tuple[int, int]:
    size = width(type_)
    return (-(1 << (size - 1)), (1 << (size - 1)) - 1) if type_[0] == "s" else (0, (1 << size) - 1)


def clamp(value: int, type_: str) -> int:
    low, high = bounds(type_)
    return min(max(value, low), high)


def halves(word: int) -> tuple[int, int]:
    return word & 0xFFFF, word >> 16


RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
BOOLEAN: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
