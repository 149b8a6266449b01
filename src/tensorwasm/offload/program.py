"""A parallel order of a nest: kernels, and the loops on the host that launch them.

It is made from a `Nest` for one size of memory, and says for each statement when it runs and where its data lies. All
expressions are exact in 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tensorwasm.offload.nest import Cell, Load, Nest, Store, Value

Operator = Literal[
    "add", "sub", "mul", "neg", "min", "max", "floor_div", "mod", "eq", "le", "lt", "and", "or", "select"
]
"""Division and remainder are by positive constants, and round down; ``select`` is condition, then, otherwise."""


@dataclass(frozen=True, slots=True)
class Compute:
    """An operator applied to expressions."""

    operator: Operator
    operands: tuple[Expression, ...]


Expression = int | str | Compute
"""A number, a variable, or an operation; conditions are 0 or 1."""


@dataclass(frozen=True, slots=True)
class For:
    """A loop over ``first``, ``first + step``, ... up to ``last``, which may be less than ``first``.

    If it is parallel, its iterations may run in any order and at the same time.
    """

    variable: str
    first: Expression
    last: Expression
    step: int
    body: Block
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """A condition."""

    condition: Expression
    then: Block
    otherwise: Block = ()


@dataclass(frozen=True, slots=True)
class Execute:
    """One iteration of a statement; ``counters`` has a value for each loop around it, outermost first."""

    statement: int
    counters: tuple[Expression, ...]


Block = tuple["For | If | Execute", ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Work that is launched at once.

    Its body is a nest of ``parallel`` loops, the grid, each of which is all of the body of the one around it; the
    innermost's body is what one thread does. With no parallel loop it is one thread.
    """

    number: int
    body: Block


@dataclass(frozen=True, slots=True)
class HostLoop:
    """Launches in order, for a counter of the nest from ``first`` to ``last``; its variable is known in the kernels."""

    variable: str
    first: Expression
    last: Expression
    body: tuple[HostLoop | Kernel, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """A range of linear memory that no access outside it touches; arrays do not overlap.

    Attributes:
        first: offset of its first byte.
        size_bytes: of the range.
        granule_bytes: the largest power of two up to 16 that divides each access's offset in the array, and its size.
        origin: where in the range the byte lies that code is given the address of.
        filled: every byte is written before any is read, so that what it holds at first does not matter.
    """

    number: int
    first: int
    size_bytes: int
    granule_bytes: int
    read: bool
    written: bool
    origin: int = 0
    filled: bool = False


@dataclass(frozen=True, slots=True)
class CellStorage:
    """Where a cell lies: element ``sum(counter * stride)`` of a scratch array of ``count`` elements.

    A stride is a number or the name of a size of the program.

    ``private``: each thread of the one kernel that uses it has one element, so it is a register.
    """

    cell: Cell
    strides: tuple[int | str, ...]
    count: int
    private: bool


@dataclass(frozen=True, slots=True)
class NestProgram:
    """What runs in place of a nest.

    Attributes:
        array_of: number of the array of each load and store.
        wraps: multiple of 2**32 to add to the pointer of each load and store for its exact address.
        sizes: values of variables that are known everywhere in the steps.
        numbers: of these, the variables that stand for values.
        work: about how many accesses to memory there are, 0 if that is not known.
    """

    nest: Nest
    steps: tuple[HostLoop | Kernel, ...]
    arrays: tuple[Array, ...]
    cells: tuple[CellStorage, ...]
    array_of: Mapping[Load | Store, int]
    wraps: Mapping[Load | Store, int]
    sizes: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[Value, str] = field(default_factory=dict)
    work: int = 0
