"""What the names in a function mean: registers, variables, constants, and how operands are read and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.machine import Machine
from tensorwasm.gpu.emulator.memory import PARAM_DISTANCE
from tensorwasm.gpu.emulator.operands import (
    RAW,
    Reader,
    Register,
    Writer,
    floating_bits,
    immediate_bits,
    read_computed,
    read_constant,
    read_register,
    write_nothing,
    write_register,
)
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.gpu.emulator.program import COMPONENTS, FunctionCode, param_offsets, scalars
from tensorwasm.gpu.emulator.special import PREDICATES, read_special, width_bits
from tensorwasm.gpu.emulator.usage import count_names
from tensorwasm.ptx.layout import TYPE_BYTES
from tensorwasm.ptx.model import Address, Float, Function, Int, Name, Not, Offset, Operand, Pair, Variable, Vector
from tensorwasm.ptx.symbols import SPECIALS, VECTOR_SPECIALS, Symbol, SymbolTable

_COLOURS: Final = dict(zip("rgba", COMPONENTS, strict=True))
_U64: Final = np.dtype(np.uint64)


class Names:
    """The names of one function, where the current statement stands.

    Attributes:
        code: what is known of the function so far.
        functions: all functions of the module that have bodies.
        param_bytes: size of a kernel's parameter buffer.
    """

    def __init__(
        self,
        code: FunctionCode,
        module_scope: SymbolTable,
        addresses: dict[int, int],
        functions: dict[str, FunctionCode],
        keys: dict[int, int],
    ) -> None:
        """Begin a function.

        Args:
            code: filled in while building.
            module_scope: names of the module.
            addresses: address of each global and constant variable, by the identity of its declaration.
            functions: all functions of the module that have bodies.
            keys: key of every other variable, by the identity of its declaration; extended here.
        """
        self.code, self.functions = code, functions
        self._scope = SymbolTable(module_scope)
        self._addresses, self._keys = addresses, keys
        self._registers: dict[tuple[int, str], Register] = {}
        self._uses: Counter[str] | None = None
        self._meanings: dict[str, Symbol | None] = {}
        self._readers: dict[tuple[str, str | None, str], Reader] = {}
        for variable in (*code.function.returns, *code.function.params):
            self.declare(variable.name, variable)
        self.param_bytes = 0
        self._param_offsets: dict[int, int] = {}
        if code.function.entry:
            offsets, self.param_bytes = param_offsets(code.function)
            self._param_offsets = {id(one): at for one, at in zip(code.function.params, offsets, strict=True)}
        else:
            code.formals.extend(home for variable in code.function.params for home in self._homes(variable))
            code.results.extend(home for variable in code.function.returns for home in self._homes(variable))

    def _homes(self, variable: Variable) -> list[Register | int]:
        if variable.space == "reg":
            return [self._register(variable, scalar.name) for scalar in scalars((variable,))]
        return [self.key(variable)]

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
        try:
            return self._meanings[name]
        except KeyError:
            found = self._meanings[name] = self._scope.find(name)
            return found

    # ---------------------------------------------------------------------------------------- registers

    def _register(self, variable: Variable, name: str) -> Register:
        found = self._registers.get((id(variable), name))
        if found is None:
            bits = 1 if variable.type == "pred" else TYPE_BYTES[variable.type] * 8
            if bits > 64:
                raise UnsupportedPtx(f"registers of type .{variable.type}")
            found = Register(self.code.first_slot + len(self.code.widths), bits)
            self.code.widths.append(bits)
            self._registers[id(variable), name] = found
        return found

    def carry(self) -> Register:
        """Return the condition code register's carry flag."""
        return self._register(_CARRY, "CC.CF")

    def register(self, operand: Name) -> Register | None:
        """Return the scalar register that an operand names, or None if it names something else."""
        found = self.find(operand.name)
        if not isinstance(found, Variable) or found.space != "reg":
            return None
        if operand.component is not None:
            return self._register(found, f"{operand.name}.{_COLOURS.get(operand.component, operand.component)}")
        if found.vector > 1:
            raise MalformedPtx(f"vector register {operand.name} where a scalar is expected")
        return self._register(found, operand.name)

    def type_of(self, operand: Operand) -> str | None:
        """Return the PTX type of the register that an operand names, or None for anything else."""
        found = self.find(operand.name) if isinstance(operand, Name) else None
        return found.type if isinstance(found, Variable) and found.space == "reg" else None

    def variable(self, name: str) -> Variable | None:
        """Return the variable in memory of a name, or None."""
        found = self.find(name)
        return found if isinstance(found, Variable) and found.space != "reg" else None

    def key(self, variable: Variable) -> int:
        """Return the key of a variable that launches place, and note that the function uses it."""
        key = self._keys.setdefault(id(variable), len(self._keys))
        self.code.variables[key] = variable
        return key

    def is_vector(self, operand: Operand) -> bool:
        """Return whether an operand is several scalars: in braces, or a vector register."""
        if isinstance(operand, Vector):
            return True
        found = self.find(operand.name) if isinstance(operand, Name) and operand.component is None else None
        return isinstance(found, Variable) and found.space == "reg" and found.vector > 1

    def _has_components(self, operand: Name) -> bool:
        return operand.name in VECTOR_SPECIALS or self.is_vector(operand)

    def elements(self, operand: Operand) -> Iterator[Operand]:
        """Yield the scalars of an operand: of a vector, a pair or a vector register."""
        if isinstance(operand, Vector):
            for element in operand.elements:
                yield from self.elements(element)
        elif isinstance(operand, Pair):
            yield operand.first
            yield operand.second
        elif isinstance(operand, Name) and operand.component is None and self._has_components(operand):
            found = self.find(operand.name)
            width = found.vector if isinstance(found, Variable) else len(COMPONENTS)
            yield from (Name(operand.name, component) for component in COMPONENTS[:width])
        else:
            yield operand

    # ------------------------------------------------------------------------------------------ operands

    def writer(self, operand: Operand, ptx_type: str) -> Writer:
        """Return a writer of a destination.

        Raises:
            MalformedPtx: the operand cannot be written as that type.
        """
        if isinstance(operand, Name):
            if operand.name == "_":
                return write_nothing
            register = self.register(operand)
            if register is not None:
                return write_register(register, ptx_type)
        raise MalformedPtx("a register is expected as the destination")

    def unused(self, operand: Operand) -> bool:
        """Return whether nothing but one instruction names a destination, or it is the sink ``_``.

        Compilers leave the result of many an atomic operation unused.
        """
        if self._uses is None:
            self._uses = count_names(self.code.function, self._scope.watch)
        if not isinstance(operand, Name) or any(operand.name == one.name for one in self.code.function.returns):
            return False
        return operand.name == "_" or self._uses[operand.name] == 1

    def width(self, operand: Operand) -> int | None:
        """Return the bits of the register an operand names, or None for anything else."""
        register = self.register(operand) if isinstance(operand, Name) and operand.name not in SPECIALS else None
        return register.bits if register else None

    def require_width(self, operand: Operand, ptx_type: str) -> None:
        """Check that a register is as wide as a type; anything else passes.

        Raises:
            MalformedPtx: it is not.

        Source: PTX ISA 9.2 (operand size must agree with the instruction type).
        """
        bits = self.width(operand)
        wanted = 1 if ptx_type == "pred" else DTYPES[ptx_type].itemsize * 8
        if bits is not None and bits != max(wanted, 1) and not (wanted == 8 and bits == 16):
            raise MalformedPtx(f"a register of {bits} bits where .{ptx_type} is expected")

    def reader(self, operand: Operand, ptx_type: str) -> Reader:
        """Return a reader of a source.

        Raises:
            MalformedPtx: the operand cannot be read as that type.
            UnsupportedPtx: the emulator lacks it.
        """
        if type(operand) is Name:
            key = (operand.name, operand.component, ptx_type)
            known = self._readers.get(key)
            if known is None:
                known = self._readers[key] = self._read_name(operand, ptx_type)
            return known
        read = _READERS.get(type(operand))
        if read is None or (ptx_type == "pred" and not isinstance(operand, Int | Not)):
            raise MalformedPtx(f"a {type(operand).__name__.lower()} operand where .{ptx_type} is expected")
        return read(self, operand, ptx_type)

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
        return self._read_address(Offset(operand, 0), ptx_type)

    def _read_address(self, operand: Offset, ptx_type: str) -> Reader:
        dtype = DTYPES[ptx_type]
        if dtype.kind not in "ui" or dtype.itemsize < 4:
            raise MalformedPtx(f"the address of {operand.base.name} where .{ptx_type} is expected")
        place = self.place(operand.base.name)
        offset = operand.offset
        if isinstance(place, int):
            return read_constant(place + offset, dtype)
        return read_computed(lambda machine: place(machine) + offset, dtype)

    def place(self, name: str) -> int | Callable[[Machine], int]:
        """Return the address of a variable in its space, or of a function.

        Raises:
            MalformedPtx: there is none of that name.
            UnsupportedPtx: the module does not define it.
        """
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
        if self.kernel_parameter(found):
            return self.param_offset(found)
        key = self.key(found)
        if found.space == "shared":
            return lambda machine: machine.launch.shared[key]
        # A parameter of a function lives among its locals; `Memory` adds the window of parameters to its address.
        window = PARAM_DISTANCE if found.space == "param" else 0
        return lambda machine: frame_offset(machine, key) + window

    def kernel_parameter(self, variable: Variable) -> bool:
        """Return whether a variable is a parameter of the kernel being built."""
        return id(variable) in self._param_offsets

    def param_offset(self, variable: Variable) -> int:
        """Return the offset of a kernel's parameter in the parameter buffer."""
        if not self.kernel_parameter(variable):
            raise MalformedPtx(f"{variable.name} is no parameter of the kernel")
        return self._param_offsets[id(variable)]

    def address(self, operand: Address) -> Reader:
        """Return a reader of an address in whatever space, ``(n,) uint64``."""
        offset = operand.offset % (1 << 64)
        if isinstance(operand.base, Int):
            return read_constant(operand.base.value + operand.offset, _U64)
        register = self.register(operand.base)
        if register is None:
            return self._read_address(Offset(operand.base, operand.offset), "u64")
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

    def _read_int(self, operand: Int, ptx_type: str) -> Reader:
        if ptx_type == "pred":
            return _read_truth(operand.value != 0)
        return read_constant(immediate_bits(operand.value, ptx_type), DTYPES[ptx_type])

    def _read_float(self, operand: Float, ptx_type: str) -> Reader:
        return read_constant(floating_bits(operand.bits, operand.width, ptx_type), DTYPES[ptx_type])

    def _read_not(self, operand: Not, ptx_type: str) -> Reader:
        if ptx_type != "pred":
            raise MalformedPtx(f"a negated predicate where .{ptx_type} is expected")
        read = self.reader(operand.operand, "pred")
        return lambda machine: ~read(machine)

    def _read_memory(self, operand: Address, ptx_type: str) -> Reader:
        if ptx_type != "u64":
            raise MalformedPtx(f"an address where .{ptx_type} is expected")
        return self.address(operand)


def frame_offset(machine: Machine, key: int) -> int:
    """Return where a local variable of the active lanes lies in their local memory."""
    offset, stride = machine.launch.frame[key]
    return offset + stride * machine.depth


def _read_truth(value: bool) -> Reader:  # noqa: FBT001 - the constant itself
    return lambda machine: np.full(machine.count, value, np.bool_)


_CARRY: Final = Variable("reg", "pred", "CC.CF")

_READERS: Final[dict[type, Callable[[Names, Any, str], Reader]]] = {
    Offset: Names._read_address,  # noqa: SLF001 - the table of the class's own methods
    Int: Names._read_int,  # noqa: SLF001 - as above
    Float: Names._read_float,  # noqa: SLF001 - as above
    Not: Names._read_not,  # noqa: SLF001 - as above
    Address: Names._read_memory,  # noqa: SLF001 - as above
}
