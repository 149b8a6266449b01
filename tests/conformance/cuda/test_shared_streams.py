"""Sessions that share a stream of a real GPU, as the 129th of a device finds it."""

from __future__ import annotations

import struct
import time
from dataclasses import replace

import pytest

from strategies.kernels import AFFINE, NAP
from tensorwasm.errors import InvokeTimeout
from tensorwasm.gpu.device.arguments import BufferOffset, Scalar
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import NEVER, Deadline, LaunchConfig

pytestmark = pytest.mark.gpu

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
NAP_S = 1.5


@pytest.fixture
def shared(gpu, monkeypatch):
    """The GPU with one stream for all."""
    monkeypatch.setattr(gpu, "info", replace(gpu.info, max_streams=1))
    with SharedDevice(gpu) as shared:
        yield shared


@pytest.fixture
def first(shared):
    with shared.open_session() as session:
        yield session


@pytest.fixture
def second(shared):
    with shared.open_session() as session:
        yield session


def nap(session) -> float:
    """Start a kernel that takes its time, and has more; return when."""
    kernel = session.kernels.load(NAP, "nap", NEVER)
    arguments = (Scalar(struct.pack("<Q", int(NAP_S * 1e9))),)
    session.kernels.submit(kernel, ONE, lambda: arguments, None, Deadline.after(30))
    return time.monotonic()


def fill(session, handle: int, value: int, deadline: Deadline) -> None:
    kernel = session.kernels.load(AFFINE, "affine", NEVER)
    arguments = BufferOffset(handle, 0), Scalar(bytes(4)), Scalar(struct.pack("<I", value))
    session.kernels.submit(kernel, ONE, lambda: arguments, None, deadline)


def value(session, handle: int) -> int:
    into = bytearray(4)
    session.buffers.read(handle, memoryview(into), Deadline.after(30))
    return struct.unpack("<I", into)[0]


def test_a_timeout_behind_another_guests_kernel_affects_no_other_guest_and_abandons_nothing(shared, first, second):
    theirs, ours = first.buffers.allocate(4), second.buffers.allocate(4)
    for session in (first, second):
        fill(session, theirs if session is first else ours, 1, NEVER)
        session.streams.synchronize(NEVER)  # a driver may load nothing while a kernel runs
    started = nap(first)
    fill(first, theirs, 7, Deadline.after(30))
    deadline = Deadline.after(0.3)
    fill(second, ours, 9, deadline)
    with pytest.raises(InvokeTimeout):
        second.streams.synchronize(deadline)
    assert time.monotonic() - started < NAP_S
    second.close()
    assert time.monotonic() - started >= NAP_S - 0.1, "its kernel would still have reached its memory"
    assert not second.abandoned
    assert value(first, theirs) == 7
    first.close()
    assert shared.accounts.account("default").statistics().allocations == 0


def test_bytes_are_copied_while_anothers_kernel_runs_on_the_stream(first, second):
    handle = second.buffers.allocate(4)
    second.streams.synchronize(NEVER)
    started = nap(first)
    second.buffers.write(handle, struct.pack("<I", 5), Deadline.after(30))
    assert value(second, handle) == 5
    assert time.monotonic() - started < NAP_S
    first.streams.synchronize(Deadline.after(30))
    fill(second, handle, 6, Deadline.after(30))
    second.streams.synchronize(Deadline.after(30))
    assert value(second, handle) == 6


def test_a_wait_ends_with_ones_own_work(first, second):
    handle = second.buffers.allocate(4)
    fill(first, first.buffers.allocate(4), 1, NEVER)
    first.streams.synchronize(NEVER)
    fill(second, handle, 2, Deadline.after(30))
    second.streams.ended(0)
    started = nap(first)
    second.streams.synchronize(Deadline.after(30))
    assert time.monotonic() - started < NAP_S
    assert value(second, handle) == 2
    first.streams.synchronize(Deadline.after(30))
