"""Whatever ends a sandbox, the device lets go of its memory first."""

import ctypes

import pytest
from wasmtime import wat2wasm

from fakes.device import FakeDevice
from tensorwasm import Runtime
from tensorwasm.errors import GuestTrap, InvokeTimeout
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.native.loading import may_have_fibers

PTX = ".version 7.0\\0a.target sm_70\\0a.address_size 64\\0a.visible .entry k(.param .u64 .ptr .global p) { ret; }\\0a"
GUEST = """(module
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_launch"
    (func $launch (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "mark")
  (data (i32.const 16) "k")
  (data (i32.const 32) "\\07\\00\\00\\00\\00\\40\\00\\00\\00")
  (data (i32.const 64) "%s")
  (func $go
    (i32.store (i32.const 0) (i32.const 0x6576696c))
    (call $launch
      (call $load (i32.const 64) (i32.const %d) (i32.const 16) (i32.const 1))
      (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 1)
      (i32.const 0) (i32.const 32) (i32.const 9))
    (if (then unreachable))
    (global.get 0) (if (then unreachable)))
  (func (export "main") (global.set 0 (i32.const 1)) (call $go))
  (global (mut i32) (i32.const 1))
  %s)"""
AT_START = wat2wasm(GUEST % (PTX, len(PTX.replace("\\0a", " ")), "(start $go)"))
IN_CALL = wat2wasm(GUEST % (PTX, len(PTX.replace("\\0a", " ")), ""))


class Witness(FakeDevice):
    """Looks at guest memory at the moment the device lets go of it."""

    seen: bytes = b""
    endless: bool = False

    def synchronize(self, stream, deadline):
        if self.endless:
            raise InvokeTimeout("a kernel that never ends")
        super().synchronize(stream, deadline)

    def unregister(self, address):
        self.seen = ctypes.string_at(address, 4)
        super().unregister(address)


def run(device, wasm, monkeypatch):
    monkeypatch.setattr("tensorwasm.runtime.api.lazy_device.open_device", lambda _choice, **_: (device, "a test"))
    with Runtime(device="emulator") as runtime:
        runtime.load(wasm).invoke("main", grants={"cuda"}, memory_kind="pinned")


@pytest.mark.parametrize("wasm", [AT_START, IN_CALL], ids=["start", "call"])
@pytest.mark.rule("3-registration")
def test_memory_is_unregistered_before_it_goes_back_to_the_pool(wasm, monkeypatch):
    device, free = Witness(), Engine.shared(EngineConfig(fibers=may_have_fibers())).free_slots
    with pytest.raises(GuestTrap):
        run(device, wasm, monkeypatch)
    assert len(device.launched) == 1
    assert device.seen == b"live"  # not "mark", to which a page returns when it goes back
    assert device.broken == []
    assert Engine.shared(EngineConfig(fibers=may_have_fibers())).free_slots == free


@pytest.mark.parametrize("wasm", [AT_START, IN_CALL], ids=["start", "call"])
@pytest.mark.rule("3-memory")
def test_memory_that_a_kernel_may_still_reach_is_never_used_again(wasm, monkeypatch):
    device, free = Witness(), Engine.shared(EngineConfig(fibers=may_have_fibers())).free_slots
    device.endless = True
    with pytest.raises(InvokeTimeout):
        run(device, wasm, monkeypatch)
    assert device.seen == b""
    assert Engine.shared(EngineConfig(fibers=may_have_fibers())).free_slots == free - 1
