import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wasmtime import wat2wasm

from tensorwasm import Limits, Runtime
from tensorwasm.errors import (
    DeviceUnavailable,
    GuestTrap,
    InvalidArgs,
    InvokeTimeout,
    MissingExport,
    ModuleTooLarge,
    UnknownImport,
)
from tensorwasm.guest.engine.traps import MAX_FRAMES
from tensorwasm.guest.sandbox.wasi_io import Directory
from tensorwasm.runtime import Grants, parse_grants
from tensorwasm.values import Deadline

STREAMER = """(module
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (import "wasi:tensor/host" "input-len" (func $len (result i32)))
  (import "wasi:tensor/host" "read-input" (func $read (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "echo") (result i32)
    (drop (call $read (i32.const 0) (call $len)))
    (call $emit (i32.const 0) (call $len)))
  (func (export "flood") (result i32) (local $code i32)
    (loop $again
      (local.set $code (call $emit (i32.const 0) (i32.const 65536)))
      (br_if $again (i32.eqz (local.get $code))))
    (local.get $code)))"""

COUNTER = """(module
  (global $n (mut i32) (i32.const 0))
  (memory (export "memory") 1)
  (func (export "bump") (result i32)
    (global.set $n (i32.add (global.get $n) (i32.const 1)))
    (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (global.get $n)))
    (i32.load (i32.const 0)))
  (func (export "spin") (loop (br 0)))
  (func (export "crash") unreachable))"""


@pytest.fixture(scope="module")
def runtime():
    with Runtime(device="emulator", limits=Limits(wall_s=20)) as runtime:
        yield runtime


@pytest.mark.rule("4-memory")
def test_every_invocation_starts_from_nothing(runtime):
    function = runtime.load(wat2wasm(COUNTER), name="counter")
    assert [function.invoke("bump").values for _ in range(3)] == [(1,)] * 3


def test_a_crash_leaves_the_function_usable(runtime):
    function = runtime.load(wat2wasm(COUNTER))
    with pytest.raises(GuestTrap):
        function.invoke("crash")
    assert function.invoke("bump").values == (1,)


def test_a_deadline_ends_what_does_not_end(runtime):
    function = runtime.load(wat2wasm(COUNTER))
    with pytest.raises(InvokeTimeout):
        function.invoke("spin", deadline=Deadline.after(0.05))


def test_a_limit_beyond_any_clock_is_none():
    with Runtime(device="emulator", limits=Limits(wall_s=1e300)) as runtime:
        assert runtime.load(wat2wasm(COUNTER)).invoke("bump").values == (1,)


def test_a_path_that_cannot_be_one_is_refused(runtime):
    with pytest.raises(InvalidArgs):
        runtime.load("module\0.wasm")


def test_output_before_a_failure_is_kept(runtime):
    text = """(module
      (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
      (memory (export "memory") 1)
      (data (i32.const 0) "\\08\\00\\00\\00\\05\\00\\00\\00hello")
      (func (export "main")
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 32))) unreachable))"""
    with pytest.raises(GuestTrap) as caught:
        runtime.load(wat2wasm(text)).invoke()
    assert (caught.value.stdout, caught.value.stderr) == (b"hello", b"")


def test_start_and_call_share_one_deadline():
    """Each runs for more than half of the limit by the guest's own clock, so that only both together are too long."""
    text = """(module
      (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
      (memory (export "memory") 1)
      (func $now (result i64) (drop (call $clock (i32.const 1) (i64.const 0) (i32.const 0))) (i64.load (i32.const 0)))
      (func $work (local $until i64) (local.set $until (i64.add (call $now) (i64.const 600_000_000)))
        (loop (br_if 0 (i64.lt_u (call $now) (local.get $until)))))
      (func (export "main") (call $work)) (start $work))"""
    with Runtime(limits=Limits(wall_s=1.0)) as runtime, pytest.raises(InvokeTimeout):
        runtime.load(wat2wasm(text)).invoke()


