"""Visits without compiled code: the same sandboxes, step by step."""

from __future__ import annotations

import _thread
import itertools
import signal
import threading
import time

import pytest
from wasmtime import wat2wasm

from tensorwasm.errors import CapacityExhausted, GuestTrap, InternalError, InvalidArgs, InvokeTimeout
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.native.session_layouts import take_layout
from tensorwasm.guest.sandbox import linker, oneshot
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.guest.sandbox.oneshot import OneShotSandbox
from tensorwasm.guest.sandbox.state import STATES, earlier
from tensorwasm.values import Deadline, Limits
from timing import costs_less

WAT = """(module (import "h" "f" (func $f (param i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "twice") (param i64) (result i64) (i64.mul (local.get 0) (i64.const 2)))
  (func (export "host") (param i32) (result i32) (call $f (local.get 0)))
  (func (export "grow") (result i32) (memory.grow (i32.const 1)))
  (func (export "trap") unreachable)
  (func (export "spin") (loop (br 0))))"""
OVERFLOWING = """(module (memory 1) (data (i32.const 65535) "ab") (func (export "f")))"""


@pytest.fixture
def engine(monkeypatch):
    for module in (linker, oneshot):
        monkeypatch.setattr(module, "load_oneshot", lambda: None)
    engine = Engine.shared(EngineConfig(slots=8))
    slots, states = engine.free_slots, len(STATES)
    yield engine
    assert (engine.free_slots, len(STATES)) == (slots, states)


@pytest.fixture
def prepared(engine):
    functions = [HostFunction("h", "f", ("i32",), ("i32",), lambda _call, number: 100 // number)]
    return Linker(engine, functions).prepare(compile_module(engine, bytes(wat2wasm(WAT))))


@pytest.fixture
def sandbox(prepared):
    made = []

    def make(export: str, limits: Limits | None = None, *, brief: bool = True) -> OneShotSandbox:
        made.append(OneShotSandbox(prepared, export, limits or Limits(), take_layout(), brief=brief))
        return made[-1]

    yield make
    for each in made:
        each.close()


def call(sandbox: OneShotSandbox, *args: object, deadline: Deadline | None = None):
    now_ns = time.monotonic_ns()
    return tuple(sandbox.run(args, {}, now_ns, earlier(deadline, now_ns, sandbox._limits.wall_s), None))


def test_one_shot_sandboxes_without_compiled_host_functions_need_no_compiled_code(prepared):
    assert prepared.is_one_shot()
    prepared.needs_layout = True
    assert not prepared.is_one_shot()
    with pytest.raises(InternalError):
        OneShotSandbox(prepared, "trap", Limits(), take_layout())


@pytest.mark.parametrize("args", [(), (1, 2), (True,), (1 << 64,), (1.5,), (None,)])
def test_arguments_that_do_not_fit_are_refused(sandbox, args):
    with pytest.raises(InvalidArgs):
        call(sandbox("twice"), *args)


def test_failures_are_named_and_leave_the_one_shot_sandbox_usable(sandbox, engine):
    host, trap = sandbox("host"), sandbox("trap")
    for _ in range(3):
        with pytest.raises(InternalError, match="ZeroDivisionError"):
            call(host, 0)
        with pytest.raises(GuestTrap, match="unreachable"):
            call(trap)
        assert call(host, 4) == (25,)
    overflowing = Linker(engine).prepare(compile_module(engine, bytes(wat2wasm(OVERFLOWING))))
    bad = OneShotSandbox(overflowing, "f", Limits(), take_layout())
    with pytest.raises(GuestTrap, match="memory_out_of_bounds"):
        call(bad)
    bad.close()


def test_limits_hold(sandbox):
    assert call(sandbox("grow", Limits(memory_bytes=1 << 16))) == (-1,)
    assert call(sandbox("grow")) == (1,)


def test_an_endless_guest_ends_at_its_deadline_whether_expected_to_be_short_or_not(sandbox):
    spin = sandbox("spin")
    for brief in (False, True):

        def try_(brief=brief):
            spin._brief = brief
            with pytest.raises(InvokeTimeout):
                call(spin, deadline=Deadline.after(0.05))

        assert costs_less(2, try_)  # who spins has a processor for as long as nobody ends it
        assert not spin._brief, "the next guest runs without the GIL"


def test_a_one_shot_sandbox_keeps_the_gil_after_short_guests(sandbox, monkeypatch):
    monkeypatch.setattr(oneshot, "QUICK_NS", 10**11)  # on a busy machine a short guest may take a millisecond, too
    twice = sandbox("twice")
    assert not twice._brief
    call(twice, 1)
    assert twice._brief


def test_guests_with_instructions_that_take_long_never_keep_the_gil(sandbox):
    twice = sandbox("twice", brief=False)
    call(twice, 1)
    assert not twice._brief


def test_a_guest_that_runs_longer_than_expected_releases_the_gil(sandbox):
    spin, seen = sandbox("spin"), []
    spin._brief = True

    def run() -> None:
        with pytest.raises(InvokeTimeout):
            call(spin, deadline=Deadline.after(0.3))

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        seen.append(time.monotonic())
    thread.join()
    assert max(after - before for before, after in itertools.pairwise(seen)) < 0.15


def test_a_pool_that_is_full_says_so(sandbox, engine):
    twice = sandbox("twice")
    taken = engine.free_slots
    for _ in range(taken):
        engine.reserve_slot()
    with pytest.raises(CapacityExhausted):
        call(twice, 1)
    for _ in range(taken):
        engine.release_slot()
    assert call(twice, 1) == (2,)


@pytest.mark.parametrize("brief", [False, True])
def test_ctrl_c_ends_a_guest_on_the_main_thread(sandbox, brief, capfd):
    spin, before = sandbox("spin"), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for pause_s in (0.0, 0.001, 0.02):
            spin._brief = brief
            interrupter = threading.Timer(pause_s, _thread.interrupt_main)
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal may come at once
                interrupter.start()
                call(spin)
            interrupter.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert "ignored" not in capfd.readouterr().err
