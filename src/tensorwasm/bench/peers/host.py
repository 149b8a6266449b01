"""Peers on the host: wasmtime-py as it comes, a process, zstandard with a write, and JavaScript runtimes over HTTP.

The JavaScript runtimes, workerd and Node, serve the same module with a fresh instance for each request.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tensorwasm.bench.figures import MissingPeer, loop_us, time_once
from tensorwasm.bench.harness import free_port

WASMTIME: Final = "wasmtime-py"
PROCESS: Final = "a process"
ZSTANDARD: Final = "zstandard level 3 + fsync"
WORKERD: Final = "workerd"
NODE: Final = "Node's http"
CUPY: Final = "uvicorn with CuPy"

_NODE: Final = """
const http = require('http'), fs = require('fs')
const module_ = new WebAssembly.Module(fs.readFileSync(__dirname + '/add.wasm'))
http.createServer((request, response) => {
  let body = ''
  request.on('data', piece => { body += piece })
  request.on('end', () => {
    const { args } = JSON.parse(body), instance = new WebAssembly.Instance(module_, {})
    response.setHeader('content-type', 'application/json')
    response.end(JSON.stringify({ result: [instance.exports.add(...args)] }))
  })
}).listen(+process.argv[2], '127.0.0.1')
"""
_WORKER: Final = """
import module_ from './add.wasm'
export default {
  async fetch(request) {
    const { args } = await request.json(), instance = new WebAssembly.Instance(module_, {})
    return new Response(JSON.stringify({ result: [instance.exports.add(...args)] }),
      { headers: { 'content-type': 'application/json' } })
  }
}
"""
_CONFIG: Final = """
using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [(name = "main", worker = .add)],
  sockets = [(name = "http", address = "127.0.0.1:PORT", http = (), service = "main")]);
const add :Workerd.Worker = (compatibilityDate = "2025-01-01", modules = [
  (name = "worker.js", esModule = embed "worker.js"), (name = "./add.wasm", wasm = embed "add.wasm")]);
