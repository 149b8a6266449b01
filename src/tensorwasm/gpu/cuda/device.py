"""The CUDA device: `tensorwasm.gpu.device.port.Device` on the driver API.

What its parts share, and what a failure means, is in `tensorwasm.gpu.cuda.core`; here are memory, modules, streams and
launches.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tensorwasm.errors import InternalError, InvokeTimeout, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.closing import Closing
from tensorwasm.gpu.cuda.context import Context, bound
from tensorwasm.gpu.cuda.copies import CudaCopies
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.events import CudaEvents
from tensorwasm.gpu.cuda.functions import Geometry, LoadedKernels
from tensorwasm.gpu.cuda.graphs import CudaGraphs
from tensorwasm.gpu.cuda.handles import CudaStream
from tensorwasm.gpu.cuda.memory import DeviceMemory
from tensorwasm.gpu.cuda.modules import Compiler
from tensorwasm.gpu.cuda.native import CudaNative
from tensorwasm.gpu.cuda.pools import CudaPools
from tensorwasm.gpu.cuda.results import DriverFailure
from tensorwasm.gpu.cuda.traits import MemoryTraits
from tensorwasm.gpu.cuda.unified import CudaUnified
from tensorwasm.gpu.device.output import KernelOutput
from tensorwasm.gpu.device.port import DeviceStatistics
from tensorwasm.gpu.device.protocols import LoadedModule, Stream
from tensorwasm.ptx.model import Module
from tensorwasm.values import NEVER, Deadline, DeviceInfo, LaunchConfig, Region


class CudaDevice:
    """An NVIDIA GPU, or a share of one. Made by `tensorwasm.gpu.cuda.opening.open_cuda`.

    Attributes:
        info: what the device is.
        events: order between streams.
        graphs: sequences that are recorded once and replayed.
        pools: device memory under a cap.
        unified: memory under one address for host and device.
        native: the device for compiled code.
    """

    def __init__(
        self,
        driver: Driver,
        context: Context,
        info: DeviceInfo,
        geometry: Geometry,
        traits: MemoryTraits,
        compiler: Compiler,
    ) -> None:
        """Take over an open GPU; nothing is allocated yet.

        Raises:
            DriverFailure: the driver has no stream for it.
        """
        self._core = Core(driver, context)
        with bound(context):
            self._core.streams.open()
        self._copies = CudaCopies(self._core)
        self._memory = DeviceMemory(self._core, traits)
        self._core.on_reset = self._forget
        self._geometry = geometry
        self._compiler = compiler
        self._lock = threading.Lock()
        self.info = info
        self.events = CudaEvents(self._core)
        self.graphs = CudaGraphs(self._core)
        self.pools = CudaPools(self._core, traits, self._memory, info.memory_bytes)
        self.unified = CudaUnified(self._core, traits, self._memory)
        self.native = CudaNative(self._core, geometry)

    def statistics(self) -> DeviceStatistics:
        """Return what the device holds now; after `close`, what could not be given back."""
        return self._core.ledger.statistics()

    # ------------------------------------------------------------------------------------------- memory

    def allocate(self, size_bytes: int) -> int:
        """See `Device.allocate`. Does not wait: each stream is put behind the clearing when it is used next.

        Compiled code gives work to a stream without that: `CudaNative.confine` does it for it.

        Raises:
            QuotaExceeded: the device has no such memory left.
            DeviceLost: the device does not answer.
        """
        if size_bytes > self.info.memory_bytes:  # a number of any size, which the bindings need not be able to pass on
            raise QuotaExceeded(f"{size_bytes} bytes: the device has {self.info.memory_bytes}")
        with self._core.calling:
            return self._memory.allocate(size_bytes)

    def free(self, address: int) -> None:
        """See `Device.free`. Waits for nobody where the device has memory pools; else while any kernel runs on it.

        Raises:
            InvalidHandle: no live allocation begins there.
            DeviceLost: the device does not answer; the memory stays.
        """
        self._memory.free(address)

    def register(self, address: int, size_bytes: int) -> None:
        """See `Device.register`.

        Raises:
            LaunchRefused: the pages cannot be registered, or would have another address on the device.
            DeviceLost: the device does not answer.
        """
        core, api = self._core, self._core.driver.api
        flags = api.CU_MEMHOSTREGISTER_PORTABLE | api.CU_MEMHOSTREGISTER_DEVICEMAP
        with core.calling:
            core.driver.call("cuMemHostRegister", address, size_bytes, flags)
            try:
                self._require_same_address(address)
            except Exception:
                core.undo("cuMemHostUnregister", address)
                raise
            core.ledger.registrations.add(address, size_bytes)

    def _require_same_address(self, address: int) -> None:
        if int(self._core.driver.call("cuMemHostGetDevicePointer", address, 0)) != address:
            raise LaunchRefused("this device reaches host memory at another address than the host does")

    def unregister(self, address: int) -> None:
        """See `Device.unregister`.

        Raises:
            InvalidHandle: no live registration begins there.
            DeviceLost: the device does not answer; kernels may still reach the pages.
        """
        core = self._core
        core.give_back(core.ledger.registrations, address, lambda start: core.release("cuMemHostUnregister", start))

    def write(self, address: int, data: bytes | memoryview, stream: Stream | None, deadline: Deadline = NEVER) -> None:
        """See `Device.write`. Waits for the stream's earlier work no longer than that may run.

        Raises:
            InvalidPointer: the range is not inside one live allocation.
            LaunchRefused: the stream records.
            KernelFault: a kernel faulted; the device is lost.
            InvokeTimeout: the earlier work did not end in time, or the deadline passed; nothing was copied.
            DeviceLost: the device does not answer.
        """
        host = memoryview(data).cast("B")
        self._copy_now("cuMemcpyHtoDAsync", stream, address, host, (address, host), deadline)

    def read(self, address: int, into: memoryview, stream: Stream | None, deadline: Deadline = NEVER) -> None:
        """See `Device.read`. Waits for the stream's earlier work no longer than that may run.

        Raises:
            InvalidPointer: the range is not inside one live allocation.
            LaunchRefused: the stream records.
            KernelFault: a kernel faulted; the device is lost.
            InvokeTimeout: the earlier work did not end in time, or the deadline passed; nothing was copied.
            DeviceLost: the device does not answer.
        """
        if into.readonly:
            raise InternalError("a read needs a buffer that can be written")
        host = into.cast("B")
        self._copy_now("cuMemcpyDtoHAsync", stream, address, host, (host, address), deadline)

    def _copy_now(
        self,
        function: str,
        stream: Stream | None,
        address: int,
        host: memoryview,
        ends: tuple[Any, Any],
        deadline: Deadline,
    ) -> None:
        core = self._core
        own = None if stream is None else core.running(stream)
        core.ledger.require(address, host.nbytes)
        if own is not None:
            core.drain(own, deadline.earlier(own.dues.latest))
        if host.nbytes:
            self._copies.copy(function, ends, host.nbytes, deadline)

    def fill(self, address: int, size_bytes: int, stream: Stream) -> None:
        """See `Device.fill`.

        Raises:
            InvalidPointer: the range is not inside one live allocation.
            DeviceLost: the device does not answer.
        """
        self._start(stream, address, size_bytes, "cuMemsetD8Async", address, 0)

    def copy_in(self, address: int, host_address: int, size_bytes: int, stream: Stream) -> None:
        """See `Device.copy_in`.

        Raises:
            InvalidPointer: the range is not inside one live allocation.
            DeviceLost: the device does not answer.
        """
        self._start(stream, address, size_bytes, "cuMemcpyHtoDAsync", address, host_address)

    def copy_out(self, host_address: int, address: int, size_bytes: int, stream: Stream) -> None:
        """See `Device.copy_out`.

        Raises:
            InvalidPointer: the range is not inside one live allocation.
            DeviceLost: the device does not answer.
        """
        self._start(stream, address, size_bytes, "cuMemcpyDtoHAsync", host_address, address)

    def _start(self, stream: Stream, address: int, size_bytes: int, function: str, *ends: int) -> None:
        """Start something on a range of the device's memory; on a stream that records, record it."""
        core, own = self._core, self._core.stream(stream)
        core.ledger.require(address, size_bytes)
        if size_bytes:
            with core.calling:
                core.streams.order(own)
                core.driver.call(function, *ends, size_bytes, own.handle)

    # ------------------------------------------------------------------------------- modules and streams

    def load(
        self,
        module: Module,
        deadline: Deadline,
        output: KernelOutput | None = None,  # noqa: ARG002 - kernels that print are refused
    ) -> LoadedModule:
        """See `Device.load`. The deadline ends ptxas; the driver, whose own compiler nothing ends, starts before it.

        Raises:
            UnsupportedPtx: the module asks for what this device or its driver lacks.
            MalformedPtx: ptxas or the driver refuses it.
            InvokeTimeout: the deadline passed before the driver had it.
            DeviceUnavailable: this machine cannot run its ptxas.
            DeviceLost: the device does not answer.
        """
        core = self._core
        core.require_alive()
        image = self._compiler.compile(module, deadline)
        if deadline.expired():
            raise InvokeTimeout("the deadline passed before the driver loaded the module")
        with core.calling:
            loaded = LoadedKernels(self._compiler.load(image), module)
            core.ledger.modules.add(loaded)
            return loaded

    def unload(self, loaded: LoadedModule) -> None:
        """See `Device.unload`.

        Raises:
            InvalidHandle: the module is not loaded here.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._core.module(loaded)
        core.retire(core.ledger.modules, own, lambda item: core.release("cuModuleUnload", item.handle))

    def open_stream(self) -> Stream:
        """See `Device.open_stream`.

        Raises:
            QuotaExceeded: the driver has no memory for it.
            DeviceLost: the device does not answer.
        """
        core = self._core
        with core.calling:
            stream = core.streams.make()
            core.ledger.streams.add(stream)
            return stream

    def close_stream(self, stream: Stream) -> None:
        """See `Device.close_stream`. A recording that was not ended is thrown away.

        Raises:
            InvalidHandle: the stream is not open here.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._core.stream(stream)
        core.retire(core.ledger.streams, own, self._destroy_stream)

    def _destroy_stream(self, stream: CudaStream) -> None:
        self.graphs.abandon(stream)
        self._core.destroy_stream(stream)

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
        """See `Device.launch`. Returns as soon as the driver has the work; a stream that records has it recorded.

        Raises:
            InvalidKernel: the module has no such kernel.
            InvalidKernelArgs: other arguments than the kernel's parameters.
            InvalidDimensions: more than this device or this kernel takes.
            LaunchRefused: the driver refused, nothing ran.
            InvokeTimeout: the deadline has passed already, nothing ran.
            DeviceLost: the device does not answer.
        """
        core, own, kernels = self._core, self._core.stream(stream), self._core.module(loaded)
        if deadline.expired():
            raise InvokeTimeout("the deadline passed before the launch")
        with core.calling:
            function = kernels.function(core.driver, entry, deadline)
            function.check(config, args, self._geometry)
            function.admit_shared(config.shared_bytes)
            core.streams.order(own)
            packed = function.pack(args)
            shape = (*config.grid, *config.block, config.shared_bytes)
            call = "cuLaunchKernel", function.handle, *shape, own.handle, packed.address, 0
            if own.recording:
                core.driver.call(*call)
            else:
                core.give(own, deadline, *call)

    def ended(self, stream: Stream) -> bool:
        """See `Device.ended`.

        Raises:
            InvalidHandle: the stream is not open here.
            LaunchRefused: the stream records.
            KernelFault: a kernel faulted; the device is lost.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._core.running(stream)
        with core.waiting:
            return core.streams.drained(own)

    def delayed(self, stream: Stream) -> bool:
        """See `Device.delayed`.

        Raises:
            InvalidHandle: the stream is not open here.
            DeviceLost: the device does not answer.
        """
        return self._core.excuses(self._core.stream(stream))

    def synchronize(self, stream: Stream, deadline: Deadline) -> None:
        """See `Device.synchronize`. Other threads run meanwhile.

        Raises:
            LaunchRefused: the stream records.
            KernelFault: a kernel faulted; the device is lost.
            InvokeTimeout: the deadline passed and work is still running; the device is lost.
            DeviceLost: the device does not answer.
        """
        self._core.drain(self._core.running(stream), deadline)

    # ---------------------------------------------------------------------------------------------- life

    def close(self) -> None:
        """See `Device.close`. Idempotent. Waits a second at most: what still runs then keeps what it may use."""
        core = self._core
        with self._lock:
            if core.closed:
                return
            core.closed = True
        if not core.context.lost and not core.stale():
            try:
                with bound(core.context):
                    nothing_left = Closing(core, self._memory, self.pools, self.graphs).run()
                if nothing_left:
                    core.context.close()
            except DriverFailure as failure:
                core.note_kept(failure)
                core.judge(failure)
        core.streams.close()

    def _forget(self) -> None:
        """Forget what another library's reset took, none of which was a caller's."""
        self._core.streams.forget()
        self._memory.forget()
