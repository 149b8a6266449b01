"""The clock of a GPU: what kernels read as ``%globaltimer``, beyond the host's monotonic clock.

A kernel of our own writes it to memory of the host, which looks at its clock before and after. The two clocks drift
apart by some microseconds a second, so this is done again from time to time, unless the GPU is too full for it.

Source: PTX ISA 10, "Special Registers": %globaltimer; CUDA Driver API, "Memory Management": cuMemHostRegister.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from functools import partial
from typing import Any, Final

from tensorwasm import ptx
from tensorwasm.errors import DeviceUnavailable
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.modules import CudaModule, PtxCompiler
from tensorwasm.gpu.memory import pages
from tensorwasm.values import NEVER, Deadline

_ENTRY: Final = "read_timer"
_TEXT: Final = f"""
.version 6.4
.target sm_75
.address_size 64
.visible .entry {_ENTRY}(.param .u64 at)
{{
    .reg .b64 %d<2>;
    ld.param.u64 %d0, [at];
    mov.u64 %d1, %globaltimer;
    st.volatile.global.u64 [%d0], %d1;
    ret;
}}
"""
_PROBES: Final = 5
_FIRST_LIMIT_NS: Final = 1_000_000_000
"""How long the first answer is waited for."""
_LIMIT_NS: Final = 200_000
_KEPT_NS: Final = 60_000_000_000
"""How long an answer counts: meanwhile clocks that differ by 20 parts in a million drift apart by 1.2 ms."""


class DeviceClock:
    """Compares the clock of a device with the monotonic one. Safe from any thread."""

    def __init__(self, core: Core, compiler: PtxCompiler) -> None:
        self._core = core
        self._compiler = compiler
        self._lock = threading.Lock()
        self._module: CudaModule | None = None
        self._word = 0
        self._offset_ns: int | None = None
        self._until_ns = 0

    def offset_ns(self) -> int:
        """Return the difference, from the last comparison if that is not old.

        The first call loads a kernel, which waits for all kernels that run.

        Raises:
            DeviceUnavailable: the GPU did not come to the first comparison within a second.
        """
        if time.monotonic_ns() < self._until_ns and self._offset_ns is not None:
            return self._offset_ns
        with self._lock, self._core.calling:
            found = self._compare(_FIRST_LIMIT_NS if self._offset_ns is None else _LIMIT_NS)
            if found is not None:
                self._offset_ns = found
            elif self._offset_ns is None:
                raise DeviceUnavailable("the GPU is too busy to tell its time")
            self._until_ns = time.monotonic_ns() + _KEPT_NS
            return self._offset_ns

    def forget(self) -> None:
        """Forget the kernel, which went with a context that was reset."""
        self._module, self._word, self._until_ns = None, 0, 0

    def release(self) -> None:
        """Give everything back. The context must be bound."""
        if self._module is not None:
            module, self._module = self._module, None
            self._core.release("cuModuleUnload", module.handle)
        if self._word:
            self._core.release("cuMemHostUnregister", self._word)
            pages.give_back(self._word)
            self._word = 0

    def _compare(self, limit_ns: int) -> int | None:
        """Return the offset of the comparison that took least time; None if none ended in time."""
        if self._module is None:
            module = ptx.parse(_TEXT)
            image = self._compiler.compile(module, NEVER)
            self._module = CudaModule(self._compiler.load(image), partial(ptx.signature, module))
        driver = self._core.driver
        if not self._word:
            word = pages.acquire(pages.PAGE_BYTES)
            flags = driver.api.CU_MEMHOSTREGISTER_PORTABLE | driver.api.CU_MEMHOSTREGISTER_DEVICEMAP
            driver.call("cuMemHostRegister", word, pages.PAGE_BYTES, flags)
            self._word = word
        kernel = self._module.kernel(driver, _ENTRY, NEVER)
        address, _values = kernel.pack([struct.pack("<Q", self._word)])
        stream = self._core.streams.own("timing")
        launch = "cuLaunchKernel", kernel.handle, 1, 1, 1, 1, 1, 1, 0, stream.handle, address, 0
        found = []
        for _ in range(_PROBES):
            probe = self._probe(launch, ctypes.c_uint64.from_address(self._word), limit_ns)
            if probe is None:
                break
            found.append(probe)
        return min(found)[1] if found else None

    def _probe(self, launch: tuple[Any, ...], word: ctypes.c_uint64, limit_ns: int) -> tuple[int, int] | None:
        """Return how long one comparison took and the offset, None past the limit."""
        streams = self._core.streams
        if not streams.wait(streams.own("timing"), Deadline.after(0)):
            return None  # an earlier kernel has not begun, and would answer in this one's place
        word.value = 0
        before_ns = time.monotonic_ns()
        self._core.driver.call(*launch)
        after_ns = before_ns
        while not word.value:
            after_ns = time.monotonic_ns()
            if after_ns - before_ns > limit_ns:
                return None
        after_ns = time.monotonic_ns()
        return after_ns - before_ns, word.value - (before_ns + after_ns) // 2
