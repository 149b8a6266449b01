"""A compiled module and what it declares."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tensorwasm.guest import capi
from tensorwasm.wasm.preamble import Export, Import, Preamble

if TYPE_CHECKING:
    from tensorwasm.guest.engine import Engine

_module_delete: Final = capi.bind_releasing("wasmtime_module_delete")


class Module:
    """Code, ready to be instantiated any number of times. Freed with its last reference; instances keep what they need.

    Attributes:
        engine: the engine it was compiled for.
        address: the C object.
        preamble: everything it declares.
        imports: in order.
        exports: by name.
        size_bytes: bytes of the binary it was compiled from.
    """

    __slots__ = ("address", "engine", "exports", "imports", "preamble", "size_bytes")

    def __init__(self, engine: Engine, address: int, preamble: Preamble, size_bytes: int) -> None:
        self.engine = engine
        self.address = address
        self.preamble = preamble
        self.imports: tuple[Import, ...] = preamble.imports
        self.exports = MappingProxyType({export.name: export for export in preamble.exports})
        self.size_bytes = size_bytes

    def __del__(self) -> None:
        _module_delete(self.address)

    def function_names(self) -> tuple[str, ...]:
        """Return the names of the exported functions, in order."""
        return tuple(export.name for export in self.preamble.exports if export.kind == "func")

    def export(self, name: str) -> Export | None:
        """Return an export, or None if there is none of that name."""
        return self.exports.get(name)
