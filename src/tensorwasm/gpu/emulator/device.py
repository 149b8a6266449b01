"""The emulator as a device: runs PTX on this machine's processor, in the order of streams and events."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from tensorwasm.gc_pause import gc_paused
from tensorwasm.gpu.device.output import KernelOutput
from tensorwasm.gpu.device.port import DeviceStatistics, LoadedModule, Stream
from tensorwasm.gpu.emulator.allocations import Allocations
from tensorwasm.gpu.emulator.background import Background
from tensorwasm.gpu.emulator.copies import Copies
from tensorwasm.gpu.emulator.events import EmulatedEvents
from tensorwasm.gpu.emulator.graphs import EmulatedGraphs
from tensorwasm.gpu.emulator.handles import Handles
from tensorwasm.gpu.emulator.kernels import LANES, Kernels
from tensorwasm.gpu.emulator.native import EmulatedNative
from tensorwasm.gpu.emulator.pools import EmulatedPools
from tensorwasm.gpu.emulator.queues import EmulatedStream, Queues, Work
from tensorwasm.gpu.emulator.unified import EmulatedMemory
from tensorwasm.ptx.model import Module
from tensorwasm.ptx.select import check_compatible
from tensorwasm.values import NEVER, NEWEST_PTX, Deadline, DeviceInfo, LaunchConfig, Region

MULTIPROCESSORS: Final = 132
EMULATED_CAPABILITY: Final = (9, 0)


class EmulatorDevice:
    """A device that any machine has.

    Work waits in its stream until somebody waits for it, and then runs in that thread; work that is only asked after
    runs in the background. Streams run side by side if several threads wait.

    Attributes:
        events, graphs, pools, unified, native: the facets of the port.
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

        Args:
            memory_bytes: device memory, module variables and managed memory included.
            multiprocessors: how many it claims to have; None for as many as a large GPU.
            compute_capability: what it claims to be.
            ptx_version: newest PTX ISA it claims to know.
            lanes: threads that run side by side, at least those of one block.
        """
        self._info = DeviceInfo(
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
        self._allocations = Allocations(memory_bytes)
        self._kernels = Kernels(self._info, self._allocations, lanes, self._closing)
        self._queues = Queues()
        self._handles = Handles()
        self._background = Background(self._queues)
        self._copies = Copies(self._allocations, self._queues)
        self.events: Final = EmulatedEvents(self._queues, self._background)
        self.graphs: Final = EmulatedGraphs(self._queues, self._allocations, self._handles)
        self.pools: Final = EmulatedPools(self._allocations)
        self.unified: Final = EmulatedMemory(self._allocations, self._queues)
        self.native: Final = EmulatedNative(
            self._info,
            self._allocations,
            self._kernels,
            self._queues,
            self._copies,
            self.graphs,
            self._background,
            self._handles,
        )

    @property
    def info(self) -> DeviceInfo:
        """What the device is."""
        return self._info

    # ---------------------------------------------------------------------------------------------- memory

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new zeroed memory, 256-byte aligned.

        Raises:
            QuotaExceeded: the budget has not so many bytes left.
        """
        return self._allocations.allocate(size_bytes).base

    def free(self, address: int) -> None:
        """Release what `allocate` returned. A kernel that touches it after that faults.

        Raises:
            LaunchRefused: nothing was allocated there.
        """
        self._allocations.free(address)

    def register(self, address: int, size_bytes: int) -> None:
        """Make host pages reachable by kernels at the same address.

        Raises:
            LaunchRefused: the range is empty or overlaps a registered one.
        """
        self._allocations.register(address, size_bytes)

    def unregister(self, address: int) -> None:
        """Undo `register`. No kernel touches the pages after that: one that tries faults.

        Raises:
            LaunchRefused: nothing is registered there.
        """
        self._allocations.unregister(address)

    def write(
        self,
        address: int,
        data: bytes | memoryview,
        stream: Stream | None,
        deadline: Deadline = NEVER,  # noqa: ARG002 - nobody's work is in front of it but the stream's
    ) -> None:
        """Copy host bytes into device memory behind the work in the stream, which this thread runs first.

        Raises:
            LaunchRefused: the range is not inside one allocation, or the stream is recording.
            InvalidHandle: no such stream.
            TensorWasmError: what the stream has failed with.
        """
        self._copies.write(address, data, stream)

    def read(
        self,
        address: int,
        into: memoryview,
        stream: Stream | None,
        deadline: Deadline = NEVER,  # noqa: ARG002 - nobody's work is in front of it but the stream's
    ) -> None:
        """Fill a writable host buffer from device memory behind the work in the stream, which this thread runs first.

        Raises:
            LaunchRefused: the range is not inside one allocation, or the stream is recording.
            InvalidHandle: no such stream.
            TensorWasmError: what the stream has failed with.
        """
        self._copies.read(address, into, stream)

    def fill(self, address: int, size_bytes: int, stream: Stream) -> None:
        """Start filling device memory with zeros.

        Raises:
            LaunchRefused: the range is not inside one allocation.
            InvalidHandle: no such stream.
            TensorWasmError: what the stream has failed with.
        """
        self._copies.fill(address, size_bytes, stream)

    def copy_in(self, address: int, host_address: int, size_bytes: int, stream: Stream) -> None:
        """Start copying host memory to device memory; memory that is not registered is copied from at once.

        Raises:
            LaunchRefused: a range is not inside one allocation or not host memory, or the stream is recording and the
                host memory is not registered.
            InvalidHandle: no such stream.
            TensorWasmError: what the stream has failed with.
        """
        self._copies.copy_in(address, host_address, size_bytes, stream)

    def copy_out(self, host_address: int, address: int, size_bytes: int, stream: Stream) -> None:
        """Start copying device memory to host memory; for memory that is not registered the call waits.

        Raises:
            LaunchRefused: a range is not inside one allocation or not host memory, or the stream is recording and the
                host memory is not registered.
            InvalidHandle: no such stream.
            TensorWasmError: what the stream has failed with.
        """
        self._copies.copy_out(host_address, address, size_bytes, stream)

    # ------------------------------------------------------------------------------------ modules, kernels

    def load(self, module: Module, deadline: Deadline, output: KernelOutput | None = None) -> LoadedModule:
        """Make a module's kernels ready to launch; what they print goes to ``output``.

        Raises:
            UnsupportedPtx: the module asks for what the emulator lacks, by name.
            MalformedPtx: operands do not fit their instruction.
            InvokeTimeout: the deadline passed; nothing was loaded.
        """
        check_compatible(module, self._info.compute_capability, self._info.ptx_version)
        with gc_paused():
            return self._kernels.load(module, deadline, output)

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
        """Start a kernel: it runs when somebody waits for it, and the wait tells what it did wrong.

        Raises:
            InvalidHandle: the module is not loaded here, or the stream is not open.
            InvalidKernel: the module has no such kernel.
            InvalidKernelArgs: the arguments are not of the parameters' sizes.
            InvalidDimensions: more threads or memory than this device or this kernel takes.
            LaunchRefused: a region is not memory of this device.
            TensorWasmError: what the stream has failed with.
        """
        call = self._kernels.prepare(loaded, entry, config, args)
        work = Work(call, self._allocations.reach(regions), deadline)
        self._queues.give(self._queues.own(stream), work)
        with self._lock:
            self._launches += 1

    # --------------------------------------------------------------------------------------------- streams

    def open_stream(self) -> Stream:
        """Return a new stream."""
        return self._queues.open()

    def close_stream(self, stream: Stream) -> None:
        """Release a stream. What has not begun is dropped."""
        self._queues.close(stream)
        if isinstance(stream, EmulatedStream):
            self._handles.drop(stream)

    def ended(self, stream: Stream) -> bool:
        """Return whether the work in a stream has ended; asking lets it run in the background.

        Raises:
            InvalidHandle: no such stream.
            LaunchRefused: the stream is recording.
            TensorWasmError: what the stream has failed with.
        """
        mark = self._queues.mark(self._queues.own(stream))
        if self._queues.reached(mark):
            return True
        self._background.ask(mark)
        return False

    def delayed(self, stream: Stream) -> bool:
        """Return False: work is stopped at its own deadline, whoever's work was ahead of it.

        Raises:
            InvalidHandle: no such stream.
        """
        self._queues.own(stream)
        return False

    def synchronize(self, stream: Stream, deadline: Deadline) -> None:
        """Run the work in a stream, and what it waits for.

        Raises:
            InvalidHandle: no such stream.
            LaunchRefused: the stream is recording.
            KernelFault: a kernel broke a rule. The stream stays failed.
            InvokeTimeout: a deadline passed, that of the wait or of a kernel. What this call was running was stopped.
            DeviceLost: the device or the stream was closed.
        """
        self._queues.run_to(self._queues.mark(self._queues.own(stream)), deadline)

    # -------------------------------------------------------------------------------------------- the whole

    def statistics(self) -> DeviceStatistics:
        """Return what the device holds now."""
        census = self._allocations.census()
        pieces, size_bytes = census.pieces, census.size_bytes
        with self._lock:
            return DeviceStatistics(
                allocations=pieces["device"],
                allocated_bytes=size_bytes["device"],
                registrations=pieces["registered"],
                registered_bytes=size_bytes["registered"],
                modules=len(self._kernels),
                streams=len(self._queues),
                launches=self._launches + self.graphs.replays,
                events=len(self.events),
                graphs=len(self.graphs),
                pools=len(self.pools),
                unified_bytes=size_bytes["managed"] + size_bytes["mapped"],
                release_failures=self.unified.release_failures,
            )

    def close(self) -> None:
        """Release everything; work that is running is stopped, the rest is dropped. Idempotent."""
        self._closing.set()
        self._queues.clear()
        self.events.clear()
        self.graphs.clear()
        self.pools.clear()
        self._kernels.clear()
        self._allocations.clear()
        self.unified.clear()
        with self._lock:
            self._launches = self.graphs.replays = 0
