"""What every way to run a guest does alike: pooled sandboxes, without compiled code, with a GPU, as fibers, on a loop.

What one way alone does is tested in `test_one_shot`, `test_one_shot_fiber`, `test_submit` and `test_invoke_async`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from wasmtime import wat2wasm

from neighbours import until
from tensorwasm import Runtime, settings
from tensorwasm.errors import GuestTrap, InternalError, InvalidArgs, InvokeTimeout, MissingExport
from tensorwasm.guest.native import session_layouts
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.guest.sandbox import linker, oneshot
from tensorwasm.guest.sandbox.oneshot_fiber import OneShotFiber
from tensorwasm.guest.sandbox.state import STATES
from tensorwasm.runtime.invoke.one_shot import MAX_IDLE, FiberPlan, OneShotPlan, PooledSandbox
from tensorwasm.values import Deadline, Limits

pytest.importorskip("numba")

SOON_S = 60.0
WAT = """(module
 (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
 (import "wasi:tensor/host@0.1.0" "read-input" (func $read (param i32 i32) (result i32)))
 (import "wasi:cuda/host@0.3.0" "wasi_cuda_sync" (func $sync (result i32)))
 (memory (export "memory") 1 8) (global $count (mut i32) (i32.const 0))
 (func (export "twice") (param i64) (result i64) (i64.mul (local.get 0) (i64.const 2)))
 (func (export "both") (param f32 i32) (result i32 f32) (local.get 1) (local.get 0))
 (func (export "residue") (result i32)
  (global.set $count (i32.add (global.get $count) (i32.const 1)))
  (i32.store (i32.const 40000) (i32.add (i32.load (i32.const 40000)) (i32.const 1)))
  (drop (memory.grow (i32.const 1)))
  (i32.add (i32.add (global.get $count) (i32.load (i32.const 40000))) (memory.size)))
 (func (export "echo") (result i32) (call $emit (i32.const 0) (call $read (i32.const 0) (i32.const 64))))
 (func (export "nothing"))
 (func (export "trap") unreachable)
 (func $deep (export "deep") (call $deep))
 (func (export "spin") (loop (br 0))))"""


def invoke(function: Any, export: str, args: Any = (), **options: Any) -> Any:
    return function.invoke(export, args, **options)


def submit(function: Any, export: str, args: Any = (), **options: Any) -> Any:
    return function.submit(export, args, **options).result(SOON_S)


def await_(function: Any, export: str, args: Any = (), **options: Any) -> Any:
    return asyncio.run(function.invoke_async(export, args, **options))


@dataclass(frozen=True)
class Mode:
    """One way to run guests.

    Attributes:
        plans: where a function keeps idle sandboxes; empty if each call has a sandbox of its own.
        compiled: whether compiled code runs the guest.
    """

    name: str
    run: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    plans: str = ""
    compiled: bool = True

    def call(self, function: Any, export: str, args: Any = (), **options: Any) -> Any:
        return self.run(function, export, args, **self.options, **options)

    def idle(self, function: Any) -> list[Any]:
        plans = getattr(function.dispatch, self.plans).values() if self.plans else ()
        return [sandbox for plan in plans for sandbox in plan._idle]


GPU = {"grants": {"cuda"}, "memory_kind": "staged"}
MODES = [
    Mode("pooled", invoke, plans="plans"),
    Mode("pooled-python", invoke, plans="plans", compiled=False),
    Mode("pooled-gpu", invoke, GPU, plans="plans"),
    Mode("whole", invoke, {"grants": {"cuda"}, "memory_kind": "pinned"}),
    Mode("fiber", submit, plans="fiber_plans"),
    Mode("loop", await_, plans="fiber_plans"),
]


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: mode.name)
def mode(request):
    if request.param.run is not invoke and not may_have_fibers():
        pytest.skip("NO FIBERS: they need Linux and Numba")
    return request.param


@pytest.fixture(scope="module")
def runtime(mode):
    """One runtime for each mode; a test has a function of its own."""
    changed = dataclasses.replace(settings.current(), native="on" if mode.compiled else "off")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "current", lambda: changed)
        if not mode.compiled:
            for module in (linker, oneshot):
                patch.setattr(module, "load_oneshot", lambda: None)
        with Runtime("emulator") as runtime:
            runtime.load(bytes(wat2wasm(WAT))).invoke("nothing", **GPU)  # compiled code is loaded from now on
            yield runtime


@pytest.fixture
def function(runtime):
    return runtime.load(bytes(wat2wasm(WAT)), "guest")


def settled(mode, function) -> int:
    """Return the free slots of the engine, once the last guest has left."""
    assert mode.call(function, "twice", [1]).values == (2,)
    return function.engine.free_slots


def test_results_are_those_of_the_guest(mode, function):
    for _ in range(3):
        assert mode.call(function, "twice", [-(1 << 62)]).values == (-(1 << 63),)
        assert mode.call(function, "twice", [(1 << 64) - 1]).values == (-2,)
        assert mode.call(function, "twice", ["0x10"]).values == (32,)
        assert mode.call(function, "both", [1.5, -7]).values == (-7, 1.5)
        done = mode.call(function, "nothing")
        assert (done.export, done.values, done.result_types, done.exit_code) == ("nothing", (), (), 0)
        assert (done.stdout, done.chunks) == (b"", ())
        assert (done.gpu is None) is ("grants" not in mode.options)
    until(lambda: len(mode.idle(function)) == (3 if mode.plans else 0))  # a reactor gives its fiber back afterwards


@pytest.mark.rule("4-memory")
def test_a_guest_finds_nothing_of_an_earlier_guest(mode, function):
    assert {mode.call(function, "residue").values for _ in range(20)} == {(1 + 1 + 2,)}
    until(lambda: len(mode.idle(function)) == (1 if mode.plans else 0))


def test_input_and_chunks_belong_to_their_call(mode, function):
    for data in (b"one", b"three"):
        assert mode.call(function, "echo", input=data).chunks == (data,)
    assert mode.call(function, "echo", input=b"").chunks == mode.call(function, "echo").chunks == ()
    heard: list[bytes] = []
    mode.call(function, "echo", input=b"x", on_chunk=lambda chunk: heard.append(chunk) or True)
    assert heard == [b"x"]

    def fail(_chunk: bytes) -> bool:
        raise ValueError

    with pytest.raises(InternalError):
        mode.call(function, "echo", input=b"four", on_chunk=fail)


@pytest.mark.parametrize(
    ("export", "args", "error"),
    [
        ("trap", (), GuestTrap),
        ("deep", (), GuestTrap),
        ("twice", ("x",), InvalidArgs),
        ("twice", (), InvalidArgs),
        ("twice", (True,), InvalidArgs),
        ("twice", (1 << 64,), InvalidArgs),
        ("both", (1, "x"), InvalidArgs),
        ("no", (), MissingExport),
        ("memory", (), MissingExport),
    ],
)
def test_failures_have_their_error_and_leave_the_sandbox_usable(mode, function, export, args, error):
    slots, states = settled(mode, function), len(STATES) - len(mode.idle(function))
    for _ in range(3):
        with pytest.raises(error):
            mode.call(function, export, args)
        assert mode.call(function, "twice", [4]).values == (8,)
    assert settled(mode, function) == slots
    # Other tests' may have gone meanwhile, and the reactor gives a sandbox back after its call has ended.
    until(lambda: len(STATES) <= states + len(mode.idle(function)))


def test_an_endless_guest_ends_at_its_deadline_and_the_next_has_its_own(mode, function):
    with pytest.raises(InvokeTimeout):
        mode.call(function, "spin", deadline=Deadline.after(0.05))
    late = "before the sandbox was made" if mode.run is invoke else "before the guest finished"
    with pytest.raises(InvokeTimeout, match=late):
        mode.call(function, "nothing", deadline=Deadline.after(-1))
    assert mode.call(function, "nothing").values == ()


def test_limits_are_those_of_the_function(mode, runtime):
    tight = runtime.load(bytes(wat2wasm(WAT)), limits=Limits(memory_bytes=1 << 16, wall_s=0.05))
    assert mode.call(tight, "residue").values == (1 + 1 + 1,)
    with pytest.raises(InvokeTimeout):
        mode.call(tight, "spin")


def figures(function) -> dict[str, int]:
    gc.collect()
    reactor = function.host.fibers._reactor
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "mappings": Path("/proc/self/maps").read_bytes().count(b"\n"),
        "states": len(STATES),
        "pads": len(session_layouts._free) + len(session_layouts._bare),
        "places": sum(
            isinstance(each, (PooledSandbox, OneShotPlan, OneShotFiber, FiberPlan)) for each in gc.get_objects()
        ),
        "tasks": len(reactor._tasks) if reactor else 0,
    }


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_six_hundred_guests_leave_nothing(mode, function):
    def run(count: int) -> None:
        for _ in range(count):
            assert mode.call(function, "residue").values == (4,)
            with pytest.raises(GuestTrap):
                mode.call(function, "trap")

    run(20)
    before = figures(function)
    run(300)
    settled(mode, function)
    # What each guest left would be there six hundred times; a few are other tests' and the allocator's.
    assert {name: count for name, count in figures(function).items() if count > before[name] + MAX_IDLE + 16} == {}
