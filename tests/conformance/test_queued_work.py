"""What a guest of guarded kernels has pending is so little that it is gone soon after its deadline."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from conformance.puppet import Puppet
from fakes.argv import encode_argv
from fakes.emulation import kernel
from fakes.guest import FakeCall
from tensorwasm.errors import InvokeTimeout, KernelFault
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.device.limits import GUARDED_PIECE_SHARES, GUARDED_PIECES
from tensorwasm.gpu.limits.queue_credits import LENT_LUMPS, LUMP_PIECES, PIECES
from tensorwasm.guest.imports.abi import Code
from tensorwasm.guest.imports.cuda import CudaService, kernels
from tensorwasm.guest.imports.cuda.waiting import STEPS
from tensorwasm.values import MIB, NEVER, Deadline, LaunchConfig

LATE_S = 0.25
"""A quarter of what the end of a session waits before the device counts as lost."""
NUMBER = kernel("ld.param.u64 %rd1, [p0]; st.global.u32 [%rd1], 7;").encode()
TRAP = kernel("trap;", params=0).encode()
STACK = kernel(
    """.local .align 16 .b8 own[16384]; mov.u64 %rd1, own; cvta.local.u64 %rd1, %rd1; cvt.u64.u32 %rd2, %r0;
    add.u64 %rd1, %rd1, %rd2; st.u8 [%rd1], 7; ld.u8 %r1, [%rd1]; ld.param.u64 %rd1, [p0]; st.global.u32 [%rd1], %r1;"""
).encode()
"""Has so much local memory that to clear it for all blocks takes seconds."""
LARGE = 32 * MIB
STREAMS = 16
TIMEOUT, QUOTA, PAGE = -5, -6, 65536


class Flood:
    """A guest that starts work without waiting for any of it; each method returns the function's code."""

    def __init__(self, puppet, on_gpu):
        assert puppet.grow(LARGE // PAGE) > 0
        self._puppet = puppet
        self._buffer = puppet.alloc(LARGE, 0)
        self._kernel, self._stack = puppet.load(NUMBER, b"k"), puppet.load(STACK, b"k")
        self._argv = encode_argv([BufferOffset(self._buffer, 0)])
        self._grid, self._block = (1 << 20 if on_gpu else 64, 1, 1), (1024 if on_gpu else 1, 1, 1)
        self._graph = 0

    def launch(self, stream=0, deadline=NEVER, grid=(1, 1, 1), block=(1, 1, 1), shared=0):
        return self._puppet.begin(self._kernel, self._argv, stream, grid, block, shared, deadline)

    def blocks(self, stream=0, deadline=NEVER):
        return self.launch(stream, deadline, self._grid, self._block)

    def stacks(self, stream=0, deadline=NEVER):
        return self._puppet.begin(self._stack, self._argv, stream, self._grid, self._block, 0, deadline)

    def copy(self, stream=0, deadline=NEVER):
        return self._puppet.memcpy_h2d_async(self._buffer, 0, PAGE, LARGE, stream, deadline=deadline)

    def record(self, *steps):
        """Record each step as often as there is room for it."""
        assert self._puppet.graph_begin(0) == 0
        for step in steps:
            while (code := step()) == 0:
                pass
            assert code == QUOTA, self._puppet.error()
        self._graph = self._puppet.graph_end(0)
        assert self._graph > 0, self._puppet.error()
        return self._graph

    def replay(self, stream=0, deadline=NEVER):
        return self._puppet.graph_launch(self._graph, stream, deadline=deadline)


@pytest.fixture
def puppet(device, compiled):
    if not device.windows.available:
        pytest.skip("this device has no windows of addresses")
    with Puppet(device, compiled=compiled, guarded=True) as puppet:
        yield puppet


@pytest.fixture
def flood(device, puppet):
    return Flood(puppet, device.info.kind != "emulator")


def pending(puppet):
    return puppet.session._core.layout.pending


@pytest.mark.parametrize("streams", [1, STREAMS])
@pytest.mark.parametrize("kind", ["launch", "blocks", "stacks", "copy", "replay"])
def test_what_is_queued_is_gone_soon_after_its_deadline(device, puppet, flood, kind, streams):
    numbers = [puppet.stream_create() for _ in range(streams)]
    if kind == "replay":
        flood.record(flood.launch)
    assert puppet.sync() == 0
    deadline, given, code = Deadline.after(0.3), 0, 0
    with suppress(InvokeTimeout):
        while not code and not deadline.expired():
            code = getattr(flood, kind)(numbers[given % streams], deadline)
            assert pending(puppet) <= GUARDED_PIECES
            given += not code
    assert given
    assert code in {0, TIMEOUT}, puppet.error()
    puppet.session.close()
    assert not puppet.session.abandoned
    assert device.info.kind == "emulator" or time.monotonic_ns() - deadline.at_ns < LATE_S * 1e9
    with Puppet(device, guarded=True) as next_guest:
        handle = next_guest.alloc(64, 0)
        assert next_guest.start(next_guest.load(NUMBER, b"k"), encode_argv([BufferOffset(handle, 0)])) == 0


def test_a_graph_holds_no_more_than_may_be_pending(puppet, flood):
    graph = flood.record(flood.copy, flood.launch)
    assert puppet.session.graphs.pieces(graph) == GUARDED_PIECES
    assert b"large ones count more" in puppet.error().encode()


@pytest.mark.parametrize(
    ("threads", "shared_bytes", "shares"),
    [(1, 0, 1), (32, 0, 1), (64, 0, 1), (65, 0, 2), (256, 0, 4), (1024, 0, 16), (1, 20 << 10, 3), (1, 200 << 10, 29)],
)
def test_a_launch_counts_as_what_its_blocks_take_of_the_device(device, puppet, flood, threads, shared_bytes, shares):
    room = GUARDED_PIECE_SHARES * device.info.multiprocessors
    core, before = puppet.session._core, pending(puppet)
    kernel = core.table.kernels[min(core.table.kernels)]
    for blocks, pieces in ((room // shares - 1, 1), (room // shares + 1, 2), (2 * room // shares + 1, 3)):
        assert core.launch_pieces(kernel, LaunchConfig((blocks, 1, 1), (threads, 1, 1), shared_bytes)) == pieces
    if threads == 1024:  # what compiled code counts, where it takes the emulator no long time
        for blocks, pieces in ((room // shares - 1, 1), (room // shares + 1, 2)):
            assert flood.launch(grid=(blocks, 1, 1), block=(threads, 1, 1), shared=shared_bytes) == 0, puppet.error()
            assert pending(puppet) - before == pieces
            before += pieces
    assert puppet.sync() == 0


def test_more_than_may_be_pending_waits_for_some_of_it(device, puppet, flood):
    grid, most = (1 << 14 if device.info.kind != "emulator" else 1, 1, 1), 0
    for _ in range(2 * GUARDED_PIECES):
        assert flood.launch(0, NEVER, grid) == 0, puppet.error()
        most = max(most, pending(puppet))
    allowed = PIECES + LENT_LUMPS // 4 * LUMP_PIECES
    assert allowed - LUMP_PIECES < most <= allowed, "one leaves half to other tenants, and of that to other sessions"
    assert puppet.sync() == 0


def test_steps_that_look_ahead_report_what_a_kernel_ended_with_and_no_lost_device(device, puppet):
    """What the look ahead of a launch found was dropped, and the next step took the session for lost."""
    session = puppet.session
    session.credits.bound()
    trap, number = puppet.load(TRAP, b"k"), puppet.load(NUMBER, b"k")
    assert puppet.begin(trap, b"", 0, (1, 1, 1), (1, 1, 1), 0, NEVER) == 0
    stream = session._core.work.find(0).stream
    with suppress(KernelFault):
        device.synchronize(stream, Deadline.after(50))  # the session has not looked yet
    assert session._core.window.stop.status
    call = FakeCall(deadline=NEVER, services={"cuda": CudaService(session)})
    with pytest.raises(StopIteration) as answered:
        next(STEPS[kernels.launch_async](call, number, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    assert answered.value.value == Code.LAUNCH_FAILED, puppet.error()
