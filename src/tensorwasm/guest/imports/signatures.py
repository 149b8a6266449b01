"""Rows of the ABI's tables: interfaces, their functions, and the functions' parameters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tensorwasm.guest.imports.abi import Code, StreamCode
from tensorwasm.guest.imports.host_function import ValType


@dataclass(frozen=True, slots=True)
class ImportParam:
    """A parameter of an import: its name, its Wasm type and its type in C."""

    name: str
    type: ValType
    c_type: str


@dataclass(frozen=True, slots=True)
class ImportSignature:
    """A function of an interface.

    Attributes:
        core_name: import field.
        c_head: its C declaration up to the parameters.
        wit: name and type in WIT; None where another function's WIT covers it.
        errors: codes it may answer.
        waits: whether it may wait for a device, up to the call's deadline.
    """

    core_name: str
    params: tuple[ImportParam, ...]
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
        world: WIT world that imports the interface.
        modules: import modules of the functions, the preferred one first.
        types: WIT declarations in front of the functions.
        functions: in the order of the documents.
    """

    package: str
    version: str
    world: str
    modules: tuple[str, ...]
    types: tuple[str, ...]
    functions: tuple[ImportSignature, ...]
    doc: str


def u32(*names: str) -> tuple[ImportParam, ...]:
    """Return unsigned 32-bit parameters."""
    return tuple(ImportParam(name, "i32", "uint32_t") for name in names)


def handles(*names: str) -> tuple[ImportParam, ...]:
    """Return 64-bit handle parameters."""
    return tuple(ImportParam(name, "i64", "int64_t") for name in names)


def source(name: str, c_type: str = "const void *") -> ImportParam:
    """Return a pointer parameter that is read."""
    return ImportParam(name, "i32", c_type)


DESTINATION: Final = ImportParam("dst", "i32", "void *")
"""A pointer parameter that is written."""


def enumeration(name: str, codes: type[IntEnum]) -> str:
    """Return an enumeration in WIT."""
    cases = "".join(f"    {code.name.lower().replace('_', '-')},\n" for code in codes)
    return f"enum {name} {{\n{cases}}}"
