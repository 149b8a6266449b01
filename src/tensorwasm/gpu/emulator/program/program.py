"""Functions made ready to run: their operands and registers, and what each kernel needs of registers and memory.

Each operand becomes a function of the machine, once, at load time. A register that is narrower than the type that an
instruction reads or writes is refused with `MalformedPtx`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.execution.machine import BasicBlock, SimtMachine
from tensorwasm.gpu.emulator.lanes import Array
from tensorwasm.gpu.emulator.memory.planes import Plane
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.ptx.layout import place, variable_align, variable_bytes
from tensorwasm.ptx.model import Function, Variable

Reader = Callable[[SimtMachine], Array]
Writer = Callable[[SimtMachine, Array], None]

RAW: Final = {bits: np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)} | {1: np.dtype(np.bool_)}
SIGNED: Final = {bits: np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True, slots=True)
class RegisterSlot:
    """Index of a register among the machine's, and its bits: 8, 16, 32 or 64; 1 for a predicate."""

    slot: int
    bits: int


def read_register(register: RegisterSlot, dtype: np.dtype[Any]) -> Reader:
    """Return a reader that views a register as ``dtype``, or its low bits if that is narrower."""
    slot, raw = register.slot, RAW[register.bits]

    def read(machine: SimtMachine) -> Array:
        values = machine.regs[slot]
        active = machine.active
        if active is None:
            return values
        if type(active) is slice:
            return values[active]
        return values.take(active)

    if dtype == raw:
        return read
    if (dtype.kind == "b") != (raw.kind == "b") or dtype.itemsize > raw.itemsize:
        raise MalformedPtx(f"a register of {register.bits} bits where {dtype.name} is expected")
    if dtype.itemsize == raw.itemsize:
        return lambda machine: read(machine).view(dtype)
    low = RAW[dtype.itemsize * 8]
    return lambda machine: read(machine).astype(low).view(dtype)


def read_constant(bits: int, dtype: np.dtype[Any]) -> Reader:
    """Return a reader of an immediate."""
    return lambda machine: machine.constant(bits, dtype)


def read_computed(compute: Callable[[SimtMachine], int], dtype: np.dtype[Any]) -> Reader:
    """Return a reader of a value that the launch fixes, such as the address of a variable."""
    return lambda machine: machine.constant(compute(machine), dtype)


def write_register(register: RegisterSlot, ptx_type: str) -> Writer:
    """Return a writer of values of a PTX type, extended to the register: by sign for ``.s``, else by zeros."""
    slot, raw, dtype = register.slot, RAW[register.bits], DTYPES[ptx_type]
    if (dtype.kind == "b") != (raw.kind == "b") or dtype.itemsize > raw.itemsize:
        raise MalformedPtx(f"a register of {register.bits} bits where .{ptx_type} is expected")
    if dtype == raw:
        return lambda machine, values: machine.write(slot, values)
    if dtype.itemsize == raw.itemsize:
        return lambda machine, values: machine.write(slot, values.view(raw))
    if dtype.kind == "i":
        wide = SIGNED[register.bits]
        return lambda machine, values: machine.write(slot, values.astype(wide).view(raw))
    narrow = RAW[dtype.itemsize * 8]
    return lambda machine, values: machine.write(slot, values.view(narrow).astype(raw))


def write_nothing(_machine: SimtMachine, _values: Array) -> None:
    """Drop the values: the sink ``_``."""


def own(values: Array, sources: tuple[Array, ...]) -> Array:
    """Return values that share no memory with the sources, contiguous, so that a register may keep them."""
    if values.base is None and values.flags.writeable and values.flags.c_contiguous:
        for source in sources:
            if values is source:
                return values.copy()
        return values
    return values.copy()


# ------------------------------------------------------------------------------------------------------------- programs

COMPONENTS: Final = "xyzw"
MAX_DEPTH: Final = 64
"""Most nested calls where functions may call themselves."""
MAX_TARGETS: Final = 1 << 20
"""Most targets in the tables of all indirect branches and calls of a module, each branch and call counted."""
FUNCTION_WINDOW: Final = 1 << 58
FUNCTION_STRIDE: Final = 16
_STAMP_BYTES: Final = 24
"""What the race detector keeps of each granule of shared memory."""
_FRAME_ALIGN: Final = 32
_RETURN_BYTES: Final = 8
"""Of a block to return to; functions that do not call themselves are at most all active at once."""


@dataclass(slots=True, eq=False)
class FunctionCode:
    """A function made ready to run.

    Attributes:
        index: its number among the module's functions; gives its address.
        first_slot: its register slots begin here.
        widths: bits of each of its registers.
        pc: its first block.
        variables: shared and local variables and parameters by key, as declared.
        formals, results: where its parameters and results are kept: a register, or the key of a variable.
        callees: functions it may call.
        narrowest_bytes: narrowest access that may touch shared memory.
        recursive: whether it may be active twice in one thread.
    """

    function: Function
    index: int
    first_slot: int = 0
    widths: list[int] = field(default_factory=list)
    pc: int = 0
    variables: dict[int, Variable] = field(default_factory=dict)
    formals: list[RegisterSlot | int] = field(default_factory=list)
    results: list[RegisterSlot | int] = field(default_factory=list)
    callees: set[str] = field(default_factory=set)
    narrowest_bytes: int = 8
    recursive: bool = False

    @property
    def address(self) -> int:
        """Address of the function in registers."""
        return FUNCTION_WINDOW + self.index * FUNCTION_STRIDE

    def note_access(self, size_bytes: int) -> None:
        """Note that accesses of a size may touch shared memory."""
        self.narrowest_bytes = min(self.narrowest_bytes, size_bytes)


