"""The CUDA device: `tensorwasm.gpu.device.port.Device` on the driver API.

What its parts share, and what a failure means, is in `tensorwasm.gpu.cuda.core`.

Source: CUDA Driver API, "API synchronization behavior" (Memcpy, Async: transfers from and to pageable memory).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from tensorwasm import ptx
from tensorwasm.errors import (
    CapacityExhausted,
    InternalError,
    InvalidHandle,
    InvokeTimeout,
    LaunchRefused,
    QuotaExceeded,
)
from tensorwasm.gpu.cuda.clock import DeviceClock
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.driver.calls import Driver, DriverFailure
from tensorwasm.gpu.cuda.driver.contexts import Context, bound
from tensorwasm.gpu.cuda.handles import CudaStream, LiveHandles, LiveRanges
from tensorwasm.gpu.cuda.memory.pools import CudaPools, DeviceAllocator, MemoryTraits
from tensorwasm.gpu.cuda.memory.unified import CudaUnified
from tensorwasm.gpu.cuda.memory.windows import CudaWindows
from tensorwasm.gpu.cuda.modules import CudaModule, LaunchLimits, PtxCompiler
from tensorwasm.gpu.cuda.native import CudaNative
from tensorwasm.gpu.cuda.streams.events_graphs import CudaEvents, CudaGraphs
from tensorwasm.gpu.device.admission import CompiledKernel
from tensorwasm.gpu.device.port import DeviceStatistics, KernelOutput
from tensorwasm.gpu.device.protocols import LoadedModule, Stream
from tensorwasm.ptx.guarded import SHARED_BASE
from tensorwasm.ptx.model import Module
from tensorwasm.values import NEVER, Deadline, DeviceInfo, KernelSignature, LaunchConfig, Region

_COPY_CHECK_S: Final = 1.0
"""How often the wait for a copy that has been started checks whether the GPU was lost."""

_RESERVING: Final = (9, 0)
"""Compute capability from which on the system has a part of shared memory."""

_CLOSE_LIMIT_S: Final = 1.0
"""How long `CudaDevice.close` waits for work that still runs."""


class CudaDevice:
    """An NVIDIA GPU, or a share of one. Made by `tensorwasm.gpu.cuda.opening.open_cuda`.

    Every method of the device and of its facets raises `InvalidHandle` for a stream, module, event, graph, pool, window
    or address that is not live on it, `InvalidPointer` for a range that is not inside one live allocation, `DeviceLost`
    once this process has lost the GPU, and `DeviceUnavailable` when it is closed. A stream that records takes launches
    and copies alone, and is refused with `LaunchRefused` elsewhere. Where work is waited for, a kernel's fault is
    raised as `KernelFault`, and the device is lost.

    Attributes:
        info: what the device is.
        events: order between streams.
        graphs: sequences that are recorded once and replayed.
        pools: device memory under a cap.
        unified: memory under one address for host and device.
        windows: windows of addresses without an unmapped page.
        native: the device for compiled code.
    """

    def __init__(
        self,
        driver: Driver,
        context: Context,
        info: DeviceInfo,
        limits: LaunchLimits,
        traits: MemoryTraits,
        compiler: PtxCompiler,
    ) -> None:
        """Take over an open GPU; nothing is allocated yet."""
        self._core = Core(driver, context)
        with bound(context):
            self._core.streams.open()
        self._allocator = DeviceAllocator(self._core, traits)
        self._core.on_reset.append(self._allocator.forget)
        self._limits = limits
        self._compiler = compiler
        self._lock = threading.Lock()
        self.info = info
        self.events = CudaEvents(self._core)
        self.graphs = CudaGraphs(self._core)
        self.pools = CudaPools(self._core, traits, self._allocator, info.memory_bytes)
        self.unified = CudaUnified(self._core, traits, self._allocator)
        self.windows = CudaWindows(self._core, traits, self._allocator, self.unified)
        self.native = CudaNative(self._core, limits)
        self._clock = DeviceClock(self._core, compiler)
        self._core.on_reset.append(self._clock.forget)

    @property
    def timer_offset_ns(self) -> int:
        """See `Device.timer_offset_ns`, which is compared anew once a minute."""
        return self._clock.offset_ns()

    @property
    def shared_base(self) -> int:
        """See `Device.shared_base`: 1 KiB before it is the system's from sm_90 on."""
        return SHARED_BASE if self.info.compute_capability >= _RESERVING else 0

    def statistics(self) -> DeviceStatistics:
        """Return what the device holds now; after `close`, what could not be given back."""
        return self._core.live.statistics()

    # ------------------------------------------------------------------------------------------- memory

    def allocate(self, size_bytes: int) -> int:
        """See `Device.allocate`. Does not wait: each stream is put behind the clearing when it is used next.

        Compiled code gives work to a stream without that: `CudaNative.confine` does it for it.
        """
        if size_bytes > self.info.memory_bytes:  # a number of any size, which the bindings need not be able to pass on
            raise QuotaExceeded(f"{size_bytes} bytes: the device has {self.info.memory_bytes}")
        with self._core.calling:
            return self._allocator.allocate(size_bytes)

    def free(self, address: int) -> None:
        """See `Device.free`. Waits for no kernel where the device has memory pools; else for every one on it."""
        self._core.retire(self._core.live.allocations, address, self._allocator.release)

    def register(self, address: int, size_bytes: int) -> None:
        """See `Device.register`."""
        core, api = self._core, self._core.driver.api
        flags = api.CU_MEMHOSTREGISTER_PORTABLE | api.CU_MEMHOSTREGISTER_DEVICEMAP
        with core.calling:
            core.driver.call("cuMemHostRegister", address, size_bytes, flags)
            with core.undoing("cuMemHostUnregister", address):
                if int(core.driver.call("cuMemHostGetDevicePointer", address, 0)) != address:
                    raise LaunchRefused("this device reaches host memory at another address than the host does")
            core.live.registrations.enter(address, size_bytes)

    def unregister(self, address: int) -> None:
        """See `Device.unregister`."""
        core = self._core
        core.retire(core.live.registrations, address, lambda start, _: core.release("cuMemHostUnregister", start))

    def write(self, address: int, data: bytes | memoryview, stream: Stream | None, deadline: Deadline = NEVER) -> None:
        """See `Device.write`. Waits for the stream's earlier work no longer than that may run."""
        host = memoryview(data).cast("B")
        self._copy_now("cuMemcpyHtoDAsync", stream, address, host, (address, host), deadline)

    def read(self, address: int, into: memoryview, stream: Stream | None, deadline: Deadline = NEVER) -> None:
        """See `Device.read`; as `write`."""
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
        """Copy on a stream of the device's own, after the work of the caller's stream. The copy is over on return.

        On the caller's stream, which others may share, the copy would stand behind their kernels, with no limit on the
        wait, and with a lock of the driver held if the host memory is pageable.
        """
        core, streams = self._core, self._core.streams
        own = None if stream is None else core.require_running(stream)
        core.live.require(address, host.nbytes)
        if own is not None:
            core.drain(own, deadline.earlier(own.dues.latest))
        if not host.nbytes:
            return
        with core.waiting:
            copying = streams.own("copying")
            streams.order(copying)
            # The driver may come late even to an empty stream: streams share the queues that feed the GPU, and one
            # whose kernel runs holds up the others there. A copy that was started cannot be given up, so wait first.
            core.driver.call("cuEventRecord", copying.event, copying.handle)
            if not streams.wait_event(copying.event, deadline):
                raise InvokeTimeout("the deadline passed before the GPU came to a copy")
            core.driver.call(function, *ends, host.nbytes, copying.handle)
            # Waited for to its end: until then it reaches the host memory.
            while not streams.wait(copying, Deadline.after(_COPY_CHECK_S)):
                core.require_alive()

    def fill(self, address: int, size_bytes: int, stream: Stream) -> None:
        """See `Device.fill`."""
        self._start(stream, address, size_bytes, "cuMemsetD8Async", address, 0)

    def copy_in(self, address: int, host_address: int, size_bytes: int, stream: Stream) -> None:
        """See `Device.copy_in`."""
        self._start(stream, address, size_bytes, "cuMemcpyHtoDAsync", address, host_address)

    def copy_out(self, host_address: int, address: int, size_bytes: int, stream: Stream) -> None:
        """See `Device.copy_out`."""
        self._start(stream, address, size_bytes, "cuMemcpyDtoHAsync", host_address, address)

    def _start(self, stream: Stream, address: int, size_bytes: int, function: str, *ends: int) -> None:
        """Start something on a range of the device's memory; on a stream that records, record it."""
        core, own = self._core, self._core.live.streams.require(stream)
        core.live.require(address, size_bytes)
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
            DeviceUnavailable: this machine cannot run its ptxas.
        """
        core = self._core
        core.require_alive()
        image = self._compiler.compile(module, deadline)
        if deadline.expired():
            raise InvokeTimeout("the deadline passed before the driver loaded the module")
        with core.calling:
            find = partial(ptx.signature, module)
            return core.live.modules.enter(CudaModule(self._compiler.load(image), find))

    @property
    def assembler(self) -> str:
        """See `Device.assembler`: ptxas and its release."""
        assembler = self._compiler.assembler
        return "" if assembler is None else assembler.name

    def assemble(self, module: Module, deadline: Deadline) -> CompiledKernel | None:
        """See `Device.assemble`: a cubin, None where the driver compiles. Also raises `DeviceUnavailable`."""
        self._core.require_alive()
        ptxas = self._compiler.ptxas
        return ptxas.compile_kernel(module, deadline) if ptxas is not None and ptxas.takes(module) else None

    def load_image(self, image: bytes, signature: KernelSignature) -> LoadedModule:
        """See `Device.load_image`."""
        core = self._core
        with core.calling:
            return core.live.modules.enter(CudaModule(self._compiler.load(image), lambda _entry, _deadline: signature))

    def unload(self, loaded: LoadedModule) -> None:
        """See `Device.unload`."""
        core, live = self._core, self._core.live.modules
        core.retire(live, live.require(loaded), lambda own: core.release("cuModuleUnload", own.handle))

    def open_stream(self) -> Stream:
        """See `Device.open_stream`."""
        with self._core.calling:
            return self._core.live.streams.enter(self._core.streams.make())

    def close_stream(self, stream: Stream) -> None:
        """See `Device.close_stream`. A recording that was not ended is thrown away."""
        live = self._core.live.streams
        self._core.retire(live, live.require(stream), self._destroy_stream)

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
            InvokeTimeout: the deadline has passed already, nothing ran.
        """
        core, live = self._core, self._core.live
        own, module = live.streams.require(stream), live.modules.require(loaded)
        if deadline.expired():
            raise InvokeTimeout("the deadline passed before the launch")
        with core.calling:
            kernel = module.kernel(core.driver, entry, deadline)
            kernel.check(config, args, self._limits)
            kernel.admit_shared(config.shared_bytes)
            core.streams.order(own)
            address, _values = kernel.pack(args)  # kept until the driver has copied them
            shape = (*config.grid, *config.block, config.shared_bytes)
            call = "cuLaunchKernel", kernel.handle, *shape, own.handle, address, 0
            if own.recording:
                core.driver.call(*call)
            else:
                core.submit(own, deadline, *call)

    def ended(self, stream: Stream) -> bool:
        """See `Device.ended`."""
        core, own = self._core, self._core.require_running(stream)
        with core.waiting:
            return core.streams.drained(own)

    def delayed(self, stream: Stream) -> bool:
        """See `Device.delayed`."""
        return self._core.excuses(self._core.live.streams.require(stream))

    def synchronize(self, stream: Stream, deadline: Deadline) -> None:
        """See `Device.synchronize`. Other threads run meanwhile. Work that is long overdue loses the device."""
        self._core.drain(self._core.require_running(stream), deadline)

    # ---------------------------------------------------------------------------------------------- life

    def close(self) -> None:
        """See `Device.close`. Waits for work a second at most: work that does not end loses the device.

        What the driver does not take back, and what such work may use, stays live.
        """
        core = self._core
        with self._lock:
            if core.closed:
                return
            usable = core.intact
            core.closed = True
        if usable:
            try:
                with bound(core.context):
                    nothing_left = self._release_all()
                if nothing_left:
                    core.context.close()
            except DriverFailure as failure:  # of work, perhaps: whether it has ended is unknown, and all stays
                core.note_kept(failure)
                core.judge(failure)
        core.streams.waits.close()

    def _release_all(self) -> bool:
        """Wait for all work and release everything; return whether the driver took all of it back."""
        core, streams, live = self._core, self._core.streams, self._core.live
        limit = Deadline.after(_CLOSE_LIMIT_S)
        open_streams = list(live.streams)
        for stream in open_streams:
            self.graphs.abandon(stream)
        ended = all(streams.wait(stream, limit) for stream in open_streams) and streams.wait_for_own(limit)
        if not (ended and streams.wait_for_threads(limit)):
            core.gpu.lose("a kernel was still running when the device was closed")
            return False
        self._release_each(live.registrations, lambda start, _: core.release("cuMemHostUnregister", start))
        self._release_each(live.managed, lambda start, _: core.release("cuMemFree", start))
        self._release_each(live.windows, self.windows.release)
        self._release_each(live.mapped, lambda start, size: core.release("cuMemUnmap", start, size))
        self._release_each(live.reserved, lambda start, size: core.release("cuMemAddressFree", start, size))
        self._release_each(live.pooled, self.pools.release)
        self._release_each(live.allocations, self._allocator.release)
        self._release_each(live.graphs, lambda item: core.release("cuGraphExecDestroy", item.handle))
        self._release_each(live.events, lambda item: core.destroy_event(item.handle))
        self._release_each(live.modules, lambda item: core.release("cuModuleUnload", item.handle))
        if not live.pooled:  # else the driver would keep the pools for what it did not take back
            self._release_each(live.pools, self.pools.destroy)
        self._release_each(live.streams, core.destroy_stream)
        streams.wait_for_own(limit)  # frees under way: the driver would keep their pools for them
        released = [self._released(self._clock.release)]
        released += [not live.allocations and self._released(self._allocator.close)]
        released += [self._released(core.destroy_stream, stream) for stream in streams.all_own()]
        streams.forget()
        return all(released) and live.empty()

    def _release_each(self, live: LiveRanges | LiveHandles[Any], release: Callable[..., object]) -> None:
        for entry in live.entries():
            if self._released(release, *entry):
                with suppress(InvalidHandle):  # another thread is about to find that the device is closed
                    live.take(entry[0])

    def _released(self, release: Callable[..., object], *args: Any) -> bool:
        """Return whether the driver took it back; once the device is lost it is not asked."""
        if self._core.gpu.lost:
            return False
        counted = self._core.live.release_failures
        try:
            release(*args)
        except DriverFailure as failure:
            if self._core.live.release_failures == counted:  # of a wait before the release
                self._core.note_kept(failure)
            self._core.judge(failure)
            return False
        except CapacityExhausted:
            return False
        return True
