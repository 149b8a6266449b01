"""JavaScript runtimes that serve the same module over HTTP, a fresh instance for each request: workerd and Node."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tensorwasm.bench.peers.missing import MissingPeer

WORKERD: Final = "workerd"
NODE: Final = "Node's http"

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
_START_S: Final = 20.0


def _node(folder: Path, port: int) -> Sequence[str]:
    (folder / "node.js").write_text(_NODE)
    return [_find("node", "install Node.js"), str(folder / "node.js"), str(port)]


def _workerd(folder: Path, port: int) -> Sequence[str]:
    (folder / "worker.js").write_text(_WORKER)
    (folder / "workerd.capnp").write_text(_CONFIG.replace("PORT", str(port)))
    return [_find("workerd", "npm install workerd"), "serve", str(folder / "workerd.capnp")]


PEERS: Final[Mapping[str, Callable[[Path, int], Sequence[str]]]] = {WORKERD: _workerd, NODE: _node}
"""What starts each, given a folder that has ``add.wasm`` and a port."""


@contextlib.contextmanager
def serving(name: str, folder: Path) -> Iterator[str]:
    """Run a peer, and yield its URL.

    Args:
        name: of `PEERS`.
        folder: where ``add.wasm`` is and its files may be; the caller's to remove.

    Raises:
        MissingPeer: it is not installed, or does not answer.
    """
    port = free_port()
    with subprocess.Popen(  # noqa: S603 - a program that was looked for by name, with files made here
        PEERS[name](folder, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait(process, port, name)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.kill()


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _find(program: str, remedy: str) -> str:
    found = shutil.which(program) or shutil.which(program, path="node_modules/.bin")
    if found is None:
        raise MissingPeer(f"no {program}: {remedy}")
    return found


def _wait(process: subprocess.Popen[bytes], port: int, name: str) -> None:
    ends_s = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < ends_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise MissingPeer(f"{name} does not answer")
