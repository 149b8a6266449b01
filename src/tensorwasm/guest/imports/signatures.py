"""The shape of the ABI's tables: interfaces, their functions, and the functions' parameters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tensorwasm.guest.imports.abi import Code, StreamCode
from tensorwasm.guest.imports.host_function import ValType


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of an import: its name, its Wasm type and its type in C."""

    name: str
    type: ValType
    c_type: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function of an interface.

    Attributes:
        core_name: import field.
        params: of the import.
        result: Wasm type of the result.
        c_head: how the C header declares it, up to the parameters.
        wit: name and type in WIT, or None where another function's WIT speaks for it too.
        doc: what it does and answers.
        errors: codes it may answer.
        waits: it may wait for a device, so it may take as long as the call has.
    """

    core_name: str
    params: tuple[Param, ...]
    result: ValType
    c_head: str
    wit: tuple[str, str] | None
    doc: str
    errors: tuple[Code | StreamCode, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface that guests import.

    Attributes:
        package: WIT package without its version.
        version: of the package.
        world: WIT world that imports the interface.
        modules: import modules under which the functions are found, the preferred one first.
        types: WIT declarations in front of the functions.
        functions: in the order of the documents.
        doc: what it is for.
    """

    package: str
    version: str
    world: str
    modules: tuple[str, ...]
    types: tuple[str, ...]
    functions: tuple[Function, ...]
    doc: str


def u32(*names: str) -> tuple[Param, ...]:
    """Return unsigned 32-bit parameters."""
    return tuple(Param(name, "i32", "uint32_t") for name in names)


def handles(*names: str) -> tuple[Param, ...]:
    """Return 64-bit parameters that name things."""
    return tuple(Param(name, "i64", "int64_t") for name in names)


def source(name: str, c_type: str = "const void *") -> Param:
    """Return a parameter that points to what is read."""
    return Param(name, "i32", c_type)


DESTINATION: Final = Param("dst", "i32", "void *")
"""A parameter that points to what is written."""


def enumeration(name: str, codes: type[IntEnum]) -> str:
    """Return an enumeration in WIT."""
    cases = "".join(f"    {code.name.lower().replace('_', '-')},\n" for code in codes)
    return f"enum {name} {{\n{cases}}}"
