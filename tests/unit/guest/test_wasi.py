from __future__ import annotations

import struct
import sys
import threading
import time

import pytest

from tensorwasm.errors import GuestExit, GuestTrap, InternalError, InvalidArgs, InvalidPointer, InvokeTimeout
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox import wasi
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.guest.sandbox.wasi import WasiConfig
from tensorwasm.guest.sandbox.wasi_io import Directory, GuestOutput
from tensorwasm.values import Deadline, Limits

PATIENCE_S = 20.0
HOUR_NS = 3600 * 10**9
SIGNATURES = {
    "fd_write": "(param i32 i32 i32 i32) (result i32)",
    "fd_read": "(param i32 i32 i32 i32) (result i32)",
    "fd_prestat_get": "(param i32 i32) (result i32)",
    "args_sizes_get": "(param i32 i32) (result i32)",
    "args_get": "(param i32 i32) (result i32)",
    "environ_sizes_get": "(param i32 i32) (result i32)",
    "environ_get": "(param i32 i32) (result i32)",
    "clock_time_get": "(param i32 i64 i32) (result i32)",
    "random_get": "(param i32 i32) (result i32)",
    "sched_yield": "(result i32)",
    "proc_exit": "(param i32)",
    "poll_oneoff": "(param i32 i32 i32 i32) (result i32)",
    "path_open": "(param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)",
    "sock_accept": "(param i32 i32 i32) (result i32)",
}


def wasi_wat() -> str:
    """A module that exports every WASI function of the table under its own name, and its memory."""
    imports, exports = [], []
    for name, signature in SIGNATURES.items():
        imports.append(f'(import "wasi_snapshot_preview1" "{name}" (func ${name} {signature}))')
        params = signature.split(")")[0].removeprefix("(param ").split() if "param" in signature else []
        gets = " ".join(f"(local.get {index})" for index in range(len(params)))
        exports.append(f'(func (export "{name}") {signature} (call ${name} {gets}))')
    return f'(module {" ".join(imports)} (memory (export "memory") 2) {" ".join(exports)})'


@pytest.fixture(scope="module")
def prepared(engine, wat):
    return Linker(engine).prepare(compile_module(engine, wat(wasi_wat())))


@pytest.fixture
def guest(prepared):
    """Return a function: a WASI configuration and limits to a sandbox."""
    made = []

    def make(config: WasiConfig | None = None, **limits) -> Instance:
        made.append(Instance(prepared, wasi_config=config or WasiConfig(), limits=Limits(**limits)))
        return made[-1]

    yield make
    for instance in made:
        instance.close()


def write(instance: Instance, fd: int, data: bytes) -> tuple[int, int]:
    """Call fd_write; return its error code and the bytes it says it wrote."""
    instance.memory.write(0, struct.pack("<III", 1024, len(data), 0))
    instance.memory.write(1024, data)
    [code] = instance.call("fd_write", [fd, 0, 1, 8])
    return code, struct.unpack("<I", instance.memory.read(8, 4))[0]


def read(instance: Instance, length: int) -> bytes:
    """Call fd_read on standard input."""
    instance.memory.write(0, struct.pack("<III", 1024, length, 0))
    assert instance.call("fd_read", [0, 0, 1, 8]) == [0]
    return instance.memory.read(1024, struct.unpack("<I", instance.memory.read(8, 4))[0])


def poll(instance: Instance, *subscriptions: bytes, **options) -> tuple[int, list[tuple[int, ...]]]:
    """Call poll_oneoff; return its error code and the events as (userdata, error, type)."""
    instance.memory.write(0, b"".join(subscriptions))
    instance.memory.write(8188, bytes(4))
    [code] = instance.call("poll_oneoff", [0, 4096, len(subscriptions), 8188], **options)
    count = struct.unpack("<I", instance.memory.read(8188, 4))[0]
    events = struct.iter_unpack("<QHB21x", instance.memory.read(4096, 32 * count))
    return code, list(events)


def clock(userdata: int, timeout_ns: int, clock_id: int = 1, flags: int = 0) -> bytes:
    return struct.pack("<QB7xI4xQQH6x", userdata, 0, clock_id, timeout_ns, 0, flags)


def ready(userdata: int, kind: int, fd: int) -> bytes:
    return struct.pack("<QB7xI28x", userdata, kind, fd)


def now(instance: Instance, clock_id: int) -> int:
    assert instance.call("clock_time_get", [clock_id, 1, 64]) == [0]
    return struct.unpack("<Q", instance.memory.read(64, 8))[0]


def test_every_name_of_preview1_exists_in_the_engine(engine, wat):
    for name, signature in SIGNATURES.items():
        module = compile_module(engine, wat(f'(module (import "{wasi.MODULE}" "{name}" (func {signature})))'))
        assert Linker(engine).prepare(module).needs_wasi
    assert set(SIGNATURES) <= wasi.FUNCTIONS
    assert len(wasi.FUNCTIONS) == 46


