"""Tensor cores: matrix products, and matrices between memory and registers.

For ``D = A * B + C``, hardware leaves the order and the intermediate precision of floating-point sums open (at least
single precision, PTX ISA 9.7.14.5.14); here products are exact, sums are carried in binary64 in order of k, and the
result is rounded once to the accumulator's type. f64 is a chain of fused multiply-adds in order of k. Integers are
exact and wrap or saturate once at the end.

``ldmatrix``, ``stmatrix`` and ``movmatrix`` move 8 by 8 matrices of 16-bit elements: lane ``8 * i + r`` has the address
of row ``r`` of matrix ``i``; register ``i`` of every lane holds two elements of it.

Source: PTX ISA 9.7.14.4 (wmma), 9.7.14.5.14 (mma), 9.7.14.5.15 (ldmatrix), 9.7.14.5.16 (stmatrix), 9.7.14.5.17
(movmatrix).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.alu.rounding import fma64
from tensorwasm.gpu.emulator.collective import matrices, mbarrier
from tensorwasm.gpu.emulator.collective.matrices import ELEMENTS, Fragment, MatrixOperand, Values, pack, unpack
from tensorwasm.gpu.emulator.ops import Lanes, WarpMemory, WarpOp

Rule = Callable[[Values, Values, Values], Values]
"""Multiplies ``(warps, tiles, m, k)`` by ``(warps, tiles, k, n)`` and adds ``(warps, tiles, m, n)``."""


def multiply_floats(a: Values, b: Values, c: Values) -> Values:
    """Sum exact products in binary64 in order of k, C first."""
    total = c
    for k in range(a.shape[-1]):
        total = total + a[..., k, None] * b[..., k, None, :]
    return total


def multiply_doubles(mode: str) -> Rule:
    """Chain fused multiply-adds in order of k; ``mode`` is ``rn``, ``rz``, ``rm`` or ``rp``."""

    def multiply(a: Values, b: Values, c: Values) -> Values:
        for k in range(a.shape[-1]):
            left, right, addend = np.broadcast_arrays(a[..., k, None], b[..., k, None, :], c)
            c = fma64(left, right, addend, mode)
        return c

    return multiply


def multiply_integers(a: Values, b: Values, c: Values) -> Values:
    """Multiply small integers or count the bits set in both: binary64 holds every intermediate value, in any order."""
    product: Values = np.matmul(a, b) + c
    return product


def multiply_saturating(a: Values, b: Values, c: Values) -> Values:
    """Multiply, then clamp to the range of s32 (``.satfinite``)."""
    return np.clip(multiply_integers(a, b, c), -(2.0**31), 2.0**31 - 1)


def count_xor(a: Values, b: Values, c: Values) -> Values:
    """Count the bits that differ (``.xor.popc``)."""
    return multiply_integers(a, 1 - b, multiply_integers(1 - a, b, c))


INTEGER_RULES: Final[dict[str, Rule]] = {"": multiply_integers, "satfinite": multiply_saturating}
BIT_RULES: Final[dict[str, Rule]] = {"and": multiply_integers, "xor": count_xor}
ROUNDING_MODES: Final = ("rn", "rz", "rm", "rp")


def product(a: MatrixOperand, b: MatrixOperand, c: MatrixOperand, d: MatrixOperand, rule: Rule) -> WarpOp:
    """Return the instruction that computes ``D = A * B + C``."""
    first, second = len(a.registers), len(a.registers) + len(b.registers)

    def run(_memory: WarpMemory, *registers: Lanes) -> tuple[Lanes, ...]:
        with np.errstate(all="ignore"):
            values = rule(a.read(registers[:first]), b.read(registers[first:second]), c.read(registers[second:]))
            return d.write(values)

    return WarpOp(d.registers, a.sources + b.sources + c.sources, run)


# ------------------------------------------------------------------------------------------------ instructions

Shape = tuple[int, int, int]
Form = tuple[str, tuple[WarpOp, ...]]
"""A mnemonic and its instructions, which differ in their number of operands."""
_MIXED_BYTES: Final = (("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8"))
_MIXED_NIBBLES: Final = (("s4", "s4"), ("s4", "u4"), ("u4", "s4"), ("u4", "u4"))
_MIXED_FP8: Final = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2"))

_FLOATS: Final[tuple[tuple[Shape, tuple[tuple[str, str], ...], tuple[str, ...]], ...]] = (
    ((16, 8, 8), (("f16", "f16"),), ("f16", "f32")),
    ((16, 8, 16), (("f16", "f16"),), ("f16", "f32")),
    ((16, 8, 8), (("bf16", "bf16"),), ("f32",)),
    ((16, 8, 16), (("bf16", "bf16"),), ("f32",)),
    ((16, 8, 4), (("tf32", "tf32"),), ("f32",)),
    ((16, 8, 8), (("tf32", "tf32"),), ("f32",)),
    ((16, 8, 16), _MIXED_FP8, ("f16", "f32")),
    ((16, 8, 32), _MIXED_FP8, ("f16", "f32")),
)
"""Shape, multiplicand types, accumulator types; C and D have the same type."""

_INTEGERS: Final = (
    ((8, 8, 16), _MIXED_BYTES),
    ((16, 8, 16), _MIXED_BYTES),
    ((16, 8, 32), _MIXED_BYTES),
    ((8, 8, 32), _MIXED_NIBBLES),
    ((16, 8, 32), _MIXED_NIBBLES),
    ((16, 8, 64), _MIXED_NIBBLES),
)
_BITS: Final = ((8, 8, 128), (16, 8, 128), (16, 8, 256))
_DOUBLES: Final = ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16))


def forms() -> Iterator[Form]:
    """Yield every supported mnemonic with its instructions."""
    yield from _quad_forms()
    for shape, types, accumulators in _FLOATS:
        for (a, b), c in itertools.product(types, accumulators):
            yield _name(shape, f"{c}.{a}.{b}.{c}"), (_op(shape, a, b, c, multiply_floats),)
    for shape, types in _INTEGERS:
        for (a, b), (flag, rule) in itertools.product(types, INTEGER_RULES.items()):
            yield _name(shape, f"s32.{a}.{b}.s32", flag), (_op(shape, a, b, "s32", rule),)
    for shape, (name, rule) in itertools.product(_BITS, BIT_RULES.items()):
        yield f"{_name(shape, 's32.b1.b1.s32')}.{name}.popc", (_op(shape, "b1", "b1", "s32", rule),)
    for shape, mode in itertools.product(_DOUBLES, ("", *ROUNDING_MODES)):
        rule = multiply_doubles(mode or "rn")
        yield _name(shape, "f64.f64.f64.f64", mode), (_op(shape, "f64", "f64", "f64", rule),)
    yield from _transfer_forms("load.a", _MULTIPLICANDS)
    yield from _transfer_forms("load.b", _MULTIPLICANDS)
    yield from _transfer_forms("load.c", _ACCUMULATORS)
    yield from _transfer_forms("store.d", _ACCUMULATORS)
    yield from _product_forms()
    yield from _tile_forms()


def _quad_forms() -> Iterator[Form]:
    """Yield ``mma.m8n8k4`` on f16, which computes four products."""
    layouts = ("row", "col")
    for alayout, blayout, (d, c) in itertools.product(
        layouts, layouts, (("f16", "f16"), ("f32", "f16"), ("f32", "f32"))
    ):
        op = product(
            MatrixOperand(matrices.quad_a(alayout), "f16"),
            MatrixOperand(matrices.quad_b(blayout), "f16"),
            MatrixOperand(matrices.quad_accumulator(c), c),
            MatrixOperand(matrices.quad_accumulator(d), d),
            multiply_floats,
        )
        yield f"mma.sync.aligned.m8n8k4.{alayout}.{blayout}.{d}.f16.f16.{c}", (op,)


def _name(shape: Shape, types: str, flag: str = "") -> str:
    m, n, k = shape
    return f"mma.sync.aligned.m{m}n{n}k{k}.row.col{'.' * bool(flag)}{flag}.{types}"


def _op(shape: Shape, a: str, b: str, c: str, rule: Rule) -> WarpOp:
    m, n, k = shape
    sums = MatrixOperand(matrices.accumulator(m, n), c)
    return product(
        MatrixOperand(matrices.multiplicand_a(m, k, ELEMENTS[a].per), a),
        MatrixOperand(matrices.multiplicand_b(k, n, ELEMENTS[b].per), b),
        sums,
        sums,
        rule,
    )


# ----------------------------------------------------------------------------------------------------------------- wmma

SPACES: Final = {**mbarrier.SPACES, "global": "global"}
LAYOUTS: Final = ("row", "col")
_WIDE: Final = ((16, 16, 16), (8, 32, 16), (32, 8, 16))

_MULTIPLICANDS: Final[dict[str, tuple[Shape, ...]]] = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), _WIDE),
    "tf32": ((16, 16, 8),),
    "f64": ((8, 8, 4),),
    **dict.fromkeys(("s4", "u4"), ((8, 8, 32),)),
    "b1": ((8, 8, 128),),
}
_ACCUMULATORS: Final[dict[str, tuple[Shape, ...]]] = {
    "f16": _WIDE,
    "f32": (*_WIDE, (16, 16, 8)),
    "s32": (*_WIDE, (8, 8, 32), (8, 8, 128)),
    "f64": ((8, 8, 4),),
}


def _operand(role: str, shape: Shape, type_: str) -> MatrixOperand:
    """Lay out A, B, C or D; f16 multiplicands always fill 8 registers (9.7.14.4.1)."""
    m, n, k = shape
    if role in "cd":
        return MatrixOperand(matrices.accumulator(m, n), type_)
    per = ELEMENTS[type_].per
    fragment = matrices.multiplicand_a(m, k, per) if role == "a" else matrices.multiplicand_b(k, n, per)
    return MatrixOperand(fragment, type_, 16 // fragment.elements if type_ == "f16" else 1)


# ------------------------------------------------------------------------------------------------ load and store


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A matrix between memory and registers; the layout, ``row`` or ``col``, is which elements are adjacent."""

    operand: MatrixOperand
    layout: str
    space: str

    def _unit(self) -> int:
        """Elements per access: one, but a register's worth of those narrower than a byte."""
        return self.operand.element.per if self.operand.element.bits < 8 else 1

    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(f"uint{self.operand.element.bits * self._unit()}")

    def _addresses(self, memory: WarpMemory, bases: Lanes, strides: Lanes | None) -> NDArray[np.uint64]:
        """Return the address of every access, ``(warps, 32, accesses)``; strides count elements."""
        fragment, bits = self.operand.fragment, self.operand.element.bits
        major, minor = (fragment.row, fragment.col) if self.layout == "row" else (fragment.col, fragment.row)
        if strides is None:
            strides = np.full_like(bases, fragment.shape[1 if self.layout == "row" else 0])
        pitches = strides.astype(np.uint64) * np.uint64(bits) // np.uint64(8)
        self._check(memory, bases, pitches)
        major, minor = major[:, :: self._unit()].astype(np.uint64), minor[:, :: self._unit()].astype(np.uint64)
        offsets: NDArray[np.uint64] = major * pitches[..., None] + minor * np.uint64(bits) // np.uint64(8)
        return bases[..., None] + offsets

    def _check(self, memory: WarpMemory, bases: Lanes, pitches: Lanes) -> None:
        """Refuse what the ISA leaves undefined: lanes that disagree, rows that are not aligned to the fragment."""
        differ = (bases != bases[:, :1]) | (pitches != pitches[:, :1])
        _refuse(memory, differ, "the lanes of the warp disagree about the matrix's address or stride")
        align = min(16, len(self.operand.registers) * 4)
        crooked = (bases | pitches) % np.uint64(align) != 0
        _refuse(memory, crooked, f"a row or column of the matrix is not aligned to {align} bytes")

    def load(self, memory: WarpMemory, bases: Lanes, strides: Lanes | None = None) -> tuple[Lanes, ...]:
        """Run ``wmma.load``."""
        accesses = memory.load(self.space, self._addresses(memory, bases, strides), self._dtype())
        if self._unit() > 1:
            accesses = unpack(accesses, self.operand.element)
        return self.operand.split(accesses)

    def store(self, memory: WarpMemory, bases: Lanes, *rest: Lanes) -> None:
        """Run ``wmma.store``: base, registers and perhaps a stride."""
        count = len(self.operand.registers)
        strides = rest[count] if len(rest) > count else None
        elements = self.operand.join(rest[:count])
        memory.store(self.space, self._addresses(memory, bases, strides), elements.astype(self._dtype()))

    def ops(self, *, store: bool) -> tuple[WarpOp, ...]:
        """Return the instruction without and with a stride."""
        if store:
            sources = self.operand.sources
            return tuple(WarpOp((), ("u64", *sources, *stride), self.store) for stride in ((), ("u32",)))
        return tuple(WarpOp(self.operand.registers, ("u64", *stride), self.load) for stride in ((), ("u32",)))


