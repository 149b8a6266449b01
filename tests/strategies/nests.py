"""Random `Nest`: loops, domains, cells, and accesses that overlap, wrap, and are of many sizes."""

from __future__ import annotations

import random

from tensorwasm.offload.nest import (
    ALWAYS,
    LOAD_BYTES,
    STORE_BYTES,
    Affine,
    Carried,
    Cell,
    Constant,
    Constraint,
    Domain,
    Effect,
    Floor,
    Index,
    Input,
    Load,
    Loop,
    Nest,
    Operation,
    SetCell,
    Statement,
    Store,
    Value,
    ValueType,
)

MEMORY_BYTES = 1 << 16
INPUTS: dict[int, ValueType] = {0: "f64", 1: "f32", 2: "i32", 3: "i64"}
"""Types of the locals that are live-in."""

_TYPES: tuple[ValueType, ...] = ("f64", "f64", "f64", "f32", "i32", "i32", "i64")
_BINARY = {"i": "add sub mul and xor shl shr_u", "f": "add sub mul div min max"}
_CONVERSIONS = {
    ("f64", "i32"): "f64.convert_i32_s",
    ("f64", "f32"): "f64.promote_f32",
    ("f64", "i64"): "f64.convert_i64_u",
    ("f32", "f64"): "f32.demote_f64",
    ("f32", "i32"): "f32.convert_i32_u",
    ("f32", "i64"): "f32.convert_i64_s",
    ("i32", "f64"): "i32.trunc_sat_f64_s",
    ("i32", "f32"): "i32.reinterpret_f32",
    ("i32", "i64"): "i32.wrap_i64",
    ("i64", "i32"): "i64.extend_i32_s",
    ("i64", "f64"): "i64.reinterpret_f64",
    ("i64", "f32"): "i64.trunc_sat_f32_u",
}