def test_input_goes_in_and_chunks_come_out(runtime):
    outcome = runtime.load(wat2wasm(STREAMER)).invoke("echo", input=b"prompt")
    assert (outcome.values, outcome.chunks) == ((0,), (b"prompt",))


def test_a_guest_learns_that_its_client_has_left(runtime):
    taken = []

    def listen(chunk):
        taken.append(len(chunk))
        return len(taken) < 3

    outcome = runtime.load(wat2wasm(STREAMER)).invoke("flood", on_chunk=listen)
    assert outcome.values == (-3,)
    assert taken == [65536] * 3
    assert outcome.chunks == ()


def test_a_stream_is_bounded(runtime):
    sent = []
    outcome = runtime.load(wat2wasm(STREAMER)).invoke("flood", on_chunk=lambda chunk: sent.append(len(chunk)) is None)
    assert outcome.values == (-2,)
    assert sum(sent) == 64 << 20


def test_threads_do_not_share_sandboxes(runtime):
    function = runtime.load(wat2wasm(COUNTER))
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.extend(function.invoke("bump").values for _ in range(20)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(1,)] * 160


def test_exports_are_listed_when_one_is_missing(runtime):
    with pytest.raises(MissingExport, match="bump"):
        runtime.load(wat2wasm(COUNTER)).invoke("jump")
    with pytest.raises(MissingExport, match="_start"):
        runtime.load(wat2wasm(COUNTER)).invoke()


def test_unknown_imports_are_refused_at_load(runtime):
    with pytest.raises(UnknownImport, match=r"wasi:cuda/host@9\.9\.9"):
        runtime.load(wat2wasm('(module (import "wasi:cuda/host@9.9.9" "f" (func)))'))


def test_a_file_over_the_limit_is_not_read_whole(tmp_path):
    path = tmp_path / "big.wasm"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it whole would take hours
    with Runtime(limits=Limits(module_bytes=1000)) as runtime, pytest.raises(ModuleTooLarge):
        runtime.load(path)


def test_no_device_is_opened_until_one_is_granted():
    with Runtime(device="cuda:4095") as runtime:
        assert runtime.load(wat2wasm(COUNTER)).invoke("bump").values == (1,)
        with pytest.raises(DeviceUnavailable):
            runtime.load(wat2wasm(COUNTER)).invoke("bump", grants={"cuda"})


def test_a_closed_runtime_opens_no_device():
    runtime = Runtime(device="emulator")
    runtime.close()
    runtime.close()
    with pytest.raises(DeviceUnavailable, match="closed"):
        runtime.open_device()


@pytest.mark.parametrize("choice", ["", "gpu", "cuda:", "cuda:-1", "cuda:99999", "emulator:1", "CUDA"])
def test_a_device_that_cannot_be_is_refused_at_once(choice):
    with pytest.raises(InvalidArgs, match="auto"):
        Runtime(device=choice)


@pytest.mark.parametrize("limits", [Limits(memory_bytes=0), Limits(memory_bytes=1 << 33), Limits(wall_s=0)])
def test_limits_that_cannot_be_are_refused(limits):
    with pytest.raises(InvalidArgs):
        Runtime(limits=limits)


