"""Sessions of guarded kernels that share one device: what a kernel does stays in its session's window, and ends."""

from __future__ import annotations

import random
import struct
import time

import pytest

from conformance.puppet import Puppet
from fakes.argv import encode_argv
from fakes.emulation import kernel, store_result
from tensorwasm.errors import DeviceLost, InvalidDimensions, InvokeTimeout, KernelFault, QuotaExceeded, UnsupportedPtx
from tensorwasm.gpu.device.arguments import BufferOffset, Scalar
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import MIB, NEVER, Deadline, LaunchConfig

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
WARP = LaunchConfig((1, 1, 1), (32, 1, 1))
LIMIT_S = 20.0
SECRET = struct.pack("<64Q", *random.Random(7).choices(range(1, 1 << 62), k=64))

ENDLESS = kernel("ld.param.u64 %rd1, [p0];\nAGAIN: st.volatile.global.u32 [%rd1], %r0; bra AGAIN;").encode()
TRAP = kernel("trap;").encode()
COUNTER = kernel(
    "ld.global.u32 %r1, [calls]; add.u32 %r1, %r1, 1; st.global.u32 [calls], %r1;\n" + store_result(),
    before=".global .u32 calls = 41;",
).encode()
ASTRAY = kernel(
    """ld.param.u64 %rd1, [p0]; ld.global.u64 %rd2, [%rd1+8];
    ld.u64 %rd3, [%rd2]; st.u64 [%rd2], %rd1; ld.global.u64 %rd4, [%rd2+8]; st.global.u64 [%rd2+16], %rd1;
    atom.global.add.u64 %rd5, [%rd2+24], 7; or.b64 %rd3, %rd3, %rd4; or.b64 %rd3, %rd3, %rd5;
    st.global.u64 [%rd1], %rd3;"""
).encode()
"""Reads, writes and adds at the address in the second word of its buffer; what it has read is in the first then."""
COLLECT = kernel(
    """ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u64 %rd3, 0; mov.u32 %r1, 0;
    NEXT: cvt.u64.u32 %rd4, %r1; mul.lo.u64 %rd4, %rd4, %rd2; add.u64 %rd4, %rd1, %rd4; ld.global.u64 %rd5, [%rd4];
    or.b64 %rd3, %rd3, %rd5; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 4096; @%p1 bra NEXT;
    st.global.u64 [%rd1], %rd3;""",
    params=2,
).encode()
"""Collects the bits of 4096 words that lie apart by its second parameter, from its buffer on, wherever that is."""
SOIL = COLLECT.replace(b"ld.global.u64 %rd5, [%rd4];", b"st.global.u64 [%rd4], -1;")
MATRICES = kernel(
    """mov.b32 %r4, 0; mov.f32 %f1, 0f00000000;
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32
    {%f1,%f2,%f3,%f4}, {%r4,%r4,%r4,%r4}, {%r4,%r4}, {%f1,%f1,%f1,%f1};
    """
).encode()
AGREE = kernel("bar.warp.sync 0xffffffff;\n" + store_result("%r0")).encode()


def number(value):
    return Scalar(struct.pack("<Q", value % (1 << 64)))


@pytest.fixture
def accounts():
    accounts = Accounts(MemoryLedger())
    for tenant in ("attacker", "victim"):
        accounts.register(tenant, 64 * MIB, 64 * MIB)
    return accounts


@pytest.fixture
def shared(device, accounts):
    if not device.windows.available:
        pytest.skip("this device has no windows of addresses")
    with SharedDevice(device, accounts, Gate(8), guarded=True) as shared:
        yield shared


@pytest.fixture
def attacker(shared):
    with shared.open_session("attacker") as session:
        yield session


def launch(session, text, arguments, config=ONE, seconds=LIMIT_S):
    kernel_id = session.kernels.load(text, "k", NEVER)
    session.kernels.launch(kernel_id, config, lambda: arguments, None, Deadline.after(seconds))


def read(session, handle, size_bytes=8):
    into = bytearray(size_bytes)
    session.buffers.read(handle, memoryview(into), NEVER)
    return bytes(into)


def word(session, handle):
    return int.from_bytes(read(session, handle), "little")


