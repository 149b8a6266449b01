"""Random straight-line programs over all types, and what they start from; the same for a number on every machine.

A program is a list of statements on four kinds of registers: ``%h`` (16 bits), ``%w`` (32), ``%d`` (64) and ``%p``
(predicates). Each lane loads all of them from a record of its own, runs the statements and stores all of them into a
record of the same shape. Statements can be left out one by one and what remains is a program.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.lanes import width_bytes
from strategies.straight_forms import CHAIN_LINKS, CHAIN_STARTS, FAMILIES, SPECIALS, Form

LANES = 32
TARGET, VERSION = "sm_90", "8.2"
COUNTS = {"h": 8, "w": 8, "d": 6, "p": 4}
RECORD = np.dtype([("h", "<u2", 8), ("w", "<u4", 8), ("d", "<u8", 6), ("p", "<u4", 4)])
"""Registers of one lane in memory, loaded and stored as vectors of 8 or 16 bytes."""
_NAMES = {kind: tuple(f"%{kind}{i}" for i in range(count)) for kind, count in COUNTS.items()}
_CLASS = {1: "h", 2: "h", 4: "w", 8: "d"}
_EDGES = (0, 1, 2, 3, 7, 8, 15, 16, 24, 31, 32, 33, 63, 64, 65, 127, 128, 255)


@dataclass(frozen=True, slots=True)
class Program:
    """One kernel.

    Attributes:
        number: which, of all there are; its entry is ``p<number>``.
        statements: lines that belong together, such as a chain of carries.
    """

    number: int
    statements: tuple[tuple[str, ...], ...]

    def without(self, start: int, count: int) -> Program:
        """Return the program with ``count`` statements left out."""
        return replace(self, statements=self.statements[:start] + self.statements[start + count :])

    def text(self) -> str:
        """Return the ``.entry``; its parameters are the records to load and the records to store."""
        body = [*_PROLOGUE, *(line for statement in self.statements for line in statement), *_EPILOGUE]
        lines = "\n".join(f"  {line}" for line in body)
        return f".visible .entry p{self.number}(.param .u64 from, .param .u64 to)\n{{\n{lines}\n}}\n"


def module(programs: Sequence[Program]) -> str:
    """Return a translation unit of programs."""
    head = f".version {VERSION}\n.target {TARGET}\n.address_size 64\n"
    return head + "".join(program.text() for program in programs)


def _vectors(instruction: str, base: str) -> list[str]:
    """Return one instruction for each vector of a record; stores have the address first."""
    lines = []
    for kind, (dtype, offset) in ((kind, RECORD.fields[kind][:2]) for kind in "hwd"):
        size = dtype.base.itemsize
        wide = 2 if kind == "d" else 4
        for first in range(0, COUNTS[kind], wide):
            names = ", ".join(f"%{kind}{first + i}" for i in range(wide))
            place, vector = f"[{base}+{offset + first * size}]", f"{{{names}}}"
            pair = (place, vector) if instruction == "st" else (vector, place)
            lines.append(f"{instruction}.global.v{wide}.b{8 * size} {pair[0]}, {pair[1]};")
    return lines


def _place(parameter: str) -> list[str]:
    return [f"ld.param.u64 %at, [{parameter}];", f"mad.wide.u32 %at, %lane, {RECORD.itemsize}, %at;"]


_FLAGS_AT = RECORD.fields["p"][1]
_PROLOGUE = (
    ".reg .b16 %h<8>, %th, %tg; .reg .b32 %w<8>, %tw<4>, %lane; .reg .b64 %d<6>, %td, %at; .reg .pred %p<4>, %q;",
    "mov.u32 %lane, %laneid;",
    *_place("from"),
    *_vectors("ld", "%at"),
    f"ld.global.v4.b32 {{%tw0, %tw1, %tw2, %tw3}}, [%at+{_FLAGS_AT}];",
    *(f"setp.ne.b32 %p{i}, %tw{i}, 0;" for i in range(4)),
)
_EPILOGUE = (
    *_place("to"),
    *_vectors("st", "%at"),
    *(f"selp.b32 %tw{i}, 1, 0, %p{i};" for i in range(4)),
    f"st.global.v4.b32 [%at+{_FLAGS_AT}], {{%tw0, %tw1, %tw2, %tw3}};",
    "ret;",
)


class _Source:
    """Draws from one program's numbers: only what Python promises never to change."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number).random

    def below(self, count: int) -> int:
        return int(self._random() * count)

    def chance(self, share: float) -> bool:
        return self._random() < share

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]


