"""What a guest of guarded kernels has pending is so little that it is gone soon after its deadline."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from conformance.puppet import Puppet
from fakes.argv import encode_argv
from fakes.emulation import kernel, store_result
from tensorwasm.errors import InvokeTimeout
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.device.limits import GUARDED_PIECES, MAX_GUARDED_BLOCKS
from tensorwasm.values import MIB, NEVER, Deadline

LATE_S = 0.25
"""A quarter of what the end of a session waits before the device counts as lost."""
NUMBER = kernel(store_result("%r0")).encode()
LARGE = 32 * MIB
STREAMS = 16
TIMEOUT, QUOTA, PAGE = -5, -6, 65536


class Flood:
    """A guest that starts work without waiting for any of it; each method returns the function's code."""

    def __init__(self, puppet, on_gpu):
        assert puppet.grow(LARGE // PAGE) > 0
        self._puppet = puppet
        self._buffer = puppet.alloc(LARGE, 0)
        self._kernel = puppet.load(NUMBER, b"k")
        self._argv = encode_argv([BufferOffset(self._buffer, 0)])
        self._grid = (MAX_GUARDED_BLOCKS if on_gpu else 64, 1, 1)
        self._graph = 0

    def launch(self, stream=0, deadline=NEVER, grid=(1, 1, 1)):
        return self._puppet.begin(self._kernel, self._argv, stream, grid, deadline=deadline)

    def blocks(self, stream=0, deadline=NEVER):
        return self.launch(stream, deadline, self._grid)

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
@pytest.mark.parametrize("kind", ["launch", "blocks", "copy", "replay"])
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
    assert time.monotonic_ns() - deadline.at_ns < LATE_S * 1e9
    with Puppet(device, guarded=True) as next_guest:
        handle = next_guest.alloc(64, 0)
        assert next_guest.start(next_guest.load(NUMBER, b"k"), encode_argv([BufferOffset(handle, 0)])) == 0


def test_a_graph_holds_no_more_than_may_be_pending(puppet, flood):
    graph = flood.record(flood.copy, flood.launch)
    assert puppet.session.graphs.pieces(graph) == GUARDED_PIECES
    assert b"large ones count more" in puppet.error().encode()


def test_more_than_may_be_pending_waits_for_some_of_it(device, puppet, flood):
    grid, most = (1 << 15 if device.info.kind != "emulator" else 1, 1, 1), 0
    for _ in range(2 * GUARDED_PIECES):
        assert flood.launch(0, NEVER, grid) == 0, puppet.error()
        most = max(most, pending(puppet))
    assert GUARDED_PIECES // 2 < most <= GUARDED_PIECES
    assert puppet.sync() == 0
