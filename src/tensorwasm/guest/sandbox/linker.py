"""Linking: host functions become imports, once for all sandboxes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tensorwasm.errors import MAX_NAME, InternalError, UnknownImport, plain
from tensorwasm.guest.engine import capi, traps
from tensorwasm.guest.engine.capi import KEEPING
from tensorwasm.guest.engine.engine import Engine
from tensorwasm.guest.engine.module import CompiledModule
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.imports.suspension import SuspensionCode
from tensorwasm.guest.native.loading import load_oneshot, load_oneshot_fiber
from tensorwasm.guest.native.structures import (
    INTERPRETER,
    NO_ENTRIES,
    Entries,
    Environment,
    PythonCallbacks,
    address_of,
    make_environment,
)
from tensorwasm.guest.sandbox import wasi, wasi_stdio
from tensorwasm.guest.sandbox.state import STATES, as_raised
from tensorwasm.guest.sandbox.suspended_call import READ, WRITE, WaitingFunction
from tensorwasm.wasm.preamble import Import, Preamble
from tensorwasm.wasm.types import FuncType
from tensorwasm.yielding import yield_gil

_caller_context: Final = KEEPING.wasmtime_caller_context
_context_get_data: Final = KEEPING.wasmtime_context_get_data

Trampoline = Callable[[int, int, int, int], int | None]


_STARTING: Final = frozenset({"wasi_cuda_launch_async", "wasi_cuda_graph_begin"})
"""Host functions after which kernels run while the guest goes on."""


class LinkedModule:
    """A module with resolved imports: instantiating it looks nothing up.

    Attributes:
        compiled: some of its host functions are compiled.
        needs_layout: it may call compiled host functions, so its store must carry the address of a session layout.
        guarded: none of its host functions can fail unnoticed before its first line.
        stdio: its output goes to the host without wasmtime; it has no folders.
        waiting: the host functions that suspend it, by number; None if it runs on a thread.
        starts_kernels: it may start kernels without waiting for them, which have to reach its memory in place.
    """

    __slots__ = (
        *("_linker", "address", "compiled", "guarded", "module"),
        *("needs_layout", "needs_wasi", "starts_kernels", "stdio", "waiting"),
    )

    def __init__(self, linker: Linker, module: CompiledModule, address: int) -> None:
        self._linker = linker  # keeps the trampolines alive
        self.module = module
        self.address = address
        self.compiled = linker.compiled
        self.needs_layout = linker.native
        self.waiting = linker.waiting
        self.stdio: bool = linker.stdio
        self.guarded = linker.guarded or not module.imports
        self.starts_kernels = any(wanted.name in _STARTING for wanted in module.imports)
        self.needs_wasi: bool = any(wanted.module == wasi.MODULE for wanted in module.imports)

    def __del__(self) -> None:
        KEEPING.wasmtime_instance_pre_delete(self.address)

    def is_one_shot(self) -> bool:
        """Return whether one-shot sandboxes can run the module; with WASI or compiled host functions it needs Numba."""
        plain = self.waiting is None and self.module.is_quick
        able = not (self.needs_layout or self.needs_wasi) or load_oneshot() is not None
        return plain and able and not self.module.engine.config.host_memory

    def is_one_shot_fiber(self) -> bool:
        """Return whether one-shot fibers can run the module. Imports Numba."""
        plain = self.waiting is not None and not self.needs_wasi and self.module.is_quick
        return plain and not self.module.engine.config.host_memory and load_oneshot_fiber() is not None


class Linker:
    """The imports that sandboxes may use. Made once per engine and set of host functions; thread-safe.

    Every host function has one trampoline, which finds the calling sandbox by the number in its store. A compiled host
    function is linked instead of the trampoline, which becomes its fallback. ``native`` says that compiled functions
    are linked, so every sandbox needs a session layout; other attributes are those of `LinkedModule`.
    """

    def __init__(
        self,
        engine: Engine,
        host_functions: Iterable[HostFunction] = (),
        *,
        wasi_preview1: bool = True,
        stdio: bool = False,
        native: Entries = NO_ENTRIES,
        passage: PythonCallbacks | None = None,
        code: SuspensionCode | None = None,
    ) -> None:
        """Define the imports.

        With ``stdio`` a sandbox has no folders, and output goes to the host without wasmtime
        (`tensorwasm.guest.sandbox.wasi_stdio`).
        ``native`` has compiled host functions by module and name; only those of ``host_functions`` are linked.
        ``passage`` is compiled code that calls Python host functions, so that none fails unnoticed before its first
        line; without it ctypes does. ``code`` suspends sandboxes that run as fibers; the engine must have stacks for
        them. Raises `InternalError` for two host functions of one name, for one whose compiled form has other
        parameters, or if wasmtime refused one.
        """
        self.engine = engine
        self.compiled = bool(native)
        self.guarded = passage is not None
        self.native = self.compiled or self.guarded or code is not None
        self.waiting: list[WaitingFunction] | None = None if code is None else []
        self._native = native
        self._passage = passage
        self._code = code
        self._offered: dict[tuple[str, str], HostFunction] = {}
        self._kept: list[object] = []
        self._wasi, self.stdio = wasi_preview1, stdio
        self._address: int = KEEPING.wasmtime_linker_new(engine.address)
        if wasi_preview1:
            _check(KEEPING.wasmtime_linker_define_wasi(self._address))
            KEEPING.wasmtime_linker_allow_shadowing(self._address, True)
            for function in (*wasi.REPLACED, *(wasi_stdio.FUNCTIONS if stdio else ())):
                self._define(function)
            KEEPING.wasmtime_linker_allow_shadowing(self._address, False)
        for function in host_functions:
            self._define(function)

    def __del__(self) -> None:
        KEEPING.wasmtime_linker_delete(self._address)

    def prepare(self, module: CompiledModule) -> LinkedModule:
        """Resolve a module's imports; errors are those of `check`."""
        if module.engine is not self.engine:
            raise InternalError("the module was compiled for another engine")
        self.check(module.preamble)
        address = ctypes.c_size_t()
        error = KEEPING.wasmtime_linker_instantiate_pre(self._address, module.address, ctypes.byref(address))
        if error:
            raise UnknownImport(f"the module's imports do not fit: {traps.explain(error)}")
        return LinkedModule(self, module, address.value)

    def check(self, declared: Preamble) -> None:
        """Check what a module imports; `UnknownImport` if it is not offered or has another type."""
        for wanted in declared.imports:
            self._require(wanted)

    def _require(self, wanted: Import) -> None:
        label = f"{plain(wanted.module, MAX_NAME)}.{plain(wanted.name, MAX_NAME)}"
        if wanted.kind != "func":
            raise UnknownImport(f"the module imports the {wanted.kind} {label}; only functions are offered")
        function = self._offered.get((wanted.module, wanted.name))
        if function is None:
            if self._wasi and wanted.module == wasi.MODULE and wanted.name in wasi.FUNCTIONS:
                return
            raise UnknownImport(f"the module imports {label}, which {self._explain(wanted)}")
        offered = FuncType(function.params, function.results)
        if offered != wanted.signature:
            raise UnknownImport(f"the module imports {label} as {wanted.signature}; it is {offered}")

    def _explain(self, wanted: Import) -> str:
        if wanted.module == wasi.MODULE and not self._wasi:
            return "is not offered here: enable WASI for this sandbox"
        offered = {module for module, _ in self._offered} | ({wasi.MODULE} if self._wasi else set())
        if wanted.module in offered:
            return "does not exist in that interface: check the name and the version"
        there = ", ".join(sorted(offered)) or "none"
        return f"is of no interface that is here: build the module for those that are ({there})"

    def _define(self, function: HostFunction) -> None:
        key = (function.module, function.name)
        if key in self._offered:
            raise InternalError(f"two host functions are called {function.module}.{function.name}")
        module, name = function.module.encode(), function.name.encode()
        define, address, environment = self._entry(function)
        signature = KEEPING.wasm_functype_new(_value_types(function.params), _value_types(function.results))
        error = define(self._address, module, len(module), name, len(name), signature, address, environment, None)
        KEEPING.wasm_functype_delete(signature)
        _check(error)
        self._offered[key] = function

    def _entry(self, function: HostFunction) -> tuple[Callable[..., int | None], int, int | None]:
        """Return how to link a function, and the addresses of its C function and environment, which are kept alive."""
        entry = self._native.get((function.module, function.name))
        if entry is not None and entry.params != function.params:
            raise InternalError(f"the compiled {function.module}.{function.name} has other parameters")
        if function.waits and self._code is not None and self.waiting is not None:
            waiting = WaitingFunction(function, len(self.waiting), self._code, entry)
            self.waiting.append(waiting)
            return KEEPING.wasmtime_linker_define_async_func, self._code.suspend, waiting.address
        twin = make_trampoline(function)
        if entry is None and self._passage is None:
            return KEEPING.wasmtime_linker_define_func_unchecked, self._keep(twin), None
        body = entry.finish if entry is not None else None
        finish = make_trampoline(replace(function, params=(), body=body)) if body is not None else None
        environment = self._make_environment(twin, finish)
        return (
            KEEPING.wasmtime_linker_define_func_unchecked,
            entry.address if entry is not None else environment.fallback,
            ctypes.addressof(environment),
        )

    def _make_environment(self, fallback: Trampoline, finish: Trampoline | None) -> Environment:
        if self._passage is None:
            environment = make_environment(self._keep(fallback), self._keep(finish) if finish is not None else 0)
        else:
            environment = make_environment(self._passage.fallback, self._passage.finish)
            environment.interpreter = ctypes.addressof(INTERPRETER)
            environment.fallback_object, environment.finish_object = id(fallback), id(finish)
            self._kept += fallback, finish
        self._kept.append(environment)
        return environment

    def _keep(self, trampoline: Trampoline) -> int:
        callback = capi.HOST_FUNCTION(trampoline)
        self._kept.append(callback)
        return address_of(callback)