class _Writer:
    """Writes statements; knows which type each register was last written as, to read it as that more often."""

    def __init__(self, source: _Source) -> None:
        self.source = source
        self.types: dict[str, str] = {
            f"%{kind}{i}": types[i % len(types)] for kind, types in _TYPES.items() for i in range(COUNTS[kind])
        }

    # ------------------------------------------------------------------------------------------ registers

    def register(self, kind: str) -> str:
        return str(self.source.pick(_NAMES[kind]))

    def read(self, type_: str, others: Sequence[str] = ()) -> str:
        """Return a register to read as a type, rather one that was written as such, and none of ``others``."""
        if type_ == "pred":
            return self.register("p")
        kind = _CLASS[width_bytes(type_)]
        fitting = [name for name in _NAMES[kind] if name not in others] if others else _NAMES[kind]
        if self.source.chance(0.6 if "f" in type_ else 0.3):
            fitting = [name for name in fitting if self.types[name] == type_] or fitting
        return str(self.source.pick(fitting))

    def write(self, type_: str, *, kind: str | None = None) -> str:
        if type_ == "pred":
            return self.register("p")
        name = self.register(kind or _CLASS[width_bytes(type_)])
        self.types[name] = type_
        return name

    def immediate(self, type_: str) -> int:
        size = 8 * width_bytes(type_)
        edges = [*_EDGES, (1 << size) - 1, 1 << (size - 1), (1 << (size - 1)) - 1]
        return int(self.source.pick(edges)) if self.source.chance(0.7) else self.source.below(1 << min(size, 48))

    # ----------------------------------------------------------------------------------------- statements

    def statement(self) -> tuple[str, ...]:
        make: Callable[[_Writer], tuple[str, ...]] = self.source.pick(_KINDS)
        return make(self)

    def guarded(self, lines: Sequence[str]) -> tuple[str, ...]:
        """Guard all lines of some statements; none of them writes a predicate that a later one is guarded by."""
        if not self.source.chance(0.2):
            return tuple(lines)
        guard = f"@{self.source.pick(['', '!'])}{self.register('p')} "
        return tuple(guard + line for line in lines)

    def single(self, form: Form) -> tuple[str, ...]:
        """Write one instruction with what must come before and after it."""
        before: list[str] = []
        operands: list[str] = []
        wanted = self.source.below(len(form.sources)) if self._takes_immediate(form) else None
        for index, type_ in enumerate(form.sources):
            if index == form.constant:
                operands.append(str(self.source.below(256)))
            elif index == wanted and type_[0] in "bus" and "x" not in type_ and type_[:2] != "bf":
                value = self.immediate(type_)
                value = value & 0xFF if index in form.bytes_only else value
                value = value & 0x7FFFFFFF if index == form.whole else value
                operands.append(hex(value | 1 if index == form.nonzero else value))
            else:
                operands.append(self._operand(form, index, operands, before))
        results = self._results(form)
        line = f"{form.mnemonic} {results}, {', '.join(operands)};"
        lines = [*before, line, *self._after(form, results.split("|")[0])]
        return self.guarded(lines) if form.guarded else tuple(lines)

    def _takes_immediate(self, form: Form) -> bool:
        return len(form.sources) > 1 and not form.mnemonic.startswith("cvt") and self.source.chance(0.2)

    def _operand(self, form: Form, index: int, others: Sequence[str], before: list[str]) -> str:
        type_ = form.sources[index]
        if index not in (form.nonzero, form.whole) and _may_be_wider(form, type_) and self.source.chance(0.15):
            return self.register("w" if width_bytes(type_) < 4 else "d")  # a wider register's low bits
        name = self.read(type_, others if "f" in type_ else ())
        if index == form.nonzero:
            size = width_bytes(type_)
            spare = {2: "%th", 4: "%tw0", 8: "%td"}[size]
            before.append(f"or.b{8 * size} {spare}, {name}, 1;")
            return spare
        if index == form.whole:
            before.append(f"not.b32 %tw{index}, {name};")
            return f"%tw{index}"
        if index in form.bytes_only:
            before.append(f"and.b32 %tw{index}, {name}, 255;")
            return f"%tw{index}"
        if type_ == "pred" and form.mnemonic.startswith("set") and self.source.chance(0.3):
            return f"!{name}"
        return name

    def _results(self, form: Form) -> str:
        first = form.results[0]
        if form.results == ("pred", "pred"):
            names = [f"%p{i}" for i in range(COUNTS["p"])]
            one = names.pop(self.source.below(len(names)))
            both = "x2" in form.mnemonic or self.source.chance(0.5)
            return f"{one}|{self.source.pick(names)}" if both else one
        wider = _may_be_wider(form, first) and width_bytes(first) < 4 and self.source.chance(0.15)
        kind = "w" if wider else None
        return "|".join([self.write(first, kind=kind), *(self.write(type_) for type_ in form.results[1:])])

    def _after(self, form: Form, result: str) -> list[str]:
        """Make one of results that PTX leaves open: clear signs, and make every NaN the same."""
        type_, lines = form.results[0], []
        size = width_bytes(type_)
        if "sign" in form.fix:
            mask = (1 << (8 * size - 1)) - 1 if not type_.endswith("x2") else 0x7FFF7FFF
            lines.append(f"and.b{8 * size} {result}, {result}, {mask:#x};")
        if "nan" in form.fix and type_ == "f64":
            lines += [
                f"setp.nan.f64 %q, {result}, {result};",
                f"selp.b64 {result}, 0x7fffffffffffffff, {result}, %q;",
            ]
        elif "nan" in form.fix:  # an addition gives one NaN, and doubles the rest
            lines.append(f"add.rn.{'f32' if type_ == 'tf32' else type_} {result}, {result}, {result};")
        return lines

    def chain(self) -> tuple[str, ...]:
        """Write a chain of carries; links may be of another width than the one before, and guarded by themselves."""
        size = self.source.pick([32, 32, 64])
        lines = [self._link(self.source.pick(CHAIN_STARTS[size]), size)]
        alone = self.source.chance(0.2)
        for _ in range(1 + self.source.below(4)):
            size = size if self.source.chance(0.7) else 96 - size
            mnemonic = self.source.pick(CHAIN_LINKS[size])
            guard = f"@{self.register('p')} " if alone and self.source.chance(0.5) else ""
            lines.append(guard + self._link(mnemonic, size))
        size = self.source.pick([32, 64])
        last = self.source.pick(CHAIN_LINKS[size]).replace(".cc", "")
        lines.append(self._link(last, size))
        return tuple(lines) if alone else self.guarded(lines)

    def _link(self, mnemonic: str, size: int) -> str:
        type_ = f"u{size}"
        sources = [self.read(type_) for _ in range(3 if mnemonic.startswith("mad") else 2)]
        if self.source.chance(0.2):
            sources[-1] = hex(self.immediate(type_))
        return f"{mnemonic} {self.write(type_)}, {', '.join(sources)};"

    def move(self) -> tuple[str, ...]:
        """Write a move: plain, packed, unpacked, of a special register."""
        kind = self.source.below(7)
        if kind == 0:
            return self.guarded([f"mov.u32 {self.write('u32')}, {self.source.pick(SPECIALS)};"])
        whole, part, count = self.source.pick([("d", "w", 2), ("d", "h", 4), ("w", "h", 2)])
        size = {"d": 64, "w": 32}[whole]
        if kind <= 3:
            parts = ", ".join(self.register(part) for _ in range(count))
            return self.guarded([f"mov.b{size} {self.write(f'u{size}', kind=whole)}, {{{parts}}};"])
        if kind <= 5:
            first = self.source.below(COUNTS[part] - count + 1)  # targets must differ
            parts = ", ".join(f"%{part}{first + i}" for i in range(count))
            return self.guarded([f"mov.b{size} {{{parts}}}, {self.register(whole)};"])
        kind_ = self.source.pick("hwd")
        size = {"h": 16, "w": 32, "d": 64}[kind_]
        value = hex(self.immediate(f"u{size}")) if self.source.chance(0.5) else self.register(kind_)
        return self.guarded([f"mov.b{size} {self.write(f'u{size}', kind=kind_)}, {value};"])

    def warp(self) -> tuple[str, ...]:
        """Write an instruction of the whole warp; it has no guard, for all lanes must come."""
        make: Callable[[_Writer], str] = self.source.pick(_WARP)
        return (make(self),)


