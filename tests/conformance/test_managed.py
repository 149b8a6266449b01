"""Linear memory that is managed: zero wherever a guest sees it first, the same bytes for host and kernels in turn."""

import ctypes
import struct

import pytest
from wasmtime import wat2wasm

from conformance.test_guests import EXAMPLES
from strategies.kernels import AFFINE, HEADER
from tensorwasm import Runtime
from tensorwasm.errors import KernelFault
from tensorwasm.gpu.device.arguments import HostWindow, Scalar
from tensorwasm.gpu.memory import UnifiedBuffer
from tensorwasm.gpu.memory.prefetch import PREFETCH_BYTES
from tensorwasm.gpu.session import Session
from tensorwasm.values import MIB, WASM_PAGE_BYTES, Deadline, LaunchConfig, Limits

ROOM = MIB
GARBAGE = 0xEEEEEEEE
ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
SPRAY = (
    HEADER
    + """
.visible .entry spray(.param .u64 to, .param .u32 skipped, .param .u32 value)
{
    .reg .b32 %r<7>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [skipped];
    ld.param.u32 %r2, [value];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    add.u32 %r6, %r6, %r1;
    mul.wide.u32 %rd3, %r6, 4;
    add.u64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r2;
    ret;
}
"""
).encode()
"""``spray(unsigned *to, unsigned skipped, unsigned value)``: thread i stores the value at ``to[skipped + i]``."""

LOOKS = bytes(
    wat2wasm("""
(module
  (memory (export "memory") 2)
  (func $dirty (result i32) (local $at i32) (local $found i32)
    (loop $next
      (local.set $found (i32.add (local.get $found) (i32.ne (i32.const 0) (i32.load (local.get $at)))))
      (local.set $at (i32.add (local.get $at) (i32.const 4)))
      (br_if $next (i32.lt_u (local.get $at) (i32.mul (memory.size) (i32.const 65536)))))
    (local.get $found))
  (func $fill (memory.fill (i32.const 0) (i32.const 0xee) (i32.mul (memory.size) (i32.const 65536))))
  (func (export "main") (result i32 i32 i32 i32 i32 i32)
    (call $dirty)
    (memory.grow (i32.const 1))
    (call $dirty)
    (call $fill)
    (memory.grow (i32.const 29))
    (call $dirty)
    (call $fill)
    (memory.grow (i32.const 1))))
""")
)
"""Counts words that are not 0 in new memory, in memory that grew, and in such that grew once it was full of garbage."""


@pytest.fixture(autouse=True)
def _managed(device):
    if not device.unified.managed:
        pytest.skip("no managed memory")


def word(value):
    return Scalar(struct.pack("<I", value))


def window(memory, offset=0, length=None):
    return HostWindow(memory.address + offset, len(memory) if length is None else length)


def spray(device, memory, skipped_bytes, size_bytes):
    """Have a guest's kernel write garbage, its window being all of the memory; return whether it could."""
    config = LaunchConfig((size_bytes // 1024, 1, 1), (256, 1, 1))
    with Session(device, memory_kind="managed") as session:
        kernel = session.kernels.load(SPRAY, "spray", Deadline.after(60))
        arguments = (window(memory), word(skipped_bytes // 4), word(GARBAGE))
        try:
            session.kernels.launch(kernel, config, lambda: arguments, memory.region, Deadline.after(60))
        except KernelFault:
            return False
        return True


def contents(memory, start, end):
    into = bytearray(end - start)
    memory.read(into, start)
    return bytes(into)


def test_nothing_of_a_guest_is_left_for_the_next_wherever_its_kernels_wrote(device):
    for _ in range(3):
        with UnifiedBuffer.allocate(device, WASM_PAGE_BYTES, "managed", capacity_bytes=ROOM) as memory:
            before = 0
            for size in (WASM_PAGE_BYTES, 3 * WASM_PAGE_BYTES, ROOM - WASM_PAGE_BYTES, ROOM):
                memory.try_grow_in_place(size)
                assert contents(memory, before, size) == bytes(size - before)
                assert spray(device, memory, 0, size)
                assert contents(memory, 0, size) == b"\xee" * size
                # A kernel that goes astray: the emulator ends it, hardware lets it write as far as there is memory.
                if size < ROOM and not spray(device, memory, size, ROOM - size):
                    beyond = ctypes.string_at(memory.address + size, ROOM - size)
                    assert beyond == bytes(ROOM - size)
                before = size


def test_the_emulator_confines_kernels_to_the_memory_as_it_is_now_and_hardware_to_its_room(device):
    confined = device.info.kind == "emulator"
    with UnifiedBuffer.allocate(device, WASM_PAGE_BYTES, "managed", capacity_bytes=ROOM) as memory:
        assert spray(device, memory, WASM_PAGE_BYTES, 1024) is not confined
        memory.try_grow_in_place(2 * WASM_PAGE_BYTES)
        assert spray(device, memory, WASM_PAGE_BYTES, 1024)
        assert spray(device, memory, 2 * WASM_PAGE_BYTES, 1024) is not confined


def test_new_and_grown_memory_is_zero_whichever_guest_used_it_before(device):
    with Runtime(device.info.kind, limits=Limits(memory_bytes=32 * WASM_PAGE_BYTES)) as runtime:
        guest = runtime.load(LOOKS)
        for _ in range(4):
            done = guest.invoke("main", grants={"cuda"}, memory_kind="managed")
            assert done.values == (0, 2, 0, 3, 3 * WASM_PAGE_BYTES // 4, -1)


def test_host_and_kernels_take_turns_on_large_windows(device):
    size = 2 * PREFETCH_BYTES
    with (
        UnifiedBuffer.allocate(device, size, "managed") as memory,
        Session(device, memory_kind="managed") as session,
    ):
        words = (ctypes.c_uint32 * (size // 4)).from_address(memory.address)
        kernel = session.kernels.load(AFFINE, "affine", Deadline.after(60))
        second = session.streams.open()

        def affine(start, offset, **more):
            arguments = (window(memory, offset, size - offset), word(3), word(1))
            start(kernel, ONE, lambda: arguments, memory.region, Deadline.after(60), **more)

        session.graphs.begin(0)
        affine(session.kernels.submit, 0)
        graph = session.graphs.end(0)
        for turn in range(5):
            words[0], words[1] = turn, 10 * turn
            affine(session.kernels.launch, 0)
            assert words[0] == 3 * turn + 1
            affine(session.kernels.submit, 4, stream=second)
            session.graphs.replay(graph, memory.region, Deadline.after(60))
            session.streams.synchronize(Deadline.after(60))
            assert (words[0], words[1], words[2]) == (3 * (3 * turn + 1) + 1, 30 * turn + 1, 0)
        session.graphs.close(graph, Deadline.after(60))
        del words


@pytest.mark.parametrize(("name", "size"), [("vector_add", "300000"), ("graph", "301"), ("streams", "1003")])
def test_guests_compute_the_same_on_managed_memory(device, name, size):
    with Runtime(device.info.kind) as runtime:
        guest = runtime.load(EXAMPLES / name / f"{name}.wasm")
        done = guest.invoke(argv=[name, size], grants={"cuda"}, memory_kind="managed")
    assert done.exit_code == 0, done.stderr
