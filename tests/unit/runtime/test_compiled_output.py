"""What a guest writes is the same with a compiled `fd_write` and without it, and no other guest ever sees it."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from wasmtime import wat2wasm

from tensorwasm import Runtime, settings
from tensorwasm.errors import GuestError, GuestTrap
from tensorwasm.gpu.native.layout import OUTPUT_ROOM_BYTES
from tensorwasm.guest.sandbox.wasi_io import INHERIT
from tensorwasm.values import Limits

pytest.importorskip("numba")

OUTPUT_BYTES = 3 * OUTPUT_ROOM_BYTES // 2
MEMORY_BYTES, GROWN_BYTES = 1 << 16, 3 << 16
STEPS, STEP = 6, struct.Struct("<6I")
TABLE = STEPS * STEP.size
WRITE, CLOSE, RENUMBER, GROW = range(4)
WAT = f"""(module
 (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
 (import "wasi_snapshot_preview1" "fd_renumber" (func $renumber (param i32 i32) (result i32)))
 (memory (export "memory") 1 3)
 (func $load (i32.store (i32.const 65524) (i32.const 65500))
   (drop (call $read (i32.const 0) (i32.const 65520) (i32.const 1) (i32.const 65528)))
   (i32.store (i32.const 65524) (i32.const 0)) (i32.store (i32.const 65528) (i32.const 0)))
 (func $step (param $at i32) (result i32)
   (if (i32.eq (i32.load (local.get $at)) (i32.const {WRITE})) (then (return (call $write
     (i32.load offset=4 (local.get $at)) (i32.load offset=8 (local.get $at)) (i32.load offset=12 (local.get $at))
     (i32.load offset=16 (local.get $at))))))
   (if (i32.eq (i32.load (local.get $at)) (i32.const {CLOSE})) (then (return (call $close
     (i32.load offset=4 (local.get $at))))))
   (if (i32.eq (i32.load (local.get $at)) (i32.const {GROW})) (then (return (memory.grow
     (i32.load offset=4 (local.get $at))))))
   (call $renumber (i32.load offset=4 (local.get $at)) (i32.load offset=8 (local.get $at))))
 (func $sum (result i64) (local $at i32) (local $sum i64)
   (loop $next
     (local.set $sum (i64.add (i64.mul (local.get $sum) (i64.const 31)) (i64.load (local.get $at))))
     (local.set $at (i32.add (local.get $at) (i32.const 8)))
     (br_if $next (i32.lt_u (local.get $at) (i32.mul (memory.size) (i32.const {MEMORY_BYTES})))))
   (local.get $sum))
 (func (export "run") (result {"i32 " * STEPS} i64)
   (call $load)
   {" ".join(f"(call $step (i32.const {STEP.size * step}))" for step in range(STEPS))}
   (call $sum))
 (func (export "nothing")))"""


@pytest.fixture(scope="module")
def function():
    with pytest.MonkeyPatch.context() as patch:
        changed = dataclasses.replace(settings.current(), native="on")
        patch.setattr(settings, "current", lambda: changed)
        with Runtime(device="emulator", limits=Limits(output_bytes=OUTPUT_BYTES)) as runtime:
            yield runtime.load(bytes(wat2wasm(WAT)))


def image(steps, pieces, text=b"") -> bytes:
    """Return the start of memory: steps, pieces and text; steps that are missing write nothing anywhere."""
    steps = [*steps, *[(CLOSE, 99)] * STEPS][:STEPS]
    packed = b"".join(STEP.pack(*step, *(0,) * (6 - len(step))) for step in steps)
    return packed + b"".join(struct.pack("<II", *piece) for piece in pieces) + text


def write(descriptor, count=1, pieces=TABLE, stored=60_000):
    return WRITE, descriptor, pieces, count, stored


def outcome(function, memory: bytes, **given):
    """Return all that the caller sees of a call."""
    try:
        made = function.invoke("run", stdin=memory, **given)
    except GuestError as error:
        return type(error), str(error), error.stdout, error.stderr
    return made._replace(elapsed_s=0, gpu=None)


def rows(function):
    """Return what compiled code has captured of the last call with a GPU."""
    plan = next(plan for key, plan in function.dispatch.plans.items() if key[:2] == ("run", True))
    return [row.held_bytes for row in plan._idle[-1].sandbox._state.layout.output]


sizes = st.integers(0, 64) | st.integers(OUTPUT_ROOM_BYTES - 2, OUTPUT_ROOM_BYTES + 2) | st.integers(0, (1 << 32) - 1)
places = (
    st.integers(0, 8192)
    | st.integers(MEMORY_BYTES - 16, MEMORY_BYTES + 16)
    | st.integers(GROWN_BYTES - 16, GROWN_BYTES + 16)
    | st.integers(0, (1 << 32) - 1)
    | st.integers((1 << 32) - 16, (1 << 32) - 1)
)
likely = st.integers(0, 8192)
descriptors = st.sampled_from([0, 1, 1, 1, 1, 2, 2, 3, (1 << 32) - 1])
counts = st.integers(0, 4) | st.sampled_from([512, 513, 1024, 1025, 1 << 29, (1 << 32) - 1])
writes = st.builds(write, descriptors, counts, st.just(TABLE) | places, likely | places)
steps = (
    writes
    | writes
    | st.tuples(st.just(CLOSE), descriptors)
    | st.tuples(st.just(RENUMBER), descriptors, descriptors)
    | st.tuples(st.just(GROW), st.integers(0, 3))
)
pieces = st.tuples(likely, st.integers(0, 64)) | st.tuples(likely, sizes) | st.tuples(places, sizes)


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(steps=st.lists(steps, max_size=STEPS), pieces=st.lists(pieces, max_size=4))
@example([write(1)] * 6, [(0, OUTPUT_ROOM_BYTES)])
@example([write(1), write(1, stored=TABLE), write(1)], [(0, 8)])
@example([write(1, 2)], [(0, 8), ((1 << 32) - 8, 16)])
@example([write(1), write(1), (RENUMBER, 1, 2), write(2), write(1)], [(0, 8)])
@example([write(1), (CLOSE, 1), write(1), (CLOSE, 1)], [(0, 0)])
@example([write(1), (CLOSE, 0), write(1)], [(0, 8)])
@example([write(1), write(1, stored=MEMORY_BYTES - 3)], [(0, 8)])
@example([write(1, 1 << 29)], [(0, 8)])
@example([write(1), (GROW, 2), write(1), write(1, 1, GROWN_BYTES - 8, GROWN_BYTES - 4)], [(MEMORY_BYTES - 4, 4)])
@example([(GROW, 2), write(1), write(1)], [(GROWN_BYTES - 4, 4)])
@example([(GROW, 2), write(1), (GROW, 1), write(1)], [(GROWN_BYTES - 4, 5)])
@pytest.mark.rule("1-twin", "1-regions")
def test_compiled_code_writes_what_python_writes(function, steps, pieces):
    memory = image(steps, pieces)
    assert outcome(function, memory, grants={"cuda"}) == outcome(function, memory)


def test_what_fits_goes_without_python(function):
    memory = image([write(1, 2), write(2)], [(TABLE + 16, 3), (TABLE + 19, 4)], b"abcdefg")
    made = outcome(function, memory, grants={"cuda"})
    assert (made.stdout, made.stderr) == (b"abcdefg", b"abc")
    assert rows(function) == [7, 3]


def test_compiled_code_goes_on_once_python_has_emptied_its_row(function):
    half = OUTPUT_ROOM_BYTES // 2 + 1
    memory = image([write(1), write(1), write(1)], [(0, half)], bytes(half))
    made = outcome(function, memory, grants={"cuda"})
    assert made.stdout == memory[:half] * 2 + memory[: OUTPUT_BYTES - 2 * half]
    assert made.stdout_truncated
    memory = image([write(1), write(1), write(1, pieces=TABLE + 8)], [(0, half), (0, 8)], bytes(half))
    assert outcome(function, memory, grants={"cuda"}).stdout == memory[:half] * 2 + memory[:8]
    assert rows(function) == [8, 0]


@pytest.mark.rule("4-session")
def test_the_next_guest_of_a_sandbox_tells_nothing_of_the_one_before(function):
    for memory in (image([write(1), write(2)], [(0, 64)]), image([write(1)], [((1 << 32) - 1, 8)])):
        outcome(function, memory, grants={"cuda"})
        after = outcome(function, image([], []), grants={"cuda"})
        assert (after.stdout, after.stderr, after.stdout_truncated) == (b"", b"", False)


def test_a_sink_gets_each_write_at_once(function):
    taken = []
    memory = image([write(1), write(2), write(1)], [(TABLE + 8, 5)], b"hello")
    made = outcome(function, memory, grants={"cuda"}, stdout=taken.append)
    assert (taken, made.stdout, made.stderr) == ([b"hello", b"hello"], b"", b"hello")


def test_a_stream_of_the_process_gets_each_write_at_once(function, capfd):
    memory = image([write(1), write(2)], [(TABLE + 8, 5)], b"hello")
    made = outcome(function, memory, grants={"cuda"}, stderr=INHERIT)
    assert (made.stdout, made.stderr, capfd.readouterr().err) == (b"hello", b"", "hello")


def test_a_trap_carries_what_compiled_code_has_captured(function):
    memory = image([write(1), write(1, stored=MEMORY_BYTES)], [(TABLE + 8, 2)], b"hi")
    with pytest.raises(GuestTrap) as caught:
        function.invoke("run", stdin=memory, grants={"cuda"})
    assert (caught.value.stdout, caught.value.trap) == (b"hi", "other")