class _Builder:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.statements = self.loops = self.cells = 0
        self.tidy = self.draw.random() < 0.6
        """Whether iterations write places of their own, which few others read."""
        self.types = self.draw.sample(_TYPES, self.draw.choice([1, 1, 2, 3]))

    # --------------------------------------------------------------------------------------------------------- integers

    def affine(self, around: tuple[int, ...], factors: list[int], constants: list[int]) -> Affine:
        count = min(self.draw.choice([0, 1, 1, 2]), len(around))
        terms: list[tuple[int | Floor, int]] = [
            (counter, self.draw.choice(factors)) for counter in self.draw.sample(around, count)
        ]
        if around and self.draw.random() < 0.08:
            inner = Affine(self.draw.randint(-3, 3), ((self.draw.choice(around), self.draw.choice([1, -1, 3])),))
            terms.append((Floor(inner, self.draw.choice([2, 3, 4])), self.draw.choice(factors)))
        return Affine(self.draw.choice(constants), tuple(terms))

    def domain(self, around: tuple[int, ...]) -> Domain:
        if not around or self.draw.random() < 0.75:
            return ALWAYS
        return tuple(
            tuple(
                Constraint(self.affine(around, [1, -1, 2], [-3, -1, 0, 1, 2, 5]), self.draw.random() < 0.2)
                for _ in range(self.draw.choice([1, 1, 2]))
            )
            for _ in range(self.draw.choice([1, 1, 2]))
        )

    def pointer(self, around: tuple[int, ...], size_bytes: int, *, own: bool) -> tuple[Affine, int]:
        """Return a pointer and offset; with ``own``, of a place that is another one in each iteration."""
        if own:
            strides = zip(reversed(around), (size_bytes, 16 * size_bytes, 256 * size_bytes), strict=False)
            found = Affine(0, tuple(strides))
            region = 32768 + 8192 * self.draw.randrange(3)
        else:
            unit = size_bytes if self.draw.random() < 0.95 else 1
            found = self.affine(around, [unit, unit, -unit, 2 * unit, 16 * unit], [0, 0, unit, -unit, 3 * unit])
            region = 4096 + (4096 * self.draw.randrange(2) if self.draw.random() < 0.8 else 29000)
        offset = self.draw.choice([0, 0, 0, 8, 4000])
        wrap = self.draw.choice([0, 0, 0, 0, -1, 1, 3]) << 32
        return Affine(found.constant + region - offset + wrap, found.terms), offset

    # ----------------------------------------------------------------------------------------------------------- values

    def load(self, around: tuple[int, ...]) -> Load:
        type_ = self.draw.choice(self.types)
        names = [name for name in LOAD_BYTES if name.startswith(type_)]
        opcode = names[0] if self.draw.random() < 0.8 else self.draw.choice(names)
        own = self.tidy and self.draw.random() < 0.2
        return Load(opcode, *self.pointer(around, LOAD_BYTES[opcode], own=own))

    def leaf(self, around: tuple[int, ...], loads: list[Load], cells: list[Cell]) -> Value:
        kind = self.draw.random()
        if loads and kind < 0.5:
            return self.draw.choice(loads)
        if cells and kind < 0.7:
            return Carried(self.draw.choice(cells))
        if kind < 0.8:
            return Index(self.draw.choice(["i32", "i64"]), self.affine(around, [1, -1, 7], [0, -5, 1 << 31]))
        if kind < 0.9:
            local = self.draw.choice(list(INPUTS))
            return Input(INPUTS[local], local)
        type_ = self.draw.choice(self.types)
        bits = self.draw.choice([0, 1, 5, 0x3FC00000, 0xC1200000])
        return Constant(type_, bits << 32 if type_ == "f64" else bits)

    def value(self, type_: ValueType, leaves: list[Value], depth: int = 2) -> Value:
        if depth == 0 or self.draw.random() < 0.15:
            leaf = self.draw.choice(leaves)
            return leaf if leaf.type == type_ else Operation(type_, _CONVERSIONS[type_, leaf.type], (leaf,))
        a, b = self.value(type_, leaves, depth - 1), self.value(type_, leaves, depth - 1)
        if self.draw.random() < 0.1:
            other = self.draw.choice(self.types)
            comparison = f"{other}.{'lt_s' if other[0] == 'i' else 'lt'}"
            compared = self.value(other, leaves, 0), self.value(other, leaves, 0)
            return Operation(type_, "select", (a, b, Operation("i32", comparison, compared)))
        return Operation(type_, f"{type_}.{self.draw.choice(_BINARY[type_[0]].split())}", (a, b))

    # -------------------------------------------------------------------------------------------------------- structure

    def statement(self, around: tuple[int, ...], cells: list[Cell]) -> Statement:
        effects: list[Effect] = []
        loads = [self.load(around) for _ in range(self.draw.choice([1, 2, 3]))]
        leaves = [self.leaf(around, loads, cells) for _ in range(4)]
        effects += loads
        for _ in range(self.draw.choice([1, 1, 1, 2]) if not cells or self.draw.random() < 0.7 else 0):
            type_ = self.draw.choice(self.types)
            names = [name for name in STORE_BYTES if name.startswith(type_)]
            opcode = names[0] if self.draw.random() < 0.8 else self.draw.choice(names)
            own = self.tidy or self.draw.random() < 0.3
            pointer, offset = self.pointer(around, STORE_BYTES[opcode], own=own)
            effects.append(Store(opcode, pointer, offset, self.value(type_, leaves)))
            if self.draw.random() < 0.1:
                later = self.load(around)
                effects.append(later)
                leaves.append(later)
        for cell in cells:
            if self.draw.random() < 0.5:
                effects.append(SetCell(cell, self.value(cell.type, leaves)))
        return self.number(self.domain(around), effects)

    def number(self, domain: Domain, effects: list[Effect]) -> Statement:
        self.statements += 1
        return Statement(self.statements - 1, domain, tuple(effects))

    def body(self, around: tuple[int, ...], cells: list[Cell], depth: int) -> tuple[Loop | Statement, ...]:
        items: list[Loop | Statement] = []
        if depth and self.draw.random() < 0.35:
            cell = Cell(self.cells, self.draw.choice(self.types), around)
            self.cells += 1
            items.append(self.number(ALWAYS, [SetCell(cell, self.value(cell.type, [self.leaf(around, [], cells)]))]))
            cells = [*cells, cell]
        for _ in range(self.draw.choice([1, 1, 2, 3])):
            if depth and self.draw.random() < 0.7:
                items.append(self.loop(around, cells, depth))
            elif around:
                items.append(self.statement(around, cells))
        return tuple(items)

    def loop(self, around: tuple[int, ...], cells: list[Cell], depth: int) -> Loop:
        counter = self.loops
        self.loops += 1
        trip = Affine(self.draw.choice([0, 1, 2, 3, 4, 5, 6]))
        if around and self.draw.random() < 0.3:
            trip = self.affine(around, [1, 1, -1], [0, 1, 2, 5])
        return Loop(counter, trip, self.body((*around, counter), cells, depth - 1))

    def nest(self) -> Nest:
        cells = [Cell(number, self.draw.choice(self.types), ()) for number in range(self.draw.choice([0, 0, 0, 1, 2]))]
        self.cells = len(cells)
        first = [SetCell(cell, self.value(cell.type, [self.leaf((), [], [])])) for cell in cells]
        items = self.body((), cells, self.draw.choice([1, 2, 2, 3]))
        results = {10 + cell.number: Carried(cell) for cell in cells}
        start = (self.number(ALWAYS, list(first)),) if first else ()
        return Nest((*start, *items, self.loop((), cells, 1)), {9: Index("i32", Affine(-7)), **results})


def random_nest(seed: int) -> Nest:
    """Return a nest, the same for the same seed."""
    return _Builder(seed).nest()


def random_memory(seed: int) -> bytearray:
    """Return the bytes of f64 values of moderate size, so that arithmetic goes on for a while without infinities."""
    draw = random.Random(seed)
    return bytearray(b"".join(draw.randbytes(6) + b"\xf8\x3f" for _ in range(MEMORY_BYTES // 8)))