def make_trampoline(function: HostFunction) -> Trampoline:
    """Return the C entry of a host function: it reads cells, runs the body, writes cells, and never raises."""
    body = function.body
    unpack = struct.Struct("<" + "".join(READ[kind] for kind in function.params)).unpack
    size = capi.CELL_BYTES * len(function.params)
    params_at = (ctypes.c_char * size).from_address
    result = WRITE[function.results[0]] if len(function.results) == 1 else None
    pack_results = None
    if len(function.results) > 1:
        pack_results = struct.Struct("<" + "".join(READ[kind] for kind in function.results)).pack_into
    results_at = (ctypes.c_char * (capi.CELL_BYTES * len(function.results))).from_address

    def trampoline(_env: int, caller: int, cells: int, _count: int) -> int | None:
        try:
            context = _caller_context(caller)
            state = STATES[_context_get_data(context)]
            state.context = context
            if state.error is not None:
                raise state.error  # noqa: TRY301 - the handler below is the one way out for every error
            state.caller = caller
            state.interruptible = True
            try:
                answer = body(state, *unpack(params_at(cells))) if size else body(state)
            finally:
                state.interruptible = False
                state.caller = 0
            if result is not None:
                result.from_address(cells).value = answer
            elif pack_results is not None:
                pack_results(results_at(cells), 0, *answer)
            yield_gil()
        except BaseException as error:  # noqa: BLE001 - nothing may escape into C; it is raised when the call returns
            # Looked up anew: an interrupt may have come before there was a name for it.
            guest = STATES.get(_context_get_data(_caller_context(caller)))
            if guest is not None:
                guest.error = as_raised(error, f"host function {function.module}.{function.name}")
            return int(KEEPING.wasmtime_trap_new(b"host", 4))
        return None

    return trampoline


def _value_types(kinds: tuple[str, ...]) -> ctypes.Array[ctypes.c_size_t]:
    items = (ctypes.c_size_t * len(kinds))(*(KEEPING.wasm_valtype_new(capi.VALUE_KINDS[kind]) for kind in kinds))
    vector = (ctypes.c_size_t * 2)()
    KEEPING.wasm_valtype_vec_new(vector, len(kinds), items)
    return vector


def _check(error: int | None) -> None:
    if error:
        raise InternalError(f"wasmtime refused a host function: {traps.explain(error)}")
