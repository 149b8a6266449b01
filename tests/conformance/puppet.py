"""A guest whose every import is an export: tests pull the strings of `wasi:cuda` through real Wasm."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from functools import cache

import pytest
from wasmtime import wat2wasm

from tensorwasm.gpu.session import Session
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.memory_creator import supplying
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.imports import CudaService, host_functions
from tensorwasm.guest.imports.abi import CUDA_MODULE_0_3
from tensorwasm.guest.native.loading import load_entries
from tensorwasm.guest.native.session_layouts import take_layout
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.values import NEVER, Limits

PREFIX = "wasi_cuda_"
PAGES = 8
MEMORY_BYTES = 64 << 20
ENTRY_AT, TEXT_AT, ARGV_AT = 16, 4096, 64


@cache
def strings(module):
    """Return the functions of a module by their names without the prefix."""
    return {f.name.removeprefix(PREFIX): f for f in host_functions() if f.module == module}


@cache
def _linker(compiled, engine):
    entries = load_entries() if compiled else {}
    if compiled and not entries:
        pytest.skip("NO COMPILED HOST FUNCTIONS: they need Linux and Numba")
    return Linker(engine, host_functions(), native=entries)


@cache
def _prepared(module, compiled, host_memory):
    engine = Engine.shared(EngineConfig(host_memory=True) if host_memory else None)
    imports, exports = [], []
    for name, function in strings(module).items():
        signature = f"(param {' '.join(function.params)}) (result {' '.join(function.results)})"
        gets = " ".join(f"(local.get {index})" for index in range(len(function.params)))
        imports.append(f'(import "{module}" "{function.name}" (func ${name} {signature}))')
        exports.append(f'(func (export "{name}") {signature} (call ${name} {gets}))')
    grow = '(func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))'
    text = f'(module {" ".join(imports)} (memory (export "memory") {PAGES}) {" ".join(exports)} {grow})'
    return _linker(compiled, engine).prepare(compile_module(engine, bytes(wat2wasm(text))))


class Puppet:
    """One sandbox with its session. Use it as a context manager.

    Args:
        device: where the session is.
        module: whose functions are imported.
        granted: whether the guest has a session at all.
        compiled: whether compiled host functions do what they can, as in an invocation, or Python does everything.
        memory: how the session reaches the guest's memory.
        limits: of the sandbox.
        guarded: whether its kernels are guarded; ``pinned`` memory then lies in the session's window.
        session_limits: of the session.
    """

    def __init__(
        self,
        device,
        *,
        module=CUDA_MODULE_0_3,
        granted=True,
        compiled=False,
        memory="pinned",
        limits=None,
        guarded=False,
        session_limits=None,
    ):
        in_window = granted and guarded and memory != "staged"
        prepared, limits = _prepared(module, compiled, in_window), limits or Limits()
        self.names = {*strings(module), "grow"}
        self.session = None
        self._closing = ExitStack()
        layout = take_layout() if compiled else None
        if compiled:
            self._closing.enter_context(device.native.bound())
        if granted:
            self.session = Session(device, session_limits, memory_kind=memory, layout=layout, guarded=guarded)
        services = {"cuda": CudaService(self.session)} if granted else {}
        with supplying(self.session.open_memory, MEMORY_BYTES) if in_window else nullcontext():
            self.instance = Instance(prepared, limits=limits, services=services, layout=layout)
        self._closing.callback(self.instance.close)
        if granted:
            self._closing.callback(self.session.close)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._closing.close()

    def __getattr__(self, name):
        if name not in self.names:
            raise AttributeError(name)

        def call(*args, deadline=NEVER):
            if self.session is not None:
                self.session.enter(deadline)
            return self.instance.call(name, args, deadline=deadline)[0]

        return call

    @property
    def size(self):
        return self.instance.memory.size_bytes

    def put(self, offset, data):
        self.instance.memory.write(offset, data)

    def get(self, offset, length):
        return self.instance.memory.read(offset, length)

    def load(self, text, entry, length=None, deadline=NEVER):
        """Load PTX that lies in guest memory; return the id or the code."""
        if len(text) > self.size - TEXT_AT:
            assert self.grow(-(-len(text) // 65536)) > 0
        self.put(ENTRY_AT, entry)
        self.put(TEXT_AT, text)
        size = len(text) if length is None else length
        return self.load_ptx(TEXT_AT, size, ENTRY_AT, len(entry), deadline=deadline)

    def start(self, kernel, argv, grid=(1, 1, 1), block=(32, 1, 1), shared=0, deadline=NEVER):
        """Launch with the argument records given; return the code."""
        self.put(ARGV_AT, argv)
        return self.launch(kernel, *grid, *block, shared, ARGV_AT, len(argv), deadline=deadline)

    def begin(self, kernel, argv, stream=0, grid=(1, 1, 1), block=(1, 1, 1), shared=0, deadline=NEVER):
        """Start a kernel with the argument records given, without waiting; return the code."""
        self.put(ARGV_AT, argv)
        return self.launch_async(kernel, *grid, *block, shared, ARGV_AT, len(argv), stream, deadline=deadline)

    def error(self):
        """Return the text of the last failure."""
        length = self.last_error_len()
        assert self.last_error_copy(0, length) == length
        return self.get(0, length).decode()
