"""Devices with a tenant each, and sessions on them used as a guest and as compiled code would."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace

from tensorwasm.gpu.device.arguments import BufferOffset, Scalar
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout import BUFFER_ROWS, DriverTable, KernelHead, SessionLayout
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import NEVER, LaunchConfig

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))


class World:
    """Devices that know nothing of each other, with a tenant each."""

    def __init__(self, make=EmulatorDevice, devices=1, cap_bytes=1 << 30) -> None:
        self.devices = [make() for _ in range(devices)]
        self.gate = Gate(4)
        self.accounts, self.shared = [], []
        for device in self.devices:
            accounts = Accounts(MemoryLedger())
            self.accounts.append(accounts.register("tenant", cap_bytes, cap_bytes))
            self.shared.append(SharedDevice(device, accounts, self.gate))

    def open(self, which=0, *, layout=False, limits=None, **options):
        layout = SessionLayout() if layout else None
        return self.shared[which].open_session("tenant", limits, layout=layout, **options)

    def charged(self, which=0):
        account = self.accounts[which].statistics()
        return account.device_bytes, account.allocations, account.pinned_bytes

    def close(self) -> None:
        for which, (device, shared) in enumerate(zip(self.devices, self.shared, strict=True)):
            assert self.charged(which)[1:] == (0, 0)
            shared.close()
            held = device.statistics()
            assert replace(held, launches=0) == type(held)()
            device.close()
        assert self.gate.in_use == 0


def word(value):
    """Return an argument."""
    return Scalar(struct.pack("<I", value))


def read(session, handle, size):
    into = bytearray(size)
    session.buffers.read(handle, memoryview(into), NEVER)
    return bytes(into)


def fill(session, kernel, handle, value, offset=0):
    session.kernels.launch(kernel, ONE, lambda: [BufferOffset(handle, offset), word(value)], None, NEVER)


def launch_compiled(device, layout, kernel, handle, offset, scalars) -> bool:
    """Do what compiled code does: find everything on the layout, give the work to the own stream, count it."""
    stream, buffer = layout.streams[0], layout.buffers[handle % BUFFER_ROWS]
    row = layout.kernels[kernel % len(layout.kernels)]
    if not (layout.armed and layout.placed and stream.stream and buffer.handle == handle and row.id == kernel):
        return False
    head, driver = KernelHead.from_address(row.head), DriverTable.from_address(layout.driver)
    numbers = [ctypes.c_uint64(buffer.address + offset), *(ctypes.c_uint32(value) for value in scalars)]
    assert head.param_count == len(numbers)
    places = (ctypes.c_void_p * len(numbers))(*map(ctypes.addressof, numbers))
    kinds = ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3
    with device.native.bound():
        launch = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(driver.launch_kernel)
        assert launch(head.function, 1, 1, 1, 1, 1, 1, 0, stream.stream, ctypes.addressof(places), None) == 0
    stream.pending += 1
    layout.pending += 1
    layout.launched += 1
    return True
