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
from tensorwasm.gpu.native.layout import CLEARING_REFUSED, DriverTable
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.native.session_layouts import take_layout
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.guest.sandbox.oneshot import NotCleared, OneShotSandbox
from tensorwasm.guest.sandbox.state import STATES, earlier
from tensorwasm.values import Deadline, Limits

pytest.importorskip("numba")

CONTEXT, NUMBER, OTHER = 0xC0_FFEE, 7, 0xBEEF
WAT = """(module (memory (export "memory") 1)
  (func (export "one") (result i32) (i32.const 1)) (func (export "trap") unreachable)
  (func (export "spin") (loop (br 0))))"""
_u64, _at = ctypes.c_uint64, ctypes.c_void_p
STREAM, RANGES = 0x57_12EA, ((1 << 33, 8 << 20), (1 << 34, 2 << 20), (1 << 35, 2 << 20))
_ONE = ctypes.CFUNCTYPE(ctypes.c_int, _u64)
_MEMSET = ctypes.CFUNCTYPE(ctypes.c_int, _u64, ctypes.c_uint8, _u64, _u64)
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
    now_ns = time.monotonic_ns()
    return list(sandbox.run((), {}, now_ns, earlier(deadline, now_ns, Limits().wall_s), drain))


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


class Clearing:
    """A driver that notes what it is told to clear, and has done it after some looks."""

    def __init__(self, layout, looks: int = 0, refuses: int = -1) -> None:
        self.cleared: list[tuple[int, int, int]] = []
        self.looks, self.refuses = looks, refuses
        self.contexts = Contexts(CONTEXT)
        self._kept = [_MEMSET(self._memset), _ONE(self._query)]
        memset, query = (ctypes.cast(each, _at).value for each in self._kept)
        self.contexts.table.memset_d8_async, self.contexts.table.stream_query = memset, query
        layout.driver = ctypes.addressof(self.contexts.table)
        layout.window_at, layout.streams[0].stream = 1 << 32, STREAM
        for row, (address, size_bytes) in zip(layout.clear, RANGES, strict=False):
            row.address, row.size_bytes = address, size_bytes

    def _memset(self, address: int, value: int, size_bytes: int, stream: int) -> int:
        if len(self.cleared) == self.refuses:
            return 999
        self.cleared.append((address, size_bytes, stream))
        return value

    def _query(self, stream: int) -> int:
        assert stream == STREAM
        self.looks -= 1
        return 600 if self.looks >= 0 else 0


def launch(state):
    state.layout.launched += 1


def nothing(_state):
    pass


@pytest.fixture
def make_launching(engine):
    """Return a sandbox whose guest calls a host function, by default one that counts a launch; and its layout."""
    made = []

    def make(body=launch):
        wat = '(module (import "t" "go" (func $go)) (func (export "one") (result i32) (call $go) (i32.const 1)))'
        linker = Linker(engine, [HostFunction("t", "go", (), (), body)])
        layout = take_layout()
        prepared = linker.prepare(compile_module(engine, bytes(wat2wasm(wat))))
        made.append(OneShotSandbox(prepared, "one", Limits(), layout))
        return made[-1], layout

    yield make
    for sandbox in made:
        sandbox.close()


def test_a_window_is_cleared_behind_a_guest_that_launched_a_kernel(make_launching):
    sandbox, layout = make_launching()
    driver = Clearing(layout, looks=3)
    slot = ctypes.create_string_buffer(b"x" * 64, 64)
    layout.stage_view, layout.stage_bytes, layout.stage_used = ctypes.addressof(slot), 64, 40
    assert call(sandbox) == [1]
    assert driver.cleared == [(*each, STREAM) for each in RANGES]
    assert (layout.clearing, layout.stage_used, slot.raw) == (1, 0, b"x" * 64)
    assert call(sandbox) == [1]  # waits for it first
    assert driver.looks == -1
    assert driver.cleared == [(*each, STREAM) for each in RANGES] * 2


def test_a_window_that_no_kernel_reached_is_left_alone(make_launching):
    sandbox, layout = make_launching(nothing)
    driver, slot = Clearing(layout), ctypes.create_string_buffer(b"x" * 64, 64)
    layout.stage_view, layout.stage_bytes, layout.stage_used = ctypes.addressof(slot), 64, 40
    assert call(sandbox) == [1]
    assert (driver.cleared, layout.clearing, layout.stage_used) == ([], 0, 0)
    assert slot.raw == bytes(40) + b"x" * 24


def test_nothing_is_done_while_a_window_is_not_clear(make_launching):
    sandbox, layout = make_launching()
    driver = Clearing(layout, looks=1 << 40)
    layout.clearing = 1
    with pytest.raises(NotCleared):
        call(sandbox)
    assert (layout.launched, layout.clearing, driver.contexts.stack) == (0, 1, [CONTEXT])
    driver.looks = 0
    assert call(sandbox) == [1]


@pytest.mark.parametrize("refuses", [0, 1])
def test_python_clears_what_the_driver_did_not_take(make_launching, refuses):
    sandbox, layout = make_launching()
    driver = Clearing(layout, refuses=refuses)
    layout.stage_used = 40
    assert call(sandbox) == [1]
    assert len(driver.cleared) == refuses
    assert (layout.clearing, layout.stage_used) == (CLEARING_REFUSED, 40)


def test_a_module_with_a_start_function_is_an_instance(engine):
    module = compile_module(engine, bytes(wat2wasm("(module (func $f) (start $f))")))
    assert not Linker(engine).prepare(module).is_one_shot()
