"""A compiled module and what it declares."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tensorwasm.errors import InvalidArgs, MissingExport, quote, quote_all
from tensorwasm.guest import capi, codec
from tensorwasm.guest.source_lines import SourceLines
from tensorwasm.values import Limits
from tensorwasm.wasm.preamble import FuncType, Import, Preamble

if TYPE_CHECKING:
    from tensorwasm.guest.engine import Engine

_MAX_NAMED: Final = 20
_INTEGERS: Final = {"i32": "i12x", "i64": "q8x"}
PLAIN: Final = frozenset({int})  # no bool, which is one too
INITIALISE: Final = "_initialize"
"""What a reactor exports to be called once, before any other export.

Source: WASI, legacy/application-abi.md, "Current Unstable ABI".
"""
COMMAND: Final = "_start"
_PASSABLE: Final = frozenset(capi.VALUE_KINDS)
_module_delete: Final = capi.bind_releasing("wasmtime_module_delete")


class CallPlan:
    """How an exported function is called.

    A call needs a C ``wasmtime_extern_t`` and, behind it, cells of 16 bytes that carry the parameters in and the
    results out; `frame_type` makes both at once.

    Attributes:
        params: parameter types.
        results: result types.
        frame_type: ctypes array for one sandbox.
        cell_count: cells in it.
        pack: ``pack(frame, CELLS, *bits)`` stores the parameters.
        unpack: ``unpack(frame, CELLS)`` reads the results.
    """

    __slots__ = ("_integers", "_pack_signed", "cell_count", "frame_type", "pack", "params", "results", "unpack")

    CELLS: ClassVar[int] = capi.SIZES["wasmtime_extern_t"]

    def __init__(self, signature: FuncType) -> None:
        self.params, self.results = signature.params, signature.results
        self.cell_count = max(len(self.params), len(self.results))
        self.frame_type = ctypes.c_char * (self.CELLS + self.cell_count * capi.CELL_BYTES)
        self.pack = struct.Struct("<" + "Q8x" * len(self.params)).pack_into
        self.unpack = struct.Struct("<" + "Q8x" * len(self.results)).unpack_from
        self._integers = _integers(self.results, "unpack_from")
        self._pack_signed = _integers(self.params, "pack_into")

    def write(self, frame: ctypes.Array[ctypes.c_char], offset: int, args: Sequence[object]) -> None:
        """Store arguments, as `tensorwasm.guest.codec` takes them.

        Raises:
            InvalidArgs: they do not fit.
        """
        if self._pack_signed is None or not PLAIN.issuperset(map(type, args)):
            self.pack(frame, offset, *codec.encode(self.params, args))
            return
        try:
            self._pack_signed(frame, offset, *args)
        except struct.error:  # the unsigned way to write a number, or a mistake
            self.pack(frame, offset, *codec.encode(self.params, args))

    def read(self, frame: ctypes.Array[ctypes.c_char], offset: int) -> Sequence[codec.Number]:
        """Return the results."""
        if self._integers is not None:
            found: tuple[int, ...] = self._integers(frame, offset)
            return found
        return codec.decode(self.results, self.unpack(frame, offset))


def _integers(kinds: tuple[str, ...], way: str) -> Callable[..., Any] | None:
    """Return a way of a `struct.Struct` of cells that are all integers, signed; None if one is not."""
    codes = [_INTEGERS.get(kind) for kind in kinds]
    return None if None in codes else getattr(struct.Struct(f"<{''.join(map(str, codes))}"), way)


class Module:
    """Code, ready to be instantiated any number of times. Freed with its last reference; instances keep what they need.

    Attributes:
        engine: the engine it was compiled for.
        address: the C object.
        preamble: everything it declares.
        imports: in order.
        exports: by name.
        size_bytes: bytes of the binary it was compiled from.
        lines: finds source lines of its traps, None without debug information.
        admitted: limits that what it declares was found to be within, None before the first sandbox.
        is_reactor: it exports `INITIALISE` as a function without parameters and results. One of any other signature is
            an export like all others.
    """

    __slots__ = (
        "_plans",
        "address",
        "admitted",
        "engine",
        "exports",
        "imports",
        "is_reactor",
        "lines",
        "preamble",
        "size_bytes",
    )

    def __init__(self, engine: Engine, address: int, preamble: Preamble, size_bytes: int) -> None:
        self.engine = engine
        self.address = address
        self.preamble = preamble
        self.imports: tuple[Import, ...] = preamble.imports
        self.exports = MappingProxyType({export.name: export for export in preamble.exports})
        self.size_bytes = size_bytes
        self.lines: SourceLines | None = None
        self.admitted: Limits | None = None
        initialise = self.exports.get(INITIALISE)
        self.is_reactor = initialise is not None and initialise.signature == FuncType()
        self._plans: dict[str, CallPlan] = {}

    def __del__(self) -> None:
        _module_delete(self.address)

    def function_names(self) -> tuple[str, ...]:
        """Return the names of the exported functions, in order."""
        return tuple(export.name for export in self.preamble.exports if export.kind == "func")

    def plan(self, name: str) -> CallPlan:
        """Return how to call an exported function.

        Raises:
            MissingExport: there is no such function.
            InvalidArgs: a type of its signature cannot cross the border.
        """
        plan = self._plans.get(name)
        if plan is None:
            plan = self._plans[name] = CallPlan(self._passable_signature(name))
        return plan

    def _passable_signature(self, name: str) -> FuncType:
        export = self.exports.get(name)
        if export is None or export.signature is None:
            known = quote_all(self.function_names(), _MAX_NAMED)
            raise MissingExport(f"no exported function {quote(name)}; there is {known or 'none at all'}")
        for kind in (*export.signature.params, *export.signature.results):
            if kind not in _PASSABLE:
                raise InvalidArgs(f"{quote(name)} is {export.signature}: a {kind} cannot cross the border")
        return export.signature
