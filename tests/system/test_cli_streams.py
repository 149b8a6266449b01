"""Standard streams of `tensor-wasm run`: the guest's are the command's, while it runs and without a limit."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from wasmtime import wat2wasm

from tensorwasm.errors import InvokeTimeout

PATIENCE_S = 60
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals, pipes and terminals as POSIX has them")

WASI = """
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_fdstat_get" (func $stat (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 2)
  ;; vectors: 0 reads up to 64 KiB to 65536, 8 writes what came; 16 writes the word at 32
  (data (i32.const 0) "\\00\\00\\01\\00\\00\\00\\01\\00\\00\\00\\01\\00")
  (data (i32.const 16) "\\20\\00\\00\\00\\06\\00\\00\\00")
  (data (i32.const 32) "ready\\n")
  (func $say (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 48))))
"""
PRINTS = f"""(module {WASI} (func (export "_start") (call $say)))"""
CAT = f"""(module {WASI}
  (func (export "_start")
    (loop $more
      (if (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 12)) (then (call $exit (i32.const 3))))
      (if (i32.eqz (i32.load (i32.const 12))) (then (return)))
      (if (call $write (i32.const 1) (i32.const 8) (i32.const 1) (i32.const 52)) (then (call $exit (i32.const 4))))
      (if (i32.ne (i32.load (i32.const 12)) (i32.load (i32.const 52))) (then (call $exit (i32.const 5))))
      (br $more))))"""
CHATTER = f"""(module {WASI} (func (export "_start") (loop $more (call $say) (br $more))))"""
# Exits with the sum of 1, 2 and 4 for each of the streams 0, 1, 2 that is a character device.
TERMINALS = f"""(module {WASI}
  (func $is (param $fd i32) (result i32)
    (drop (call $stat (local.get $fd) (i32.const 64)))
    (i32.shl (i32.eq (i32.load8_u (i32.const 64)) (i32.const 2)) (local.get $fd)))
  (func (export "_start")
    (call $exit (i32.add (call $is (i32.const 0)) (i32.add (call $is (i32.const 1)) (call $is (i32.const 2)))))))"""


@pytest.fixture
def start(tmp_path):
    """Return a function: a module's text to a process that runs it, its streams pipes unless told otherwise."""
    begun = []

    def make(text: str, *options: str, **streams) -> subprocess.Popen[bytes]:
        path = tmp_path / "module.wasm"
        path.write_bytes(wat2wasm(text))
        command = [sys.executable, "-m", "tensorwasm.cli", "run", str(path), *options]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        begun.append(subprocess.Popen(command, **{**pipes, **streams}))
        return begun[-1]

    yield make
    for process in begun:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                with suppress(BrokenPipeError):
                    stream.close()


def test_a_guest_that_only_prints_does_not_wait_for_a_silent_pipe(start):
    process = start(PRINTS, "--timeout", "20")
    assert process.wait(PATIENCE_S) == 0
    assert process.stdout.read() == b"ready\n"


def test_a_guest_answers_each_line_while_its_input_is_open(start):
    process = start(CAT)
    for line in (b"one\n", b"two\n", b"\0\xff\r\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == line
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("from_file", [False, True])
def test_streams_have_no_limit(start, tmp_path, from_file):
    data = random.Random(7).randbytes((65 << 20) + 1)
    if from_file:
        (tmp_path / "data").write_bytes(data)
        with (tmp_path / "data").open("rb") as file:
            process = start(CAT, "--timeout", "60", stdin=file)
            out, err = process.communicate(timeout=PATIENCE_S)
    else:
        process = start(CAT, "--timeout", "60")
        out, err = process.communicate(data, timeout=PATIENCE_S)
    assert (process.returncode, len(out), out == data, err) == (0, len(data), True, b"")


def test_input_that_a_guest_does_not_read_stays_for_the_next_program(tmp_path):
    path = tmp_path / "module.wasm"
    path.write_bytes(wat2wasm(PRINTS))
    shell = f'"{sys.executable}" -m tensorwasm.cli run "{path}"; cat'
    done = subprocess.run(["/bin/sh", "-c", shell], input=b"left\n", capture_output=True, timeout=60, check=False)
    assert done.stdout == b"ready\nleft\n"


def test_a_read_that_waits_ends_at_the_deadline(start):
    process = start(CAT, "--timeout", "0.5")
    begun = time.monotonic()
    assert process.wait(PATIENCE_S) == InvokeTimeout.exit_code
    assert time.monotonic() - begun < 10
    assert process.stderr.read().startswith(b"error: invoke_timeout: ")


@POSIX
@pytest.mark.parametrize("text", [CAT, CHATTER])
def test_an_interrupt_ends_it_whatever_it_waits_for(start, text):
    process = start(text, "--timeout", "60")
    if text is CAT:
        process.stdin.write(b"ready\n")
        process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert process.stderr.read() == b""


@POSIX
def test_a_reader_that_leaves_ends_it_as_it_ends_any_program(start):
    process = start(CHATTER, "--timeout", "60")
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    assert process.wait(20) == -signal.SIGPIPE
    assert process.stderr.read() == b""


@POSIX
@pytest.mark.parametrize("terminal", [("stdin",), ("stdout",), ("stderr",), ("stdin", "stdout", "stderr"), ()])
def test_a_guest_knows_a_terminal_when_it_has_one(start, terminal):
    ours, theirs = os.openpty()
    try:
        process = start(TERMINALS, **dict.fromkeys(terminal, theirs))
        bits = {"stdin": 1, "stdout": 2, "stderr": 4}
        assert process.wait(PATIENCE_S) == sum(bits[name] for name in terminal)
    finally:
        os.close(ours)
        os.close(theirs)


@POSIX
def test_a_conversation_on_a_terminal(start):
    ours, theirs = os.openpty()
    try:
        process = start(CAT, stdin=theirs, stdout=theirs, stderr=theirs)
        os.write(ours, b"hello\n")
        seen = b""
        while seen.count(b"hello\r\n") < 2 and select.select([ours], [], [], PATIENCE_S)[0]:  # its echo, and the answer
            seen += os.read(ours, 1024)
        assert seen == b"hello\r\nhello\r\n"
        os.write(ours, b"\x04")
        assert process.wait(PATIENCE_S) == 0
    finally:
        os.close(ours)
        os.close(theirs)
