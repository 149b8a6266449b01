"""Sessions that share a stream: each waits for its own work, for as long as what is ahead of it may take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.device import INFO, FakeDevice
from strategies.kernels import NOTHING
from tensorwasm.errors import DeviceLost, InvokeTimeout, KernelFault
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.gpu.state.work import CLOSE_GRACE_S
from tensorwasm.values import NEVER, Deadline, LaunchConfig

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))


class Party:
    """A session and its one kernel."""

    def __init__(self, shared: SharedDevice, layout: SessionLayout | None = None) -> None:
        self.layout = layout
        self.session = shared.open_session(layout=layout)
        self.kernel = self.session.kernels.load(NOTHING, "nothing", NEVER)
        self.streams = self.session.streams

    def launch(self) -> None:
        self.session.kernels.submit(self.kernel, ONE, tuple, None, NEVER)

    def launch_natively(self) -> None:
        """Do what compiled code does on a layout."""
        assert self.layout is not None
        self.layout.streams[0].pending += 1
        self.layout.pending += 1
        self.layout.launched += 1

    def drain_natively(self) -> None:
        assert self.layout is not None
        self.layout.pending -= self.layout.streams[0].pending
        self.layout.streams[0].pending = 0


@pytest.fixture
def device():
    device = FakeDevice(info=replace(INFO, max_streams=1))
    yield device
    assert device.broken == []


@pytest.fixture
def shared(device):
    with SharedDevice(device, gate=Gate(8)) as shared:
        yield shared


@pytest.fixture
def parties(shared):
    """Two sessions on the one stream, both with work on it: the first one's is ahead, and was asked for in between."""
    first, second = Party(shared), Party(shared)
    second.launch()  # a session takes its stream with its first work
    second.streams.synchronize(NEVER)
    first.launch()
    assert not first.streams.ended(0)
    second.launch()
    yield first, second
    first.session.close()
    second.session.close()


@pytest.fixture
def stream(device):
    (stream,) = device.streams
    return stream


def count(device, *names: str) -> int:
    return sum(device.calls.count(name) for name in names)


def test_a_wait_is_for_ones_own_work(device, parties, stream):
    first, second = parties
    first.streams.synchronize(NEVER)
    assert first.streams.ended(0)
    assert stream.steps, "the second's kernel is behind"
    assert not second.streams.ended(0)
    second.streams.synchronize(NEVER)
    assert not stream.steps


def test_ones_own_work_has_ended_though_others_go_on_for_ever(device, parties, stream):
    first, second = parties
    for _ in range(10):
        second.launch()
        device._run(stream)
    assert first.streams.ended(0)
    assert not second.streams.ended(0)
    assert first.session.statistics().release_failures == 0


def test_the_end_event_moves_behind_later_work(device, parties, stream):
    first, _ = parties
    first.launch()
    assert not first.streams.ended(0)
    for _ in range(3):  # its kernel, the mark behind that, and the other's kernel
        device._run(stream)
    assert not first.streams.ended(0)
    device.finish()
    assert first.streams.ended(0)


def test_the_end_event_moves_behind_work_of_compiled_code_after_its_own_drain(device, shared, parties):
    (_, _), guest = parties, Party(shared, SessionLayout())
    guest.launch_natively()
    assert not guest.streams.ended(0)
    guest.drain_natively()
    device.finish()
    guest.launch_natively()
    (stream,) = device.streams
    device.native.give(stream.number)
    assert not guest.streams.ended(0)
    device.finish()
    assert guest.streams.ended(0)
    guest.session.close()


def test_an_unshared_stream_needs_no_event(device, shared):
    party = Party(shared)
    party.launch()
    assert not party.streams.ended(0)
    party.streams.synchronize(NEVER)
    party.launch()
    party.session.close()
    assert count(device, "record", "open_event", "synchronize_event", "event_reached") == 0


# ---------------------------------------------------------------------------------------------- deadlines


def test_work_of_others_compiled_code_is_announced_before_a_wait_behind_it(device, shared):
    guest, other = Party(shared, SessionLayout()), Party(shared)
    guest.launch()
    guest.drain_natively()
    device.finish()
    guest.launch_natively()  # as many as Python gave before
    other.launch()
    before = len(device.calls)
    other.streams.synchronize(NEVER)
    calls = device.calls[before:]
    assert calls.index("started") < calls.index("record")
    other.launch()
    before = len(device.calls)
    other.streams.synchronize(NEVER)
    assert "started" not in device.calls[before:], "once is enough"
    guest.session.close()
    other.session.close()
    assert not shared._resources.streams._announcers


