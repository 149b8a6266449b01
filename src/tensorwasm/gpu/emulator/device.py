"""The emulator as a device: runs PTX on this machine's processor, a batch of blocks at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tensorwasm.errors import InvalidDimensions, InvalidHandle, InvalidKernel, InvalidKernelArgs
from tensorwasm.gpu.device import DeviceStatistics, LoadedModule, Stream
from tensorwasm.gpu.emulator.allocations import Allocations, Plane
from tensorwasm.gpu.emulator.engine import run
from tensorwasm.gpu.emulator.geometry import Geometry
from tensorwasm.gpu.emulator.lanes import Array
from tensorwasm.gpu.emulator.loader import load, unload
from tensorwasm.gpu.emulator.machine import Launch, Machine
from tensorwasm.gpu.emulator.memory import PARAM_WINDOW, Memory
from tensorwasm.gpu.emulator.operands import RAW
from tensorwasm.gpu.emulator.plan import Plan, make_plan
from tensorwasm.gpu.emulator.program import Program, param_offsets
from tensorwasm.ptx.model import Function, Module
from tensorwasm.ptx.select import check_compatible
from tensorwasm.values import Deadline, DeviceInfo, LaunchConfig, Region

LANES: Final = 1 << 14
"""Lanes of a batch. More would not fit the processor's caches, fewer would not outweigh the interpreter.

