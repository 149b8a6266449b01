"""PTX modules that are consistent, constant expressions, and texts that are nearly PTX."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tensorwasm.ptx.layout import TYPE_BYTES
from tensorwasm.ptx.model import (
    Address,
    Arguments,
    Block,
    Directive,
    Float,
    Function,
    Generic,
    Guard,
    Instruction,
    Int,
    Label,
    Masked,
    Module,
    Name,
    Not,
    Offset,
    Pair,
    Property,
    TargetList,
    Variable,
    Vector,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "ptx"
CORPUS = {path.name: path.read_text("ascii") for path in sorted(GOLDEN.glob("*.ptx"))}

_TYPES = st.sampled_from(sorted(TYPE_BYTES))
_ALIGNS = st.none() | st.sampled_from([1, 2, 4, 8, 16, 128])
_STEMS = st.sampled_from(["a", "%r", "%", "$L__BB", "_v", "_ZN3foo", "f$", "Q_"])
_WORDS = st.sampled_from(
    ["rn", "ftz", "f32", "m16n8k16", "shared::cta", "L2::cache_hint", "L1::evict_last", "2d", "x_1"]
)
_OPCODES = st.sampled_from(["add", "ld", "st", "mov", "mma", "cp", "setp", "bar", "tex", "x9_y"])
_STRINGS = st.text("abc /.:;{}*", max_size=8).map(lambda text: f'"{text}"')
_U32 = st.integers(0, (1 << 32) - 1).map(str)

ints = st.builds(Int, st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(-4, 4))
floats = st.builds(Float, st.integers(0, (1 << 32) - 1), st.just(32)) | st.builds(
    Float, st.integers(0, (1 << 64) - 1), st.just(64)
)
_offsets = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-16, 16)

_SPECIAL_NAMES = [Name("%tid", "x"), Name("%ctaid", "w"), Name("%laneid"), Name("_"), Name("%clock64")]


@dataclass
class _Maker:
    """Draws parts of one module and remembers what it has declared."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    numbers: Iterable[int] = field(default_factory=count)
    functions: list[Function] = field(default_factory=list)
    values: list[Name] = field(default_factory=list)
    predicates: list[Name] = field(default_factory=list)
    memory: list[Name] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def inner(self) -> _Maker:
        """Return a maker for a block inside this one."""
        lists = (list(each) for each in (self.functions, self.values, self.predicates, self.memory, self.labels))
        return _Maker(self.draw, self.numbers, *lists)

    def name(self) -> str:
        """Return a new name. Its last letter keeps it apart from numbered registers."""
        return f"{self.draw(_STEMS)}{next(iter(self.numbers))}x"

    def some(self, strategy: st.SearchStrategy[Any], most: int = 3, least: int = 0) -> tuple[Any, ...]:
        return tuple(self.draw(st.lists(strategy, min_size=least, max_size=most)))

    def times(self, most: int, least: int = 0) -> range:
        return range(self.draw(st.integers(least, most)) if most > least else least)

    # -- declarations ---------------------------------------------------------------------------------------------

    def shape(self) -> tuple[int, ...]:
        return self.draw(st.lists(st.integers(1, 4), max_size=3).map(tuple))

    def variable(self, spaces: list[str], linkages: list[str]) -> Variable:
        space = self.draw(st.sampled_from(spaces))
        name = self.name()
        linkage = self.some(st.sampled_from(linkages), 1) if linkages else ()
        attributes = self.draw(st.sampled_from([(), ("managed",), ("unified(1,2)",), ("managed", "unified(0,7)")]))
        if space == "global" and self.draw(st.booleans()):
            kind = self.draw(st.sampled_from(["texref", "samplerref", "surfref"]))
            return Variable(space, kind, name, linkage=linkage, initializer=self.properties())
        shape = self.shape()
        vector = 1 if space == "param" else self.draw(st.sampled_from([1, 2, 4]))
        values = self.initial(shape, vector) if space in {"global", "const"} else ()
        if shape and (values or "extern" in linkage) and self.draw(st.booleans()):
            shape = (0, *shape[1:])
        made = Variable(
            space, self.draw(_TYPES), name, vector, self.draw(_ALIGNS), shape, None, linkage, None, values, attributes
        )
        self.memory.append(Name(name))
        return made

    def properties(self) -> tuple[Property, ...]:
        values = st.builds(Name, st.just("nearest")) | ints
        return self.some(st.builds(Property, st.sampled_from(["filter_mode", "width"]), values))

    def initial(self, shape: tuple[int, ...], vector: int) -> tuple[Any, ...]:
        total = math.prod(shape) * vector
        values = self.some(self.initial_value(), total)
        if vector > 1:
            return values[: len(values) // vector * vector]
        return values

    def initial_value(self) -> st.SearchStrategy[Any]:
        if not self.memory:
            return ints | floats
        bases = st.sampled_from(self.memory)
        addresses = bases | st.builds(Offset, bases, _offsets) | st.builds(Generic, bases, _offsets)
        return ints | floats | addresses | st.builds(Masked, st.integers(1, (1 << 64) - 1), addresses)

    def registers(self) -> Variable:
        name, kind = self.name(), self.draw(_TYPES | st.just("pred"))
        if self.draw(st.booleans()):
            family = Variable("reg", kind, name + "_", count=self.draw(st.integers(1, 12)))
            known = [Name(f"{name}_{index}") for index in range(family.count)]
        else:
            family = Variable("reg", kind, name, self.draw(st.sampled_from([1, 2, 4])))
            known = [Name(name), *(Name(name, each) for each in ("xyzwrgba" if family.vector == 4 else ""))]
        self.values += known
        if kind == "pred":
            self.predicates += [each for each in known if each.component is None]
        return family

    def param(self, *, entry: bool) -> Variable:
        name = self.name()
        if not entry and self.draw(st.booleans()):
            self.values.append(Name(name))
            return Variable("reg", self.draw(_TYPES), name)
        self.memory.append(Name(name))
        pointers = st.tuples(st.sampled_from(["", "global", "shared", "const", "local"]), st.sampled_from([0, 1, 8]))
        pointer = self.draw(st.none() | pointers)
        return Variable("param", self.draw(_TYPES), name, 1, self.draw(_ALIGNS), self.shape(), pointer=pointer)

    # -- operands -------------------------------------------------------------------------------------------------

    def pick(self, choices: list[Any]) -> Any:
        return choices[self.draw(st.integers(0, len(choices) - 1))]

    def known(self) -> Name:
        return self.pick([*self.values, *self.memory, *_SPECIAL_NAMES])

    def base(self) -> Name:
        return self.pick([each for each in [*self.values, *self.memory] if each.component is None] or [Name("%tid")])

    def operand(self, depth: int = 0) -> Any:
        kind = self.draw(st.integers(0, 8 if depth < 2 else 4))
        makers = [
            self.known,
            lambda: self.draw(ints),
            lambda: self.draw(floats),
            lambda: Offset(self.base(), self.draw(_offsets)),
            lambda: Not(self.known()),
            lambda: Vector(self.operands(4, depth + 1)),
            lambda: Pair(self.known(), self.operand(2)),
            lambda: Address(self.base(), self.draw(_offsets), self.operands(2, depth + 1)),
            lambda: Address(self.draw(ints), 0, self.operands(1, depth + 1)),
        ]
        return makers[kind]()

    def operands(self, most: int, depth: int = 0, least: int = 0) -> tuple[Any, ...]:
        return tuple(self.operand(depth) for _ in self.times(most, least))

    # -- statements -----------------------------------------------------------------------------------------------

    def instruction(self) -> Instruction:
        guard = None
        if self.predicates and self.draw(st.booleans()):
            guard = Guard(self.draw(st.sampled_from(self.predicates)), self.draw(st.booleans()))
        if self.labels and self.draw(st.integers(0, 4)) == 0:
            return Instruction(
                "bra", self.some(st.just("uni"), 1), (Name(self.draw(st.sampled_from(self.labels))),), guard
            )
        modifiers = self.some(_WORDS)
        return Instruction(self.draw(_OPCODES), modifiers, self.operands(4), guard)

    def call(self) -> Instruction:
        function = self.draw(st.sampled_from(self.functions))
        operands: list[Any] = []
        if function.returns:
            operands.append(Arguments(self.operands(len(function.returns), 0, len(function.returns))))
        operands.append(Name(function.name))
        if function.params or self.draw(st.booleans()):
            operands.append(Arguments(self.operands(len(function.params), 0, len(function.params))))
        return Instruction("call", self.some(st.just("uni"), 1), tuple(operands))

    def directive(self) -> Directive:
        numbers = self.some(_U32, 3, 3)
        inlined = (*numbers, "function_name", "$L__info", *self.draw(st.sampled_from([(), ("+", "4")])), "inlined_at")
        choices = [
            Directive("loc", numbers),
            Directive("loc", (*inlined, *numbers)),
            Directive("pragma", self.some(_STRINGS, 2, 1)),
        ]
        return self.draw(st.sampled_from(choices))

    def target_list(self) -> TargetList:
        name = self.name()
        if self.labels and self.draw(st.booleans()):
            return TargetList(name, "branchtargets", self.some(st.sampled_from(self.labels), 3, 1))
        if self.functions and self.draw(st.booleans()):
            names = [function.name for function in self.functions]
            return TargetList(name, "calltargets", self.some(st.sampled_from(names), 3, 1))
        params = tuple(Variable("param", self.draw(_TYPES), "_", shape=self.shape()) for _ in self.times(2))
        returns = tuple(Variable("reg", self.draw(_TYPES), "_") for _ in self.times(1))
        noreturn = self.some(st.just(Directive("noreturn")), 1)
        return TargetList(name, "callprototype", (), Function(False, "_", params, returns, directives=noreturn))

    def body(self, depth: int = 0) -> tuple[Any, ...]:
        fresh = [self.name() for _ in self.times(2)]
        self.labels += fresh
        made: list[Any] = [self.registers() for _ in self.times(3)]
        made += [self.statement(depth) for _ in self.times(8, 2)]
        for label in fresh:
            made.insert(self.draw(st.integers(0, len(made))), Label(label))
        return tuple(made)

    def statement(self, depth: int) -> Any:
        kind = self.draw(st.integers(0, 9))
        if kind == 0 and depth < 3:
            return Block(self.inner().body(depth + 1))
        if kind == 1:
            return self.variable(["local", "shared", "param", "global", "const"], [])
        if kind == 2:
            return self.directive()
        if kind == 3:
            return self.target_list()
        if kind == 4 and self.functions:
            return self.call()
        return self.instruction()

    # -- functions ------------------------------------------------------------------------------------------------

    def function(self) -> list[Function]:
        """Return a function, with a declaration in front of it or alone."""
        inner = self.inner()
        entry = self.draw(st.booleans())
        params = tuple(inner.param(entry=entry) for _ in self.times(4))
        returns = () if entry else tuple(inner.param(entry=False) for _ in self.times(2))
        linkage = self.some(st.sampled_from(["extern", "visible", "weak"]), 1)
        name = self.name()
        declared = Function(entry, name, params, returns, linkage, self.tuning())
        if not entry:
            inner.functions.append(declared)
            self.functions.append(declared)
        parts = self.draw(st.sampled_from(["both", "body", "declaration"]))
        body = Function(entry, name, params, returns, linkage, self.tuning(), inner.body())
        return {"both": [declared, body], "body": [body], "declaration": [declared]}[parts]

    def tuning(self) -> tuple[Directive, ...]:
        one, three = st.integers(1, 1 << 20).map(str), st.lists(st.integers(1, 64).map(str), min_size=1, max_size=3)
        choices = st.one_of(
            st.builds(Directive, st.sampled_from(["maxntid", "reqntid", "reqnctapercluster"]), three.map(tuple)),
            st.builds(Directive, st.sampled_from(["maxnreg", "minnctapersm", "abi_preserve"]), st.tuples(one)),
            st.builds(Directive, st.sampled_from(["noreturn", "explicitcluster", "blocksareclusters"])),
            st.builds(Directive, st.just("pragma"), st.tuples(_STRINGS)),
        )
        return self.some(choices, 2)

    def section(self) -> Directive:
        lines = st.one_of(
            st.tuples(st.just(".b8"), st.integers(0, 255).map(str)),
            st.tuples(st.just(".b8"), st.just("1"), st.just(","), st.just("2")),
            st.tuples(st.just(".b32"), st.just(".debug_abbrev"), st.just("+"), st.just("4")),
            st.tuples(st.just(".b64"), st.just("$L_end"), st.just("-"), st.just("$L_begin")),
            st.tuples(st.just(".b16"), st.just("-"), st.just("1")),
            st.tuples(st.just("$L_info"), st.just(":")),
        )
        words = [word for line in self.some(lines, 6) for word in line]
        return Directive("section", (self.draw(st.sampled_from([".debug_info", ".debug_str"])), *words))


@st.composite
def modules(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Module:
    """A consistent module that uses most of the model, its instructions being nonsense."""
    maker = _Maker(draw)
    items: list[Any] = []
    for _ in maker.times(6, 1):
        kind = draw(st.integers(0, 5))
        if kind == 0:
            items.append(maker.section())
        elif kind == 1:
            items.append(Directive("file", (draw(_U32), draw(_STRINGS), *draw(st.sampled_from([(), ("7", "8")])))))
        elif kind == 2:
            items.append(maker.variable(["global", "const", "shared"], ["visible", "extern", "weak", "common"]))
        else:
            items += maker.function()
    version = draw(st.sampled_from([(6, 0), (7, 5), (8, 0), (8, 10), (9, 0)]))
    targets = st.sampled_from([("sm_52",), ("sm_80", "debug"), ("sm_90a",), ("sm_100f", "texmode_independent")])
    return Module(version, draw(targets), draw(st.sampled_from([32, 64])), tuple(items))


# ----------------------------------------------------------------------------------------- constant expressions

_BINARY = ["*", "/", "%", "+", "-", "<<", ">>", "<", ">", "<=", ">=", "==", "!=", "&", "^", "|", "&&", "||"]
Tree = int | tuple[Any, ...]
"""An integer literal, or (operator, operands...); ``s64`` and ``u64`` are the casts, ``?`` the conditional."""


def expressions() -> st.SearchStrategy[Tree]:
    """Trees of integer constant expressions."""
    literals = st.integers(0, (1 << 64) - 1) | st.integers(0, 70)
    return st.recursive(
        literals,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["-", "+", "~", "!", "s64", "u64"]), inner),
            st.tuples(st.sampled_from(_BINARY), inner, inner),
            st.tuples(st.just("?"), inner, inner, inner),
        ),
        max_leaves=12,
    )


