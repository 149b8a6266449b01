"""A compiled module and what it declares."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

from tensorwasm.errors import (
    InvalidArgs,
    InvalidWasm,
    MissingExport,
    ModuleMemoryTooLarge,
    ModuleTooLarge,
    quote,
    quote_all,
)
from tensorwasm.guest.engine import capi, codec, traps
from tensorwasm.guest.engine.capi import RELEASING
from tensorwasm.guest.engine.engine import MAX_INSTANCE_BYTES, MAX_TABLE_ELEMENTS, MAX_TABLES, Engine
from tensorwasm.guest.engine.traps import SourceLines
from tensorwasm.values import MIB, Limits
from tensorwasm.wasm import preamble
from tensorwasm.wasm.preamble import Import, Preamble
from tensorwasm.wasm.types import FuncType

_MAX_NAMED: Final = 20
_INTEGERS: Final = {"i32": "i12x", "i64": "q8x"}
PLAIN: Final = frozenset({int})  # no bool, which is one too
INITIALISE: Final = "_initialize"
"""What a reactor exports to be called once, before any other export.

Source: WASI, legacy/application-abi.md, "Current Unstable ABI".
"""
COMMAND: Final = "_start"
_PASSABLE: Final = frozenset(capi.VALUE_KINDS)
_FUNCTION_BYTES: Final = 32
_IMPORT_BYTES: Final = 32
_GLOBAL_BYTES: Final = 16
_TAG_BYTES: Final = 16
_QUICK_BYTES: Final = MIB


Reader = Callable[[ctypes.Array[ctypes.c_char], int], tuple[codec.Number, ...]]


class CallPlan:
    """How an exported function is called.

    A call needs a C ``wasmtime_extern_t`` followed by cells of 16 bytes that carry parameters in and results out;
    `frame_type`, a ctypes array, makes both at once. ``pack(frame, CELLS, *bits)`` stores the parameters,
    ``unpack(frame, CELLS)`` reads the results' bits, and ``read(frame, CELLS)`` the results.
    """

    __slots__ = ("_pack_signed", "_plain", "cell_count", "frame_type", "pack", "params", "read", "results", "unpack")

    CELLS: ClassVar[int] = capi.SIZES["wasmtime_extern_t"]

    def __init__(self, signature: FuncType) -> None:
        self.params, self.results = signature.params, signature.results
        self.cell_count = max(len(self.params), len(self.results))
        self.frame_type = ctypes.c_char * (self.CELLS + self.cell_count * capi.CELL_BYTES)
        self.pack = struct.Struct("<" + "Q8x" * len(self.params)).pack_into
        self.unpack = struct.Struct("<" + "Q8x" * len(self.results)).unpack_from
        self.read: Reader = _integers(self.results, "unpack_from") or self._decode
        self._pack_signed = _integers(self.params, "pack_into")
        self._plain: Sequence[object] | None = None  # arguments of the last call that were found to be `PLAIN`

    def write(self, frame: ctypes.Array[ctypes.c_char], offset: int, args: Sequence[object]) -> None:
        """Store arguments as `tensorwasm.guest.engine.codec.encode` takes them; it raises if they do not fit."""
        pack = self._pack_signed
        if args is not self._plain or pack is None:
            if pack is None or not PLAIN.issuperset(map(type, args)):
                self.pack(frame, offset, *codec.encode(self.params, args))
                return
            self._plain = args if type(args) is tuple else None
        try:
            pack(frame, offset, *args)
        except struct.error:  # the unsigned way to write a number, or a mistake
            self.pack(frame, offset, *codec.encode(self.params, args))

    def _decode(self, frame: ctypes.Array[ctypes.c_char], offset: int) -> tuple[codec.Number, ...]:
        return tuple(codec.decode(self.results, self.unpack(frame, offset)))


def _integers(kinds: tuple[str, ...], way: str) -> Callable[..., Any] | None:
    """Return a method of a `struct.Struct` of cells of signed integers; None if one is not an integer."""
    codes = [_INTEGERS.get(kind) for kind in kinds]
    return None if None in codes else getattr(struct.Struct(f"<{''.join(map(str, codes))}"), way)


class CompiledModule:
    """Code, ready to be instantiated any number of times. Freed with its last reference; instances keep what they need.

    Attributes:
        preamble: everything it declares.
        size_bytes: of its binary.
        lines: finds source lines of its traps, None without debug information.
        admitted: limits that its declarations were found to be within, None before the first sandbox.
        is_quick: instantiating runs no guest code and copies little, so that it may keep the GIL.
        is_reactor: it exports `INITIALISE` as a function without parameters and results.
    """

    __slots__ = (
        "_plans",
        "address",
        "admitted",
        "engine",
        "exports",
        "imports",
        "is_quick",
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
        small = size_bytes < _QUICK_BYTES or engine.config.images  # there memory is mapped, not copied
        self.is_quick = small and not preamble.has_start
        initialise = self.exports.get(INITIALISE)
        self.is_reactor = initialise is not None and initialise.signature == FuncType()
        self._plans: dict[str, CallPlan] = {}

    def __del__(self) -> None:
        RELEASING.wasmtime_module_delete(self.address)

    def function_names(self) -> tuple[str, ...]:
        """Return the names of the exported functions, in order."""
        return tuple(export.name for export in self.preamble.exports if export.kind == "func")

    def plan(self, name: str) -> CallPlan:
        """Return how to call an exported function.

        Raises `MissingExport` if there is none, and `InvalidArgs` if the host cannot pass a type of its signature.
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
                raise InvalidArgs(f"{quote(name)} is {export.signature}: a {kind} cannot be passed")
        return export.signature


