"""Good and bad use, over and over: descriptors, threads, mappings and memory stay where they were."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from oracles.guest import typed_error_of
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.guest.sandbox.state import STATES
from tensorwasm.guest.sandbox.wasi import WasiConfig
from tensorwasm.values import Deadline

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

WAT = """(module (import "h" "f" (func $f (param i32)))
  (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
  (memory (export "memory") 4) (table 100 funcref)
  (func (export "good") (param i64) (result i64) (drop (call $yield)) (call $f (i32.const 0)) (local.get 0))
  (func (export "raise") (call $f (i32.const 1)))
  (func (export "trap") unreachable)
  (func (export "deep") (call 4))
  (func (export "spin") (loop (br 0)))
  (func (export "grow") (loop (br_if 0 (i32.ne (memory.grow (i32.const 64)) (i32.const -1))))
    (memory.fill (i32.const 0) (i32.const 1) (i32.const 1000000))))"""


def cycle(engine, wasm: bytes) -> None:
    linker = Linker(engine, [HostFunction("h", "f", ("i32",), (), lambda _call, number: 1 // (1 - number))])
    prepared = linker.prepare(compile_module(engine, wasm))
    calls = [
        ("good", [1]),
        ("good", ["x"]),
        ("good", []),
        *((name, []) for name in ("raise", "trap", "deep", "grow", "no")),
    ]
    with Instance(prepared, wasi_config=WasiConfig(args=("a",), stdin=b"b")) as instance:
        for name, args in calls:
            typed_error_of(instance.call, name, args)
        typed_error_of(instance.call, "spin", deadline=Deadline.after(0.001))
        instance.cancel()
        typed_error_of(instance.call, "good", [1])
    for bad in (b"", wasm[:-3], wasm[:60], b"\0asm\1\0\0\0\5\3\1\0\xff"):
        typed_error_of(compile_module, engine, bad)
    typed_error_of(Linker(engine).prepare, compile_module(engine, wasm))


def measure() -> dict[str, int]:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "mappings": Path("/proc/self/maps").read_bytes().count(b"\n"),
        "resident_kib": int(status.split("VmRSS:")[1].split()[0]),
        "sandboxes": len(STATES),
    }


def round_of(engine, wasm) -> dict[str, int]:
    """Return what 50 cycles have added."""
    before = measure()
    for _ in range(50):
        cycle(engine, wasm)
    return {name: count - before[name] for name, count in measure().items()}


def test_50_cycles_leave_everything_where_it_was(wat):
    engine = Engine.shared(EngineConfig(slots=8))
    wasm = wat(WAT)
    for _ in range(50):  # a pool keeps the mappings of each slot it has ever used
        cycle(engine, wasm)
    rounds = [round_of(engine, wasm) for _ in range(3)]
    assert engine.free_slots == 8
    # What a cycle leaves is left in every round; what other tests let the process have comes once.
    least = {name: min(grown[name] for grown in rounds) for name in rounds[0]}
    assert least["sandboxes"] <= 0
    assert least["descriptors"] <= 0
    assert least["threads"] <= 2  # a tick is a short-lived thread of the C library's
    assert least["mappings"] <= 16
    assert least["resident_kib"] <= 4096
