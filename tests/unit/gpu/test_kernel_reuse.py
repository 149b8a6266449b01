"""What a session prepares for compiled code before the first launch; all of it is optional."""

from __future__ import annotations

import pytest

from fakes.device import FakeDevice
from fakes.gate import Sitter
from strategies.kernels import FILL
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout import NO_DEADLINE_NS, SessionLayout
from tensorwasm.gpu.session import Session
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import NEVER, Deadline


@pytest.fixture
def device():
    device = FakeDevice()
    yield device
    assert device.holds_nothing()
    assert device.broken == []


def load(shared: SharedDevice, **options) -> Session:
    session = shared.open_session(**options)
    session.kernels.load(FILL, "fill", NEVER)
    return session


@pytest.mark.parametrize(("kind", "staged"), [("auto", True), ("staged", True), ("pinned", False)])
def test_a_loaded_kernel_can_be_launched_without_python(device, kind, staged):
    gate = Gate(1)
    with SharedDevice(device, gate=gate) as shared:
        layout = SessionLayout()
        with load(shared, memory_kind=kind, layout=layout):
            assert (layout.armed, layout.placed, bool(layout.streams[0].stream)) == (1, 1, True)
            assert bool(layout.stage_at and layout.stage_bytes) == staged
            assert gate.in_use == 1
        assert (layout.placed, layout.stage_at, layout.streams[0].stream, gate.in_use) == (0, 0, 0, 0)


def test_without_compiled_code_no_permit_or_slot_is_taken_early(device):
    gate = Gate(1)
    with SharedDevice(device, gate=gate) as shared, load(shared) as session:
        assert gate.in_use == 0
        assert session.statistics().streams == 0
        assert not device.streams
        assert not device.registered


def test_a_full_gate_is_not_waited_for_and_not_counted(device):
    gate = Gate(1)
    gate.enter(NEVER, Sitter())
    with SharedDevice(device, gate=gate) as shared:
        layout = SessionLayout()
        with load(shared, layout=layout) as session:
            assert layout.placed == 0
            assert session.statistics().back_pressure_rejections == 0
    assert gate.in_use == 1


def test_an_offered_permit_goes_to_another_session_that_needs_it(device):
    gate, sitter = Gate(1), Sitter()
    with SharedDevice(device, gate=gate) as shared:
        layout = SessionLayout()
        with load(shared, layout=layout):
            gate.enter(Deadline.after(60), sitter)
            assert layout.placed == 0
            gate.leave(sitter)
    assert gate.in_use == 0


def test_the_last_slots_are_not_offered(device):
    with SharedDevice(device) as shared:
        sessions, pads = [], []
        while not pads or pads[-1].stage_at:
            pads.append(SessionLayout())
            sessions.append(load(shared, layout=pads[-1]))
        ring = shared._resources.ring
        assert ring.idle * 2 == ring.idle + len(sessions) - 1
        for session in sessions:
            session.close()


LAST_NS = NO_DEADLINE_NS - 1


@pytest.mark.parametrize(
    ("at_ns", "seen"), [(None, NO_DEADLINE_NS), (-5, 0), (7, 7), (1 << 64, LAST_NS), (1 << 90, LAST_NS)]
)
def test_any_deadline_fits_the_layout(device, at_ns, seen):
    layout = SessionLayout()
    with SharedDevice(device) as shared, shared.open_session(layout=layout) as session:
        session.enter(Deadline(at_ns))
        assert layout.deadline_ns == seen
