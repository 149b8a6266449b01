"""Fifty rounds of everything that can go wrong leave the process as it was."""

import gc
import os
import re
import struct
import sys
import threading
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from conformance.puppet import PAGES, Puppet
from fakes.argv import encode_argv
from strategies.kernels import VECTOR_ADD
from tensorwasm import Limits, Runtime
from tensorwasm.errors import TensorWasmError
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.opening import open_device
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.values import Deadline

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts what /proc shows; Linux only")

# The first operand's address leaves its window by a gigabyte, in the kernel, where no argument check can see it.
WILD = re.sub(rb"cvta.to.global.u64(.*%rd1);", rb"add.u64\1, 1073741824;", VECTOR_ADD)
BAD_MODULES = (
    b"",
    b"garbage",
    bytes(wat2wasm("(module)"))[:-1] + b"\xff",
    bytes(wat2wasm("(module (memory 65536))")),
    bytes(wat2wasm('(module (import "env" "x" (func)))')),
    bytes(65 << 20),
)
CALLS = (
    ('(module (func (export "main") unreachable))', ()),
    ('(module (func (export "main") (call 0)))', ()),
    ('(module (func (export "main") (param i32)))', ("text",)),
    ('(module (func $f (loop (br 0))) (start $f) (func (export "main")))', ()),
    ('(module (memory 1) (func (export "main") (loop (drop (memory.grow (i32.const 16))) (br 0))))', ()),
    ('(module (memory 1) (func (export "main") (result i32) (i32.load (i32.const -4))))', ()),
)


def refused(action):
    """Run what must fail with one of our errors."""
    with pytest.raises(TensorWasmError):
        action()


def misuse_the_runtime(runtime, functions):
    for wasm in BAD_MODULES:
        refused(lambda wasm=wasm: runtime.load(wasm))
    for function, args in functions:
        refused(lambda function=function, args=args: function.invoke(args=args, deadline=Deadline.after(0.01)))


def misuse_the_gpu(device):
    number = NumberArg("u32", struct.pack("<I", 64))
    heap = NumberArg("u64", struct.pack("<Q", id(number) & ~7))
    window = WindowArg(4096, 256)
    with Puppet(device) as puppet:
        for text in (b"{" * 100_000, VECTOR_ADD[:500], b"\0", VECTOR_ADD.replace(b"add", b"bad")):
            assert puppet.load(text, b"vector_add") < 0
        kernel = puppet.load(VECTOR_ADD, b"vector_add")
        handle = puppet.alloc(1 << 20, 0)
        good = (window, window, BufferOffset(handle, 0), number)
        assert puppet.start(kernel, encode_argv(good), (2, 1, 1)) == 0
        for bad in ((), (heap, *good[1:]), (*good, number), (WindowArg(PAGES << 16, 4), *good[1:])):
            assert puppet.start(kernel, encode_argv(bad)) < 0
        assert puppet.start(kernel, encode_argv(good), (0, 1, 1)) == -8
        wild = puppet.load(WILD, b"vector_add")
        assert wild > 0
        assert puppet.start(wild, encode_argv(good), (2, 1, 1)) == -5, "the emulator must catch it"
        assert puppet.sync() == -7


def vital_signs():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "tasks": len(list(Path("/proc/self/task").iterdir())),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "resident_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }


def test_fifty_rounds_of_misuse_leave_nothing_behind():
    device, _ = open_device("emulator")
    with Runtime(limits=Limits(wall_s=5)) as runtime:
        functions = [(runtime.load(wat2wasm(text)), args) for text, args in CALLS]

        def cycle():
            misuse_the_runtime(runtime, functions)
            misuse_the_gpu(device)

        for _ in range(10):
            cycle()
        before = vital_signs()
        for _ in range(50):
            cycle()
        after = vital_signs()
    assert device.statistics().allocations == 0
    assert device.statistics().modules == 0
    assert device.statistics().registrations == 0
    device.close()
    assert after["descriptors"] <= before["descriptors"]
    assert after["threads"] <= before["threads"]
    assert after["tasks"] <= before["tasks"] + 2  # a timer's thread may be alive at the moment of counting
    assert after["mappings"] <= before["mappings"] + 8
    assert after["resident_bytes"] <= before["resident_bytes"] + (8 << 20)