def _may_be_wider(form: Form, type_: str) -> bool:
    """Return whether ptxas takes a wider register than the type for a conversion; with bf16 it takes none."""
    return re.match(r"cvt\.(?!.*(bf16|x2|pack))", form.mnemonic) is not None and type_[0] in "us"


_TYPES = {
    "h": ("u16", "f16", "bf16", "s16"),
    "w": ("u32", "f32", "f16x2", "bf16x2", "s32", "f32", "u16x2", "u32"),
    "d": ("u64", "f64", "s64", "f64", "u64", "f64"),
    "p": ("pred",),
}


def _shuffle(writer: _Writer) -> str:
    mode = writer.source.pick(["up", "down", "bfly", "idx"])
    lane = writer.register("w") if writer.source.chance(0.3) else str(writer.source.below(32))
    limit = writer.source.pick(["0", "0x1f", "0x181f", "0x1c1f", "0x1807", "0x1e1f", writer.register("w")])
    target = f"{writer.write('u32')}|{writer.register('p')}"
    return f"shfl.sync.{mode}.b32 {target}, {writer.register('w')}, {lane}, {limit}, 0xffffffff;"


def _vote(writer: _Writer) -> str:
    given = f"{writer.source.pick(['', '!'])}{writer.register('p')}"
    if writer.source.chance(0.5):
        return f"vote.sync.ballot.b32 {writer.write('u32')}, {given}, 0xffffffff;"
    return f"vote.sync.{writer.source.pick(['all', 'any', 'uni'])}.pred {writer.register('p')}, {given}, 0xffffffff;"