def _refuse(memory: WarpMemory, wrong: NDArray[np.bool_], reason: str) -> None:
    """Raise `KernelFault` for the first lane that is wrong, if any."""
    if wrong.any():
        warp, lane = np.argwhere(wrong)[0]
        memory.fault(int(warp), int(lane), reason)


def _transfer_forms(name: str, shapes: dict[str, tuple[Shape, ...]]) -> Iterator[Form]:
    operation, _, role = name.partition(".")
    for type_, existing in shapes.items():
        for shape, space, layout in itertools.product(existing, SPACES, _layouts(role, type_)):
            m, n, k = shape
            transfer = _Transfer(_operand(role, shape, type_), layout, SPACES[space])
            mnemonic = f"wmma.{name}.sync.aligned.{layout}.m{m}n{n}k{k}{'.' * bool(space)}{space}.{type_}"
            yield mnemonic, transfer.ops(store=operation == "store")


def _layouts(role: str, type_: str) -> tuple[str, ...]:
    """Which layouts exist: below a byte, A is ``row`` and B is ``col``."""
    if ELEMENTS[type_].bits >= 8:
        return LAYOUTS
    return ("row",) if role == "a" else ("col",)


# ------------------------------------------------------------------------------------------------------- products


def _product_forms() -> Iterator[Form]:
    for shape, (d, c) in itertools.product(_WIDE, itertools.product(("f16", "f32"), repeat=2)):
        yield from _products(shape, f"{d}.{c}", ("f16", "f16", c, d), multiply_floats)
    for shape, type_ in (*((shape, "bf16") for shape in _WIDE), ((16, 16, 8), "tf32")):
        yield from _products(shape, f"f32.{type_}.{type_}.f32", (type_, type_, "f32", "f32"), multiply_floats)
    for mode in ("", *ROUNDING_MODES):
        rule, tail = multiply_doubles(mode or "rn"), f"{mode}{'.' * bool(mode)}f64.f64.f64.f64"
        yield from _products((8, 8, 4), tail, ("f64", "f64", "f64", "f64"), rule)
    for type_, (flag, rule) in itertools.product(("s8", "u8", "s4", "u4"), INTEGER_RULES.items()):
        tail = f"s32.{type_}.{type_}.s32{'.' * bool(flag)}{flag}"
        for shape in _MULTIPLICANDS[type_]:
            yield from _products(shape, tail, (type_, type_, "s32", "s32"), rule)
    for name, rule in BIT_RULES.items():
        yield from _products((8, 8, 128), "s32.b1.b1.s32", ("b1", "b1", "s32", "s32"), rule, f"{name}.popc.")


