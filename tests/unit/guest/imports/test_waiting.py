"""The steps of functions that wait: what is left to do once the device has told that the guest's work is over."""

from __future__ import annotations

import pytest

from fakes.device import FakeDevice
from fakes.gate import Sitter
from fakes.guest import FakeCall
from strategies.kernels import NOTHING
from tensorwasm.errors import DeviceLost, InvokeTimeout
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.resources.device_resources import DeviceResources
from tensorwasm.gpu.session import Session
from tensorwasm.guest.imports.cuda import CudaService, kernels
from tensorwasm.guest.imports.cuda import resources as bodies
from tensorwasm.guest.imports.cuda.waiting import FINISH, STEPS
from tensorwasm.guest.imports.suspension import DeviceWait, QueueWait
from tensorwasm.values import NEVER, Deadline, LaunchConfig

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
WAITS = [
    lambda call, _event: STEPS[bodies.sync](call),
    lambda call, _event: STEPS[bodies.stream_sync](call, 0),
    STEPS[bodies.event_sync],
    lambda call, _event: FINISH[kernels.launch](call),
]


@pytest.fixture
def shared():
    """Two sessions on the one stream of a device; waiting for the stream fails."""
    device = FakeDevice()
    commons = DeviceResources(device, streams=1)
    with Session(device, resources=commons) as first, Session(device, resources=commons) as second:
        yield device, first, second
    assert commons.close() == []


def submit(session):
    kernel = session.kernels.load(NOTHING, "nothing", NEVER)
    session.kernels.submit(kernel, ONE, list, None, NEVER)


def call_of(session):
    return FakeCall(deadline=NEVER, services={"cuda": CudaService(session)})


@pytest.mark.parametrize("steps", WAITS, ids=["sync", "stream_sync", "event_sync", "finish"])
def test_after_the_notification_nothing_waits_for_the_work_of_others(shared, monkeypatch, steps):
    device, first, second = shared
    submit(first)
    event = first.events.open()
    first.events.record(event, 0)
    submit(second)
    with monkeypatch.context() as patch:
        patch.setattr(device, "synchronize", lambda *_: pytest.fail("it waits for the stream"))
        patch.setattr(device.events, "synchronize_event", lambda *_: pytest.fail("it waits for an event"))
        going = steps(call_of(first), event)
        assert isinstance(next(going), DeviceWait)
        with pytest.raises(StopIteration) as answered:
            going.send(True)
    assert answered.value.value == 0


def test_a_guest_waits_for_room_before_it_gives_more(shared):
    _device, first, _second = shared
    first.credits.bound()
    event = first.events.open()
    call = call_of(first)
    given, wait = 0, None
    while wait is None:
        going = STEPS[bodies.event_record](call, event, 0)
        wait = next(going, None)
        given += wait is None
    assert isinstance(wait, DeviceWait)
    assert given == first._core.layout.pending == first._core.layout.most_pending
    with pytest.raises(StopIteration):
        going.send(True)
    assert first._core.layout.pending == 1


def test_a_guest_without_a_share_stands_in_line_for_one():
    device = FakeDevice()
    commons = DeviceResources(device)
    with Session(device, resources=commons) as session:
        session.credits.bound()
        commons.queue_capacity.gate._capacity = 0
        wait = next(STEPS[bodies.event_record](call_of(session), session.events.open(), 0))
        assert isinstance(wait, QueueWait)
        assert wait.line is session.credits.share
    assert commons.close() == []


def run_to_end(going):
    """Run steps that wait for nothing but blocking calls; return their answer."""
    try:
        step = next(going)
        while True:
            try:
                result = step.function()
            except Exception as error:  # noqa: BLE001 - the steps get it
                step = going.throw(error)
            else:
                step = going.send(result)
    except StopIteration as answered:
        return answered.value


@pytest.mark.parametrize(
    ("body", "args"),
    [
        (bodies.event_record, (999, 0)),
        (bodies.alloc, (1 << 31, 1 << 20)),
        (bodies.memcpy_h2d_async, (999, 0, 0, 4, 0)),
        (bodies.graph_launch, (999, 0)),
        (kernels.launch_async, (999, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)),
    ],
)
def test_what_was_refused_keeps_no_credits_from_others(body, args):
    device = FakeDevice()
    commons = DeviceResources(device)
    commons.queue_capacity.gate._capacity = 1
    with Session(device, resources=commons) as first, Session(device, resources=commons) as second:
        for session in (first, second):
            session.credits.bound()
        assert run_to_end(STEPS[body](call_of(first), *args)) <= 0
        assert first.credits.share.held
        assert second.streams.make_room(1)
    assert commons.close() == []


def test_a_guest_that_waits_for_room_leaves_its_permit_to_others():
    """Two fibers with permits that waited for a place, and a thread with the place that waited for a permit, stood."""
    device, gate = FakeDevice(), Gate(1)
    commons = DeviceResources(device, gate=gate)
    with Session(device, resources=commons) as first, Session(device, resources=commons) as second:
        first.credits.bound()
        assert first.permit.join(lambda: None, NEVER) is False
        commons.queue_capacity.gate._capacity = 0
        wait = next(STEPS[bodies.event_record](call_of(first), first.events.open(), 0))
        assert isinstance(wait, QueueWait)
        kernel = second.kernels.load(NOTHING, "nothing", NEVER)
        second.kernels.submit(kernel, ONE, list, None, Deadline.after(5))
    assert commons.close() == []


def test_room_that_came_is_not_kept_if_the_session_has_failed():
    device = FakeDevice()
    commons = DeviceResources(device)
    with Session(device, resources=commons) as session:
        session.credits.bound()
        going, sitter = STEPS[bodies.event_record](call_of(session), session.events.open(), 0), Sitter()
        gate = commons.queue_capacity.gate
        gate._capacity = 1
        assert gate.offer(sitter)
        assert next(going).line.join(lambda: None, NEVER)
        gate.leave(sitter)
        assert session.credits.kept
        session._core.fail(InvokeTimeout("its kernel was stopped"))
        with pytest.raises(DeviceLost):
            going.send(None)
        assert not session.credits.kept
    assert commons.close() == []