def _match(writer: _Writer) -> str:
    kind = writer.source.pick("wd")
    size, value = {"w": 32, "d": 64}[kind], writer.register(kind)
    if writer.source.chance(0.5):
        return f"match.any.sync.b{size} {writer.write('u32')}, {value}, 0xffffffff;"
    return f"match.all.sync.b{size} {writer.write('u32')}|{writer.register('p')}, {value}, 0xffffffff;"


def _reduce(writer: _Writer) -> str:
    what = writer.source.pick([f"{op}.{type_}" for op in ("add", "min", "max") for type_ in ("u32", "s32")])
    what = what if writer.source.chance(0.6) else writer.source.pick(["and.b32", "or.b32", "xor.b32"])
    return f"redux.sync.{what} {writer.write('u32')}, {writer.register('w')}, 0xffffffff;"


_WARP = (_shuffle, _shuffle, _vote, _match, _reduce)


def _family(forms: Sequence[Form]) -> Callable[[_Writer], tuple[str, ...]]:
    return lambda writer: writer.single(writer.source.pick(forms))


_KINDS: tuple[Callable[[_Writer], tuple[str, ...]], ...] = (
    *(make for share, forms in FAMILIES for make in [_family(forms)] * share),
    *[_Writer.chain] * 16,
    *[_Writer.move] * 12,
    *[_Writer.warp] * 6,
)
"""Each kind of statement as often as its share says."""