def test_nothing_that_a_kernel_reaches_is_anothers(shared, attacker):
    with shared.open_session("victim") as victim:
        secret = victim.buffers.allocate(len(SECRET))
        victim.buffers.write(secret, SECRET, NEVER)
        theirs = victim._core.table.buffers[secret].address
        own = attacker.buffers.allocate(4096)
        wild = random.Random(1)
        places = [theirs, theirs + 8, victim._core.window.stop.flag_at, attacker._core.window.stop.flag_at, 0, 8]
        places += [attacker._core.window.address - 8, attacker._core.window.address + (1 << 32)]
        seen = set()
        for place in (*places, *(wild.getrandbits(63) for _ in range(64))):
            attacker.buffers.write(own, struct.pack("<QQ", 0, place), NEVER)
            launch(attacker, ASTRAY, [BufferOffset(own, 0)])
            seen.add(word(attacker, own))
        assert read(victim, secret, len(SECRET)) == SECRET
        assert not seen & set(struct.unpack("<64Q", SECRET))
        assert victim._core.window.stop.status == attacker._core.window.stop.status == 0


@pytest.mark.parametrize("step", [8, 4096, 2 * MIB - 8, 12345 * 8, -4096, 1 << 20])
def test_a_window_shows_its_next_session_nothing(shared, step):
    for tenant in ("attacker", "attacker", "victim"):
        with shared.open_session(tenant) as session:
            own = session.buffers.allocate(64)
            launch(session, COLLECT, [BufferOffset(own, 0), number(step)])
            assert word(session, own) == 0
            launch(session, SOIL, [BufferOffset(own, 0), number(step)])
    assert shared._resources.windows.idle == 1


def test_variables_of_a_module_are_each_sessions_own(shared):
    for tenant in ("attacker", "victim", "attacker"):
        with shared.open_session(tenant) as session:
            own = session.buffers.allocate(64)
            kernel_id = session.kernels.load(COUNTER, "k", NEVER)
            for calls in (42, 43):
                session.kernels.launch(kernel_id, ONE, lambda own=own: [BufferOffset(own, 0)], None, NEVER)
                assert word(session, own) == calls


def test_an_endless_kernel_ends_at_its_deadline_and_its_neighbour_goes_on(shared):
    with shared.open_session("victim") as victim:
        theirs = victim.buffers.allocate(64)
        with shared.open_session("attacker") as attacker:
            own = attacker.buffers.allocate(64)
            began = time.monotonic()
            with pytest.raises(InvokeTimeout):
                launch(attacker, ENDLESS, [BufferOffset(own, 0)], WARP, 0.2)
            with pytest.raises(DeviceLost, match="ended with an earlier failure"):
                attacker.buffers.allocate(1)
        assert not attacker.abandoned
        assert time.monotonic() - began < LIMIT_S
        launch(victim, COUNTER, [BufferOffset(theirs, 0)])
        assert word(victim, theirs) == 42
    with shared.open_session("attacker") as again:
        own = again.buffers.allocate(64)
        launch(again, COUNTER, [BufferOffset(own, 0)])


def test_a_session_that_is_closed_stops_its_kernels(shared, device):
    attacker = shared.open_session("attacker")
    own = attacker.buffers.allocate(64)
    kernel_id = attacker.kernels.load(ENDLESS, "k", NEVER)
    arguments = [BufferOffset(own, 0)]
    attacker.kernels.submit(kernel_id, WARP, lambda: arguments, None, Deadline.after(3600))
    if device.info.kind == "emulator":
        assert not attacker.streams.ended(0)  # lets it run
    attacker.close()
    assert not attacker.abandoned


def test_a_kernel_that_traps_ends_its_session_alone(shared, attacker):
    with shared.open_session("victim") as victim:
        own = attacker.buffers.allocate(64)
        with pytest.raises(KernelFault, match="trap"):
            launch(attacker, TRAP, [BufferOffset(own, 0)])
        with pytest.raises(DeviceLost):
            attacker.buffers.allocate(64)
        theirs = victim.buffers.allocate(64)
        launch(victim, COUNTER, [BufferOffset(theirs, 0)])
        assert word(victim, theirs) == 42


@pytest.mark.parametrize("name", ["stream_sync", "stream_destroy", "sync", "event_sync", "stream_query", "event_query"])
def test_every_function_that_waits_reports_a_trap(device, compiled, name):
    with Puppet(device, compiled=compiled, guarded=True) as puppet:
        stream, event, trap = puppet.stream_create(), puppet.event_create(), puppet.load(TRAP, b"k")
        handle = puppet.alloc(64, 0)
        assert puppet.begin(trap, encode_argv([BufferOffset(handle, 0)]), stream, (1, 1, 1), (1, 1, 1)) == 0
        puppet.event_record(event, stream)
        params = {"sync": (), "event_sync": (event,), "event_query": (event,)}.get(name, (stream,))
        ends = time.monotonic() + LIMIT_S
        while (answer := getattr(puppet, name)(*params)) == 1 and time.monotonic() < ends:
            pass
        assert answer in {-5, -7}
        assert puppet.sync() == -7


