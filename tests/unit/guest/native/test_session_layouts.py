"""Pads are zeros when drawn, and thread scratch stays with its thread."""

from __future__ import annotations

import ctypes
import threading

import pytest

from tensorwasm.errors import InternalError
from tensorwasm.gpu.native.layout import NO_DEADLINE_NS, SessionLayout
from tensorwasm.guest.engine import capi
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.native.session_layouts import SCRATCH, return_layout, take_layout
from tensorwasm.guest.native.structures import Entry, address_of
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker, make_trampoline
from tensorwasm.guest.sandbox.state import STATES
from tensorwasm.values import Deadline


@pytest.fixture
def prepared(wat):
    """Return a module that calls one import, which is linked as compiled code: here the address of its own twin."""
    body = HostFunction("h", "f", (), ("i32",), lambda call: call.memory.size_bytes)
    engine = Engine.shared(EngineConfig(slots=64))
    kept = capi.HOST_FUNCTION(make_trampoline(body))
    linker = Linker(engine, [body], native={("h", "f"): Entry(address_of(kept), ())})
    linker.kept = kept
    text = """(module (import "h" "f" (func $f (result i32)))
        (memory (export "memory") 2) (func (export "f") (result i32) (call $f)))"""
    return linker.prepare(compile_module(engine, wat(text)))


@pytest.mark.rule("4-session")
def test_a_returned_layout_is_all_zeros():
    layout = take_layout()
    ctypes.memset(ctypes.addressof(layout), 0xFF, ctypes.sizeof(SessionLayout))
    return_layout(layout)
    assert bytes(take_layout()) == bytes(ctypes.sizeof(SessionLayout))


def test_every_thread_has_one_scratch():
    seen = [SCRATCH.address, SCRATCH.address]
    other = []
    thread = threading.Thread(target=lambda: other.append(SCRATCH.address))
    thread.start()
    thread.join()
    assert seen[0] == seen[1] != other[0]


def test_a_sandbox_is_known_by_its_layout_while_it_lives(prepared):
    layout = take_layout()
    at = ctypes.addressof(layout)
    with Instance(prepared, layout=layout) as instance:
        assert STATES[at].layout is layout
        assert instance.call("f") == [2 << 16]
    assert at not in STATES
    assert take_layout() is layout


def test_a_call_arms_its_deadline_and_scratch(prepared):
    layout = take_layout()
    with Instance(prepared, layout=layout) as instance:
        deadline = Deadline.after(5)
        instance.call("f", deadline=deadline)
        assert layout.deadline_ns == deadline.at_ns
        assert layout.scratch == SCRATCH.address
        other = []
        thread = threading.Thread(target=lambda: other.append((instance.call("f"), SCRATCH.address)))
        thread.start()
        thread.join()
        assert layout.scratch == other[0][1] != SCRATCH.address
        assert deadline.at_ns < layout.deadline_ns < NO_DEADLINE_NS


def test_the_memory_is_known_once_it_was_looked_for(prepared):
    layout = take_layout()
    with Instance(prepared, layout=layout) as instance:
        assert list(layout.memory) == [0, 0, 0]
        instance.call("f")
        assert layout.memory[0]
    assert list(layout.memory) == [0, 0, 0]


@pytest.mark.rule("3-layout")
def test_a_layout_that_something_may_still_reach_is_not_returned(prepared):
    layout = take_layout()
    Instance(prepared, layout=layout, drain=lambda: False).close()
    layout.launched = 7
    assert take_layout() is not layout
    assert STATES.pop(ctypes.addressof(layout)).layout is layout


def test_compiled_functions_need_a_layout(prepared):
    with pytest.raises(InternalError, match="needs a session layout"):
        Instance(prepared)


def test_a_compiled_function_of_other_parameters_is_refused():
    engine = Engine.shared(EngineConfig(slots=64))
    body = HostFunction("h", "f", ("i64",), (), print)
    with pytest.raises(InternalError, match=r"compiled h\.f has other parameters"):
        Linker(engine, [body], native={("h", "f"): Entry(1, ("i32",))})
