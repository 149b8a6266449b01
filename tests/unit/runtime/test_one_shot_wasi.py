"""Guests with WASI: one-shot and full calls have the same outcome, and nothing of a call is left for the next."""

from __future__ import annotations

import threading
from collections import deque

import pytest
from wasmtime import wat2wasm

from tensorwasm import Runtime
from tensorwasm.errors import GuestTrap, InvokeTimeout, StdinTooLarge
from tensorwasm.guest.sandbox.wasi_io import INHERIT
from tensorwasm.values import Deadline, Limits

pytest.importorskip("numba")

OUTPUT_BYTES = 64
HELLO, LONG = "hello, ", "x" * 40
WAT = f"""(module
 (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
 (import "wasi_snapshot_preview1" "fd_renumber" (func $renumber (param i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "args_sizes_get" (func $args (param i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environment (param i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
 (memory (export "memory") 1)
 (data (i32.const 0) "\\10\\00\\00\\00\\{len(HELLO):02x}\\00\\00\\00") (data (i32.const 16) "{HELLO}")
 (data (i32.const 128) "\\90\\00\\00\\00\\{len(LONG):02x}\\00\\00\\00") (data (i32.const 144) "{LONG}")
 (data (i32.const 256) "\\00\\04\\00\\00\\40\\00\\00\\00")
 (func $put (param $to i32) (result i32) (call $write (local.get $to) (i32.const 0) (i32.const 1) (i32.const 512)))
 (func $put_long (result i32) (call $write (i32.const 1) (i32.const 128) (i32.const 1) (i32.const 512)))
 (func (export "both") (result i32 i32 i32)
   (call $put (i32.const 1)) (call $put (i32.const 2)) (i32.load (i32.const 512)))
 (func (export "echo") (result i32)
   (drop (call $read (i32.const 0) (i32.const 256) (i32.const 1) (i32.const 512)))
   (i32.store (i32.const 260) (i32.load (i32.const 512)))
   (call $write (i32.const 1) (i32.const 256) (i32.const 1) (i32.const 512)))
 (func (export "sizes") (result i32 i32)
   (drop (call $args (i32.const 600) (i32.const 604))) (drop (call $environment (i32.const 608) (i32.const 612)))
   (i32.load (i32.const 604)) (i32.load (i32.const 612)))
 (func (export "leave") (param i32) (drop (call $put (i32.const 1))) (call $exit (local.get 0)))
 (func (export "trap") (drop (call $put (i32.const 1))) (drop (call $put (i32.const 2))) unreachable)
 (func (export "spin") (drop (call $put (i32.const 1))) (loop $again (br $again)))
 (func (export "too_much") (drop (call $put_long)) (drop (call $put_long)) (drop (call $put_long)))
 (func (export "elsewhere") (result i32 i32 i32)
   (call $put (i32.const 0)) (call $put (i32.const 3)) (call $put (i32.const -1)))
 (func (export "outside") (param $pieces i32) (param $data i32) (param $stored i32) (result i32)
   (i32.store (i32.const 700) (local.get $data)) (i32.store (i32.const 704) (i32.const 64))
   (call $write (i32.const 1) (local.get $pieces) (i32.const 1) (local.get $stored)))
 (func (export "shut") (result i32 i32 i32)
   (call $close (i32.const 1)) (call $put (i32.const 1)) (call $close (i32.const 1)))
 (func (export "swap") (result i32 i32 i32)
   (call $renumber (i32.const 1) (i32.const 2)) (call $put (i32.const 2)) (call $put (i32.const 1)))
 (func (export "nothing")))"""
CASES = (
    ("both", ()),
    ("echo", ()),
    ("sizes", ()),
    ("leave", (0,)),
    ("leave", (7,)),
    ("leave", (-1,)),
    ("too_much", ()),
    ("elsewhere", ()),
    ("shut", ()),
    ("swap", ()),
)
GIVEN = {"stdin": b"from outside", "argv": ("a", "bc"), "env": {"NAME": "value"}}