def test_a_guest_gets_no_arguments_variables_or_files_of_the_process(runtime, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    text = """(module
      (import "wasi_snapshot_preview1" "environ_sizes_get" (func $sizes (param i32 i32) (result i32)))
      (import "wasi_snapshot_preview1" "fd_prestat_get" (func $prestat (param i32 i32) (result i32)))
      (memory (export "memory") 1)
      (func (export "variables") (result i32)
        (drop (call $sizes (i32.const 0) (i32.const 4))) (i32.load (i32.const 0)))
      (func (export "folders") (result i32) (call $prestat (i32.const 3) (i32.const 0))))"""
    function = runtime.load(wat2wasm(text))
    assert function.invoke("variables").values == (0,)
    assert function.invoke("folders").values == (8,)  # badf: there is no third file
    assert function.invoke("variables", env={"A": "1"}).values == (1,)


def test_grants_are_words():
    assert parse_grants(()) == Grants()
    folders = (Directory("/data", "/data"), Directory("out", "/work", writable=True), Directory("x:ro", "y"))
    assert parse_grants(("cuda", "dir:/data:ro", "dir:out::/work", "dir:x:ro::y:ro")) == Grants(True, folders)
    assert parse_grants(Grants(True, folders).words()) == Grants(True, folders)


@pytest.mark.parametrize("word", ["dir:", "dir::ro", "dir:::/x", "dir:/x::", "dir:/x:::ro", "dir:a::b::c"])
def test_a_folder_has_one_path_or_two(word):
    with pytest.raises(InvalidArgs, match="HOST::GUEST"):
        parse_grants((word,))


@given(st.text(max_size=20).filter(lambda word: word != "cuda" and not word.startswith("dir:")))
def test_any_other_word_is_no_grant(word):
    with pytest.raises(InvalidArgs):
        parse_grants((word,))


def test_a_trap_contains_the_guest_s_stack_with_function_names():
    text = """
    (module
      (func $inner unreachable)
      (func $middle (param i32)
        (if (local.get 0) (then (call $middle (i32.sub (local.get 0) (i32.const 1)))))
        (call $inner))
      (func (export "main") (call $middle (i32.const 1)))
      (func (export "deep") (call $middle (i32.const 5000))))"""
    with Runtime("emulator", slots=8) as runtime:
        function = runtime.load(bytes(wat2wasm(text)))
        with pytest.raises(GuestTrap) as trapped:
            function.invoke("main")
        with pytest.raises(GuestTrap) as deep:
            function.invoke("deep")
    assert [(frame.function, frame.name) for frame in trapped.value.backtrace] == [
        (0, "inner"),
        (1, "middle"),
        (1, "middle"),
        (2, ""),
    ]
    assert all(frame.offset > 0 for frame in trapped.value.backtrace)
    assert len(deep.value.backtrace) == MAX_FRAMES


@pytest.mark.rule("16-messages")
def test_names_that_a_guest_chooses_reach_no_terminal_raw():
    names = ["\x1b]0;owned\x07", "x\r\nerror: forged", "y" * 100_000]
    exports = b"".join(length(len(name)) + name.encode() + b"\0\0" for name in names)
    body = bytes((len(names),)) + exports
    module = (
        b"\0asm\1\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07" + length(len(body)) + body + b"\x0a\x05\x01\x03\0\0\x0b"
    )
    with Runtime("emulator", slots=8) as runtime:
        function = runtime.load(module)
        for call in (lambda: function.invoke("\x1b[2J"), lambda: function.prepared.module.plan("\x1b[2J")):
            with pytest.raises(MissingExport) as missing:
                call()
            assert missing.value.message.isprintable()
            assert len(missing.value.message) < 1000
            assert "forged" in missing.value.message


def length(number):
    return bytes((number >> 7 * index & 0x7F) | (0x80 if index < 4 else 0) for index in range(5))


def test_a_trap_says_the_lines_of_its_source():
    module = Path("tests/golden/wasm/guests/traps.wasm").read_bytes()
    source = Path("tests/golden/wasm/guests/traps.c").read_text().splitlines()
    for _ in range(2):  # compiled, and then from what the first kept
        with Runtime("emulator", slots=8) as runtime:
            function = runtime.load(module)
            with pytest.raises(GuestTrap) as here:
                function.invoke("run", (0,))
            with pytest.raises(GuestTrap) as submitted:
                function.submit("run", (0,)).result()
            with function.open() as live, pytest.raises(GuestTrap) as kept:
                live.call("run", (0,))
        for trapped in (here, submitted, kept):
            stack = trapped.value.backtrace
            assert [source[frame.line - 1].strip() for frame in stack] == [
                "return whole / wanted;",
                "first += part_of(wanted);",
            ]
            assert {frame.file for frame in stack} == {"tests/golden/wasm/guests/traps.c"}
            assert all(
                str(frame).endswith(f", traps.c:{frame.line})".replace("traps.c", frame.file)) for frame in stack
            )
