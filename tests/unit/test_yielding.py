"""Threads of guests leave others room: the processor by long slices, the interpreter by sleeping now and then."""

import ctypes
import os
import platform
import struct
import sys
import threading

import pytest
from wasmtime import wat2wasm

from tensorwasm import Runtime, yielding
from tensorwasm.guest.sandbox import linker
from tensorwasm.runtime.invoke.call_threads import CallThreads
from tensorwasm.yielding import EVERY_NS, NICE, SLICE_NS, begin_yielding, lower_priority, yield_gil

_GETTERS = {"x86_64": 315, "aarch64": 275}

linux = pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in _GETTERS, reason="Linux's own call")


def _attributes():
    """Return what Linux says of the calling thread: policy, nice, slice in nanoseconds."""
    buffer = ctypes.create_string_buffer(56)
    assert ctypes.CDLL(None).syscall(_GETTERS[platform.machine()], 0, buffer, len(buffer), 0) == 0
    _, policy, _, nice, _, runtime, _, _ = struct.unpack_from("=IIQiIQQQ", buffer)
    return policy, nice, runtime


def _on_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@linux
@pytest.mark.parametrize("inherited", [3, NICE, 18, 19])
def test_a_thread_gets_the_slice_and_less_weight_than_the_first_whatever_it_inherits(inherited):
    before = _attributes()
    expected = max(inherited, min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICE, 19))

    def run():
        os.setpriority(os.PRIO_PROCESS, 0, inherited)  # of this thread alone
        return lower_priority(), _attributes()

    taken, (policy, found, slice_ns) = _on_a_thread(run)
    assert taken
    assert (policy, found) == (os.SCHED_OTHER, expected)
    assert slice_ns in {SLICE_NS, 0}  # 0: a kernel that has no such slices
    assert _attributes() == before


@linux
def test_a_thread_that_is_scheduled_otherwise_is_left_alone():
    def run():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return lower_priority(), os.sched_getscheduler(0)

    assert _on_a_thread(run) == (False, os.SCHED_BATCH)


def test_without_the_system_call_yielding_does_nothing(monkeypatch):
    monkeypatch.setattr(yielding.platform, "machine", lambda: "riscv64")
    assert not lower_priority()


@linux
def test_a_process_that_may_not_even_ask_goes_on_without(monkeypatch):
    def refuse(_pid):
        raise PermissionError

    monkeypatch.setattr(yielding.os, "sched_getscheduler", refuse)
    assert not lower_priority()


class Clock:
    """What `time` is to the module: it says how late it is, and notes who sleeps."""

    def __init__(self):
        self.now_ns = 1
        self.slept = 0

    def monotonic_ns(self):
        return self.now_ns

    def sleep(self, seconds):
        assert 0 < seconds < 1e-3
        self.slept += 1


def test_a_thread_that_keeps_calling_the_host_sleeps_now_and_then(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(yielding, "time", clock)

    def call_on_and_on():
        begin_yielding()
        for _ in range(10 * EVERY_NS // 1000):
            clock.now_ns += 1000
            yield_gil()
        return clock.slept

    assert _on_a_thread(call_on_and_on) in {9, 10}


def test_a_thread_that_does_not_yield_never_sleeps(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(yielding, "time", clock)

    def call_now_and_then():
        for _ in range(100):
            clock.now_ns += 10 * EVERY_NS
            yield_gil()
        return clock.slept

    assert _on_a_thread(call_now_and_then) == 0


def test_guests_of_a_service_yield_and_those_of_a_program_do_not(monkeypatch):
    given = []
    monkeypatch.setattr(linker, "yield_gil", lambda: given.append(getattr(yielding._of_thread, "due_ns", None)))
    module = wat2wasm(
        """(module (import "wasi:tensor/host" "emit-chunk" (func $emit (param i32 i32) (result i32)))
            (memory (export "memory") 1)
            (func (export "say") (result i32) (call $emit (i32.const 0) (i32.const 1))))"""
    )
    with Runtime(device="emulator") as runtime:
        function = runtime.load(module)
        assert function.invoke("say").chunks == (b"\0",)
        assert given == [None]
        given.clear()
        threads = CallThreads()
        threads.submit(lambda announce: function.dispatch.call("say", (), announce=announce)).result(60)
        threads.close()
        assert len(given) == 1
        assert given[0] is not None
