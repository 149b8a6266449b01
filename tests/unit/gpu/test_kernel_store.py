"""Guarded kernels that are kept compiled: the next process neither guards nor compiles them again."""

from __future__ import annotations

import struct

import pytest

from fakes.emulation import kernel, store_result
from tensorwasm.artifacts.keys import HmacKey
from tensorwasm.gpu.device.admission import CompiledKernel
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.device.limits import GIB, SessionLimits
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.resources.guarded_compiler import LocalCompiler
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.ptx import parse, render
from tensorwasm.ptx.guarded import LAUNCH_BYTES, WIDE_LAUNCH_BYTES
from tensorwasm.runtime.deploy.code_files import CodeFolder
from tensorwasm.runtime.deploy.kernel_folder import KernelFolder
from tensorwasm.values import MIB, NEVER, LaunchConfig

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
COUNTER = kernel(
    "ld.global.u32 %r1, [calls]; add.u32 %r1, %r1, 1; st.global.u32 [calls], %r1;\n" + store_result(),
    before=".global .u32 calls = 41;",
).encode()


class ImageDevice(EmulatorDevice):
    """An emulator whose images are the text that it was given."""

    assembler = "a compiler 1.0"
    assembled = 0

    def assemble(self, module, deadline):
        ImageDevice.assembled += 1
        return CompiledKernel(render(module, deadline).encode(), 8, 0, 0)

    def load_image(self, image, signature):
        module = parse(image.decode())
        assert [param.size_bytes for param in signature.params] in ([8, LAUNCH_BYTES], [8, WIDE_LAUNCH_BYTES])
        return self.load(module, NEVER)


class Store(dict):
    """A store in memory."""

    def put(self, name, data):
        assert len(name) == 32
        self[name] = data


@pytest.fixture
def compiled(monkeypatch):
    """Return how many kernels were compiled since the test began."""
    monkeypatch.setattr(ImageDevice, "assembled", 0)
    return lambda: ImageDevice.assembled


def run(store, tenant="ann", text=COUNTER, cap_bytes=64 * MIB):
    """Load and launch a kernel on a device of a new process."""
    accounts = Accounts(MemoryLedger())
    accounts.register(tenant, cap_bytes, 64 * MIB)
    device = ImageDevice()
    with (
        SharedDevice(device, accounts, Gate(4), guarded=True, compiler=LocalCompiler(device, store)) as shared,
        shared.open_session(tenant, SessionLimits(device_bytes=cap_bytes)) as session,
    ):
        own, into = session.buffers.allocate(64), bytearray(4)
        kernel_id = session.kernels.load(text, "k", NEVER)
        for expected in (42, 43):
            session.kernels.launch(kernel_id, ONE, lambda: [BufferOffset(own, 0)], None, NEVER)
            session.buffers.read(own, memoryview(into), NEVER)
            assert struct.unpack("<I", into) == (expected,)
    device.close()


def test_a_kernel_that_is_kept_is_not_compiled_again(compiled):
    store = Store()
    run(store)
    run(store)
    assert (compiled(), len(store)) == (1, 1)


def test_tenants_texts_and_entries_have_kernels_of_their_own(compiled):
    store = Store()
    run(store)
    run(store, "bob")
    run(store, text=COUNTER + b"\n// another text\n")
    assert (compiled(), len(store)) == (3, 3)


def test_kernels_for_larger_windows_are_others(compiled):
    store = Store()
    for _ in range(2):
        run(store)
        run(store, cap_bytes=8 * GIB)
        run(store, cap_bytes=20 * GIB)
    assert (compiled(), len(store)) == (2, 2)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"\x93" + data[1:]])
def test_what_is_no_kernel_is_compiled_again(compiled, damage):
    store = Store()
    run(store)
    for name in store:
        store[name] = damage(store[name])
    run(store)
    run(store)
    assert compiled() == 2


def test_a_kernel_that_was_changed_on_the_disk_is_compiled_again(compiled, tmp_path, caplog):
    folder = CodeFolder(tmp_path, HmacKey(b"k" * 32), 16 * MIB)
    run(KernelFolder(folder))
    run(KernelFolder(folder))
    assert compiled() == 1
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(bytes(data))
    file.chmod(0o400)
    store = KernelFolder(folder)
    run(store)
    run(store)
    assert compiled() == 2
    assert caplog.text.count("is not used") == 1


def test_a_kernel_of_another_machines_key_is_not_used(compiled, tmp_path):
    run(KernelFolder(CodeFolder(tmp_path, HmacKey(b"k" * 32), 16 * MIB)))
    run(KernelFolder(CodeFolder(tmp_path, HmacKey(b"m" * 32), 16 * MIB)))
    assert compiled() == 2
