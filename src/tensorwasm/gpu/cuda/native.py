"""A GPU for compiled code: `tensorwasm.gpu.device.protocols.Native`.

The addresses are those of the driver's own entry points, asked of the driver itself for the release whose signatures
compiled code knows, and never those with a default stream per thread.

A handle is good for one context: a kernel's for that in which its module was loaded. Another library's reset destroys
the context and all of them, which compiled code cannot see. `CudaNative.bound` does, and raises `DeviceLost`, so it has
to be entered anew each time that a thread is handed over to compiled code.

Source: CUDA Driver API, "Driver Entry Point Access" (cuGetProcAddress), "Execution Control" (cuLaunchHostFunc).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Final

from tensorwasm.errors import DeviceUnavailable
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.driver.calls import SUCCESS, DriverFailure
from tensorwasm.gpu.cuda.modules import LaunchLimits
from tensorwasm.gpu.device.protocols import LoadedModule, NativeKernel, NativeTable, Stream
from tensorwasm.values import Deadline, Region

_RELEASE: Final = 12000
"""The release of CUDA whose signatures compiled code is written for; every driver that is supported has it."""

_LEGACY_STREAM: Final = 1
"""CU_GET_PROC_ADDRESS_LEGACY_STREAM: never the variants with a default stream per thread."""

_FUNCTIONS: Final = {
    "launch_kernel": "cuLaunchKernel",
    "stream_query": "cuStreamQuery",
    "memcpy_htod_async": "cuMemcpyHtoDAsync",
    "memcpy_dtoh_async": "cuMemcpyDtoHAsync",
    "graph_launch": "cuGraphLaunch",
    "launch_host_func": "cuLaunchHostFunc",
    "context_current": "cuCtxGetCurrent",
    "context_id": "cuCtxGetId",
    "context_push": "cuCtxPushCurrent",
    "context_pop": "cuCtxPopCurrent",
    "memset_d8_async": "cuMemsetD8Async",
}

_HostFunc: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class CudaNative:
    """The device for compiled code; see `CudaDevice` for what every method raises."""

    confines = False
    """See `Native.confines`: the hardware does not."""

    def __init__(self, core: Core, limits: LaunchLimits) -> None:
        self._core = core
        self._limits = limits

    @property
    def table(self) -> NativeTable:
        """See `Native.table`. Raises `DeviceUnavailable` if the driver lacks one of the functions."""
        core = self._core
        with core.calling:
            number = int(core.driver.call("cuCtxGetId", core.context.handle))
            return NativeTable(**self._addresses, context=int(core.context.handle), context_number=number)

    @property
    def usable(self) -> bool:
        """See `Native.usable`: False once the GPU was lost or reset."""
        return self._core.intact

    def bound(self) -> AbstractContextManager[None]:
        """See `Native.bound`. May be entered again inside itself, on one thread and on many.

        Entering raises `DeviceLost` when this process has lost the GPU, or another library's reset has taken what the
        device held, and `DeviceUnavailable` when the device is closed.
        """
        return self._core.calling

    def kernel(self, loaded: LoadedModule, entry: str, deadline: Deadline) -> NativeKernel:
        """See `Native.kernel`.

        Raises:
            InvalidKernel: the module has no such kernel.
            InvalidDimensions: the driver does not grant the shared memory that it says there is.
            InvokeTimeout: the deadline passed.
        """
        core, module = self._core, self._core.live.modules.require(loaded)
        with core.calling:
            return module.kernel(core.driver, entry, deadline).native(self._limits)

    def stream(self, stream: Stream) -> int:
        """See `Native.stream`."""
        return int(self._core.live.streams.require(stream).handle)

    def confine(
        self,
        stream: Stream,
        regions: Sequence[Region],  # noqa: ARG002 - the hardware has no allocation table of ours to check against
        deadline: Deadline,  # noqa: ARG002 - nor a clock: `started` says when work must have stopped
    ) -> None:
        """See `Native.confine`. Puts the stream behind the clearing of all memory that there is now."""
        own = self._core.live.streams.require(stream)
        with self._core.calling:
            self._core.streams.order(own)

    def started(self, stream: Stream, deadline: Deadline) -> None:
        """See `Native.started`."""
        self._core.live.streams.require(stream).dues.add(deadline)

    def notify(self, stream: Stream, function: int, argument: int) -> None:
        """See `Native.notify`. The driver calls the function itself: cuda-bindings would take the GIL around it.

        After a fault nothing is called any more, for any stream: a caller that waits has to check, at its deadline at
        the latest, whether the stream has `ended`.
        """
        core, own = self._core, self._core.require_running(stream)
        with core.calling:
            code = self._launch_host_func(int(own.handle), function, argument)
            if code != SUCCESS:
                raise DriverFailure("cuLaunchHostFunc", code)

    @cached_property
    def _addresses(self) -> dict[str, int]:
        return {field: self._address(function) for field, function in _FUNCTIONS.items()}

    @cached_property
    def _launch_host_func(self) -> Any:
        return _HostFunc(self._addresses["launch_host_func"])

    def _address(self, function: str) -> int:
        address, _ = self._core.driver.call("cuGetProcAddress", function.encode(), _RELEASE, _LEGACY_STREAM)
        if not address:
            raise DeviceUnavailable(f"this driver has no {function}; upgrade the driver")
        return int(address)