@dataclass(slots=True, eq=False)
class Program:
    """A loaded module; its planes are the global and constant variables."""

    blocks: list[BasicBlock] = field(default_factory=list)
    functions: dict[str, FunctionCode] = field(default_factory=dict)
    planes: list[Plane] = field(default_factory=list)
    slots: int = 0


Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Bytes of each parameter and of each result of a function."""


class Targets:
    """Targets of a module's indirect branches and calls: ``by_shape`` are the functions that are no kernels."""

    def __init__(self, codes: Iterable[FunctionCode]) -> None:
        self.by_shape: dict[Shape, list[FunctionCode]] = {}
        self._left = MAX_TARGETS
        for code in codes:
            if not code.function.entry:
                self.by_shape.setdefault(shape_of(code.function), []).append(code)

    def spend(self, targets: int) -> None:
        """Count a table, which bounds what a short text can ask for by naming a long table many times."""
        self._left -= targets
        if self._left < 0:
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
    params, returns = (tuple(map(variable_bytes, some)) for some in (function.params, function.returns))
    return params, returns


def _aligned(offset: int, align: int) -> int:
    return -(-offset // align) * align


# ------------------------------------------------------------------------------------------- needs of a kernel


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """What a kernel needs.

    Attributes:
        widths: bits of every register slot of a batch.
        lane_bytes: registers, local memory and return addresses of one lane.
        shared: offset of each shared variable, by key.
        static_shared_bytes: shared memory that the program declares; dynamic shared memory follows.
        frame: offset of each local variable and what a call depth adds to it, by key.
        frame_bytes: local memory of one lane. It begins with the results of a returning function.
        granule_bytes: narrowest access to shared memory.
    """

    code: FunctionCode
    widths: tuple[int, ...]
    lane_bytes: int
    shared: dict[int, int]
    static_shared_bytes: int
    frame: dict[int, tuple[int, int]]
    frame_bytes: int
    granule_bytes: int

    def block_bytes(self, shared_bytes: int, threads: int) -> int:
        """Return the memory that the emulator needs for one block."""
        return shared_bytes * (1 + _STAMP_BYTES // self.granule_bytes) + threads * self.lane_bytes


def make_plan(program: Program, entry: str) -> KernelPlan:
    """Work out what a kernel needs."""
    code = program.functions[entry]
    reachable = _reachable(program, code)
    widths = [0] * program.slots
    for one in reachable:
        widths[one.first_slot : one.first_slot + len(one.widths)] = one.widths
    shared, static_bytes = _place_shared(reachable)
    frame, frame_bytes = _place_frames(reachable)
    saved = [width for one in reachable if one.recursive for width in one.widths]
    register_bytes = _bytes_of(widths) + MAX_DEPTH * _bytes_of(saved)
    return KernelPlan(
        code=code,
        widths=tuple(width or 32 for width in widths),
        lane_bytes=register_bytes + frame_bytes + _RETURN_BYTES * len(reachable) + 64,
        shared=shared,
        static_shared_bytes=static_bytes,
        frame=frame,
        frame_bytes=frame_bytes,
        granule_bytes=min(one.narrowest_bytes for one in reachable),
    )


def _bytes_of(widths: Iterable[int]) -> int:
    return sum(-(-width // 8) for width in widths)


def _reachable(program: Program, code: FunctionCode) -> list[FunctionCode]:
    found, waiting = {code.function.name: code}, [code]
    while waiting:
        for name in waiting.pop().callees - found.keys():
            found[name] = program.functions[name]
            waiting.append(program.functions[name])
    return list(found.values())


def _place_shared(reachable: list[FunctionCode]) -> tuple[dict[int, int], int]:
    """Place static variables one after the other and all of unknown size behind them."""
    found = {
        key: variable for one in reachable for key, variable in one.variables.items() if variable.space == "shared"
    }
    sized = [key for key, variable in found.items() if variable_bytes(variable)]
    offsets, end = place(found[key] for key in sized)
    unknown = found.keys() - set(sized)
    if unknown:
        end = _aligned(end, max(16, *(variable_align(found[key]) for key in unknown)))
    return dict(zip(sized, offsets, strict=True)) | dict.fromkeys(unknown, end), end


def _place_frames(reachable: list[FunctionCode]) -> tuple[dict[int, tuple[int, int]], int]:
    """Place local variables behind the results of a returning function, those of recursive functions once a depth."""
    end = max(sum(map(variable_bytes, code.function.returns)) for code in reachable)
    fixed, end = _place_locals((code for code in reachable if not code.recursive), end)
    base = _aligned(end, _FRAME_ALIGN)
    recursive, end = _place_locals((code for code in reachable if code.recursive), base)
    stride = _aligned(end - base, _FRAME_ALIGN)
    frame = {key: (offset, 0) for key, offset in fixed.items()}
    frame.update({key: (offset, stride) for key, offset in recursive.items()})
    return frame, end + stride * MAX_DEPTH


def _place_locals(codes: Iterable[FunctionCode], end: int) -> tuple[dict[int, int], int]:
    variables = (item for code in codes for item in code.variables.items())
    found = {key: variable for key, variable in variables if variable.space in ("local", "param")}
    offsets, end = place(found.values(), end)
    return dict(zip(found, offsets, strict=True)), end