# -------------------------------------------------------------------------------------------------- ends


def close_with_patience(device, party: Party, until: Deadline) -> Deadline:
    """Close a session on a device that has that patience with its work; return how long it was waited for."""
    device.events.until = until
    party.session.close()
    return device.events.waits[-1]


@pytest.mark.rule("3-stream")
def test_the_end_of_a_session_waits_as_long_as_what_is_ahead_may_take(device, parties):
    until = Deadline.after(1000)
    assert close_with_patience(device, parties[1], until) == until
    assert not parties[1].session.abandoned


@pytest.mark.parametrize("until", [NEVER, Deadline(1)], ids=["no deadline", "a past one"])
def test_the_end_of_a_session_waits_a_second_at_least(device, parties, until):
    before = Deadline.after(CLOSE_GRACE_S)
    waited = close_with_patience(device, parties[1], until)
    assert before.at_ns <= waited.at_ns <= Deadline.after(CLOSE_GRACE_S).at_ns


def test_a_guest_that_timed_out_behind_anothers_kernel_abandons_nothing(device, shared, parties):
    _, second = parties
    buffer = second.session.buffers.allocate(64)
    device.failures["synchronize_event"] = InvokeTimeout("late")
    with pytest.raises(InvokeTimeout):
        second.streams.synchronize(Deadline.after(0.0))
    second.session.close()
    assert buffer
    assert not second.session.abandoned
    assert second.session.statistics().release_failures == 0
    assert shared.accounts.account("default").statistics().allocations == 0


@pytest.mark.rule("3-buffer")
def test_a_sessions_work_keeps_its_memory_until_it_has_ended(device, shared, parties):
    _, second = parties
    second.session.buffers.allocate(64)
    second.launch()
    device.failing["synchronize_event"] = InvokeTimeout("late")
    device.failing["event_reached"] = DeviceLost("no answer")
    second.session.close()
    assert second.session.abandoned
    assert shared.accounts.account("default").statistics().allocations == 1
    device.failing.clear()
    device.finish()


def test_the_end_of_a_session_leaves_the_others_work_and_their_stream(device, parties, stream):
    first, second = parties
    first.session.close()
    assert stream.steps
    assert not second.streams.ended(0)
    second.streams.synchronize(NEVER)
    second.session.close()
    assert device.statistics().streams == 1


@pytest.mark.parametrize(("error", "left"), [(InvokeTimeout("late"), 1), (KernelFault("thread 0"), 0)])
def test_a_passed_deadline_costs_a_device_with_fixed_streams_no_stream(device, shared, error, left):
    party = Party(shared)
    party.launch()
    device.failures["synchronize"] = error
    with pytest.raises(type(error)):
        party.streams.synchronize(NEVER)
    party.session.close()
    assert not party.session.abandoned
    assert device.statistics().streams == left


def test_a_session_knows_whether_its_close_may_wait(device, shared, parties):
    first, second = parties
    assert first.session.lingers
    assert second.session.lingers
    second.streams.synchronize(NEVER)
    assert not second.session.lingers
    second.session.close()
    first.session.close()
    assert not first.session.lingers


@pytest.mark.parametrize("excuses", [0, 1, 3])
def test_close_waits_on_while_others_work_may_delay_it(device, shared, excuses):
    party = Party(shared)
    party.launch()
    for nth in range(1, excuses + 1):
        device.fail("synchronize", nth, InvokeTimeout("late"))
    device.excuses = [True] * excuses
    party.session.close()
    assert not party.session.abandoned
    assert device.counts["synchronize"] == excuses + 1


def test_close_does_not_wait_again_without_such_a_delay(device, shared):
    party = Party(shared)
    party.launch()
    device.failing["synchronize"] = InvokeTimeout("late")
    device.failing["ended"] = DeviceLost("no answer")
    device.excuses = [False, True]
    party.session.close()
    assert party.session.abandoned
    assert device.counts["synchronize"] == 2


def test_a_stream_whose_event_cannot_be_released_is_closed_and_raises(device, shared):
    party = Party(shared)
    party.launch()
    number = party.streams.open()
    party.session.kernels.submit(party.kernel, ONE, tuple, None, NEVER, stream=number)
    party.session._core.resources.events._most = 0
    device.failures["close_event"] = DeviceLost("no answer")
    with pytest.raises(DeviceLost, match="no answer"):
        party.streams.close(number, NEVER)
    assert party.streams.numbers == (0,)
    party.session.close()