Batches run one after the other, in the order of their blocks: a block that waits for one of a later batch waits for
ever, as one that waits for a block that is not resident does on a GPU."""
BATCH_BYTES: Final = 256 << 20
"""Memory that a batch of more than one block may need."""
BLOCK_BYTES: Final = 1 << 30
"""Memory that one block may need."""
MAX_BLOCK_THREADS: Final = 1024
MAX_BLOCK: Final = (1024, 1024, 64)
MAX_GRID: Final = ((1 << 31) - 1, 65535, 65535)


@dataclass(slots=True, eq=False)
class EmulatedModule:
    """A module on the emulator."""

    program: Program
    plans: dict[str, Plan]


class EmulatedStream:
    """An order of work; the emulator has finished everything when a call returns."""


class EmulatorDevice:
    """A device that any machine has. Launches run on the calling thread, several at a time if several threads call."""

    def __init__(
        self,
        memory_bytes: int = 1 << 30,
        *,
        compute_capability: tuple[int, int] = (9, 0),
        ptx_version: tuple[int, int] = (9, 0),
        multiprocessors: int = 132,
        lanes: int = LANES,
    ) -> None:
        """Open the device.

        Args:
            memory_bytes: device memory, module variables included.
            compute_capability: what it claims to be.
            ptx_version: newest PTX ISA it claims to know.
            multiprocessors: how many it claims to have.
            lanes: threads that run side by side, at least those of one block.
        """
        self._info = DeviceInfo(
            kind="emulator",
            ordinal=0,
            name="TensorWasm emulator",
            compute_capability=compute_capability,
            ptx_version=ptx_version,
            memory_bytes=memory_bytes,
            multiprocessors=multiprocessors,
            max_shared_bytes=227 << 10,
            concurrent_managed_access=True,
        )
        self._lanes = lanes
        self._allocations = Allocations(memory_bytes)
        self._lock = threading.Lock()
        self._atomicity = threading.Lock()
        self._modules: list[EmulatedModule] = []
        self._streams: list[EmulatedStream] = []
        self._numbers = itertools.count(1)
        self._launches = 0

    @property
    def info(self) -> DeviceInfo:
        """What the device is."""
        return self._info

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new zeroed memory, 256-byte aligned.

        Raises:
            QuotaExceeded: the budget has not so many bytes left.
        """
        return self._allocations.allocate(size_bytes).base

    def free(self, address: int) -> None:
        """Release what `allocate` returned."""
        self._allocations.free(address)

    def register(self, address: int, size_bytes: int) -> None:
        """Make host pages reachable by kernels at the same address.

        Raises:
            LaunchRefused: the range is empty or overlaps a registered one.
        """
        self._allocations.register(address, size_bytes)

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self._allocations.unregister(address)

    def write(self, address: int, data: bytes | memoryview, stream: Stream) -> None:
        """Copy host bytes into device memory.

        Raises:
            LaunchRefused: the range is not inside one allocation.
        """
        del stream
        source = np.frombuffer(data, np.uint8)
        self._allocations.bytes_at(address, source.size)[:] = source

    def read(self, address: int, into: memoryview, stream: Stream) -> None:
        """Fill a writable host buffer from device memory.

        Raises:
            LaunchRefused: the range is not inside one allocation.
        """
        del stream
        target = np.frombuffer(into, np.uint8)
        target[:] = self._allocations.bytes_at(address, target.size)

    def load(self, module: Module, deadline: Deadline) -> LoadedModule:
        """Make a module's kernels ready to launch.

        Raises:
            UnsupportedPtx: the module asks for what the emulator lacks, by name.
            MalformedPtx: operands do not fit their instruction.
            InvokeTimeout: the deadline passed; nothing was loaded.
        """
        check_compatible(module, self._info.compute_capability, self._info.ptx_version)
        loaded = EmulatedModule(load(module, self._allocations, deadline), {})
        with self._lock:
            self._modules.append(loaded)
        return loaded

    def unload(self, loaded: LoadedModule) -> None:
        """Release a module."""
        with self._lock:
            if loaded not in self._modules:
                return
            self._modules.remove(loaded)
        unload(loaded.program, self._allocations)

    def open_stream(self) -> Stream:
        """Return a new stream."""
        stream = EmulatedStream()
        with self._lock:
            self._streams.append(stream)
        return stream

    def close_stream(self, stream: Stream) -> None:
        """Release a stream."""
        with self._lock:
            if stream in self._streams:
                self._streams.remove(stream)

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
        """Run a kernel to its end on the calling thread.

        Raises:
            InvalidHandle: the module is not loaded here.
            InvalidKernel: the module has no such kernel.
            InvalidKernelArgs: the arguments are not of the parameters' sizes.
            InvalidDimensions: more threads or memory than this device or this kernel takes.
            LaunchRefused: a region is not memory of this device.
            KernelFault: the kernel broke a rule.
            InvokeTimeout: the deadline passed.
        """
        del stream
        module = self._module(loaded)
        plan = self._plan(module, entry)
        shared_bytes = plan.static_shared_bytes + config.shared_bytes
        self._check(plan, config, shared_bytes)
        params = _pack(plan.code.function, args)
        planes = [*self._allocations.planes(regions), *module.program.planes, _param_plane(params)]
        planes.sort(key=lambda plane: plane.base)
        with self._lock:
            self._launches += 1
        launch = Launch(
            kernel=entry,
            config=config,
            info=self._info,
            params=params,
            shared=plan.shared,
            frame=plan.frame,
            mailbox=plan.mailbox,
            shared_bytes=shared_bytes,
            deadline=deadline,
            number=next(self._numbers),
        )
        with np.errstate(all="ignore"):
            self._run(module.program, plan, launch, planes)

    def _module(self, loaded: LoadedModule) -> EmulatedModule:
        with self._lock:
            if not isinstance(loaded, EmulatedModule) or loaded not in self._modules:
                raise InvalidHandle("the module is not loaded on this device")
        return loaded

    def _plan(self, loaded: EmulatedModule, entry: str) -> Plan:
        plan = loaded.plans.get(entry)
        if plan is None:
            code = loaded.program.functions.get(entry)
            if code is None or not code.function.entry:
                raise InvalidKernel(f"the module has no kernel {entry}")
            plan = loaded.plans[entry] = make_plan(loaded.program, entry)
        return plan

    def _check(self, plan: Plan, config: LaunchConfig, shared_bytes: int) -> None:
        x, y, z = config.block
        threads = x * y * z
        most = min(MAX_BLOCK_THREADS, _thread_limit(plan.code.function))
        if min(config.block) < 1 or threads > most or any(a > b for a, b in zip(config.block, MAX_BLOCK, strict=True)):
            raise InvalidDimensions(f"a block of {x} x {y} x {z} threads; this kernel takes at most {most}")
        if min(config.grid) < 1 or any(a > b for a, b in zip(config.grid, MAX_GRID, strict=True)):
            raise InvalidDimensions(f"a grid of {' x '.join(map(str, config.grid))} blocks")
        if config.shared_bytes < 0 or shared_bytes > self._info.max_shared_bytes:
            limit = self._info.max_shared_bytes
            raise InvalidDimensions(f"{shared_bytes} bytes of shared memory per block; the device has {limit}")
        need = plan.block_bytes(shared_bytes, threads)
        if need > BLOCK_BYTES:
            raise InvalidDimensions(
                f"a block needs {need} bytes of registers and local memory, more than {BLOCK_BYTES}"
            )

    def _run(self, program: Program, plan: Plan, launch: Launch, planes: list[Plane]) -> None:
        x, y, z = launch.config.block
        threads = x * y * z
        total = launch.config.grid[0] * launch.config.grid[1] * launch.config.grid[2]
        each = plan.block_bytes(launch.shared_bytes, threads)
        batch = max(1, min(total, self._lanes // threads, BATCH_BYTES // max(each, 1)))
        zeros = _zeros(batch * threads)
        for first in range(0, total, batch):
            geometry = Geometry(launch.kernel, launch.config, first, min(batch, total - first))
            if geometry.lanes != zeros[32].size:
                zeros = _zeros(geometry.lanes)
                launch.constants.clear()
            self._run_batch(program, plan, launch, planes, geometry, zeros)

    def _run_batch(
        self,
        program: Program,
        plan: Plan,
        launch: Launch,
        planes: list[Plane],
        geometry: Geometry,
        zeros: dict[int, Array],
    ) -> None:
        memory = Memory(
            geometry,
            planes,
            self._allocations,
            self._atomicity,
            launch.shared_bytes,
            plan.frame_bytes,
            plan.granule_bytes,
            launch.check,
        )
        machine = Machine(launch, geometry, memory, [zeros[width] for width in plan.widths])
        machine.check()
        run(machine, program.blocks, plan.code.pc)

    def synchronize(self, stream: Stream, deadline: Deadline) -> None:
        """Return at once: launches have ended when they return."""

    def statistics(self) -> DeviceStatistics:
        """Return what the device holds now."""
        allocations, allocated_bytes, registrations, registered_bytes = self._allocations.count()
        with self._lock:
            return DeviceStatistics(
                allocations=allocations,
                allocated_bytes=allocated_bytes,
                registrations=registrations,
                registered_bytes=registered_bytes,
                modules=len(self._modules),
                streams=len(self._streams),
                launches=self._launches,
            )

    def close(self) -> None:
        """Release everything. Idempotent."""
        with self._lock:
            self._modules.clear()
            self._streams.clear()
            self._allocations = Allocations(self._info.memory_bytes)


def _zeros(lanes: int) -> dict[int, Array]:
    """Return the registers of lanes that have written none, read-only, by width."""
    zeros = {bits: np.zeros(lanes, dtype) for bits, dtype in RAW.items()}
    for values in zeros.values():
        values.flags.writeable = False
    return zeros


def _pack(function: Function, args: Sequence[bytes]) -> bytes:
    offsets, size = param_offsets(function)
    if len(args) != len(offsets):
        raise InvalidKernelArgs(f"{len(args)} arguments for {len(offsets)} parameters")
    buffer = bytearray(size)
    ends = [*offsets, size][1:]
    for index, (offset, end, value) in enumerate(zip(offsets, ends, args, strict=True)):
        if len(value) > end - offset or not value:
            raise InvalidKernelArgs(f"argument {index} has {len(value)} bytes where {end - offset} are expected")
        buffer[offset : offset + len(value)] = value
    return bytes(buffer)


def _param_plane(params: bytes) -> Plane:
    data = np.frombuffer(params, np.uint8)
    return Plane(PARAM_WINDOW, data, f"the {len(params)} bytes of kernel parameters", writable=False)


def _thread_limit(function: Function) -> int:
    """Return the most threads of a block that a kernel declares to take."""
    limit = MAX_BLOCK_THREADS
    for directive in function.directives:
        if directive.name in ("maxntid", "reqntid"):
            threads = 1
            for word in directive.arguments:
                threads *= int(word) if word.isdigit() else 1
            limit = min(limit, threads)
    return limit
