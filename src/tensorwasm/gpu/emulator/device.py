"""The emulator as a device: runs PTX on this machine's processor, in the order of streams and events."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from tensorwasm.errors import InternalError
from tensorwasm.gc_pause import gc_paused
from tensorwasm.gpu.device.admission import CompiledKernel
from tensorwasm.gpu.device.port import DeviceStatistics, KernelOutput, LoadedModule, Stream
from tensorwasm.gpu.emulator.handles import Handles
from tensorwasm.gpu.emulator.kernels import LANES, KernelRunner
from tensorwasm.gpu.emulator.memory.allocations import AllocationTable, EmulatedPools
from tensorwasm.gpu.emulator.memory.unified import EmulatedMemory
from tensorwasm.gpu.emulator.memory.windows import EmulatedWindows
from tensorwasm.gpu.emulator.streams.copies import Copies, EmulatedEvents, EmulatedGraphs
from tensorwasm.gpu.emulator.streams.native import EmulatedNative
from tensorwasm.gpu.emulator.streams.queues import BackgroundThreads, EmulatedStream, QueuedWork, Queues
from tensorwasm.ptx.model import Module
from tensorwasm.ptx.select import check_compatible
from tensorwasm.values import NEWEST_PTX, Deadline, DeviceInfo, KernelSignature, LaunchConfig, Region

MULTIPROCESSORS: Final = 132
EMULATED_CAPABILITY: Final = (9, 0)


class EmulatorDevice:
    """A device that any machine has.

    Work waits in its stream until a thread waits for it, and then runs in that thread; work that is only polled runs in
    the background. Streams run side by side if several threads wait. Each method raises `InvalidHandle` for a stream or
    module that is not open here, and `LaunchRefused` for a stream that is recording, unless the call can be recorded.

    Attributes:
        events, graphs, pools, unified, windows, native: the facets of the port.
        allocate, free: methods of the `AllocationTable`.
        write, read, fill, copy_in, copy_out: methods of `Copies`.
        open_stream: returns a new stream.
    """

    def __init__(
        self,
        memory_bytes: int = 1 << 30,
        multiprocessors: int | None = None,
        *,
        compute_capability: tuple[int, int] = EMULATED_CAPABILITY,
        ptx_version: tuple[int, int] = NEWEST_PTX,
        lanes: int = LANES,
    ) -> None:
        """Open the device.

        ``memory_bytes`` bounds device memory, module variables and managed memory included; ``lanes`` the threads that
        run side by side, which are at least those of one block. The others are what the device claims to have and to
        be: None multiprocessors are as many as those of a large GPU, ``ptx_version`` is the newest PTX ISA it knows.
        """
        self.info: Final = DeviceInfo(
            kind="emulator",
            ordinal=0,
            name="TensorWasm emulator",
            compute_capability=compute_capability,
            ptx_version=ptx_version,
            memory_bytes=memory_bytes,
            multiprocessors=MULTIPROCESSORS if multiprocessors is None else multiprocessors,
            max_shared_bytes=227 << 10,
            concurrent_managed_access=True,
        )
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._launches = 0
        self._handles = Handles()
        self._queues = queues = Queues()
        self._background = background = BackgroundThreads(queues)
        self._allocations = allocations = AllocationTable(memory_bytes)
        self._kernels = kernels = KernelRunner(self.info, allocations, lanes, self._closing)
        copies = Copies(allocations, queues)
        self.allocate, self.free, self.open_stream = allocations.allocate, allocations.free, queues.open
        self.write, self.read, self.fill = copies.write, copies.read, copies.fill
        self.copy_in, self.copy_out = copies.copy_in, copies.copy_out
        self.events: Final = EmulatedEvents(queues, background)
        self.graphs: Final = EmulatedGraphs(queues, allocations, self._handles)
        self.pools: Final = EmulatedPools(allocations)
        self.unified: Final = EmulatedMemory(allocations, queues.streams)
        self.windows: Final = EmulatedWindows(allocations, self.unified, copies.fill, copies.start)
        self.native: Final = EmulatedNative(
            self.info, allocations, kernels, queues, copies, self.graphs, background, self._handles
        )

    shared_base: Final = 0
    """Where the first variable in shared memory is."""

    @property
    def timer_offset_ns(self) -> int:
        """What ``%globaltimer`` is beyond the monotonic clock: kernels read the system's time."""
        return time.time_ns() - time.monotonic_ns()

    # ---------------------------------------------------------------------------------------------- memory

    def register(self, address: int, size_bytes: int) -> None:
        """Make host pages reachable; raises `LaunchRefused` if the range is empty or overlaps a registered one."""
        self._allocations.add_host(address, size_bytes, "registered")

    def unregister(self, address: int) -> None:
        """Undo `register`: a later access of a kernel faults. Raises `LaunchRefused` if nothing is registered there."""
        self._allocations.remove_host(address, "registered")

    # ------------------------------------------------------------------------------------ modules, kernels

    def load(self, module: Module, deadline: Deadline, output: KernelOutput | None = None) -> LoadedModule:
        """Make a module's kernels ready to launch."""
        check_compatible(module, self.info.compute_capability, self.info.ptx_version)
        with gc_paused():
            return self._kernels.load(module, deadline, output)

    assembler: Final = ""
    """What makes images: nothing."""

    def assemble(self, module: Module, deadline: Deadline) -> CompiledKernel | None:  # noqa: ARG002 - there are no images
        """Return None: a module is ready as soon as it is parsed."""
        return None

    def load_image(self, image: bytes, signature: KernelSignature) -> LoadedModule:
        """Refuse: there are no images."""
        raise InternalError(f"the emulator has no image of {signature.entry} in {len(image)} bytes")

    def unload(self, loaded: LoadedModule) -> None:
        """Release a module. A kernel of it that has not begun is a fault."""
        self.native.forget(loaded)
        self._kernels.unload(loaded)

    def launch(
        self,
        loaded: LoadedModule,
        entry: str,
        config: LaunchConfig,
        args: Sequence[bytes],
        regions: Sequence[Region],
        stream: Stream,
        deadline: Deadline,
    ) -> None:
        """Start a kernel: it runs when a thread waits for it, and the wait raises its error.

        Raises:
            InvalidKernel: the module has no such kernel.
            InvalidKernelArgs: the arguments are not of the parameters' sizes.
            TensorWasmError: the error with which the stream has failed.
        """
        call = self._kernels.prepare(loaded, entry, config, args)
        work = QueuedWork(call, self._allocations.ranges(regions), deadline)
        self._queues.give(self._queues.streams.require(stream), work)
        with self._lock:
            self._launches += 1

    # --------------------------------------------------------------------------------------------- streams

    def close_stream(self, stream: Stream) -> None:
        """Release a stream. Work that has not begun is dropped."""
        self._queues.close(stream)
        if isinstance(stream, EmulatedStream):
            self._handles.drop(stream)

    def ended(self, stream: Stream) -> bool:
        """Return whether the work in a stream has ended; if not, let it run in the background."""
        return self._background.poll(self._queues.mark(self._queues.streams.require(stream)))

    def delayed(self, stream: Stream) -> bool:
        """Return False: work is stopped at its own deadline, whatever work was ahead of it."""
        self._queues.streams.require(stream)
        return False

    def synchronize(self, stream: Stream, deadline: Deadline) -> None:
        """Run the work in a stream, and what it waits for; at the deadline, what this call is running is stopped.

        After a fault the stream stays failed.
        """
        self._queues.run_to(self._queues.mark(self._queues.streams.require(stream)), deadline)

    # ------------------------------------------------------------------------------------ the whole device

    def statistics(self) -> DeviceStatistics:
        """Return what the device holds now."""
        count, size_bytes = self._allocations.totals()
        with self._lock:
            return DeviceStatistics(
                allocations=count["device"],
                allocated_bytes=size_bytes["device"],
                registrations=count["registered"],
                registered_bytes=size_bytes["registered"],
                modules=len(self._kernels.modules),
                streams=len(self._queues.streams),
                launches=self._launches + self.graphs.replays,
                events=len(self.events.open),
                graphs=len(self.graphs.open),
                pools=len(self.pools.open),
                unified_bytes=size_bytes["managed"] + size_bytes["mapped"],
                windows=len(self.windows.open),
                window_bytes=self.windows.total_bytes(),
                release_failures=self.unified.release_failures,
            )

    def close(self) -> None:
        """Release everything; work that is running is stopped, the rest is dropped. Idempotent."""
        self._closing.set()
        self._queues.clear()
        self.graphs.clear()
        for opened in (self.events.open, self.pools.open, self._kernels.modules):
            opened.take_all()
        self._allocations.clear()
        self.windows.release_all()
        self.unified.clear()
        with self._lock:
            self._launches = self.graphs.replays = 0
