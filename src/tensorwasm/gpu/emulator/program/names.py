"""What the names in a function mean: registers, variables, constants, and how operands are read and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.execution.machine import PREDICATES, SimtMachine, read_special, width_bits
from tensorwasm.gpu.emulator.memory.spaces import PARAM_DISTANCE
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.gpu.emulator.program.program import (
    COMPONENTS,
    RAW,
    FunctionCode,
    Reader,
    RegisterSlot,
    Writer,
    read_computed,
    read_constant,
    read_register,
    scalars,
    write_nothing,
    write_register,
)
from tensorwasm.ptx.initial import floating_bits, immediate_bits
from tensorwasm.ptx.layout import TYPE_BYTES, place
from tensorwasm.ptx.model import (
    Address,
    Float,
    Function,
    Instruction,
    Int,
    Name,
    Not,
    Offset,
    Operand,
    Pair,
    Variable,
    Vector,
)
from tensorwasm.ptx.reachability import mentioned, statements
from tensorwasm.ptx.symbols import SPECIALS, VECTOR_SPECIALS, Symbol, SymbolTable

_COLOURS: Final = dict(zip("rgba", COMPONENTS, strict=True))
_U64: Final = np.dtype(np.uint64)
_CARRY: Final = Variable("reg", "pred", "CC.CF")


class Names:
    """The names of one function, as they are at the current statement.

    Methods that read operands raise `MalformedPtx` for one that does not fit, `UnsupportedPtx` for one that the
    emulator lacks.
    """

    def __init__(
        self,
        code: FunctionCode,
        module_scope: SymbolTable,
        addresses: dict[int, int],
        functions: dict[str, FunctionCode],
        keys: dict[int, int],
    ) -> None:
        """Begin a function, whose code is filled in while building.

        ``addresses`` are those of global and constant variables, by the identity of the declaration; ``keys`` are those
        of all other variables, likewise, and are extended here. ``functions`` are those of the module with bodies.
        """
        self.code, self.functions = code, functions
        self._scope = SymbolTable(module_scope)
        self._addresses, self._keys = addresses, keys
        self._registers: dict[tuple[int, str], RegisterSlot] = {}
        self._meanings: dict[str, Symbol | None] = {}
        self._readers: dict[tuple[str, str | None, str], Reader] = {}
        function = code.function
        for variable in (*function.returns, *function.params):
            self.declare(variable.name, variable)
        self.param_bytes = 0
        self._param_offsets: dict[int, int] = {}
        if function.entry:
            offsets, self.param_bytes = place(function.params)
            self._param_offsets = {id(one): at for one, at in zip(function.params, offsets, strict=True)}
        else:
            code.formals.extend(home for variable in function.params for home in self._homes(variable))
            code.results.extend(home for variable in function.returns for home in self._homes(variable))

    def _homes(self, variable: Variable) -> list[RegisterSlot | int]:
        """Return where a parameter or result of a function is kept."""
        if variable.space == "reg":
            return [self._register(variable, scalar.name) for scalar in scalars((variable,))]
        return [self.key(variable)]

    @cached_property
    def _uses(self) -> Counter[str]:
        """How often the function names what; equal names of different scopes are not distinguished."""
        function = self.code.function
        found = (each for each in statements(function.body or ()) if isinstance(each, Instruction))
        guards = (each.guard.predicate.name for each in found if each.guard is not None)
        return Counter(self._scope.watch.over(chain(mentioned(function), guards)))

    # ------------------------------------------------------------------------------------------- scopes

    def declare(self, name: str, symbol: Symbol) -> None:
        """Add a name to the innermost scope."""
        self._scope.declare(name, symbol)
        self._forget()

    def enter(self) -> None:
        """Begin a scope inside the current one."""
        self._scope = SymbolTable(self._scope)
        self._forget()

    def leave(self) -> None:
        """End the innermost scope."""
        self._scope = self._scope.parent or self._scope
        self._forget()

    def _forget(self) -> None:
        self._meanings.clear()
        self._readers.clear()

    def find(self, name: str) -> Symbol | None:
        """Return what a name means here, or None."""
        if name not in self._meanings:
            self._meanings[name] = self._scope.find(name)
        return self._meanings[name]

    # ---------------------------------------------------------------------------------------- registers

    def _register(self, variable: Variable, name: str) -> RegisterSlot:
        key = id(variable), name
        if key not in self._registers:
            bits = 1 if variable.type == "pred" else TYPE_BYTES[variable.type] * 8
            if bits > 64:
                raise UnsupportedPtx(f"registers of type .{variable.type}")
            self._registers[key] = RegisterSlot(self.code.first_slot + len(self.code.widths), bits)
            self.code.widths.append(bits)
        return self._registers[key]

    def carry(self) -> RegisterSlot:
        """Return the condition code register's carry flag."""
        return self._register(_CARRY, "CC.CF")

    def register(self, operand: Name) -> RegisterSlot | None:
        """Return the scalar register that an operand names, or None if it names something else."""
        found = self.find(operand.name)
        if not isinstance(found, Variable) or found.space != "reg":
            return None
        if operand.component is not None:
            return self._register(found, f"{operand.name}.{_COLOURS.get(operand.component, operand.component)}")
        if found.vector > 1:
            raise MalformedPtx(f"vector register {operand.name} where a scalar is expected")
        return self._register(found, operand.name)

    def _register_variable(self, operand: Operand) -> Variable | None:
        found = self.find(operand.name) if isinstance(operand, Name) else None
        return found if isinstance(found, Variable) and found.space == "reg" else None

    def type_of(self, operand: Operand) -> str | None:
        """Return the PTX type of the register that an operand names, or None for anything else."""
        found = self._register_variable(operand)
        return None if found is None else found.type

    def variable(self, operand: Operand) -> Variable | None:
        """Return the variable in memory that an operand names, or None."""
        found = self.find(operand.name) if isinstance(operand, Name) else None
        return found if isinstance(found, Variable) and found.space != "reg" else None

    def key(self, variable: Variable) -> int:
        """Return the key of a variable that launches place, and note that the function uses it."""
        key = self._keys.setdefault(id(variable), len(self._keys))
        self.code.variables[key] = variable
        return key

    def is_vector(self, operand: Operand) -> bool:
        """Return whether an operand is several scalars: in braces, or a vector register."""
        if isinstance(operand, Name):
            found = self._register_variable(operand)
            return operand.component is None and found is not None and found.vector > 1
        return isinstance(operand, Vector)

    def elements(self, *operands: Operand) -> list[Operand]:
        """Return the scalars of operands: a vector, a pair and a vector register have several."""
        scalars: list[Operand] = []
        for operand in operands:
            if isinstance(operand, Name):
                if operand.component is None and (operand.name in VECTOR_SPECIALS or self.is_vector(operand)):
                    found = self.find(operand.name)
                    width = found.vector if isinstance(found, Variable) else len(COMPONENTS)
                    scalars += [Name(operand.name, component) for component in COMPONENTS[:width]]
                else:
                    scalars.append(operand)
            elif isinstance(operand, Vector):
                scalars += self.elements(*operand.elements)
            else:
                scalars += (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)
        return scalars

    def unused(self, operand: Operand) -> bool:
        """Return whether only one instruction names a destination, or it is the sink ``_``."""
        function = self.code.function
        if not isinstance(operand, Name) or any(operand.name == one.name for one in function.returns):
            return False
        return operand.name == "_" or self._uses[operand.name] == 1

    # ------------------------------------------------------------------------------------------ operands

    def writer(self, operand: Operand, ptx_type: str) -> Writer:
        """Return a writer of a destination."""
        if isinstance(operand, Name):
            if operand.name == "_":
                return write_nothing
            register = self.register(operand)
            if register is not None:
                return write_register(register, ptx_type)
        raise MalformedPtx("a register is expected as the destination")

    def require_width(self, operand: Operand, ptx_type: str) -> None:
        """Check that a register is as wide as a type (PTX ISA 9.2); anything else passes."""
        register = self.register(operand) if isinstance(operand, Name) and operand.name not in SPECIALS else None
        bits = register.bits if register else None
        wanted = 1 if ptx_type == "pred" else DTYPES[ptx_type].itemsize * 8
        if bits is not None and bits != wanted and not (wanted == 8 and bits == 16):
            raise MalformedPtx(f"a register of {bits} bits where .{ptx_type} is expected")

    def reader(self, operand: Operand, ptx_type: str) -> Reader:
        """Return a reader of a source."""
        if type(operand) is Name:
            key = (operand.name, operand.component, ptx_type)
            known = self._readers.get(key)
            if known is None:
                known = self._readers[key] = self._read_name(operand, ptx_type)
            return known
        return self._read_other(operand, ptx_type)

    def _read_other(self, operand: Operand, ptx_type: str) -> Reader:
        match operand:
            case Int() if ptx_type == "pred":
                return lambda machine: np.full(machine.count, operand.value != 0, np.bool_)
            case Int():
                return read_constant(immediate_bits(operand.value, ptx_type), DTYPES[ptx_type])
            case Not() if ptx_type == "pred":
                read = self.reader(operand.operand, "pred")
                return lambda machine: ~read(machine)
            case Not():
                raise MalformedPtx(f"a negated predicate where .{ptx_type} is expected")
            case Float() if ptx_type != "pred":
                return read_constant(floating_bits(operand.bits, operand.width, ptx_type), DTYPES[ptx_type])
            case Offset() if ptx_type != "pred":
                return self._read_offset(operand, ptx_type)
            case Address() if ptx_type == "u64":
                return self.address(operand)
            case Address() if ptx_type != "pred":
                raise MalformedPtx(f"an address where .{ptx_type} is expected")
        raise MalformedPtx(f"a {type(operand).__name__.lower()} operand where .{ptx_type} is expected")

    def _read_name(self, operand: Name, ptx_type: str) -> Reader:
        dtype = DTYPES[ptx_type]
        if operand.name in SPECIALS:
            name = operand.name if operand.component is None else f"{operand.name}.{operand.component}"
            if (dtype.kind == "b") != (name in PREDICATES):
                raise MalformedPtx(f"{name} is {'a' if name in PREDICATES else 'no'} predicate")
            if dtype.itemsize * 8 > width_bits(name) and dtype.kind == "f":
                raise MalformedPtx(f"{name} where .{ptx_type} is expected")
            return read_special(name, dtype)
        register = self.register(operand)
        if register is not None:
            return read_register(register, dtype)
        return self._read_offset(Offset(operand, 0), ptx_type)

    def _read_offset(self, operand: Offset, ptx_type: str) -> Reader:
        dtype = DTYPES[ptx_type]
        if dtype.kind not in "ui" or dtype.itemsize < 4:
            raise MalformedPtx(f"the address of {operand.base.name} where .{ptx_type} is expected")
        place, offset = self._place(operand.base.name), operand.offset
        if isinstance(place, int):
            return read_constant(place + offset, dtype)
        return read_computed(lambda machine: place(machine) + offset, dtype)

    def _place(self, name: str) -> int | Callable[[SimtMachine], int]:
        """Return the address of a variable in its space, or of a function."""
        found = self.find(name)
        if isinstance(found, Function):
            if found.name not in self.functions:
                raise UnsupportedPtx(f"function {name}, which the module does not define")
            return self.functions[found.name].address
        if not isinstance(found, Variable) or found.space == "reg":
            raise MalformedPtx(f"{name} has no address")
        if found.space in ("global", "const"):
            if id(found) not in self._addresses:
                raise UnsupportedPtx(f"variable {name}, which the module does not define")
            return self._addresses[id(found)]
        offset = self.param_offset(found)
        if offset is not None:
            return offset
        key = self.key(found)
        if found.space == "shared":
            return lambda machine: machine.launch.shared[key]
        # A function's parameter is in local memory; `BatchMemory` adds the window of parameters to its address.
        window = PARAM_DISTANCE if found.space == "param" else 0
        return lambda machine: frame_offset(machine, key) + window

    def param_offset(self, variable: Variable | None) -> int | None:
        """Return the offset of a parameter of the kernel in its buffer; None for anything else."""
        return self._param_offsets.get(id(variable))

    def address(self, operand: Address) -> Reader:
        """Return a reader of an address in whatever space, ``(n,) uint64``."""
        offset = operand.offset % (1 << 64)
        if isinstance(operand.base, Int):
            return read_constant(operand.base.value + operand.offset, _U64)
        register = self.register(operand.base)
        if register is None:
            return self._read_offset(Offset(operand.base, operand.offset), "u64")
        if register.bits < 32:
            raise MalformedPtx(f"an address in a register of {register.bits} bits")
        read = read_register(register, RAW[register.bits])
        if register.bits == 32:
            narrow = read
            read = lambda machine: narrow(machine).astype(_U64)  # noqa: E731 - replaces the reader above
        if offset == 0:
            return read
        add = np.uint64(offset)
        return lambda machine: read(machine) + add


def frame_offset(machine: SimtMachine, key: int) -> int:
    """Return the offset of a local variable of the active lanes in their local memory."""
    offset, stride = machine.launch.frame[key]
    return offset + stride * machine.depth