@pytest.fixture
def function():
    with Runtime(device="emulator", limits=Limits(output_bytes=OUTPUT_BYTES)) as runtime:
        runtime.load(bytes(wat2wasm('(module (memory (export "memory") 1) (func (export "main")))'))).invoke(
            grants={"cuda"}
        )
        yield runtime.load(bytes(wat2wasm(WAT)))


@pytest.fixture
def in_full(function):
    return lambda *args, **given: function.dispatch.call(*args, announce=lambda _stop: None, **given)


def pooled(function):
    return [each for plan in function.dispatch.plans.values() for each in plan._idle]


@pytest.mark.parametrize(("export", "args"), CASES)
def test_the_outcome_is_that_of_a_full_call(function, in_full, export, args):
    made, full = function.invoke(export, args, **GIVEN), in_full(export, args, **GIVEN)
    assert made._replace(elapsed_s=0) == full._replace(elapsed_s=0)
    assert len(pooled(function)) == 1
    assert function.invoke(export, args, **GIVEN)._replace(elapsed_s=0) == made._replace(elapsed_s=0)
    assert len(pooled(function)) == 1


@pytest.mark.parametrize(
    "places", [(-8, 0, 512), (65_532, 0, 512), (700, -64, 512), (700, 65_500, 512), (700, 0, -2), (700, 0, 65_533)]
)
def test_what_is_outside_of_memory_traps(function, in_full, places):
    for call in (function.invoke, in_full):
        with pytest.raises(GuestTrap) as caught:
            call("outside", places)
        assert caught.value.trap == "other"


@pytest.mark.parametrize(("export", "wrote"), [("trap", (b"hello, ", b"hello, ")), ("spin", (b"hello, ", b""))])
def test_an_error_carries_what_was_written_until_then(function, export, wrote):
    with pytest.raises((GuestTrap, InvokeTimeout)) as caught:
        function.invoke(export, deadline=Deadline.after(0.2))
    assert (caught.value.stdout, caught.value.stderr) == wrote


@pytest.mark.rule("4-session")
def test_a_call_whose_sandbox_serves_another_one_at_once_keeps_its_own_output(function):
    class Lending(deque):
        def append(self, each):
            plan._idle = deque([each])
            assert function.invoke("echo", stdin=b"of the other").stdout == b"of the other"

    assert function.invoke("echo", stdin=b"mine").stdout == b"mine"
    (plan,) = function.dispatch.plans.values()
    plan._idle = Lending(plan._idle)
    assert function.invoke("echo", stdin=b"mine").stdout == b"mine"


def test_a_sandbox_that_waits_for_the_next_call_keeps_no_output(function):
    assert function.invoke("too_much").stdout_truncated
    (idle,) = pooled(function)
    assert idle.sandbox.wasi is None


def test_a_call_that_never_began_carries_nothing_of_the_one_before(function):
    function.invoke("both")
    with pytest.raises(InvokeTimeout) as caught:
        function.invoke("both", deadline=Deadline.after(-1))
    assert (caught.value.stdout, caught.value.stderr) == (b"", b"")


def test_a_sink_gets_output_on_the_callers_thread(function):
    taken = []
    made = function.invoke("both", stdout=lambda chunk: taken.append((chunk, threading.get_ident())))
    assert (made.stdout, made.stderr) == (b"", b"hello, ")
    assert taken == [(b"hello, ", threading.get_ident())]


def test_what_a_sink_raises_ends_the_call(function):
    def refuse(chunk):
        raise OSError(chunk)

    with pytest.raises(Exception, match="hello"):
        function.invoke("both", stdout=refuse)
    assert function.invoke("both").stdout == b"hello, "


def test_a_stream_of_the_process_gets_output(function, capfd):
    made = function.invoke("both", stderr=INHERIT)
    assert (made.stdout, made.stderr, capfd.readouterr().err) == (b"hello, ", b"", "hello, ")


def test_a_long_standard_input_is_refused(function):
    with pytest.raises(StdinTooLarge):
        function.invoke("echo", stdin=bytes(Limits().stdin_bytes + 1))


def test_folders_make_a_call_a_full_one(function, tmp_path):
    assert function.invoke("both", grants={f"dir:{tmp_path}"}).stdout == b"hello, "
    assert not pooled(function)