def _products(shape: Shape, tail: str, types: tuple[str, str, str, str], rule: Rule, flags: str = "") -> Iterator[Form]:
    m, n, k = shape
    a, b, c, d = (_operand(role, shape, type_) for role, type_ in zip("abcd", types, strict=True))
    op = product(a, b, c, d, rule)
    for alayout, blayout in itertools.product(_layouts("a", types[0]), _layouts("b", types[1])):
        yield f"wmma.mma.{flags}sync.aligned.{alayout}.{blayout}.m{m}n{n}k{k}.{tail}", (op,)


# ------------------------------------------------------------------------------- matrices of 8 by 8 elements

_ROW_BYTES: Final = 16
_B16: Final = ELEMENTS["f16"]
_BY_ROW: Final = matrices.multiplicand_a(8, 8, _B16.per)
_BY_COLUMN: Final = matrices.multiplicand_b(8, 8, _B16.per)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """One, two or four matrices between shared memory and registers; the fragment is the layout in a register."""

    count: int
    fragment: Fragment
    space: str

    def _rows(self, memory: WarpMemory, pointers: Lanes) -> NDArray[np.uint64]:
        """Return the address of every element, ``(warps, rows, 8)``, from the lanes that give a row."""
        bases = pointers[:, : 8 * self.count]
        _refuse(memory, bases % np.uint64(_ROW_BYTES) != 0, f"a matrix row is not aligned to {_ROW_BYTES} bytes")
        return bases[..., None] + np.arange(0, _ROW_BYTES, 2, dtype=np.uint64)

    def load(self, memory: WarpMemory, pointers: Lanes) -> tuple[Lanes, ...]:
        """Run ``ldmatrix``."""
        rows = memory.load(self.space, self._rows(memory, pointers), np.dtype(np.uint16))
        matrices = rows.reshape(len(pointers), self.count, 1, 8, 8)
        return tuple(_pack(self.fragment.distribute(matrices[:, index])) for index in range(self.count))

    def store(self, memory: WarpMemory, pointers: Lanes, *registers: Lanes) -> None:
        """Run ``stmatrix``."""
        matrices = [self.fragment.assemble(_unpack(register)) for register in registers]
        rows = np.concatenate(matrices, axis=1).reshape(len(pointers), 8 * self.count, 8)
        memory.store(self.space, self._rows(memory, pointers), rows)


