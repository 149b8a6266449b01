"""The command line as a person or a script meets it: a process, its output, its exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from tensorwasm.errors import InvalidArgs, InvokeTimeout

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*arguments, stdin=b"", **environment):
    return subprocess.run(
        [sys.executable, "-m", "tensorwasm.cli", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=100,
        env={**os.environ, **environment},
    )


@pytest.fixture
def module(tmp_path):
    def write(text):
        path = tmp_path / "module.wasm"
        path.write_bytes(wat2wasm(text) if isinstance(text, str) else text)
        return path

    return write


ADD = """(module
  (func (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1)))
  (func (export "wide") (param i64) (result i64) (local.get 0))
  (func (export "pair") (param f32 f64) (result f32 f64) (local.get 0) (local.get 1))
  (func (export "nothing"))
  (func (export "spin") (loop (br 0)))
  (func (export "main") (result i32) (i32.const 42)))"""


@pytest.mark.parametrize(
    ("export", "args", "printed"),
    [
        ("add", "[2, 3]", b"5\n"),
        ("add", "[2147483647, 1]", b"-2147483648\n"),
        ("wide", "[9007199254740993]", b"9007199254740993\n"),
        ("wide", "[-9223372036854775808]", b"-9223372036854775808\n"),
        ("nothing", "[]", b"ok\n"),
    ],
)
def test_results_are_printed_exactly(module, export, args, printed):
    done = run("run", module(ADD), "--export", export, "--args", args)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, b"")


def test_several_results_are_a_json_array_and_nan_survives(module):
    done = run("run", module(ADD), "--export", "pair", "--args", '["NaN", "-Infinity"]')
    assert json.loads(done.stdout) == ["NaN", "-Infinity"]


def test_constructors_of_a_reactor_run_before_its_exports(module):
    constructor = EXAMPLES.parent / "tests/golden/wasm/guests/constructor.wasm"
    done = run("run", constructor, "--export", "get")
    assert (done.returncode, done.stdout) == (0, b"constructed\n42\n")
    done = run("run", constructor, "--export", "add", "--args", "[8]")
    assert (done.returncode, done.stdout) == (0, b"constructed\n50\n")


def test_without_an_export_main_is_called(module):
    assert run("run", module(ADD)).stdout == b"42\n"


@pytest.mark.parametrize(
    ("wasm", "options", "kind", "code"),
    [
        (b"not wasm at all", (), b"invalid_wasm", 2),
        (b"", (), b"invalid_wasm", 2),
        (b"\0asm\1\0\0\0\x01\xff\xff\xff\xff\x0f", (), b"invalid_wasm", 2),
        (ADD, ("--export", "missing"), b"missing_export", 2),
        (ADD, ("--export", "add", "--args", "[1]"), b"invalid_args", 2),
        (ADD, ("--export", "add", "--args", '["x", 1]'), b"invalid_args", 2),
        (ADD, ("--export", "add", "--args", "[1, 4294967296]"), b"invalid_args", 2),
        (ADD, ("--export", "add", "--args", "{"), b"invalid_args", 2),
        (ADD, ("--export", "add", "--args", "7"), b"invalid_args", 2),
        (ADD, ("--export", "add", "--args", "[" * 100_000), b"invalid_args", 2),
        (ADD, ("--grant", "root"), b"invalid_args", 2),
        (ADD, ("--memory", "0"), b"invalid_args", 2),
        (ADD, ("--timeout", "-1"), b"invalid_args", 2),
        (ADD, ("--timeout", "nan"), b"invalid_args", 2),
        (ADD, ("--env", "novalue"), b"invalid_args", 2),
        (ADD, ("--device", "tpu", "--grant", "cuda"), b"invalid_args", 2),
        ("(module (memory 4097))", (), b"module_memory_too_large", 2),
        ('(module (import "env" "f" (func)) (func (export "main")))', (), b"unknown_import", 2),
        ('(module (func (export "main") unreachable))', (), b"wasmtime", 134),
    ],
)
def test_a_mistake_is_one_line_with_its_kind_and_code(module, wasm, options, kind, code):
    done = run("run", module(wasm), *options)
    assert done.returncode == code
    assert done.stderr.startswith(b"error: " + kind + b": ")
    first, *stack = done.stderr.splitlines()
    assert all(kind == b"wasmtime" and line.startswith(b"    at ") for line in stack), first
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_a_module_over_the_limit_is_refused(module):
    wasm = b"\0asm\1\0\0\0" + bytes(65 << 20)
    done = run("run", module(wasm))
    assert done.returncode == 2
    assert b"module_too_large: the module has %d bytes; the limit is %d\n" % (len(wasm), 64 << 20) in done.stderr
    done = run("run", "-", stdin=wasm)
    assert done.returncode == 2
    assert (
        b"module_too_large: the module has more than %d bytes; the limit is %d\n" % (64 << 20, 64 << 20) in done.stderr
    )


def test_a_missing_file_is_said_plainly(tmp_path):
    done = run("run", tmp_path / "nowhere.wasm")
    assert done.returncode == 2
    assert b"nowhere.wasm" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        ADD.replace('"spin"', '"_start"'),
        '(module (func $start (loop (br 0))) (start $start) (func (export "main")))',
        '(module (memory 1) (func (export "main") (loop (drop (memory.grow (i32.const 1))) (br 0))))',
    ],
    ids=["loop", "start", "grow"],
)
def test_an_endless_guest_is_ended_at_the_deadline(module, text):
    done = run("run", module(text), "--timeout", "1")
    assert done.returncode == InvokeTimeout.exit_code
    assert b"invoke_timeout" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_setting_that_does_not_parse_is_named(module):
    done = run("run", module(ADD), TENSOR_WASM_TIMEOUT="soon")
    assert done.returncode == 2
    assert b"TENSOR_WASM_TIMEOUT" in done.stderr


def test_a_mistyped_option_is_a_usage_error(module):
    done = run("run", module(ADD), "--exprot", "add")
    assert done.returncode == 2
    assert b"--exprot" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_guests_exit_code_and_output_are_the_commands(module):
    text = """(module
      (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
      (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
      (memory (export "memory") 1)
      (data (i32.const 16) "\\08\\00\\00\\00\\03\\00\\00\\00")
      (data (i32.const 8) "out")
      (func (export "_start")
        (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 32)))
        (call $exit (i32.const 7))))"""
    done = run("run", module(text))
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out", b"")


def test_the_demo_says_what_where_and_that_it_was_verified():
    done = run("run", EXAMPLES / "vector_add" / "vector_add.wasm", "--grant", "cuda", "--device", "emulator")
    assert done.returncode == 0, done.stderr
    assert b"verified" in done.stdout
    assert done.stderr.startswith(b"device: ")


def test_a_checked_kernel_is_told_its_first_access_that_is_outside(tmp_path):
    example = EXAMPLES / "vector_add" / "vector_add.wasm"
    right, wrong = b"st.global.f32 \t[%rd10], %f3;", b"st.global.f32\t[%rd10+4],%f3;"  # as long
    astray = tmp_path / "astray.wasm"
    astray.write_bytes(example.read_bytes().replace(right, wrong))
    options = "--grant", "cuda", "--device", "emulator", "--checked"
    done = run("run", example, *options)
    assert (done.returncode, b"verified" in done.stdout) == (0, True), done.stderr
    done = run("run", astray, *options)
    assert done.returncode != 0
    said = rb"vector_add, line \d+ of the PTX, .*: st\.global\.f32, a store of 4 bytes, ends 4 bytes behind "
    assert re.search(said, done.stderr), done.stderr


def test_a_guest_gets_no_more_of_the_device_than_it_may():
    guest = EXAMPLES / "saxpy" / "saxpy.wasm"
    done = run("run", guest, "--grant", "cuda", "--device", "emulator", "--gpu-quota", "1", "--", "1000000")
    assert done.returncode == 1
    assert b"code -6: 4000000 bytes more" in done.stderr
    done = run("run", guest, "--gpu-quota", "0")
    assert (done.returncode, b"--gpu-quota is at least 1" in done.stderr) == (InvalidArgs.exit_code, True)


def test_without_the_grant_there_is_no_gpu():
    done = run("run", EXAMPLES / "vector_add" / "vector_add.wasm")
    assert done.returncode != 0
    assert b"device:" not in done.stderr


def test_a_closed_pipe_is_not_a_traceback(module):
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorwasm.cli", "run", str(module(ADD))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    process.stderr.close()
    assert b"Traceback" not in errors


CHATTER = """(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 4) "\\00\\00\\01\\00")
  (func (export "_start")
    (loop (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))) (br 0))))"""


def test_a_reader_that_stopped_reading_does_not_keep_the_process_alive(module):
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "tensorwasm.cli", "run", str(module(CHATTER)), "--timeout", "1"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, check=False, timeout=60)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == InvokeTimeout.exit_code


@pytest.mark.skipif(sys.platform == "win32", reason="closes streams as a POSIX shell does")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_the_null_device(module, closed):
    command = [sys.executable, "-m", "tensorwasm.cli", "run", str(module(ADD)), "--export", "add", "--args", "[2, 3]"]
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {closed}', "sh", *command], capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"" if ">&-" in closed.split() else b"5\n", b"")


def test_a_guest_without_a_gpu_loads_neither_numpy_nor_cuda(module):
    code = (
        "import sys, os; from tensorwasm import Runtime\n"
        f"with Runtime() as runtime: assert runtime.load({str(module(ADD))!r}).invoke('add', [2, 3]).values == (5,)\n"
        "print([name for name in ('numpy', 'cuda', 'ml_dtypes', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("command", [("--help",), ("run", "--help"), ("doctor", "--help"), ("bench", "--help")])
def test_help_is_there_and_quick(command):
    done = run(*command)
    assert done.returncode == 0
    assert b"Usage" in done.stdout


def test_doctor_says_the_emulator_works():
    done = run("doctor", "--device", "emulator", "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["ok"] is True


def test_an_unknown_benchmark_lists_those_there_are():
    done = run("bench", "sorcery")
    assert done.returncode == 2
    assert b"emulator" in done.stderr


@pytest.mark.parametrize("option", [("--sweep",), ("--workers", "2")])
def test_a_benchmark_without_a_server_takes_no_sweep(option):
    done = run("bench", "emulator", *option)
    assert done.returncode == 2
    assert b"gpu-http, http" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which only Linux has")
@pytest.mark.parametrize("text", [ADD, "wasi"])
def test_output_that_cannot_be_written_is_no_bug_of_ours(module, text):
    if text == "wasi":
        text = """(module
          (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
          (memory (export "memory") 1)
          (data (i32.const 0) "\\08\\00\\00\\00\\03\\00\\00\\00out")
          (func (export "_start") (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 32)))))"""
    command = [sys.executable, "-m", "tensorwasm.cli", "run", module(text)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: output_closed: ")
