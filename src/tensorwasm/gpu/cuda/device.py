"""The CUDA device: `tensorwasm.gpu.device.Device` on the driver API.

Every call binds the primary context on the calling thread and restores what was current before. A failure that takes
the context with it, or a kernel that outlives its deadline, marks the GPU lost for this process: from then on every
call answers `DeviceLost`, and nothing is freed any more, because work that cannot be stopped may still use it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tensorwasm.errors import (
    DeviceLost,
    DeviceUnavailable,
    InternalError,
    InvalidHandle,
    InvokeTimeout,
    LaunchRefused,
    QuotaExceeded,
    TensorWasmError,
)
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.context import Call, PrimaryContext
from tensorwasm.gpu.cuda.functions import Geometry, LoadedKernels
from tensorwasm.gpu.cuda.ledger import Ledger, Ranges
from tensorwasm.gpu.cuda.modules import Compiler
from tensorwasm.gpu.cuda.results import DriverFailure, Scope, describe, meaning, translate
from tensorwasm.gpu.cuda.streams import CudaStream, Streams
from tensorwasm.gpu.device import DeviceStatistics, LoadedModule, Stream
from tensorwasm.ptx.model import Module
from tensorwasm.values import Deadline, DeviceInfo, LaunchConfig, Region

_Item = TypeVar("_Item")

_CLOSE_LIMIT_S: Final = 1.0
"""How long `CudaDevice.close` waits for work that still runs."""


class CudaDevice:
    """An NVIDIA GPU. Made by `tensorwasm.gpu.cuda.opening.open_cuda`."""

    def __init__(
        self, driver: Driver, context: PrimaryContext, info: DeviceInfo, geometry: Geometry, compiler: Compiler
    ) -> None:
        """Take over an open GPU; nothing is allocated yet."""
        self._driver = driver
        self._context = context
        self._generation = context.generation
        self._info = info
        self._geometry = geometry
        self._compiler = compiler
        self._ledger = Ledger()
        self._streams = Streams(driver, context)
        self._lock = threading.Lock()
        self._closed = False
        self._calling = Call(context, self._require_usable, self._judge)
        self._waiting = Call(context, self._require_usable, self._judge_wait)

    @property
    def info(self) -> DeviceInfo:
        """What the device is."""
        return self._info

    def statistics(self) -> DeviceStatistics:
        """Return what the device holds now; after `close`, what could not be given back."""
        return self._ledger.statistics()

    # ------------------------------------------------------------------------------------------- memory

    def allocate(self, size_bytes: int) -> int:
        """See `Device.allocate`. Does not wait: each stream is put behind the clearing when it is used next.

        Raises:
            QuotaExceeded: the device has no such memory left.
            DeviceLost: the device does not answer.
        """
        if size_bytes > self._info.memory_bytes:  # a number of any size, which the bindings need not be able to pass on
            raise QuotaExceeded(f"{size_bytes} bytes: the device has {self._info.memory_bytes}")
        with self._calling:
            pointer = self._driver.call("cuMemAlloc", size_bytes)
            try:
                self._streams.clear(pointer, size_bytes)
            except DriverFailure:
                self._driver.attempt("cuMemFree", pointer)
                raise
            self._ledger.allocations.add(int(pointer), size_bytes)
            return int(pointer)

    def free(self, address: int) -> None:
        """See `Device.free`. Blocks while any kernel runs on the device: that is how the driver frees memory.

        Raises:
            InvalidHandle: no live allocation begins there.
            DeviceLost: the device does not answer; the memory stays.
        """
        self._give_back(self._ledger.allocations, address, "cuMemFree")

    def register(self, address: int, size_bytes: int) -> None:
        """See `Device.register`.

        Raises:
            LaunchRefused: the pages cannot be registered, or would have another address on the device.
            DeviceLost: the device does not answer.
        """
        api = self._driver.api
        flags = api.CU_MEMHOSTREGISTER_PORTABLE | api.CU_MEMHOSTREGISTER_DEVICEMAP
        with self._calling:
            self._driver.call("cuMemHostRegister", address, size_bytes, flags)
            try:
                self._require_same_address(address)
            except (DriverFailure, LaunchRefused):
                self._driver.attempt("cuMemHostUnregister", address)
                raise
            self._ledger.registrations.add(address, size_bytes)

    def _require_same_address(self, address: int) -> None:
        if int(self._driver.call("cuMemHostGetDevicePointer", address, 0)) != address:
            raise LaunchRefused("this device reaches host memory at another address than the host does")

    def unregister(self, address: int) -> None:
        """See `Device.unregister`.

        Raises:
            InvalidHandle: no live registration begins there.
            DeviceLost: the device does not answer; kernels may still reach the pages.
        """
        self._give_back(self._ledger.registrations, address, "cuMemHostUnregister")

    def write(self, address: int, data: bytes | memoryview, stream: Stream) -> None:
        """See `Device.write`. Waits for the stream's earlier work no longer than its last launch may run.

        Raises:
            InvalidPointer: the range is not inside one live allocation.
            KernelFault: a kernel faulted; the device is lost.
            InvokeTimeout: the earlier work did not end in time; the device is lost.
            DeviceLost: the device does not answer.
        """
        self._copy("cuMemcpyHtoDAsync", stream, address, memoryview(data).cast("B"))

    def read(self, address: int, into: memoryview, stream: Stream) -> None:
        """See `Device.read`. Waits for the stream's earlier work no longer than its last launch may run.

        Raises:
            InvalidPointer: the range is not inside one live allocation.
            KernelFault: a kernel faulted; the device is lost.
            InvokeTimeout: the earlier work did not end in time; the device is lost.
            DeviceLost: the device does not answer.
        """
        if into.readonly:
            raise InternalError("a read needs a buffer that can be written")
        self._copy("cuMemcpyDtoHAsync", stream, address, into.cast("B"))

    def _copy(self, function: str, stream: Stream, address: int, host: memoryview) -> None:
        own = self._own(stream)
        self._ledger.allocations.require(address, host.nbytes)
        self.synchronize(own, own.deadline)
        if not host.nbytes:
            return
        ends = (address, host) if function == "cuMemcpyHtoDAsync" else (host, address)
        with self._waiting:
            self._streams.order(own)
            self._driver.call(function, *ends, host.nbytes, own.handle)
            self._driver.call("cuStreamSynchronize", own.handle)

    def _give_back(self, ranges: Ranges, address: int, function: str) -> None:
        size_bytes = ranges.take(address)
        try:
            with self._calling:
                self._driver.call(function, address)
        except TensorWasmError:
            ranges.add(address, size_bytes)
            raise

    # ------------------------------------------------------------------------------- modules and streams

    def load(self, module: Module, deadline: Deadline) -> LoadedModule:
        """See `Device.load`. The deadline ends ptxas; the driver, whose own compiler nothing ends, starts before it.

        Raises:
            UnsupportedPtx: the module asks for what this device or its driver lacks.
            MalformedPtx: ptxas or the driver refuses it.
            InvokeTimeout: the deadline passed before the driver had it.
            DeviceUnavailable: this machine cannot run its ptxas.
            DeviceLost: the device does not answer.
        """
        self._require_alive()
        image = self._compiler.compile(module, deadline)
        if deadline.expired():
            raise InvokeTimeout("the deadline passed before the driver loaded the module")
        with self._calling:
            loaded = LoadedKernels(self._compiler.load(image), module)
            self._ledger.modules.add(loaded)
            return loaded

    def unload(self, loaded: LoadedModule) -> None:
        """See `Device.unload`.

        Raises:
            InvalidHandle: the module is not loaded here.
            DeviceLost: the device does not answer.
        """
        own = self._module(loaded)
        self._retire(self._ledger.modules, own, lambda: self._driver.call("cuModuleUnload", own.handle))

    def open_stream(self) -> Stream:
        """See `Device.open_stream`.

        Raises:
            QuotaExceeded: the driver has no memory for it.
            DeviceLost: the device does not answer.
        """
        with self._calling:
            stream = self._streams.make()
            self._ledger.streams.add(stream)
            return stream

    def close_stream(self, stream: Stream) -> None:
        """See `Device.close_stream`.

        Raises:
            InvalidHandle: the stream is not open here.
            DeviceLost: the device does not answer.
        """
        own = self._own(stream)
        self._retire(self._ledger.streams, own, lambda: self._streams.destroy(own))

    def _retire(self, live: set[_Item], item: _Item, destroy: Callable[[], object]) -> None:
        """Strike an item and destroy it, once if several threads ask; if the driver fails it is live again."""
        try:
            live.remove(item)
        except KeyError:
            raise InvalidHandle("released already") from None
        try:
            with self._calling:
                destroy()
        except TensorWasmError:
            live.add(item)
            raise

    def _own(self, stream: Stream) -> CudaStream:
        if not isinstance(stream, CudaStream) or stream not in self._ledger.streams:
            raise InvalidHandle("the stream is not open on this device")
        return stream

    def _module(self, loaded: LoadedModule) -> LoadedKernels:
        if not isinstance(loaded, LoadedKernels) or loaded not in self._ledger.modules:
            raise InvalidHandle("the module is not loaded on this device")
        return loaded

    # ------------------------------------------------------------------------------------------ launches

    def launch(
        self,
        loaded: LoadedModule,
        entry: str,
        config: LaunchConfig,
        args: Sequence[bytes],
        regions: Sequence[Region],  # noqa: ARG002 - the hardware has no allocation table of ours to check against
        stream: Stream,
        deadline: Deadline,
    ) -> None:
        """See `Device.launch`. Returns as soon as the driver has the work.

        Raises:
            InvalidKernel: the module has no such kernel.
            InvalidKernelArgs: other arguments than the kernel's parameters.
            InvalidDimensions: more than this device or this kernel takes.
            LaunchRefused: the driver refused, nothing ran.
            InvokeTimeout: the deadline has passed already, nothing ran.
            DeviceLost: the device does not answer.
        """
        own, kernels = self._own(stream), self._module(loaded)
        if deadline.expired():
            raise InvokeTimeout("the deadline passed before the launch")
        with self._calling:
            function = kernels.function(self._driver, entry, deadline)
            function.check(config, args, self._geometry)
            function.admit_shared(config.shared_bytes)
            self._streams.order(own)
            packed = function.pack(args)
            shape = (*config.grid, *config.block, config.shared_bytes)
            self._driver.call("cuLaunchKernel", function.handle, *shape, own.handle, packed.address, 0)
            own.deadline = deadline
            self._ledger.count_launch()

    def synchronize(self, stream: Stream, deadline: Deadline) -> None:
        """See `Device.synchronize`. Other threads run meanwhile.

        Raises:
            KernelFault: a kernel faulted; the device is lost.
            InvokeTimeout: the deadline passed and work is still running; the device is lost.
            DeviceLost: the device does not answer.
        """
        own = self._own(stream)
        with self._waiting:
            ended = self._streams.wait(own, deadline)
        if not ended:
            self._lose("a kernel ran past its deadline and cannot be stopped")
            raise InvokeTimeout("the deadline passed and the kernel is still running")

    # ---------------------------------------------------------------------------------------------- life

    def close(self) -> None:
        """See `Device.close`. Idempotent. Waits a second at most: what still runs then keeps what it may use."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if not self._context.lost and self._generation == self._context.generation:
            try:
                with self._context.bound():
                    self._give_everything_back()
            except DriverFailure as failure:
                self._lose(describe(failure))
        self._streams.close()

    def _give_everything_back(self) -> None:
        """Release all that is live, once nothing can be using it."""
        limit = Deadline.after(_CLOSE_LIMIT_S)
        ended = all(self._streams.wait(stream, limit) for stream in list(self._ledger.streams))
        if not ended or not self._streams.wait_for_clearing(limit):
            self._lose("a kernel was still running when the device was closed")
            return
        for address in self._ledger.registrations.live():
            self._driver.call("cuMemHostUnregister", address)
            self._ledger.registrations.take(address)
        for address in self._ledger.allocations.live():
            self._driver.call("cuMemFree", address)
            self._ledger.allocations.take(address)
        for loaded in list(self._ledger.modules):
            self._driver.call("cuModuleUnload", loaded.handle)
            self._ledger.modules.discard(loaded)
        for stream in list(self._ledger.streams):
            self._streams.destroy(stream)
            self._ledger.streams.discard(stream)
        self._streams.release()

    def _judge(self, failure: DriverFailure) -> TensorWasmError:
        """Return the error for a failed call, and count the device as lost if that is what it means."""
        if meaning(failure).scope is not Scope.CALL:
            self._lose(describe(failure))
        return translate(failure)

    def _judge_wait(self, failure: DriverFailure) -> TensorWasmError:
        """The same where work is waited for: a kernel's fault is named as such."""
        self._judge(failure)
        return translate(failure, waiting=True)

    def _require_usable(self) -> None:
        self._require_alive()
        if self._generation != self._context.generation:
            self._adopt_generation()

    def _require_alive(self) -> None:
        if self._context.lost:
            raise DeviceLost(f"this process has lost the GPU: {self._context.lost}")
        if self._closed:
            raise DeviceUnavailable("the device is closed")

    def _adopt_generation(self) -> None:
        """Go on after another library's reset if it took nothing of ours, else count the device as lost."""
        if not self._ledger.empty():
            self._lose("another library has reset the GPU, and with it went what this process held there")
            self._require_alive()
        self._streams.forget()
        self._generation = self._context.generation

    def _lose(self, why: str) -> None:
        self._context.lost = self._context.lost or why
