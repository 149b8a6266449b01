"""An emulator with everything that a test of one kernel needs around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorwasm.errors import InvokeTimeout, KernelFault
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, Deadline, Dim3, LaunchConfig, Region

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
REGISTERS = (
    ".reg .b16 %h<10>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .f32 %f<10>; .reg .f64 %fd<10>; .reg .pred %p<10>;"
)


def kernel(body: str, params: int = 1, before: str = "", directives: str = "") -> str:
    """Return a module with one entry ``k``; parameters ``p0``, ``p1``, ... are addresses; ``%r0`` is ``%tid.x``."""
    listed = ", ".join(f".param .u64 p{index}" for index in range(params))
    return (
        f"{HEAD}{before}\n.visible .entry k({listed}) {directives}\n{{\n{REGISTERS}\nmov.u32 %r0, %tid.x;\n"
        f"{body}\nret;\n}}\n"
    )


def store_result(register: str = "%r1") -> str:
    """Return the code that stores a 32-bit register at ``p0``, at the thread's index in the grid."""
    return (
        "mov.u32 %r18, %ctaid.x; mov.u32 %r19, %ntid.x; mad.lo.u32 %r18, %r18, %r19, %r0;\n"
        f"ld.param.u64 %rd19, [p0]; mad.wide.u32 %rd19, %r18, 4, %rd19; st.global.b32 [%rd19], {register};"
    )


class Emulation:
    """A device with one stream; buffers are uint32 arrays."""

    def __init__(self, **options) -> None:
        self.device = EmulatorDevice(**options)
        self.stream = self.device.open_stream()

    def buffer(self, values: Sequence[int] | np.ndarray) -> Region:
        """Return new device memory that holds the bytes of an array (uint32 for a list)."""
        data = np.asarray(values, None if isinstance(values, np.ndarray) else np.uint32)
        region = Region(self.device.allocate(data.nbytes), data.nbytes, host=False)
        self.device.write(region.address, data.tobytes(), self.stream)
        return region

    def read(self, region: Region, dtype=np.uint32) -> np.ndarray:
        """Return what a buffer holds."""
        into = bytearray(region.size_bytes)
        self.device.read(region.address, memoryview(into), self.stream)
        return np.frombuffer(bytes(into), dtype)

    def launch(
        self,
        text: str,
        *regions: Region,
        grid: Dim3 = (1, 1, 1),
        block: Dim3 = (32, 1, 1),
        shared_bytes: int = 0,
        seconds: float = 20.0,
        args: Sequence[bytes] | None = None,
    ) -> None:
        """Load a module, launch its entry ``k`` on buffers, wait for it, unload it."""
        loaded = self.device.load(parse(text), NEVER)
        packed = [region.address.to_bytes(8, "little") for region in regions] if args is None else args
        deadline = Deadline.after(seconds)
        try:
            config = LaunchConfig(grid, block, shared_bytes)
            self.device.launch(loaded, "k", config, packed, regions, self.stream, deadline)
            self.device.synchronize(self.stream, deadline)
        except (KernelFault, InvokeTimeout):
            self.device.close_stream(self.stream)  # it has failed for good
            self.stream = self.device.open_stream()
            raise
        finally:
            self.device.unload(loaded)

    def run(self, text: str, count: int, *more: Region, **options) -> np.ndarray:
        """Launch on a new buffer of ``count`` uint32 and return what it holds then."""
        region = self.buffer(np.zeros(count, np.uint32))
        self.launch(text, region, *more, **options)
        found = self.read(region)
        self.device.free(region.address)
        return found

    def fault(self, text: str, *regions: Region, **options) -> str:
        """Launch, expect a fault and return its message."""
        try:
            self.launch(text, *regions, **options)
        except KernelFault as error:
            return error.message
        raise AssertionError("the kernel did not fault")