def test_output_is_captured(guest):
    instance = guest()
    assert write(instance, 1, b"out") == (0, 3)
    assert write(instance, 2, b"err") == (0, 3)
    assert write(instance, 1, b"put") == (0, 3)
    assert (instance.stdout.captured, instance.stderr.captured) == (b"output", b"err")
    assert not instance.stdout.truncated


def test_output_of_two_sandboxes_is_kept_apart(guest):
    one, two = guest(), guest()
    write(one, 1, b"one")
    write(two, 1, b"two")
    assert (one.stdout.captured, two.stdout.captured) == (b"one", b"two")


def test_output_over_the_limit_is_cut_and_fails_in_the_guest(guest):
    instance = guest(output_bytes=10)
    assert write(instance, 1, b"12345678") == (0, 8)
    assert write(instance, 1, b"90abc")[0] != 0
    assert write(instance, 1, b"more")[0] != 0
    assert instance.stdout.captured == b"1234567890"
    assert instance.stdout.truncated
    assert write(instance, 2, b"fine") == (0, 4)


def test_output_reaches_a_sink_as_it_is_written(guest):
    chunks = []
    instance = guest(WasiConfig(stdout=chunks.append))
    write(instance, 1, b"a")
    assert chunks == [b"a"]
    write(instance, 1, b"b")
    assert chunks == [b"a", b"b"]
    assert instance.stdout.captured == b""


def test_an_error_of_a_sink_reaches_the_caller(guest):
    def broken(_chunk: bytes) -> None:
        raise BrokenPipeError("gone")

    with pytest.raises(InternalError, match="the stdout sink failed: BrokenPipeError") as caught:
        write(guest(WasiConfig(stdout=broken)), 1, b"a")
    assert isinstance(caught.value.__cause__, BrokenPipeError)


@pytest.mark.parametrize(
    ("chunks", "kept", "whole"), [((b"abc", b"de"), b"abcd", False), ((b"ab", b"cd"), b"abcd", True)]
)
def test_the_limit_counts_sinks_too(chunks, kept, whole):
    taken = []
    output = GuestOutput(4, taken.append)
    assert [output.take(chunk) for chunk in chunks][-1] is whole
    assert b"".join(taken) == kept
    assert output.truncated is not whole


def test_stdin_is_bytes_and_then_ends(guest):
    instance = guest(WasiConfig(stdin=b"hello"))
    assert [read(instance, 3), read(instance, 99), read(instance, 99)] == [b"hel", b"lo", b""]
    assert read(guest(), 10) == b""


def test_arguments_and_environment_arrive(guest):
    instance = guest(WasiConfig(args=("prog", "é", ""), env=(("A", "1"), ("B", "x=y"))))
    instance.call("args_sizes_get", [0, 4])
    assert struct.unpack("<II", instance.memory.read(0, 8)) == (3, 5 + 3 + 1)
    instance.call("args_get", [16, 64])
    assert instance.memory.read(64, 9) == b"prog\0\xc3\xa9\0\0"
    instance.call("environ_get", [16, 64])
    assert instance.memory.read(64, 10) == b"A=1\0B=x=y\0"


def test_nothing_is_inherited(guest, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    instance = guest()
    instance.call("environ_sizes_get", [0, 4])
    instance.call("args_sizes_get", [8, 12])
    assert instance.memory.read(0, 16) == bytes(16)
    assert instance.call("fd_prestat_get", [3, 0]) != [0]
    assert instance.call("sock_accept", [3, 0, 0]) != [0]


@pytest.mark.parametrize(
    "config",
    [
        WasiConfig(args=("a\0b",)),
        WasiConfig(env=(("A", "b\0"),)),
        WasiConfig(args=("\ud800",)),
        WasiConfig(directories=(Directory("/nowhere/at/all", "/d"),)),
    ],
)
def test_a_configuration_no_guest_can_get_is_refused(engine, guest, config):
    free = engine.free_slots
    with pytest.raises(InvalidArgs):
        guest(config)
    assert engine.free_slots == free


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need a privilege there")
@pytest.mark.parametrize("writable", [False, True])
def test_a_granted_directory_is_visible_and_nothing_above_it(guest, tmp_path, writable):
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "file").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    (shown / "link").symlink_to(tmp_path / "secret")
    instance = guest(WasiConfig(directories=(Directory(str(shown), "/d", writable=writable),)))

    def open_path(name: bytes, *, create: bool = False) -> int:
        instance.memory.write(512, name)
        rights = (1 << 1) | ((1 << 6) if create else 0)
        return instance.call("path_open", [3, 1, 512, len(name), 9 if create else 0, rights, 0, 0, 16])[0]

    assert open_path(b"file") == 0
    assert open_path(b"../secret") != 0
    assert open_path(b"/etc/passwd") != 0
    assert open_path(b"link") != 0
    assert (open_path(b"new", create=True) == 0) is writable
    assert (shown / "new").exists() is writable


@pytest.mark.parametrize("code", [1, 2, 126, 255])
def test_proc_exit_is_an_error_with_its_code(guest, code):
    with pytest.raises(GuestExit) as caught:
        guest().call("proc_exit", [code])
    assert caught.value.code == code


