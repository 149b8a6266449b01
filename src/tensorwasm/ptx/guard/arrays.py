"""Where the variables of a kernel and its functions lie: one array for each state space, and the initial contents.

Source: PTX ISA 5.1 (State Spaces), 5.4 (Variables).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx.guard.flat import FlatFunction
from tensorwasm.ptx.guarded import (
    MAX_CONST_BYTES,
    MAX_DATA_BYTES,
    MAX_LOCAL_BYTES,
    MAX_STATIC_SHARED_BYTES,
    SHARED_BASE,
)
from tensorwasm.ptx.initial import AddressOf, initial_bytes
from tensorwasm.ptx.layout import OPAQUE_TYPES, TYPE_BYTES, place, variable_align, variable_bytes
from tensorwasm.ptx.model import Generic, Initial, Instruction, Masked, Name, Offset, StateSpace, Variable, names
from tensorwasm.watch import Watch

_GRAIN_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a variable lies: an offset in the array of its state space."""

    space: StateSpace
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DataImage:
    """Variables of a module in global memory, of which each session has a copy in its window.

    Attributes:
        image: initial contents; empty if there are no variables.
        size_bytes: with what is zero behind the image.
        align: of the segment.
        pointers: offsets of the 8-byte words to which the segment's address is added.
    """

    image: bytes = b""
    size_bytes: int = 0
    align: int = 1
    pointers: tuple[int, ...] = ()


@dataclass(slots=True)
class VariableMap:
    """The places of all variables that a kernel reaches.

    Attributes:
        module: of the module, by name.
        functions: of functions' bodies, by the name of the function and its own.
        shared_bytes: static variables in shared memory; where dynamic ones begin.
        local_bytes: of the deepest chain of calls.
    """

    module: dict[str, Place] = field(default_factory=dict)
    functions: dict[str, dict[str, Place]] = field(default_factory=dict)
    shared_bytes: int = 0
    dynamic: bool = False
    local_bytes: int = 0
    const_image: bytes = b""
    const_bytes: int = 0
    data: DataImage = DataImage()

    def find(self, function: str, name: str) -> Place | None:
        """Return the place of a variable as a function names it, None if it names none."""
        return self.functions[function].get(name) or self.module.get(name)


def place_variables(
    items: Iterable[Variable], functions: list[FlatFunction], numbers: Mapping[str, int], watch: Watch
) -> VariableMap:
    """Give every variable its place.

    Args:
        items: variables of the module.
        functions: what the kernel reaches, itself included; callers before those that they call.
        numbers: what stands for the addresses of functions.
        watch: of the deadline.

    Raises:
        UnsupportedPtx: more memory than a guarded kernel may have, or variables that are not supported.
        InvokeTimeout: the deadline passed.
    """
    made = VariableMap(functions={each.function.name: {} for each in functions})
    owned = [(made.module, each) for each in items]
    owned += [(made.functions[each.function.name], one) for each in functions for one in each.variables]
    for _, variable in owned:
        if variable.space == "tex" or variable.type in OPAQUE_TYPES:
            raise UnsupportedPtx(f"{variable.name}: textures and surfaces", *variable.position)
        if variable.attributes:
            raise UnsupportedPtx(f"{variable.name}: .attribute({variable.attributes[0]})", *variable.position)
        if "extern" in variable.linkage and variable.space != "shared":
            raise UnsupportedPtx(f"{variable.name}: a variable of another module", *variable.position)
    _place_shared(made, [each for each in owned if each[1].space == "shared"])
    consts = [each for each in owned if each[1].space == "const"]
    made.const_bytes = _place_in_row(consts, "const")
    globals_ = [each for each in owned if each[1].space == "global"]
    data_bytes = _place_in_row(globals_, "global")
    _require(data_bytes, MAX_DATA_BYTES, "variables of the module", globals_)
    _require(made.const_bytes, MAX_CONST_BYTES, "constant memory", consts)
    made.const_image = _const_image(consts, made, numbers, watch)
    made.data = _data_segment(globals_, data_bytes, made, numbers, watch)
    made.const_bytes = power_of_two(made.const_bytes)
    _place_local(made, functions)
    return made


_Owned = tuple[dict[str, Place], Variable]


def _place_in_row(owned: list[_Owned], space: StateSpace, start: int = 0) -> int:
    """Place variables one after the other; return the end."""
    offsets, end = place((variable for _, variable in owned), start)
    for (table, variable), offset in zip(owned, offsets, strict=True):
        table[variable.name] = Place(space, offset, variable_bytes(variable))
    return end