def program(number: int) -> Program:
    """Return the program of a number: 16 to 46 statements, some 20 to 80 instructions."""
    source = _Source(number)
    writer = _Writer(source)
    return Program(number, tuple(writer.statement() for _ in range(16 + source.below(31))))


# ------------------------------------------------------------------------------------------------------- inputs


def records(number: int) -> NDArray[Any]:
    """Return what the lanes of a program start from, ``(LANES,)`` of `RECORD`: edges, near misses and anything."""
    size = RECORD.itemsize * LANES
    words = hashlib.shake_128(f"inputs {number}".encode()).digest(3 * size)
    made = np.frombuffer(words[:size], RECORD).copy()
    choices = np.frombuffer(words[size : 2 * size], RECORD)
    places = np.frombuffer(words[2 * size :], RECORD)
    for kind in "hwd":
        for column, type_ in zip(range(COUNTS[kind]), _TYPES[kind] * 2, strict=False):
            made[kind][:, column] = _biased(type_, *(part[kind][:, column] for part in (made, choices, places)))
        same = choices[kind][:, 0] % 16 < 3  # two registers that are equal, or differ in the last bit
        made[kind][same, 1] = made[kind][same, 5] ^ (places[kind][same, 0] & 1)
    made["p"] &= 1
    return made


def _biased(type_: str, anything: NDArray[Any], choice: NDArray[Any], place: NDArray[Any]) -> NDArray[Any]:
    if type_.endswith("x2"):
        halves = [
            _biased(
                type_[:-2], *(part.view("<u2")[at::2] for part in map(np.ascontiguousarray, (anything, choice, place)))
            )
            for at in (0, 1)
        ]
        return np.stack(halves, axis=1).reshape(-1).view("<u4")
    bits = anything.dtype.type(8 * anything.dtype.itemsize)
    edges = _edges(type_)
    narrow = anything >> (place % bits) if type_ not in _FLOATS else _close(type_, anything, place)
    return np.choose((choice % 4).astype(int), [anything, narrow, edges[(place % len(edges)).astype(int)], narrow])


_FLOATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def _close(type_: str, anything: NDArray[Any], place: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of about 1, half of them with few bits set, so that sums and products are exact or ties."""
    exponent_bits, mantissa_bits = _FLOATS[type_]
    kind = anything.dtype.type
    field = kind((1 << exponent_bits - 1) - 5) + place % kind(9)
    low = anything & kind((1 << mantissa_bits) - 1)
    few = low & ~kind((1 << mantissa_bits - 4) - 1)
    sign = anything & kind(1 << exponent_bits + mantissa_bits)
    return sign | field << kind(mantissa_bits) | np.where(place & kind(16), few, low)


@functools.cache
def _edges(type_: str) -> NDArray[Any]:
    size = width_bytes(type_)
    mask = (1 << 8 * size) - 1
    if type_ not in _FLOATS:
        values = [*_EDGES, mask, mask - 1, mask >> 1, (mask >> 1) + 1, (mask >> 1) + 2, 0x55 * (mask // 255)]
        return np.array([value & mask for value in values], f"<u{size}")
    exponent_bits, mantissa_bits = _FLOATS[type_]
    top, bias, full = (1 << exponent_bits) - 1, (1 << exponent_bits - 1) - 1, (1 << mantissa_bits) - 1
    half = 1 << mantissa_bits - 1
    pairs = [(0, 0), (0, 1), (0, full), (1, 0), (bias, 0), (bias, 1), (bias - 1, full), (bias, half), (bias + 1, half)]
    pairs += [
        (min(bias + 31, top - 1), 0),
        (min(bias + 63, top - 1), 0),
        (top - 1, full),
        (top, 0),
        (top, half),
        (top, 1),
    ]
    positive = [exponent << mantissa_bits | mantissa for exponent, mantissa in pairs]
    sign = 1 << exponent_bits + mantissa_bits
    return np.array([value | flag for value in positive for flag in (0, sign)], f"<u{size}")
