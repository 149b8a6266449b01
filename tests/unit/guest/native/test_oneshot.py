"""Visits of sandboxes without a session: what compiled code does around the guest, and what it leaves to Python."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time

import pytest
from wasmtime import wat2wasm

from tensorwasm.errors import DeviceLost, GuestTrap, InvokeTimeout
from tensorwasm.gpu.native.layout import DriverTable
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.native.session_layouts import take_layout
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.guest.sandbox.oneshot import OneShotSandbox
from tensorwasm.guest.sandbox.state import STATES
from tensorwasm.values import Deadline, Limits

pytest.importorskip("numba")

CONTEXT, NUMBER, OTHER = 0xC0_FFEE, 7, 0xBEEF
WAT = """(module (memory (export "memory") 1)
  (func (export "one") (result i32) (i32.const 1)) (func (export "trap") unreachable)
  (func (export "spin") (loop (br 0))))"""
_u64, _at = ctypes.c_uint64, ctypes.c_void_p
_ONE = ctypes.CFUNCTYPE(ctypes.c_int, _u64)
_TWO = ctypes.CFUNCTYPE(ctypes.c_int, _u64, _at)


class Contexts:
    """A driver's stack of contexts, of which it notes every use."""

    def __init__(self, *stack: int, number: int = NUMBER) -> None:
        self.stack = list(stack)
        self.number = number
        self.calls: list[str] = []
        self.results: dict[str, int] = {}
        self.kept = [_ONE(self._current), _TWO(self._id), _ONE(self._push), _ONE(self._pop)]
        names = ("context_current", "context_id", "context_push", "context_pop")
        addresses = {name: ctypes.cast(each, _at).value for name, each in zip(names, self.kept, strict=True)}
        self.table = DriverTable(**addresses, context=CONTEXT, context_number=NUMBER)

    def _current(self, at: int) -> int:
        _u64.from_address(at).value = self.stack[-1] if self.stack else 0
        return 0

    def _id(self, context: int, at: int) -> int:
        assert context == CONTEXT
        _u64.from_address(at).value = self.number
        return self.results.get("id", 0)

    def _push(self, context: int) -> int:
        self.calls.append("push")
        if not self.results.get("push"):
            self.stack.append(context)
        return self.results.get("push", 0)

    def _pop(self, _at: int) -> int:
        self.calls.append("pop")
        self.stack.pop()
        return 0


@pytest.fixture
def engine():
    return Engine.shared(EngineConfig(slots=64))


@pytest.fixture
def make_oneshot(engine):
    made = []

    def make(export: str = "one", contexts: Contexts | None = None, *, brief: bool = True) -> OneShotSandbox:
        prepared = Linker(engine).prepare(compile_module(engine, bytes(wat2wasm(WAT))))
        assert prepared.is_one_shot()
        layout = take_layout()
        if contexts is not None:
            layout.driver = ctypes.addressof(contexts.table)
        made.append(sandbox := OneShotSandbox(prepared, export, Limits(), layout, brief=brief))
        return sandbox

    yield make
    for sandbox in made:
        sandbox.close()


def call(sandbox: OneShotSandbox, deadline: Deadline | None = None, drain=None):
    return list(sandbox.call((), {}, deadline, drain))


def settled(engine):
    """Return the engine's free slots, once what earlier tests left to the garbage collector has gone."""
    gc.collect()
    return engine.free_slots


