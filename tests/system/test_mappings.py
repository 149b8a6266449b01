"""What happens when the kernel has no mappings left, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

LIMIT = Path("/proc/sys/vm/max_map_count")
CROWDED = """
import ctypes, mmap, sys, threading
sys.path.insert(0, {tests!r})
from wasmtime import wat2wasm
from fakes.fibers import FakeJob, FakeStream
from tensorwasm.errors import CapacityExhausted
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.reactor.reactor import Reactor
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.guest.native.compiled import make_suspension_code as make_code

code, stream, engine = make_code(), FakeStream(), Engine(EngineConfig(slots=64, fibers=True))
text = '(module (import "host" "wait" (func $w (param i32) (result i32))) (memory (export "memory") 1)'
text += ' (table 3 funcref) (func (export "go") (result i32) (call $w (i32.const 1))))'
prepared = Linker(engine, (stream.function(),), code=code).prepare(compile_module(engine, bytes(wat2wasm(text))))
reactor = Reactor(code)
limit, used = {limit}, open("/proc/self/maps", "rb").read().count(b"\\n")
pairs = (limit - used - {left}) // 2
protect = ctypes.CDLL(None).mprotect
room = mmap.mmap(-1, 4096 * 2 * (pairs + 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(room))
for pair in range(pairs):
    assert not protect(ctypes.c_void_p(start + 8192 * pair + 4096), ctypes.c_size_t(4096), 1)
jobs = [FakeJob(prepared) for _ in range(30)]
for job in jobs:
    reactor.spawn(job)
while len(stream.waiting) + sum(job.future.done() for job in jobs) < len(jobs):
    threading.Event().wait(0.01)
stream.end_work()
errors = [job.future.exception(20) for job in jobs]
refused, good = sum(isinstance(error, CapacityExhausted) for error in errors), errors.count(None)
reactor.close()
print(refused, good, engine.free_slots)
"""


@pytest.mark.skipif(not LIMIT.exists(), reason="the limit is Linux's own")
def test_guests_beyond_the_mapping_limit_get_a_typed_error_and_the_others_go_on():
    limit = int(LIMIT.read_text())
    if limit > 1 << 17:
        pytest.skip(f"vm.max_map_count is {limit}: using them all up takes too long")
    script = CROWDED.format(tests=str(Path(__file__).parents[1]), limit=limit, left=40)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    refused, good, free = map(int, ended.stdout.split())
    assert refused + good == 30
    assert 0 < good < 30
    assert free == 64
