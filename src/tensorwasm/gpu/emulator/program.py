"""A PTX module made ready to run: blocks of steps, and what each kernel needs of registers and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.emulator.machine import Machine
from tensorwasm.gpu.emulator.operands import Register
from tensorwasm.gpu.emulator.planes import Plane
from tensorwasm.ptx.layout import variable_align, variable_bytes
from tensorwasm.ptx.model import Function, Variable

COMPONENTS = "xyzw"

Step = Callable[[Machine], None]
End = Callable[[Machine], int]
"""Ends a block: returns the block at which the active lanes run on, or -1 if none are active any more."""

MAX_DEPTH = 64
"""Calls within calls, where functions may call themselves."""
MAX_TARGETS = 1 << 20
"""Places that the tables of all indirect branches and calls of a module may name, each branch and call counted."""
FUNCTION_WINDOW = 1 << 58
FUNCTION_STRIDE = 16


@dataclass(frozen=True, slots=True)
class Block:
    """Steps that run one after the other."""

    steps: tuple[Step, ...]
    end: End
    cost: int


@dataclass(slots=True, eq=False)
class FunctionCode:
    """A function made ready to run.

    Attributes:
        function: its declaration.
        index: place among the module's functions; gives its address.
        first_slot: register slots from here on are its own.
        widths: bits of each of its registers.
        pc: block at which it begins.
        variables: shared and local variables and parameters by key, as declared.
        formals: where its parameters go: a register, or the key of a variable.
        results: where its results are found.
        callees: functions it may call.
        narrowest_bytes: narrowest access that may touch shared memory.
        recursive: whether it may be active twice in one thread.
    """

    function: Function
    index: int
    first_slot: int
    widths: list[int] = field(default_factory=list)
    pc: int = 0
    variables: dict[int, Variable] = field(default_factory=dict)
    formals: list[Register | int] = field(default_factory=list)
    results: list[Register | int] = field(default_factory=list)
    callees: set[str] = field(default_factory=set)
    narrowest_bytes: int = 8
    recursive: bool = False

    @property
    def address(self) -> int:
        """Address of the function in registers."""
        return FUNCTION_WINDOW + self.index * FUNCTION_STRIDE


@dataclass(slots=True, eq=False)
class Program:
    """A loaded module.

    Attributes:
        blocks: code of all functions.
        functions: by name.
        planes: the module's global and constant variables.
        slots: register slots of a batch.
    """

    blocks: list[Block] = field(default_factory=list)
    functions: dict[str, FunctionCode] = field(default_factory=dict)
    planes: list[Plane] = field(default_factory=list)
    slots: int = 0
    by_index: list[FunctionCode] = field(default_factory=list)


Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Bytes of each parameter and of each result of a function."""


@dataclass(slots=True, eq=False)
class Targets:
    """Where the indirect branches and calls of a module may lead.

    Attributes:
        by_shape: the functions that are no kernels, by the shape a call through an address must have.
        left: places that may still be named. Without a bound, a short text could ask for a long table many times.
    """

    by_shape: dict[Shape, list[FunctionCode]] = field(default_factory=dict)
    left: int = MAX_TARGETS

    @classmethod
    def of(cls, codes: Iterable[FunctionCode]) -> Targets:
        """Sort the functions of a module."""
        targets = cls()
        for code in codes:
            if not code.function.entry:
                targets.by_shape.setdefault(shape_of(code.function), []).append(code)
        return targets

    def spend(self, places: int) -> None:
        """Count a table.

        Raises:
            UnsupportedPtx: the module's tables are too long in all.
        """
        self.left -= places
        if self.left < 0:
            raise UnsupportedPtx(f"more than {MAX_TARGETS} targets of indirect branches and calls in a module")


def scalars(variables: Iterable[Variable]) -> list[Variable]:
    """Return parameters, each vector register as one of each of its elements."""
    return [
        replace(variable, name=f"{variable.name}.{component}", vector=1) if component else variable
        for variable in variables
        for component in (COMPONENTS[: variable.vector] if variable.space == "reg" and variable.vector > 1 else ("",))
    ]


def shape_of(function: Function) -> Shape:
    """Return what a caller through an address must agree with."""
    return (
        tuple(variable_bytes(param) for param in function.params),
        tuple(variable_bytes(result) for result in function.returns),
    )


def param_offsets(function: Function) -> tuple[list[int], int]:
    """Return where a kernel's parameters lie in the parameter buffer, and the buffer's bytes."""
    offsets, end = [], 0
    for param in function.params:
        align = variable_align(param)
        offsets.append(-(-end // align) * align)
        end = offsets[-1] + variable_bytes(param)
    return offsets, end