def _place_shared(made: VariableMap, owned: list[_Owned]) -> None:
    for _, variable in owned:
        if variable_align(variable) > SHARED_BASE:
            raise UnsupportedPtx(f"{variable.name}: aligned to more than {SHARED_BASE} bytes", *variable.position)
    static = [each for each in owned if "extern" not in each[1].linkage and variable_bytes(each[1])]
    dynamic = [each for each in owned if each not in static]
    end = _place_in_row(static, "shared")
    _require(end, MAX_STATIC_SHARED_BYTES, "static shared memory", static)
    made.dynamic = bool(dynamic)
    if dynamic:
        widest = max(variable_align(variable) for _, variable in dynamic)
        end = -(-end // widest) * widest
    for table, variable in dynamic:
        table[variable.name] = Place("shared", end, 0)
    made.shared_bytes = end


def _place_local(made: VariableMap, functions: list[FlatFunction]) -> None:
    starts: dict[str, int] = {}
    for flat in functions:
        table, start = made.functions[flat.function.name], starts.get(flat.function.name, 0)
        owned = [(table, each) for each in flat.variables if each.space == "local"]
        end = _place_in_row(owned, "local", -(-start // _GRAIN_BYTES) * _GRAIN_BYTES if owned else start)
        made.local_bytes = max(made.local_bytes, end)
        for callee in callees(flat):
            starts[callee] = max(starts.get(callee, 0), end)
    _require(made.local_bytes, MAX_LOCAL_BYTES, "local memory for each thread", [])
    made.local_bytes = power_of_two(made.local_bytes)


def callees(flat: FlatFunction) -> list[str]:
    """Return the names that a function calls directly."""
    calls = (each for each in flat.body if isinstance(each, Instruction) and each.opcode == "call")
    return [operand.name for call in calls for operand in call.operands if isinstance(operand, Name)]


def power_of_two(size_bytes: int) -> int:
    """Return the least power of two from 16 up that holds a size; 0 for 0."""
    return max(_GRAIN_BYTES, 1 << (size_bytes - 1).bit_length()) if size_bytes else 0


def _require(size_bytes: int, most: int, what: str, owned: list[_Owned]) -> None:
    if size_bytes > most:
        position = owned[-1][1].position if owned else (0, 0)
        raise UnsupportedPtx(f"{size_bytes} bytes of {what}; beside other tenants a kernel has {most}", *position)


def _const_image(owned: list[_Owned], made: VariableMap, numbers: Mapping[str, int], watch: Watch) -> bytes:
    def address_of(name: str) -> int:
        if name in numbers:
            return numbers[name]
        found = made.module.get(name)
        if found is None or found.space != "const":
            raise UnsupportedPtx(f"the address of {name} in constant memory")
        return found.offset

    for _, variable in owned:
        if any(isinstance(value, Generic) for value in variable.initializer):
            raise UnsupportedPtx(f"{variable.name}: a generic address in constant memory", *variable.position)
        _require_whole_numbers(variable, numbers)
    return _image(owned, address_of, watch)


def _data_segment(
    owned: list[_Owned], size_bytes: int, made: VariableMap, numbers: Mapping[str, int], watch: Watch
) -> DataImage:
    pointers: list[int] = []

    def address_of(name: str) -> int:
        if name in numbers:
            return numbers[name]
        found = made.module.get(name)
        if found is None or found.space != "global":
            raise UnsupportedPtx(f"the address of {name} in an initializer")
        return found.offset

    for table, variable in owned:
        _require_whole_numbers(variable, numbers)
        for at, value in enumerate(variable.initializer):
            if not refers(value) or (isinstance(value, Name) and value.name in numbers):
                continue
            if isinstance(value, Masked) or TYPE_BYTES.get(variable.type) != 8:
                raise UnsupportedPtx(f"{variable.name}: part of an address in an initializer", *variable.position)
            pointers.append(table[variable.name].offset + 8 * at)
    image = _image(owned, address_of, watch)
    align = max([16, *(variable_align(variable) for _, variable in owned)])
    return DataImage(image, size_bytes, align, tuple(pointers))


def _require_whole_numbers(variable: Variable, numbers: Mapping[str, int]) -> None:
    """Refuse a variable that holds a part of a function's address, or what is calculated of it."""
    for value in variable.initializer:
        if not numbers.keys().isdisjoint(names(value)) and not (
            isinstance(value, Name) and TYPE_BYTES.get(variable.type) == 8
        ):
            raise UnsupportedPtx(f"{variable.name}: part of the address of a function", *variable.position)


def refers(value: Initial) -> bool:
    """Return whether an initial value is an address."""
    return isinstance(value, (Name, Offset, Generic, Masked))


def _image(owned: list[_Owned], address_of: AddressOf, watch: Watch) -> bytes:
    image = bytearray()
    for table, variable in owned:
        start = table[variable.name].offset
        image.extend(bytes(max(start - len(image), 0)))
        image[start:] = initial_bytes(variable, address_of, watch)
    return bytes(image)