@pytest.fixture
def no_switches():
    """Threads that do not give the GIL up keep it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def other_thread(no_switches):
    """A thread that notes that it has run, as soon as it gets the GIL; and its note."""
    start, ran = threading.Lock(), []
    start.acquire()
    thread = threading.Thread(target=lambda: start.acquire() and ran.append(1))
    thread.start()
    yield start.release, ran
    thread.join()


def test_short_guests_keep_the_gil(make_oneshot, other_thread):
    (start, ran), sandbox = other_thread, make_oneshot()
    start()
    for _ in range(10):
        assert call(sandbox) == [1]
    assert ran == []


def test_a_guest_that_outlives_a_tick_releases_the_gil(make_oneshot, other_thread):
    (start, ran), sandbox = other_thread, make_oneshot("spin")
    start()
    with pytest.raises(InvokeTimeout):
        call(sandbox, Deadline.after(0.1))
    assert ran == [1]
    assert sandbox._order.thread == 0


@pytest.mark.parametrize("kind", ["with a device", "with instructions that take long"])
def test_some_guests_never_have_the_gil(make_oneshot, other_thread, kind):
    (start, ran), long = other_thread, kind == "with instructions that take long"
    sandbox = make_oneshot(contexts=None if long else Contexts(), brief=not long)
    start()
    while not ran:
        assert call(sandbox) == [1]


def test_endless_guests_run_side_by_side(make_oneshot):
    sandboxes, ended = [make_oneshot("spin") for _ in range(4)], []

    def run(sandbox: OneShotSandbox) -> None:
        with pytest.raises(InvokeTimeout):
            call(sandbox, Deadline.after(0.15))
        ended.append(time.monotonic())

    threads = [threading.Thread(target=run, args=(sandbox,)) for sandbox in sandboxes]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(ended) - started < 4 * 0.15


@pytest.mark.parametrize("stack", [[], [OTHER], [CONTEXT, OTHER]])
def test_the_context_is_current_for_the_call_and_not_after_it(make_oneshot, stack):
    contexts = Contexts(*stack)
    assert call(make_oneshot(contexts=contexts)) == [1]
    assert contexts.calls == ["push", "pop"]
    assert contexts.stack == stack


def test_a_context_that_is_current_is_left_alone(make_oneshot):
    contexts = Contexts(CONTEXT)
    assert call(make_oneshot(contexts=contexts)) == [1]
    assert contexts.calls == []


@pytest.mark.parametrize("stack", [[], [CONTEXT]])
def test_a_context_that_is_another_by_now_is_a_lost_device(make_oneshot, engine, stack):
    slots = settled(engine)
    sandbox = make_oneshot(contexts=Contexts(*stack, number=NUMBER + 1))
    with pytest.raises(DeviceLost):
        call(sandbox)
    assert engine.free_slots == slots


@pytest.mark.parametrize("failing", ["id", "push"])
def test_a_driver_that_refuses_is_a_lost_device(make_oneshot, failing):
    contexts = Contexts(OTHER)
    contexts.results[failing] = 201
    with pytest.raises(DeviceLost):
        call(make_oneshot(contexts=contexts))
    assert contexts.stack == [OTHER]


@pytest.mark.parametrize(("export", "error"), [("trap", GuestTrap), ("spin", InvokeTimeout)])
def test_a_failure_puts_the_context_back_drains_and_frees_everything(make_oneshot, engine, export, error):
    contexts, drained = Contexts(OTHER), []
    slots, sandbox = settled(engine), make_oneshot(export, contexts)
    with pytest.raises(error):
        call(sandbox, Deadline.after(0.05), lambda: drained.append(1) or True)
    assert (drained, contexts.stack, engine.free_slots) == ([1], [OTHER], slots)


@pytest.mark.rule("3-memory")
def test_memory_that_may_still_be_reached_is_drained_first(make_oneshot, engine):
    sandbox, drained = make_oneshot(), []
    layout = sandbox._state.layout
    for field in ("pending", "reach_bytes"):
        setattr(layout, field, 1)
        assert call(sandbox, drain=lambda: drained.append(1) or True) == [1]
        setattr(layout, field, 0)
    assert call(sandbox, drain=lambda: drained.append(1) or True) == [1]
    assert drained == [1, 1]


@pytest.mark.rule("3-memory", "3-layout")
def test_memory_that_is_never_let_go_keeps_its_slot_and_its_layout(make_oneshot, engine):
    sandbox, slots = make_oneshot(), engine.free_slots
    layout = sandbox._state.layout
    layout.pending = 1
    assert call(sandbox, drain=lambda: False) == [1]
    sandbox.close()
    assert engine.free_slots == slots - 1
    assert STATES[ctypes.addressof(layout)] is sandbox._state


@pytest.mark.rule("4-staging")
def test_a_used_slot_is_cleared(make_oneshot):
    sandbox, slot = make_oneshot(), ctypes.create_string_buffer(b"x" * 64, 64)
    layout = sandbox._state.layout
    layout.stage_view, layout.stage_bytes, layout.stage_used = ctypes.addressof(slot), 64, 40
    assert call(sandbox) == [1]
    assert slot.raw == bytes(40) + b"x" * 24
    assert layout.stage_used == 0


def test_a_module_with_a_start_function_is_an_instance(engine):
    module = compile_module(engine, bytes(wat2wasm("(module (func $f) (start $f))")))
    assert not Linker(engine).prepare(module).is_one_shot()
