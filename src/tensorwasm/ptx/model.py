"""The model of a PTX module: what the parser makes and everything else reads.

Nodes are immutable and compare by meaning: source positions do not take part in equality, so
``parse(render(module)) == module``. Constant expressions are folded by the parser; comments are dropped.

Source: PTX ISA 9.x, chapters 4 (Syntax), 5 (State Spaces, Types, and Variables), 6 (Instruction Operands),
11 (Directives).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from msgspec import Struct

StateSpace = Literal["reg", "sreg", "const", "global", "local", "param", "shared", "tex"]
"""State spaces of PTX ISA 5.1, without the leading dot."""


class Position(NamedTuple):
    """Where a node begins in the source text: 1-based line and column, 0 for none."""

    line: int = 0
    column: int = 0


# ---------------------------------------------------------------------------------------------- operands

# Only what has no other node in it is hidden from the collector: msgspec releases such structs one inside the other,
# without a bound, so that a long chain of them would run out of stack.


class Name(Struct, frozen=True, gc=False):
    """A register, special register, variable, label, function or the sink ``_``.

    Attributes:
        name: as written, ``%`` included: ``%r1``, ``%tid``, ``$L__BB0_2``.
        component: ``x``, ``y``, ``z``, ``w`` (``r``, ``g``, ``b``, ``a``) of a vector, else None: ``%tid.x``.
    """

    name: str
    component: str | None = None


class Int(Struct, frozen=True, gc=False):
    """An integer constant, folded; two's complement is the reader's business.

    Attributes:
        value: any integer in -(2**63) .. 2**64 - 1.
    """

    value: int


class Float(Struct, frozen=True, gc=False):
    """A floating-point constant, kept as bits so that NaN payloads and -0 survive.

    Attributes:
        bits: IEEE 754 bits.
        width: 32 for ``0f3F800000``, 64 for ``0d...`` and decimal literals.
    """

    bits: int
    width: Literal[32, 64]


class Offset(Struct, frozen=True):
    """``name+imm`` outside brackets: the address of a variable plus a byte offset, as ``mov`` takes it."""

    base: Name
    offset: int


class Address(Struct, frozen=True):
    """``[base+offset]``.

    Attributes:
        base: register or variable; Int for an absolute address.
        offset: byte offset, may be negative.
        coordinates: what follows a comma inside the brackets (textures, tensors), usually empty.
    """

    base: Name | Int
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


class Vector(Struct, frozen=True):
    """``{a, b, c, d}``: a vector operand, or a list of names (branch targets, call arguments)."""

    elements: tuple[Operand, ...]


class Pair(Struct, frozen=True):
    """``p|q``: two destinations of one instruction."""

    first: Operand
    second: Operand


class Not(Struct, frozen=True):
    """``!p``: a negated predicate operand."""

    operand: Name


class Arguments(Struct, frozen=True):
    """``(a, b)``: the parenthesised lists of ``call``."""

    elements: tuple[Operand, ...]


Operand = Name | Int | Float | Offset | Address | Vector | Pair | Not | Arguments


# ------------------------------------------------------------------------------------------ initial values


class Generic(Struct, frozen=True):
    """``generic(name)+offset``: the generic address of a variable, where a bare name is the address in its space."""

    base: Name
    offset: int = 0


class Masked(Struct, frozen=True):
    """``0xff00(address)``: the byte of an address that the mask selects, shifted down to bit 0."""

    mask: int
    address: Name | Offset | Generic


class Property(Struct, frozen=True):
    """``name = value`` in the initializer of a sampler, texture or surface."""

    name: str
    value: Name | Int


Initial = Name | Int | Float | Offset | Generic | Masked | Property
"""One element of an initializer."""


# -------------------------------------------------------------------------------------------- statements


class Guard(Struct, frozen=True):
    """``@p`` or ``@!p`` before an instruction."""

    predicate: Name
    negated: bool = False


class Instruction(Struct, frozen=True, eq=False):
    """One instruction.

    Attributes:
        opcode: up to the first dot: ``add``, ``ld``, ``mma``.
        modifiers: the rest, split at dots, in order and without dots: ``("rn", "ftz", "f32")``; ``::`` stays
            inside one modifier (``shared::cta``).
        operands: destination first, as written.
        guard: predicate, or None.
    """

    opcode: str
    modifiers: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()
    guard: Guard | None = None
    position: Position = Position()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Instruction):
            return NotImplemented
        return self._meaning == other._meaning

    def __hash__(self) -> int:
        return hash(self._meaning)

    @property
    def _meaning(self) -> tuple[object, ...]:
        return self.opcode, self.modifiers, self.operands, self.guard

    @property
    def mnemonic(self) -> str:
        """The full name: ``add.rn.ftz.f32``."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True, slots=True)
class Label:
    """``name:``."""

    name: str
    position: Position = field(default=Position(), compare=False)


