"""The model of a PTX module.

Nodes are immutable and compare by meaning: source positions do not take part in equality, so
``parse(render(module)) == module``. Constant expressions are folded by the parser; comments are dropped.

Source: PTX ISA 9.x, chapters 4 (Syntax), 5 (State Spaces, Types, and Variables), 6 (Instruction Operands),
11 (Directives).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

StateSpace = Literal["reg", "sreg", "const", "global", "local", "param", "shared", "tex"]
"""State spaces of PTX ISA 5.1, without the leading dot."""


class Position(NamedTuple):
    """Where a node begins in the source text: 1-based line and column, 0 if unknown."""

    line: int = 0
    column: int = 0


# ---------------------------------------------------------------------------------------------- operands

# Only nodes that contain no other node are hidden from the garbage collector (gc=False): msgspec releases such structs
# recursively and without a bound, so a long chain of them would overflow the stack.


class Name(Struct, frozen=True, gc=False):
    """A register, special register, variable, label, function or the sink ``_``, as written: ``%r1``, ``$L__BB0_2``.

    The component of a vector is ``x``, ``y``, ``z``, ``w`` or ``r``, ``g``, ``b``, ``a``.
    """

    name: str
    component: str | None = None


class Int(Struct, frozen=True, gc=False):
    """A folded integer constant in -(2**63) .. 2**64 - 1; the reader interprets its sign."""

    value: int


class Float(Struct, frozen=True, gc=False):
    """A floating-point constant as IEEE 754 bits; decimal literals have 64."""

    bits: int
    width: Literal[32, 64]


class Offset(Struct, frozen=True):
    """``name+imm`` outside brackets: the address of a variable plus a byte offset, an operand of ``mov``."""

    base: Name
    offset: int


class Address(Struct, frozen=True):
    """``[base+offset]``: a register, variable or absolute address, and bytes, which may be negative.

    The coordinates of textures and tensors are the operands after a comma inside the brackets.
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
    """``generic(name)+offset``: the generic address of a variable; a bare name is the address in its state space."""

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

PARTS: Final[dict[type, Callable[[Any], Iterable[Any]]]] = {
    Address: lambda operand: (operand.base, *operand.coordinates),
    Offset: lambda operand: (operand.base,),
    Vector: lambda operand: operand.elements,
    Arguments: lambda operand: operand.elements,
    Pair: lambda operand: (operand.first, operand.second),
    Not: lambda operand: (operand.operand,),
    Generic: lambda value: (value.base,),
    Masked: lambda value: (value.address,),
}
"""Returns the operands inside an operand or initial value, by its type; other types refer to nothing."""


def names(operand: Operand | Initial) -> Iterator[str]:
    """Yield every name of a symbol in an operand or initial value."""
    if isinstance(operand, Name):
        yield operand.name
    elif type(operand) in PARTS:
        for part in PARTS[type(operand)](operand):
            yield from names(part)


# -------------------------------------------------------------------------------------------- statements


class Guard(Struct, frozen=True):
    """``@p`` or ``@!p`` before an instruction."""

    predicate: Name
    negated: bool = False


class Instruction(Struct, frozen=True, eq=False):
    """One instruction.

    Attributes:
        opcode: up to the first dot: ``add``, ``ld``, ``mma``.
        modifiers: the rest, split at dots: ``("rn", "ftz", "f32")``; ``::`` stays inside one (``shared::cta``).
        operands: as written, destination first.
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
        type: fundamental (``u32``, ``f16x2``, ``pred``, ``b8``) or opaque (``texref``).
        vector: 2 or 4 for ``.v2`` and ``.v4``, else 1.
        align: in bytes.
        shape: array dimensions; a leading 0 is ``[]``: whole rows that hold the initializer, or unknown (``.extern``).
        count: number of parameterised registers: for ``%r<5>`` the name is ``%r`` and the count 5.
        linkage: subset of ``extern``, ``visible``, ``weak``, ``common``, in source order; ``hidden`` of a parameter.
        pointer: ``.ptr`` attributes of a parameter as (space or "", align or 0), or None.
        initializer: folded values; nested braces are flattened, and short rows before the last filled with zeros.
            Elements missing at the end are zero. A vector counts as the innermost dimension of an array.
        attributes: of ``.attribute``, such as ``managed`` or ``unified(19,95)``.
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
    """A directive kept as written: ``.loc``, ``.pragma``, ``.file``, ``.section``, ``.alias``, ...

    The name has no dot. Strings keep their quotes. Commas are dropped, except in ``.section``.
    """

    name: str
    arguments: tuple[str, ...] = ()
    position: Position = field(default=Position(), compare=False)


@dataclass(frozen=True, slots=True)
class TargetList:
    """A labelled list of labels or functions inside a body, or the function that ``callprototype`` declares."""

    label: str
    kind: Literal["branchtargets", "calltargets", "callprototype"]
    targets: tuple[str, ...] = ()
    prototype: Function | None = None
    position: Position = field(default=Position(), compare=False)


Statement = Instruction | Label | Variable | Block | Directive | TargetList


# ----------------------------------------------------------------------------------------------- modules


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a function, although it is valid PTX, can be neither printed nor run."""

    message: str
    position: Position = field(default=Position(), compare=False)


@dataclass(frozen=True, slots=True)
class Function:
    """``.entry`` or ``.func``.

    Attributes:
        entry: whether it is a kernel.
        params: input parameters (``param`` or, for functions, ``reg`` space).
        returns: return parameters of a ``.func``.
        linkage: subset of ``extern``, ``visible``, ``weak``.
        directives: of the header, such as ``.maxntid`` and ``.noreturn``, in order.
        body: None for a declaration; () for a refused function.
        refusal: set if the parser does not support the function.
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
    """A translation unit; its items are in source order.

    Attributes:
        version: of the PTX ISA, (major, minor).
        target: words of ``.target``: ``("sm_80",)``, ``("sm_90a", "texmode_independent")``.
        address_size: 32 or 64.
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

    def kernels(self) -> Iterator[Function]:
        """Yield the kernels that have a body, in source order."""
        return (item for item in self.functions() if item.entry and item.body is not None)

    def entry(self, name: str) -> Function | None:
        """Return the kernel of that name that has a body, or None."""
        return next((kernel for kernel in self.kernels() if kernel.name == name), None)
