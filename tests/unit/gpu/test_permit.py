"""A session's permit at the gate, used or not."""

from __future__ import annotations

import pytest

from fakes.device import FakeDevice
from fakes.gate import Sitter
from strategies.kernels import NOTHING
from tensorwasm.errors import CapacityExhausted, DeviceLost, KernelFault
from tensorwasm.gpu.device.limits import DEADLINE_NEAR_S
from tensorwasm.gpu.limits.gate import Gate, GatePermit
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.session import Session
from tensorwasm.values import NEVER, Deadline, LaunchConfig

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))


def test_a_permit_that_was_not_used_is_returned_with_its_session():
    gate = Gate(1)
    first, second = (GatePermit(gate, SessionLayoutWriter(SessionLayout()), lambda: True, "ann") for _ in range(2))
    first.take(NEVER)
    assert second.join(lambda: None, NEVER)
    first.leave()
    assert (gate.in_use, gate.waiting) == (1, 0)
    second.leave()
    assert gate.in_use == 0


def test_while_its_session_waits_for_something_else_a_permit_is_there_for_others():
    gate, had = Gate(1), []
    first, second = (GatePermit(gate, SessionLayoutWriter(None), lambda: True, "ann") for _ in range(2))

    def wait():
        second.take(Deadline.after(0))
        had.append(second.tenant)
        second.settle()

    first.take(NEVER)
    first.spare(wait, NEVER)
    assert (had, gate.in_use) == (["ann"], 1)
    with pytest.raises(CapacityExhausted):
        second.take(Deadline.after(0))
    first.settle()
    first.spare(wait, NEVER)
    assert gate.in_use == 0, "what was not needed before is not needed then"


def test_the_time_of_a_wait_for_a_permit_is_counted():
    gate, layout = Gate(1), SessionLayoutWriter(SessionLayout())
    first = GatePermit(gate, SessionLayoutWriter(SessionLayout()), lambda: False, "ann")
    second = GatePermit(gate, layout, lambda: True, "ann")
    first.take(NEVER)
    deadline = Deadline.after(DEADLINE_NEAR_S + 0.05)
    with pytest.raises(CapacityExhausted):
        second.take(deadline)
    waited_ns = layout.waited_ns
    assert waited_ns > 0
    first.leave()
    second.take(NEVER)
    assert layout.waited_ns == waited_ns
    second.leave()


@pytest.fixture
def device():
    device = FakeDevice()
    yield device
    assert device.broken == []


def start_and_look_no_more(session):
    kernel = session.kernels.load(NOTHING, "nothing", NEVER)
    session.kernels.submit(kernel, ONE, list, None, NEVER)


def test_a_session_that_never_asks_for_its_ended_work_blocks_no_other(device):
    gate = Gate(1)
    with Session(device, gate=gate, layout=SessionLayout()) as squatter, Session(device, gate=gate) as other:
        start_and_look_no_more(squatter)
        (stream,) = device.busy
        device.synchronize(stream, NEVER)
        other.kernels.launch(other.kernels.load(NOTHING, "nothing", NEVER), ONE, list, None, Deadline.after(5))
        squatter.streams.synchronize(NEVER)
        assert squatter.layout.pending == 0
    assert gate.in_use == 0


def test_running_work_keeps_its_permit_and_the_device_is_asked_rarely(device):
    gate = Gate(1)
    with Session(device, gate=gate, layout=SessionLayout()) as busy:
        start_and_look_no_more(busy)
        asked = device.calls.count("ended")
        waiting = Sitter()
        for _ in range(20):
            assert not gate.request(waiting)
        assert device.calls.count("ended") - asked == 1
        assert busy.layout.placed
        busy.streams.synchronize(NEVER)


@pytest.mark.parametrize(("error", "idle"), [(KernelFault("no"), True), (DeviceLost("gone"), False)])
def test_a_fault_has_ended_the_work_and_a_lost_device_says_nothing(device, error, idle):
    gate = Gate(1)
    with Session(device, gate=gate, layout=SessionLayout()) as busy:
        start_and_look_no_more(busy)
        device.failures["ended"] = error
        visitor = Sitter()
        assert gate.request(visitor) is idle
        assert busy.failure is None
        gate.leave(visitor)