# ------------------------------------------------------------------------------------------------ broken texts

_TOKEN = re.compile(r"\s+|[\w$%.]+|.", re.ASCII | re.DOTALL)
_SINGLE = """
    { } ( ) [ ] ; , : @ ! < > /* */ // " % _ - + . .entry .func .param .callprototype call bra %tid.x WARP_SZ
    18446744073709551616 0f3F80000 0d3FF0000000000000 1e999 <4294967295> 99999999999 generic( 0xff( ? .section .version
"""
_FRAGMENTS = [
    *_SINGLE.split(),
    "\n",
    "\0",
    "\xe9",
    ".reg .b32 %r<5>;",
    ".align 3",
    ".section .debug_str {",
    "{" * 99,
    "(" * 99,
]


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _flip(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + chr(rng.randrange(256)) + text[at + 1 :]


def _insert(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(_FRAGMENTS) + text[at:]


def _repeat(rng: random.Random, text: str) -> str:
    start = rng.randrange(len(text) + 1)
    piece = text[start : start + rng.randrange(1, 200)]
    return text[:start] + piece * rng.randrange(1, 5) + text[start:]


def _drop(rng: random.Random, text: str) -> str:
    start = rng.randrange(len(text) + 1)
    return text[:start] + text[start + rng.randrange(1, 60) :]


def _swap(rng: random.Random, text: str) -> str:
    tokens = _TOKEN.findall(text) or [""]
    first, second = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    tokens[first], tokens[second] = tokens[second], tokens[first]
    return "".join(tokens)


_MUTATIONS = [_cut, _flip, _flip, _insert, _insert, _repeat, _drop, _swap, _swap]


def mutate(rng: random.Random, text: str) -> str:
    """Return ``text`` with one to four things wrong with it; the same for the same state of ``rng``."""
    for _ in range(rng.randint(1, 4)):
        text = rng.choice(_MUTATIONS)(rng, text)
    return text
