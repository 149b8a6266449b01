"""Memory that kernels stream over as it lies has huge pages while a guest has it, however it was called."""

from __future__ import annotations

import mmap
import threading
import time
from concurrent.futures import wait
from contextlib import closing
from dataclasses import replace

import pytest
from wasmtime import wat2wasm

import tensorwasm.runtime.invoke.fiber_runner
import tensorwasm.runtime.invoke.full
from fakes.device import INFO, FakeDevice
from tensorwasm import Runtime
from tensorwasm.errors import InvalidArgs, InvokeTimeout, NotSupported, TensorWasmError
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.guest.engine.engine import Engine
from tensorwasm.guest.memory import huge_pages
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.runtime.invoke.device_access import device_memory
from tensorwasm.values import Deadline, Limits

SOON_S = 60.0
GUEST = """(module
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func $say (drop (call $emit (i32.const 0) (i32.const 4))))
  (func (export "say") (param i32) (call $say))
  (func (export "trap") (param i32) (call $say) unreachable)
  (func (export "spin") (param i32) (call $say) (loop br 0)))"""
BARE = '(module (func (export "say") (param i32)))'
STARTING = '(module (memory (export "memory") 1) (func unreachable) (start 0) (func (export "say") (param i32)))'
PINNED = {"grants": ["cuda"], "memory_kind": "pinned"}

fibers_only = pytest.mark.skipif(not may_have_fibers(), reason="NO FIBERS: they need Linux and Numba")


def test_a_guests_memory_is_not_managed_where_cpu_and_gpu_must_not_touch_that_at_once():
    """A guest that touched it while its kernel runs would end the process."""
    device = FakeDevice(info=replace(INFO, concurrent_managed_access=False))
    with closing(SharedDevice(device)) as shared, shared.open_session() as session:
        with pytest.raises(NotSupported, match="choose"):
            device_memory(shared, session, DEFAULT_TENANT, "managed", Limits())
        device_memory(shared, session, DEFAULT_TENANT, "vmm", Limits())


class Notes:
    """What happened to the memory of one guest, in order; every entry with the thing it happened to."""

    def __init__(self):
        self.entries = []

    @property
    def events(self):
        return [event for event, *_ in self.entries]

    def add(self, event, *details):
        self.entries.append((event, *details))
        return True

    def await_event(self, event):
        ends = time.monotonic() + SOON_S
        while event not in self.events:
            assert time.monotonic() < ends, self.entries
            threading.Event().wait(0.002)


@pytest.fixture
def notes(monkeypatch):
    notes, give = Notes(), Engine.release_slot
    monkeypatch.setattr(huge_pages, "prefer_huge", lambda address, size: notes.add("huge", address, size))
    monkeypatch.setattr(huge_pages, "prefer_small", lambda address, size: notes.add("small", address, size))

    def release(engine):
        notes.add("slot")
        give(engine)

    monkeypatch.setattr(Engine, "release_slot", release)
    return notes


@pytest.fixture(params=["invoke", pytest.param("fiber", marks=fibers_only), "thread"])
def call(request, monkeypatch):
    """Return a function that calls an export and returns when its sandbox has gone."""
    if request.param == "thread":
        monkeypatch.setattr(tensorwasm.runtime.invoke.fiber_runner, "load_suspension_code", lambda: None)
    with Runtime("emulator") as runtime:

        def call(export, *args, wat=GUEST, **options):
            function = runtime.load(bytes(wat2wasm(wat)))
            if request.param == "invoke":
                return function.invoke(export, args, **options)
            return function.submit(export, args, **options).result(SOON_S)

        yield call


@pytest.mark.parametrize(
    ("export", "args", "more"),
    [("say", (1,), {}), ("trap", (1,), {}), ("spin", (1,), {"deadline": 1.0})],
    ids=["result", "trap", "deadline"],
)
def test_huge_pages_are_asked_for_before_the_call_and_undone_before_the_slot_goes_back(call, notes, export, args, more):
    if more:
        more = {"deadline": Deadline.after(more["deadline"])}
    try:
        call(export, *args, on_chunk=lambda _: notes.add("said"), **PINNED, **more)
    except TensorWasmError:
        assert export != "say"
    notes.await_event("slot")
    assert notes.events == ["huge", "said", "small", "slot"]
    assert notes.entries[0][1:] == notes.entries[2][1:]
    assert notes.entries[0][1] % mmap.PAGESIZE == notes.entries[0][2] % mmap.PAGESIZE == 0


@pytest.mark.parametrize("options", [{}, {"memory_kind": "pinned"}, {"grants": ["cuda"]}])
def test_other_guests_get_none(call, notes, options):
    call("say", 1, on_chunk=lambda _: True, **options)
    assert not {"huge", "small"} & {*notes.events}


@pytest.mark.parametrize(
    ("wat", "args"), [(BARE, (1,)), (STARTING, (1,)), (GUEST, ())], ids=["no memory", "a bad start", "bad arguments"]
)
def test_guests_without_memory_or_that_never_begin_ask_for_no_huge_pages(call, notes, wat, args):
    try:
        call("say", *args, wat=wat, **PINNED)
    except TensorWasmError:
        assert wat != BARE
    assert notes.events.count("huge") == notes.events.count("small")


def test_a_guest_that_cannot_begin_asks_for_nothing(call, notes):
    with pytest.raises(InvalidArgs):
        call("say", 1, tenant="nobody", **PINNED)
    assert not {"huge", "small"} & {*notes.events}


@fibers_only
def test_a_guest_that_is_cancelled_leaves_none(notes):
    with Runtime("emulator") as runtime:
        function = runtime.load(bytes(wat2wasm(GUEST)))
        running = function.submit("spin", (1,), on_chunk=lambda _: notes.add("said"), **PINNED)
        notes.await_event("said")
        assert running.cancel()
        assert wait([running], timeout=SOON_S).done
        notes.await_event("slot")
    assert notes.events == ["huge", "said", "small", "slot"]


@fibers_only
def test_memory_that_a_kernel_may_still_reach_goes_to_no_other_call(notes, monkeypatch):
    monkeypatch.setattr(tensorwasm.runtime.invoke.full, "end_session", lambda session: session.close() and False)
    with Runtime("emulator", slots=8) as runtime:
        function = runtime.load(bytes(wat2wasm(GUEST)))
        with pytest.raises(InvokeTimeout):
            function.submit("spin", (1,), deadline=Deadline.after(0.1), **PINNED).result(SOON_S)
    assert notes.events == ["huge"]