"""

Loop = Callable[[int], float]
"""A loop of so many starts, which returns microseconds per start."""


def assembled(text: str) -> bytes:
    """Return the module of a text in the WebAssembly text format."""
    import wasmtime  # noqa: PLC0415 - a peer

    return bytes(wasmtime.wat2wasm(text))


def wasmtime_loop(wasm: bytes, export: str, value: int) -> Loop:
    """Make stores, instances and calls with the classes of wasmtime-py and its default engine.

    The module has no imports; the export returns its only argument.
    """
    import wasmtime  # noqa: PLC0415 - with what measures it

    engine = wasmtime.Engine()
    linker, module = wasmtime.Linker(engine), wasmtime.Module(engine, wasm)

    def call() -> None:
        store = wasmtime.Store(engine)
        if linker.instantiate(store, module).exports(store)[export](store, value) != value:
            raise MissingPeer("wasmtime-py returned a wrong result")

    return partial(loop_us, call)


class WasmtimeGuest:
    """An instance of a module without imports in wasmtime-py, with its default engine."""

    def __init__(self, wasm: bytes) -> None:
        import wasmtime  # noqa: PLC0415 - a peer

        engine = wasmtime.Engine()
        self._store = wasmtime.Store(engine)
        self._exports = wasmtime.Instance(self._store, wasmtime.Module(engine, wasm), []).exports(self._store)

    def call(self, export: str, args: Sequence[int]) -> None:
        """Call a function."""
        self._exports[export](self._store, *args)

    def memory(self) -> memoryview:
        """Return its memory, valid until the next call."""
        memory = self._exports["memory"]
        address = ctypes.addressof(memory.data_ptr(self._store).contents)
        return memoryview((ctypes.c_ubyte * memory.data_len(self._store)).from_address(address)).cast("B")

    def close(self) -> None:
        """Delete it."""
        self._store.close()


def wasmtime_program(wasm: bytes) -> Callable[[], None]:
    """Return a function that runs a WASI program in wasmtime-py, each time in a new store.

    Its calls of the GPU are answered at once with 0, and do nothing; its output is dropped.
    """
    import wasmtime  # noqa: PLC0415 - a peer

    engine = wasmtime.Engine()
    module = wasmtime.Module(engine, wasm)

    def answer(*_: object) -> int:
        return 0

    def call() -> None:
        store, linker, given = wasmtime.Store(engine), wasmtime.Linker(engine), wasmtime.WasiConfig()
        given.stdout_file = os.devnull
        store.set_wasi(given)
        linker.define_wasi()
        for wanted in module.imports:
            if isinstance(wanted.type, wasmtime.FuncType) and wanted.module.startswith("wasi:cuda/"):
                linker.define_func(wanted.module, wanted.name or "", wanted.type, answer)
        with contextlib.suppress(wasmtime.ExitTrap):  # its results are wrong
            linker.instantiate(store, module).exports(store)["_start"](store)

    return call


def process_loop() -> Loop:
    """Start processes of a program that does nothing, and wait for their ends."""
    program = _find("true", "not on the PATH")
    return partial(loop_us, lambda: os.waitpid(os.posix_spawn(program, [program], {}), 0))


def zstandard_to_disk(data: bytes, path: Path) -> Callable[[], float]:
    """Return a function that compresses data, replaces the file at ``path`` with it, and returns milliseconds."""
    import zstandard  # noqa: PLC0415 - with what measures it

    def write() -> None:
        with path.open("wb") as file:
            file.write(zstandard.ZstdCompressor(level=3).compress(data))
            file.flush()
            os.fsync(file.fileno())

    return lambda: time_once(write) * 1e3


def _node(folder: Path, port: int) -> Sequence[str]:
    (folder / "node.js").write_text(_NODE)
    return [_find("node", "install Node.js"), str(folder / "node.js"), str(port)]


def _workerd(folder: Path, port: int) -> Sequence[str]:
    (folder / "worker.js").write_text(_WORKER)
    (folder / "workerd.capnp").write_text(_CONFIG.replace("PORT", str(port)))
    return [_find("workerd", "npm install workerd"), "serve", str(folder / "workerd.capnp")]


def _cupy(_folder: Path, port: int) -> Sequence[str]:
    for name in ("uvicorn", "cupy"):
        if importlib.util.find_spec(name) is None:
            raise MissingPeer(f"no {name}: pip install {name if name != 'cupy' else 'cupy-cuda12x'}")
    served = f"{__package__}.cupy_server:serve"
    options = ("--loop=uvloop", "--http=httptools", "--log-level=critical", "--no-access-log")
    return [sys.executable, "-m", "uvicorn", served, f"--port={port}", *options]


SERVERS: Final[Mapping[str, Callable[[Path, int], Sequence[str]]]] = {WORKERD: _workerd, NODE: _node, CUPY: _cupy}
"""The command of each, given a folder that has ``add.wasm``, for those that serve it, and a port."""


@contextlib.contextmanager
def serve_peer(name: str, folder: Path) -> Iterator[str]:
    """Run one of `SERVERS` in a folder that has ``add.wasm`` and takes its files, and yield its URL."""
    port = free_port()
    with subprocess.Popen(  # noqa: S603 - a program that was looked for by name, with files made here
        SERVERS[name](folder, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait(process, port, name)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.kill()


def _find(program: str, remedy: str) -> str:
    found = shutil.which(program) or shutil.which(program, path="node_modules/.bin")
    if found is None:
        raise MissingPeer(f"no {program}: {remedy}")
    return found


def _wait(process: subprocess.Popen[bytes], port: int, name: str) -> None:
    ends_s = time.monotonic() + 20.0
    while process.poll() is None and time.monotonic() < ends_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise MissingPeer(f"{name} does not answer")
