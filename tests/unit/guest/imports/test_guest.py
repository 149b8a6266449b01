"""A real guest launches a kernel by itself."""

import struct

import pytest
from wasmtime import wat2wasm

from fakes.argv import encode_argv
from fakes.device import FakeDevice
from strategies.kernels import FILL, FOREVER
from tensorwasm.errors import DeviceLost, InvokeTimeout, KernelFault, UnknownImport
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.limits.accounts import MemoryLedger, MemoryLedgerStatistics
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.opening import open_device
from tensorwasm.gpu.session import Session
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.imports import CudaService, OutputStream, host_functions
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.values import Deadline

RESULT_AT, ANSWER = 1024, 42
PAGE = 1 << 16


def string(data):
    return "".join(f"\\{byte:02x}" for byte in data)


def guest(text, entry, *args):
    """Return a module that launches the kernel once, or answers the first code, and then reads what it wrote."""
    argv = encode_argv(args)
    return bytes(
        wat2wasm(f"""(module
      (import "wasi:cuda/host@0.2.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
      (import "wasi:cuda/host@0.2.0" "wasi_cuda_launch"
        (func $launch (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
      (import "wasi:cuda/host@0.2.0" "wasi_cuda_alloc" (func $alloc (param i32 i32) (result i64)))
      (import "wasi:cuda/host@0.2.0" "wasi_cuda_memcpy_d2h" (func $read (param i32 i32 i32 i32) (result i32)))
      (import "wasi:scheduler/host@0.1.0" "yield" (func $yield (result i32)))
      (import "wasi:tensor/host" "emit-chunk" (func $emit (param i32 i32) (result i32)))
      (memory (export "memory") 1 4)
      (data (i32.const 256) "{string(entry)}")
      (data (i32.const 512) "{string(argv)}")
      (data (i32.const 4096) "{string(text)}")
      (global $kernel (mut i64) (i64.const 0))
      (func (export "load") (result i64)
        (global.set $kernel
          (call $load (i32.const 4096) (i32.const {len(text)}) (i32.const 256) (i32.const {len(entry)})))
        (global.get $kernel))
      (func (export "alloc") (result i64) (call $alloc (i32.const 4) (i32.const 0)))
      (func (export "grow") (result i32) (memory.grow (i32.const 1)))
      (func (export "read") (result i32)
        (call $read (i32.const {RESULT_AT}) (i32.const 1) (i32.const 0) (i32.const 4)))
      (func (export "launch") (result i32)
        (call $launch (global.get $kernel) (i32.const 1) (i32.const 1) (i32.const 1)
          (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 512) (i32.const {len(argv)})))
      (func (export "result") (result i32) (i32.load (i32.const {RESULT_AT})))
      (func (export "emit") (result i32) (i32.add (call $yield) (call $emit (i32.const 256) (i32.const 4)))))""")
    )


@pytest.fixture(scope="module")
def prepare():
    engine = Engine.shared(EngineConfig(slots=8))
    linker = Linker(engine, host_functions())
    return lambda wasm: linker.prepare(compile_module(engine, wasm))


@pytest.fixture
def spawn(prepare):
    """Return a function: device, module and services to an instance; all are closed, and nothing may be left."""
    closers, ledger = [], MemoryLedger()

    def make(device, wasm, **services):
        session = Session(device, ledger=ledger, gate=Gate())
        instance = Instance(prepare(wasm), services={"cuda": CudaService(session), **services})
        closers.append((session, instance))
        return instance

    yield make
    for session, instance in closers:
        session.close()
        instance.close()
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)


@pytest.fixture
def emulator():
    device, _ = open_device("emulator")
    yield device
    left = device.statistics()
    assert (left.allocations, left.registrations, left.modules, left.streams) == (0, 0, 0, 0)
    device.close()


def word(value):
    return NumberArg("u32", struct.pack("<I", value))


def test_a_kernel_writes_into_the_guests_memory(emulator, spawn):
    instance = spawn(emulator, guest(FILL, b"fill", WindowArg(RESULT_AT, 4), word(ANSWER)))
    assert instance.call("load")[0] > 0
    assert instance.call("launch") == [0]
    assert instance.call("result") == [ANSWER]


def test_a_kernel_writes_into_a_device_buffer(emulator, spawn):
    instance = spawn(emulator, guest(FILL, b"fill", BufferOffset(1, 0), word(ANSWER)))
    assert instance.call("load")[0] > 0
    assert instance.call("launch") == [-11]
    assert instance.call("alloc") == [1]
    assert instance.call("launch") == [0]
    assert instance.call("result") == [0]
    assert instance.call("read") == [0]
    assert instance.call("result") == [ANSWER]


def test_a_window_may_lie_in_memory_that_grew_since(emulator, spawn):
    instance = spawn(emulator, guest(FILL, b"fill", WindowArg(PAGE - 4, 8), word(ANSWER)))
    instance.call("load")
    assert instance.call("launch") == [-2]
    assert instance.call("grow") == [1]
    assert instance.call("launch") == [0]
    assert instance.call("grow") == [2]
    assert instance.call("launch") == [0]
    assert instance.memory.read(PAGE - 4, 4) == struct.pack("<I", ANSWER)


def test_a_kernel_that_never_ends_ends_at_the_deadline(emulator, spawn):
    instance = spawn(emulator, guest(FOREVER, b"forever"))
    instance.call("load")
    with pytest.raises(InvokeTimeout):
        instance.call("launch", deadline=Deadline.after(0.2))
    assert instance.call("launch") == [-7]


@pytest.mark.parametrize("error", [InvokeTimeout("late"), DeviceLost("gone"), KeyboardInterrupt()])
def test_an_error_that_ends_a_call_reaches_its_caller_unchanged(spawn, error):
    device = FakeDevice()
    instance = spawn(device, guest(FOREVER, b"forever"))
    instance.call("load")
    device.failures["synchronize"] = error
    with pytest.raises(type(error)) as caught:
        instance.call("launch")
    assert caught.value is error


def test_a_fault_is_a_code(spawn):
    device = FakeDevice()
    instance = spawn(device, guest(FOREVER, b"forever"))
    instance.call("load")
    device.failures["launch"] = KernelFault("thread 0")
    assert instance.call("launch") == [-5]


def test_the_other_interfaces_are_linked(spawn):
    class Sink:
        chunks = ()

        def send(self, chunk):
            self.chunks += (chunk,)
            return True

    sink = Sink()
    instance = spawn(FakeDevice(), guest(FILL, b"fill"), stream=OutputStream(sink))
    assert instance.call("emit", deadline=Deadline.after(60)) == [0]
    assert sink.chunks == (b"fill",)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
@pytest.mark.parametrize("name", ["stream_create", "event_create"])
def test_a_newer_function_is_not_in_an_older_version(prepare, version, name):
    field = f"wasi_cuda_{name}"
    module = '(module (import "wasi:cuda/host@{}" "{}" (func (result i64))))'
    with pytest.raises(UnknownImport, match=f"@{version}.{field}, which does not exist in that interface"):
        prepare(bytes(wat2wasm(module.format(version, field))))
    prepare(bytes(wat2wasm(module.format("0.3.0", field))))
