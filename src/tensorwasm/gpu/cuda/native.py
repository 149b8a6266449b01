"""A GPU for compiled code: `tensorwasm.gpu.device.protocols.Native`.

The addresses are the driver's own entry points, asked of the driver itself for the release whose signatures compiled
code knows, and never those with a default stream per thread.

A handle is good for one context: a kernel's for that in which its module was loaded. Another library's reset destroys
the context and all of them, and compiled code cannot see that: `CudaNative.bound` does, and answers `DeviceLost`, so
whoever runs compiled code binds anew each time it hands over the thread.

Source: CUDA Driver API, "Driver Entry Point Access" (cuGetProcAddress), "Execution Control" (cuLaunchHostFunc).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from tensorwasm.errors import DeviceUnavailable
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.functions import Geometry
from tensorwasm.gpu.cuda.results import SUCCESS, DriverFailure
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
}

_HostFunc: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class CudaNative:
    """What compiled code needs."""

    def __init__(self, core: Core, geometry: Geometry) -> None:
        """Ask nothing yet."""
        self._core = core
        self._geometry = geometry
        self._addresses: dict[str, int] = {}
        self._launch_host_func: Any = None

    @property
    def table(self) -> NativeTable:
        """The functions, valid until the device is closed.

        Raises:
            DeviceLost: the device does not answer.
            DeviceUnavailable: the driver lacks one of them.
        """
        core = self._core
        with core.calling:
            number = int(core.driver.call("cuCtxGetId", core.context.handle))
            return NativeTable(**self._found(), context=int(core.context.handle), context_number=number)

    @property
    def usable(self) -> bool:
        """See `Native.usable`: no, once the GPU was lost or reset."""
        return self._core.intact

    @property
    def confines(self) -> bool:
        """See `Native.confines`: the hardware does not."""
        return False

    def bound(self) -> AbstractContextManager[None]:
        """See `Native.bound`. May be entered again inside itself, on one thread and on many.

        Entering raises `DeviceLost` when this process has lost the GPU, or another library's reset has taken what the
        device held, and `DeviceUnavailable` when the device is closed.
        """
        return self._core.calling

    def kernel(self, loaded: LoadedModule, entry: str, deadline: Deadline) -> NativeKernel:
        """See `Native.kernel`.

        Raises:
            InvalidHandle: the module is not loaded here.
            InvalidKernel: the module has no such kernel.
            InvalidDimensions: the driver does not grant the shared memory that it says there is.
            InvokeTimeout: the deadline passed.
            DeviceLost: the device does not answer.
        """
        core, kernels = self._core, self._core.module(loaded)
        with core.calling:
            return kernels.function(core.driver, entry, deadline).native(self._geometry)

    def stream(self, stream: Stream) -> int:
        """See `Native.stream`.

        Raises:
            InvalidHandle: the stream is not open here.
        """
        return int(self._core.stream(stream).handle)

    def confine(
        self,
        stream: Stream,
        regions: Sequence[Region],  # noqa: ARG002 - the hardware has no allocation table of ours to check against
        deadline: Deadline,  # noqa: ARG002 - nor a clock: `started` says when work must have stopped
    ) -> None:
        """See `Native.confine`. Puts the stream behind the clearing of all memory that there is now.

        Raises:
            InvalidHandle: the stream is not open here.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._core.stream(stream)
        with core.calling:
            core.streams.order(own)

    def started(self, stream: Stream, deadline: Deadline) -> None:
        """See `Native.started`.

        Raises:
            InvalidHandle: the stream is not open here.
        """
        self._core.stream(stream).dues.add(deadline)

    def notify(self, stream: Stream, function: int, argument: int) -> None:
        """See `Native.notify`. The driver calls the function itself: cuda-bindings would take the GIL around it.

        After a fault nothing is called any more, for any stream: whoever waits must look, at its deadline at the
        latest, whether the stream has `ended`.

        Raises:
            InvalidHandle: the stream is not open here.
            LaunchRefused: the stream records.
            DeviceLost: the device does not answer.
            DeviceUnavailable: the driver has no such function.
        """
        core, own = self._core, self._core.running(stream)
        with core.calling:
            if self._launch_host_func is None:
                self._launch_host_func = _HostFunc(self._found()["launch_host_func"])
            code = self._launch_host_func(int(own.handle), function, argument)
            if code != SUCCESS:
                raise DriverFailure("cuLaunchHostFunc", code)

    def _found(self) -> dict[str, int]:
        """Return the addresses, asking for them once."""
        if not self._addresses:
            self._addresses = {field: self._address(function) for field, function in _FUNCTIONS.items()}
        return self._addresses

    def _address(self, function: str) -> int:
        address, _ = self._core.driver.call("cuGetProcAddress", function.encode(), _RELEASE, _LEGACY_STREAM)
        if not address:
            raise DeviceUnavailable(f"this driver has no {function}; upgrade the driver")
        return int(address)