def compile_module(engine: Engine, wasm: bytes, limits: Limits | None = None) -> CompiledModule:
    """Compile a whole binary module. Releases the GIL; takes about 0.2 s per MB of code.

    Raises:
        InvalidWasm: not a valid module under the enabled proposals.
        ModuleTooLarge: more bytes than the limit.
    """
    limits = limits or Limits()
    if len(wasm) > limits.module_bytes:
        raise ModuleTooLarge(f"the module has {len(wasm)} bytes; the limit is {limits.module_bytes}")
    declared = preamble.scan(wasm)
    check_declared(declared, limits)
    address = ctypes.c_size_t()
    error = RELEASING.wasmtime_module_new(engine.address, wasm, len(wasm), ctypes.byref(address))
    if error:
        said = traps.explain(error)
        from tensorwasm.wasm.module import find_proposal  # noqa: PLC0415 - tables that few need

        raise find_proposal(wasm) or InvalidWasm(f"not a valid WebAssembly module: {said}")
    return CompiledModule(engine, address.value, declared, len(wasm))


def check_declared(declared: Preamble, limits: Limits) -> None:
    """Compare what a module declares with limits.

    Raises:
        UnsupportedProposal: it uses a proposal that is off.
        ModuleMemoryTooLarge: it declares more initial memory, tables, elements, functions or globals than allowed.
    """
    preamble.require_enabled(declared)
    if declared.memory_bytes > limits.memory_bytes:
        raise ModuleMemoryTooLarge(
            f"the module declares {declared.memory_bytes} bytes of memory; the limit is {limits.memory_bytes}"
        )
    if len(declared.tables) > MAX_TABLES:
        raise ModuleMemoryTooLarge(f"the module declares {len(declared.tables)} tables; the limit is {MAX_TABLES}")
    most = min(limits.table_elements, MAX_TABLE_ELEMENTS)
    for table in declared.tables:
        if table.minimum > most:
            raise ModuleMemoryTooLarge(f"the module declares a table of {table.minimum} elements; the limit is {most}")
    _require_small(declared)


def _require_small(declared: Preamble) -> None:
    imported = sum(item.kind == "func" for item in declared.imports)
    kept_bytes = (
        declared.function_count * _FUNCTION_BYTES
        + imported * _IMPORT_BYTES
        + len(declared.global_types) * _GLOBAL_BYTES
        + declared.tag_count * _TAG_BYTES
    )
    if kept_bytes > MAX_INSTANCE_BYTES:
        raise ModuleMemoryTooLarge(
            f"the module's {declared.function_count} functions, {len(declared.global_types)} globals and "
            f"{declared.tag_count} tags would take {kept_bytes} bytes of every sandbox; the limit is "
            f"{MAX_INSTANCE_BYTES}: split the module"
        )