def _transpose(_memory: WarpMemory, register: Lanes) -> tuple[Lanes, ...]:
    """Run ``movmatrix``."""
    return (_pack(_BY_COLUMN.distribute(_BY_ROW.assemble(_unpack(register)))),)


def _tile_forms() -> Iterator[Form]:
    """Yield every supported mnemonic with its instruction."""
    for count, transposed, space in itertools.product((1, 2, 4), (False, True), mbarrier.SPACES):
        tiles = _Tiles(count, _BY_COLUMN if transposed else _BY_ROW, mbarrier.SPACES[space])
        tail = f"sync.aligned.m8n8.x{count}{'.trans' * transposed}{'.' * bool(space)}{space}.b16"
        yield f"ldmatrix.{tail}", (WarpOp(("b32",) * count, ("u64",), tiles.load),)
        yield f"stmatrix.{tail}", (WarpOp((), ("u64", *("b32",) * count), tiles.store),)
    yield "movmatrix.sync.aligned.m8n8.trans.b16", (WarpOp(("b32",), ("b32",), _transpose),)


def _pack(elements: Lanes) -> Lanes:
    return pack(elements, _B16)[..., 0]


def _unpack(register: Lanes) -> Lanes:
    return unpack(register[..., None], _B16).astype(np.uint16)
