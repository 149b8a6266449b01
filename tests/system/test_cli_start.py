"""What `tensor-wasm` imports: a guest whose code is kept must not wait for what it does not use."""

import os
import re
import subprocess
import sys

import pytest
from wasmtime import wat2wasm

SLOW = {
    "asyncio", "concurrent.futures.thread", "cryptography", "cuda", "email", "httptools", "httpx", "importlib.metadata",
    "jwt", "msgspec", "numba", "numpy", "obstore", "prometheus_client", "pydantic", "rich", "sqlalchemy", "tempfile",
    "typer", "wasmtime", "zstandard",
    "tensorwasm.gpu.cuda", "tensorwasm.gpu.emulator", "tensorwasm.gpu.session", "tensorwasm.ptx",
    "tensorwasm.guest.reactor.reactor", "tensorwasm.runtime.invoke.fiber_runner", "tensorwasm.runtime.snapshots.live",
    "tensorwasm.runtime.snapshots.snapshot", "tensorwasm.runtime.workers", "tensorwasm.saved", "tensorwasm.server",
    "tensorwasm.service", "tensorwasm.wasm.edit", "tensorwasm.wasm.opcodes",
}  # fmt: skip
"""Modules, and all below them, of which a plain run needs none."""
MOST_MODULES = 270
"""Above what a run imports today; half of what it was."""

ADD = '(module (func (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1))))'
HELLO = """(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\\08\\00\\00\\00\\06\\00\\00\\00hello\\n")
  (func (export "_start") (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))))"""


def imported(*arguments, code=0):
    """Run a command line, which ends with a code; return its output and the modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tensorwasm.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))


def slow(modules):
    return sorted(name for name in modules if any(name == each or name.startswith(f"{each}.") for each in SLOW))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "TENSOR_WASM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(os.environ, "TENSOR_WASM_CODE_CACHE", "64")


@pytest.mark.parametrize(
    ("text", "options", "printed"),
    [(ADD, ("--export", "add", "--args", "[2, 3]"), "5\n"), (HELLO, ("--dir", "."), "hello\n")],
    ids=["plain", "wasi"],
)
def test_a_guest_whose_code_is_kept_waits_for_nothing_it_does_not_use(tmp_path, text, options, printed):
    path = tmp_path / "module.wasm"
    path.write_bytes(wat2wasm(text))
    imported("run", path, *options)  # compiled here
    output, modules = imported("run", path, *options)
    assert (output, slow(modules)) == (printed, [])
    assert len(modules) <= MOST_MODULES, len(modules)


def test_the_version_needs_no_command():
    output, modules = imported("--version")
    assert output.startswith("tensor-wasm ")
    assert not [
        name for name in modules if name in {"typer", "pydantic", "tensorwasm.cli.app", "tensorwasm.cli.local.run"}
    ]


def test_a_server_is_not_held_up_by_the_commands_that_it_is_not(tmp_path):
    _, modules = imported("serve", "--addr", "nowhere", "--data", tmp_path, code=2)
    assert "tensorwasm.server.process.supervisor" in modules
    assert not modules & {"typer", "pydantic", "asyncio", "tensorwasm.cli.app", "tensorwasm.service"}


def test_help_needs_no_guest():
    _, modules = imported("--help")
    assert not modules & {
        "numpy",
        "httpx",
        "wasmtime",
        "tensorwasm.guest.engine.capi",
        "tensorwasm.runtime.api.runtime",
    }