def test_proc_exit_with_0_is_an_ordinary_end_and_large_codes_become_255(guest):
    instance = guest()
    assert instance.call("proc_exit", [0]) == []
    for code in (256, -1, 2**32 - 1):
        with pytest.raises(GuestExit) as caught:
            instance.call("proc_exit", [code])
        assert caught.value.code == 255


def test_a_start_function_may_exit(engine, wat):
    text = """(module (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
      (memory (export "memory") 1) (func $start (call $exit (i32.const {code}))) (start $start)
      (func (export "f") (result i32) (i32.const 1)))"""
    with Instance(Linker(engine).prepare(compile_module(engine, wat(text.format(code=0))))) as instance:
        assert instance.call("f") == []
        with pytest.raises(InvalidPointer):
            instance.memory.read(0, 1)
    with pytest.raises(GuestExit):
        Instance(Linker(engine).prepare(compile_module(engine, wat(text.format(code=3)))))


def test_clocks_run_and_random_numbers_differ(guest):
    instance = guest()
    assert abs(now(instance, 0) - time.time_ns()) < PATIENCE_S * 1e9
    before = now(instance, 1)
    assert now(instance, 1) >= before
    instance.call("random_get", [0, 32])
    first = instance.memory.read(0, 32)
    instance.call("random_get", [0, 32])
    assert instance.memory.read(0, 32) != first
    assert instance.call("sched_yield") == [0]


def test_random_numbers_outside_memory_are_refused(guest):
    with pytest.raises(GuestTrap, match="requested len 4294967295 exceeds limit") as caught:
        guest().call("random_get", [0, -1])
    assert "0x" not in caught.value.message


def test_sleeping_takes_its_time(guest):
    begun = time.monotonic()
    assert poll(guest(), clock(7, 20_000_000)) == (0, [(7, 0, 0)])
    assert time.monotonic() - begun >= 0.02


@pytest.mark.parametrize("clock_id", [0, 1])
def test_sleeping_until_a_moment(guest, clock_id):
    instance = guest()
    until = now(instance, clock_id) + 20_000_000
    assert poll(instance, clock(1, until, clock_id, flags=1)) == (0, [(1, 0, 0)])
    assert now(instance, clock_id) >= until
    assert poll(instance, clock(2, 5, clock_id, flags=1)) == (0, [(2, 0, 0)])


def test_only_clocks_that_fired_are_reported(guest):
    code, events = poll(guest(), clock(1, HOUR_NS), clock(2, 1_000_000), clock(3, 500_000))
    assert (code, events) == (0, [(3, 0, 0)])


def test_a_ready_file_ends_the_wait_at_once(guest):
    begun = time.monotonic()
    assert poll(guest(), clock(1, HOUR_NS), ready(2, 1, 0), ready(3, 2, 1)) == (0, [(2, 0, 1), (3, 0, 2)])
    assert time.monotonic() - begun < PATIENCE_S


def test_a_bad_subscription_is_an_event_with_an_error(guest):
    code, events = poll(guest(), clock(1, HOUR_NS), clock(2, 1, clock_id=77), ready(3, 9, 0))
    assert code == 0
    assert [(userdata, error != 0) for userdata, error, _ in events] == [(2, True), (3, True)]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([0, 4096, 0, 8188], 28),
        ([0, 4096, -1, 8188], 28),
        ([0, 4096, 1025, 8188], 28),
        ([-1, 4096, 1, 8188], 21),
        ([131072 - 47, 4096, 1, 8188], 21),
        ([0, -1, 1, 8188], 21),
        ([0, 4096, 1, 131069], 21),
    ],
)
def test_bad_poll_arguments_are_error_codes(guest, args, code):
    assert guest().call("poll_oneoff", args) == [code]


def test_sleeping_an_hour_ends_at_the_deadline(guest):
    begun = time.monotonic()
    with pytest.raises(InvokeTimeout, match=r"stopped after \d+\.\d+ s"):
        poll(guest(), clock(1, HOUR_NS), deadline=Deadline.after(0.05))
    assert 0.05 <= time.monotonic() - begun < PATIENCE_S
    with pytest.raises(InvokeTimeout):
        poll(guest(), clock(1, 2**64 - 1), deadline=Deadline.after(0.01))


def test_sleeping_an_hour_ends_when_cancelled(guest):
    instance = guest()
    outcome = []

    def work() -> None:
        try:
            poll(instance, clock(1, HOUR_NS))
        except GuestTrap as error:
            outcome.append(error.trap)

    sleeper = threading.Thread(target=work)
    sleeper.start()
    instance.cancel()  # before, during or after falling asleep: all the same
    sleeper.join(PATIENCE_S)
    assert outcome == ["cancelled"]


def test_a_module_without_wasi_has_no_streams(spawn):
    instance = spawn('(module (func (export "f")))')
    assert (instance.stdout, instance.stderr) == (None, None)