def test_a_trap_that_growing_memory_finds_is_no_success_later(device, compiled):
    with Puppet(device, compiled=compiled, guarded=True) as puppet:
        trap, handle = puppet.load(TRAP, b"k"), puppet.alloc(64, 0)
        assert puppet.begin(trap, encode_argv([BufferOffset(handle, 0)]), 0, (1, 1, 1), (1, 1, 1)) == 0
        assert puppet.grow(64) == -1
        assert puppet.sync() == puppet.stream_sync(0) == puppet.stream_query(0) == -7


def test_memory_grows_and_goes_beside_wild_kernels(shared, attacker):
    own = attacker.buffers.allocate(8192)
    astray = attacker.kernels.load(ASTRAY, "k", NEVER)
    wild = random.Random(3)
    attacker.buffers.write(own, wild.randbytes(8192), NEVER)
    handles = []
    for size_bytes in (1 * MIB, 3 * MIB, 64, 5 * MIB, 2 * MIB):
        for _ in range(4):
            # Whatever it finds there: the buffer is new, or it is what an earlier one has left.
            given = [BufferOffset(own, wild.randrange(0, 4096, 8))]
            attacker.kernels.submit(astray, ONE, lambda given=given: given, None, Deadline.after(LIMIT_S))
        handles.append(attacker.buffers.allocate(size_bytes))
        if len(handles) > 2:
            attacker.buffers.free(handles.pop(0), Deadline.after(LIMIT_S))
    attacker.streams.synchronize(Deadline.after(LIMIT_S))


def test_a_tenants_cap_holds_over_all_of_its_windows(shared):
    sessions = [shared.open_session("attacker") for _ in range(3)]
    try:
        for session in sessions[:2]:
            session.buffers.allocate(30 * MIB)
        with pytest.raises(QuotaExceeded):
            sessions[2].buffers.allocate(30 * MIB)
        # The second lock, should the account be wrong.
        heap = sessions[2]._core.window.heap
        with pytest.raises(QuotaExceeded, match="may be mapped"):
            heap.mapped.add(64 * MIB)
    finally:
        for session in sessions:
            session.close()


def test_a_kernel_that_cannot_be_guarded_is_refused_by_name(attacker):
    with pytest.raises(UnsupportedPtx, match="bar"):
        attacker.kernels.load(kernel("bar.sync 1, 64;").encode(), "k", NEVER)


def test_a_grid_of_too_many_blocks_to_stop_in_time_is_refused(device, compiled):
    with Puppet(device, compiled=compiled, guarded=True) as puppet:
        loaded, handle = puppet.load(COUNTER, b"k"), puppet.alloc(64, 0)
        argv = encode_argv([BufferOffset(handle, 0)])
        for grid, block in (
            ((8192, 8192, 8), (1, 1, 1)),
            ((2048, 2048, 1), (1024, 1, 1)),
            ((2**31 - 1, 65535, 65535), (1, 1, 1)),
        ):
            assert puppet.start(loaded, argv, grid, block) == -8, puppet.error()
            assert "blocks of this size" in puppet.error()
        assert puppet.start(loaded, argv, (1, 1, 1), (1, 1, 1)) == 0


def test_threads_that_wait_for_their_warp_come_in_whole_warps(attacker):
    own, kernel_id = attacker.buffers.allocate(4096), attacker.kernels.load(AGREE, "k", NEVER)
    arguments = [BufferOffset(own, 0)]
    attacker.kernels.launch(kernel_id, LaunchConfig((1, 1, 1), (64, 1, 1)), lambda: arguments, None, NEVER)
    assert read(attacker, own, 256) == struct.pack("<64I", *range(64))
    matrices = attacker.kernels.load(MATRICES, "k", NEVER)
    with pytest.raises(InvalidDimensions, match="whole warps"):
        attacker.kernels.launch(matrices, LaunchConfig((1, 1, 1), (40, 1, 1)), lambda: arguments, None, NEVER)
    attacker.kernels.launch(matrices, WARP, lambda: arguments, None, NEVER)
