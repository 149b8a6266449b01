"""Guests that wait as fibers: every device tells, once, when the work is over that somebody waits for."""

from __future__ import annotations

import ctypes
import threading
from contextlib import closing

import pytest

pytest.importorskip("numba")

from conformance.rig import Rig
from tensorwasm.bench.device.waiting import StreamGate, measure_waiting
from tensorwasm.gpu.session import Session
from tensorwasm.values import NEVER, Deadline

SOON_S = 60.0
CALLED = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Kept:
    """A device that survives its runtime."""

    def __init__(self, device):
        self._device = device

    def close(self):
        pass

    def __getattr__(self, name):
        return getattr(self._device, name)


class Bell:
    """A C function that counts its calls by their argument."""

    def __init__(self):
        self.rung = []
        self._changed = threading.Condition()
        self._function = CALLED(self._ring)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value

    def _ring(self, argument):
        with self._changed:
            self.rung.append(argument)
            self._changed.notify_all()

    def await_ring(self, argument):
        with self._changed:
            assert self._changed.wait_for(lambda: argument in self.rung, timeout=SOON_S)


@pytest.fixture
def choice(device, monkeypatch):
    monkeypatch.setattr("tensorwasm.runtime.api.lazy_device.open_device", lambda *_, **__: (Kept(device), "a test"))
    return device.info.kind


def test_more_guests_than_have_places_wait_at_once_and_all_are_right(choice):
    figures = {figure.name: figure.value for figure in measure_waiting(choice, guests=400, patience_s=20).figures}
    assert figures["guests that wait for the device at once"] == 400
    assert figures["guests with the right result"] == 400


def test_a_call_comes_once_and_not_before_the_work_is_over(device):
    bell = Bell()
    with Session(device) as session:
        assert session.streams.notify(0, bell.address, 1) is False
        session.buffers.allocate(64)
        session.streams.synchronize(Deadline.after(SOON_S))
        # Only now: behind a closed gate a driver may make no stream, and have no queue left for memory.
        with closing(StreamGate(device)) as gate:
            gate.hold(session._core.work.find(0).stream)
            session.buffers.allocate(64)
            assert session.streams.notify(0, bell.address, 2)
            assert not session.streams.ended(0)
            assert bell.rung == []
            gate.open()
            bell.await_ring(2)
            session.streams.synchronize(Deadline.after(SOON_S))
        assert session.streams.notify(0, bell.address, 3) is False
    assert bell.rung == [2]


def test_an_event_completes_whatever_is_queued_behind_it_in_its_stream(device):
    """A kernel comes behind it, and not a gate: a driver makes its calls one after the other."""
    bell = Bell()
    with Session(device) as session, Rig(device) as rig:
        event = session.events.open()
        assert session.events.notify(event, bell.address, 1) is False
        # There is one to spare, which a busy driver might not make.
        session.streams.close(session.streams.open(), NEVER)
        block, flag = rig.host()
        session.buffers.allocate(64)
        session.events.record(event, 0)
        rig.hold(session._core.work.find(0).stream, flag)
        if session.events.notify(event, bell.address, 2):  # the work before it may be over by now
            bell.await_ring(2)
        session.events.synchronize(event, Deadline.after(SOON_S))
        assert not session.streams.ended(0)
        block[:4] = b"\1\0\0\0"
        session.streams.synchronize(Deadline.after(SOON_S))
    assert bell.rung in ([], [2])
