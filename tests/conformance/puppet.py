"""A guest whose every import is an export: tests pull the strings of `wasi:cuda` through real Wasm."""

from __future__ import annotations

from functools import cache

from wasmtime import wat2wasm

from tensorwasm.gpu.session import Session
from tensorwasm.guest.engine import Engine
from tensorwasm.guest.imports import CudaService, host_functions
from tensorwasm.guest.imports.abi import CUDA_MODULE
from tensorwasm.guest.instance import Instance
from tensorwasm.guest.linker import Linker
from tensorwasm.values import Deadline, Limits

STRINGS = {
    "load_ptx": ("i32 i32 i32 i32", "i64"),
    "launch": ("i64 i32 i32 i32 i32 i32 i32 i32 i32 i32", "i32"),
    "sync": ("", "i32"),
    "last_error_len": ("", "i32"),
    "last_error_copy": ("i32 i32", "i32"),
    "alloc": ("i32 i32", "i64"),
    "free": ("i32 i32", "i32"),
    "memcpy_h2d": ("i32 i32 i32 i32", "i32"),
    "memcpy_d2h": ("i32 i32 i32 i32", "i32"),
}
PAGES = 8
ENTRY_AT, TEXT_AT, ARGV_AT = 16, 4096, 64


@cache
def _prepared(module: str):
    imports, exports = [], []
    for name, (params, result) in STRINGS.items():
        kinds = params.split()
        signature = f"(param {params}) (result {result})"
        gets = " ".join(f"(local.get {index})" for index in range(len(kinds)))
        imports.append(f'(import "{module}" "wasi_cuda_{name}" (func ${name} {signature}))')
        exports.append(f'(func (export "{name}") {signature} (call ${name} {gets}))')
    grow = '(func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))'
    text = f'(module {" ".join(imports)} (memory (export "memory") {PAGES}) {" ".join(exports)} {grow})'
    engine = Engine.shared()
    return Linker(engine, host_functions()).prepare(engine.compile(bytes(wat2wasm(text))))


class Puppet:
    """One sandbox with its session. Use it as a context manager."""

    def __init__(self, device, *, module=CUDA_MODULE, granted=True, limits=None):
        self.session = Session(device) if granted else None
        services = {"cuda": CudaService(self.session)} if granted else {}
        self.instance = Instance(_prepared(module), limits=limits or Limits(), services=services)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.session is not None:
            self.session.close()
        self.instance.close()

    def __getattr__(self, name):
        if name not in {*STRINGS, "grow"}:
            raise AttributeError(name)
        return lambda *args, deadline=None: self.instance.call(name, args, deadline=deadline or Deadline())[0]

    @property
    def size(self):
        return self.instance.memory.size_bytes

    def put(self, offset, data):
        self.instance.memory.write(offset, data)

    def get(self, offset, length):
        return self.instance.memory.read(offset, length)

    def load(self, text, entry, length=None, deadline=None):
        """Load PTX that lies in guest memory; return the id or the code."""
        if len(text) > self.size - TEXT_AT:
            assert self.grow(-(-len(text) // 65536)) > 0
        self.put(ENTRY_AT, entry)
        self.put(TEXT_AT, text)
        size = len(text) if length is None else length
        return self.load_ptx(TEXT_AT, size, ENTRY_AT, len(entry), deadline=deadline)

    def start(self, kernel, argv, grid=(1, 1, 1), block=(32, 1, 1), shared=0, deadline=None):
        """Launch with the argument records given; return the code."""
        self.put(ARGV_AT, argv)
        return self.launch(kernel, *grid, *block, shared, ARGV_AT, len(argv), deadline=deadline)

    def error(self):
        """Return the text of the last failure."""
        length = self.last_error_len()
        assert self.last_error_copy(0, length) == length
        return self.get(0, length).decode()
