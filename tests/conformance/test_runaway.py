"""A guest whose kernel never ends, run as a command: on every device it exits at its deadline, with that code."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from wasmtime import wat2wasm

from tensorwasm.errors import InvokeTimeout

PTX = ".version 7.0\\0a.target sm_70\\0a.address_size 64\\0a.visible .entry spin() { L: bra L; }\\0a"
GUEST = f"""(module
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_launch"
    (func $launch (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "spin")
  (data (i32.const 64) "{PTX}")
  (func (export "_start")
    (drop (call $launch
      (call $load (i32.const 64) (i32.const {len(PTX.replace(chr(92) + "0a", " "))}) (i32.const 0) (i32.const 4))
      (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1)
      (i32.const 0) (i32.const 0) (i32.const 0)))))"""


@pytest.mark.parametrize(("choice", "limit_s"), [("emulator", 2), pytest.param("cuda", 6, marks=pytest.mark.gpu)])
def test_the_command_exits_at_its_deadline(choice, limit_s, request, tmp_path):
    if choice == "cuda":
        request.getfixturevalue("gpu")
    path = tmp_path / "spin.wasm"
    path.write_bytes(wat2wasm(GUEST))
    command = [sys.executable, "-m", "tensorwasm.cli", "run", path, "--grant", "cuda", "--device", choice]
    start = time.monotonic()
    done = subprocess.run([*command, "--timeout", str(limit_s)], capture_output=True, check=False, timeout=60)
    assert done.returncode == InvokeTimeout.exit_code, done.stderr
    assert b"invoke_timeout" in done.stderr
    assert b"Traceback" not in done.stderr
    assert limit_s - 1 < time.monotonic() - start < 30