@dataclass(frozen=True, slots=True)
class Variable:
    """A declaration: register, variable in memory, or parameter.

    Attributes:
        space: state space.
        type: fundamental type without the dot (``u32``, ``f16x2``, ``pred``, ``b8``), or ``texref`` and its kin.
        name: for ``%r<5>`` the name is ``%r`` and ``count`` is 5.
        vector: 2 or 4 for ``.v2`` and ``.v4``, else 1.
        align: ``.align`` in bytes, or None.
        shape: array dimensions; () for a scalar; a leading 0 stands for ``[]``, whose size is that of the
            initializer (whole rows), or unknown here (``.extern``).
        count: number of parameterised registers, or None.
        linkage: subset of ``extern``, ``visible``, ``weak``, ``common``, in source order; ``hidden`` of a parameter.
        pointer: ``.ptr`` attributes of a parameter as (space or "", align or 0), or None.
        initializer: folded values; nested braces flattened in order, short rows before the last filled with
            zeros. Elements that are missing at the end are zero. () for none. An array of vectors counts the
            vector as its innermost dimension.
        attributes: the names of ``.attribute``, such as ``managed`` or ``unified(19,95)``.
    """

    space: StateSpace
    type: str
    name: str
    vector: int = 1
    align: int | None = None
    shape: tuple[int, ...] = ()
    count: int | None = None
    linkage: tuple[str, ...] = ()
    pointer: tuple[str, int] | None = None
    initializer: tuple[Initial, ...] = ()
    attributes: tuple[str, ...] = ()
    position: Position = field(default=Position(), compare=False)


@dataclass(frozen=True, slots=True)
class Block:
    """``{ ... }`` inside a body: a scope of its own for registers and variables."""

    body: tuple[Statement, ...]
    position: Position = field(default=Position(), compare=False)


@dataclass(frozen=True, slots=True)
class Directive:
    """A directive that is kept as it is: ``.loc``, ``.pragma``, ``.file``, ``.section``, ``.alias``, ...

    Attributes:
        name: without the dot.
        arguments: tokens in order; strings keep their quotes. Commas are dropped, save in ``.section``.
    """

    name: str
    arguments: tuple[str, ...] = ()
    position: Position = field(default=Position(), compare=False)


@dataclass(frozen=True, slots=True)
class TargetList:
    """A labelled list inside a body.

    Attributes:
        label: the name in front of the colon.
        kind: ``branchtargets``, ``calltargets`` or ``callprototype``.
        targets: labels or functions; for a prototype, empty.
        prototype: the declared function of ``callprototype``, else None.
    """

    label: str
    kind: Literal["branchtargets", "calltargets", "callprototype"]
    targets: tuple[str, ...] = ()
    prototype: Function | None = None
    position: Position = field(default=Position(), compare=False)


Statement = Instruction | Label | Variable | Block | Directive | TargetList


# ----------------------------------------------------------------------------------------------- modules


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a function, although it is PTX, can be neither printed nor run.

    Attributes:
        message: what in it is not understood.
        position: where.
    """

    message: str
    position: Position = field(default=Position(), compare=False)


@dataclass(frozen=True, slots=True)
class Function:
    """``.entry`` or ``.func``.

    Attributes:
        entry: True for a kernel.
        name: symbol.
        params: input parameters (``param`` or, for functions, ``reg`` space).
        returns: return parameters of a ``.func``.
        linkage: subset of ``extern``, ``visible``, ``weak``.
        directives: ``.maxntid``, ``.reqntid``, ``.minnctapersm``, ``.noreturn``, ... in order.
        body: None for a declaration; () for a function that is refused.
        refusal: why nothing may reach the function, or None.
    """

    entry: bool
    name: str
    params: tuple[Variable, ...] = ()
    returns: tuple[Variable, ...] = ()
    linkage: tuple[str, ...] = ()
    directives: tuple[Directive, ...] = ()
    body: tuple[Statement, ...] | None = None
    position: Position = field(default=Position(), compare=False)
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """A translation unit.

    Attributes:
        version: ``.version``, (major, minor).
        target: ``.target`` words: ``("sm_80",)``, ``("sm_90a", "texmode_independent")``.
        address_size: 32 or 64.
        items: functions, variables and directives in source order.
    """

    version: tuple[int, int]
    target: tuple[str, ...]
    address_size: int
    items: tuple[Function | Variable | Directive, ...] = ()

    def functions(self) -> Iterator[Function]:
        """Yield functions in source order, declarations included."""
        return (item for item in self.items if isinstance(item, Function))

    def variables(self) -> Iterator[Variable]:
        """Yield module-scope variables in source order."""
        return (item for item in self.items if isinstance(item, Variable))

    def entry(self, name: str) -> Function | None:
        """Return the kernel of that name that has a body, or None."""
        for function in self.functions():
            if function.entry and function.name == name and function.body is not None:
                return function
        return None
