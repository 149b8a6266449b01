"""Kernels of loaded modules: the checks of a launch, and running it, a batch of blocks at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Final

import numpy as np

from tensorwasm.errors import InvalidDimensions, InvalidKernel, InvalidKernelArgs, KernelFault
from tensorwasm.gpu.device.port import KernelOutput
from tensorwasm.gpu.device.protocols import LoadedModule
from tensorwasm.gpu.emulator.execution.machine import Launch, SimtMachine
from tensorwasm.gpu.emulator.execution.scheduler import run
from tensorwasm.gpu.emulator.handles import OpenObjects
from tensorwasm.gpu.emulator.lanes import Array, BatchGeometry
from tensorwasm.gpu.emulator.loader import load, unload
from tensorwasm.gpu.emulator.memory.allocations import AllocationTable
from tensorwasm.gpu.emulator.memory.planes import AccessRanges, AddressMap, Plane
from tensorwasm.gpu.emulator.memory.spaces import PARAM_WINDOW, BatchMemory
from tensorwasm.gpu.emulator.program.program import RAW, KernelPlan, Program, make_plan
from tensorwasm.ptx.flow import thread_limit
from tensorwasm.ptx.layout import place
from tensorwasm.ptx.model import Function, Module
from tensorwasm.values import Deadline, DeviceInfo, LaunchConfig

LANES: Final = 1 << 14
"""Lanes of a batch. More would not fit the processor's caches, fewer would not outweigh the interpreter.

Batches run one after the other, in the order of their blocks: a block that waits for one of a later batch waits for
ever, as one that waits for a block that is not resident does on a GPU."""
BATCH_BYTES: Final = 256 << 20
"""Memory that a batch of more than one block may need."""
BLOCK_BYTES: Final = 1 << 30
"""Memory that one block may need."""
MAX_BLOCK: Final = (1024, 1024, 64)
MAX_GRID: Final = ((1 << 31) - 1, 65535, 65535)


@dataclass(slots=True, eq=False)
class EmulatedModule:
    """A module on the emulator, with the plans of the kernels that were asked for so far."""

    program: Program
    output: KernelOutput
    plans: dict[str, KernelPlan] = field(default_factory=dict)


KernelCall = Callable[[AccessRanges, Deadline], None]
"""A launch that has been checked: run, it touches some ranges, and nothing of them that is released during the run."""


class KernelRunner:
    """The loaded ``modules`` of a device, and the launches of their kernels."""

    def __init__(self, info: DeviceInfo, allocations: AllocationTable, lanes: int, closing: threading.Event) -> None:
        """Begin without modules; ``lanes`` as in `EmulatorDevice`; ``closing`` is set when everything has to stop."""
        self._info, self._allocations, self._lanes, self._closing = info, allocations, lanes, closing
        self._atomicity = threading.Lock()
        self._numbers = itertools.count(1)
        self.modules: Final = OpenObjects(EmulatedModule, "the module is not loaded on this device")

    def load(self, module: Module, deadline: Deadline, output: KernelOutput | None = None) -> EmulatedModule:
        """Make a module's kernels ready to launch; what they print goes to ``output``, by default nowhere."""
        return self.modules.add(EmulatedModule(load(module, self._allocations, deadline), output or KernelOutput()))

    def unload(self, loaded: LoadedModule) -> None:
        """Release a module; nothing happens if it is not loaded."""
        if isinstance(loaded, EmulatedModule) and loaded in self.modules:
            self.modules.discard(loaded)
            unload(loaded.program, self._allocations)

    # -------------------------------------------------------------------------------------------- checking

    def plan(self, module: EmulatedModule, entry: str) -> KernelPlan:
        """Return a kernel of a module."""
        if entry not in module.plans:
            code = module.program.functions.get(entry)
            if code is None or not code.function.entry:
                raise InvalidKernel(f"the module has no kernel {entry}")
            module.plans[entry] = make_plan(module.program, entry)
        return module.plans[entry]

    def prepare(self, loaded: LoadedModule, entry: str, config: LaunchConfig, args: Sequence[bytes]) -> KernelCall:
        """Check a launch; errors as in `EmulatorDevice.launch`."""
        module = self.modules.require(loaded)
        plan = self.plan(module, entry)
        self._check(plan, config, plan.static_shared_bytes + config.shared_bytes)
        return partial(self._run, module, plan, config, _pack(plan.code.function, args))

    def _check(self, plan: KernelPlan, config: LaunchConfig, shared_bytes: int) -> None:
        x, y, z = config.block
        threads = x * y * z
        most = thread_limit(plan.code.function)
        if min(config.block) < 1 or threads > most or any(a > b for a, b in zip(config.block, MAX_BLOCK, strict=True)):
            raise InvalidDimensions(f"a block of {x} x {y} x {z} threads; this kernel takes at most {most}")
        if min(config.grid) < 1 or any(a > b for a, b in zip(config.grid, MAX_GRID, strict=True)):
            raise InvalidDimensions(f"a grid of {' x '.join(map(str, config.grid))} blocks")
        limit = self._info.max_shared_bytes
        if config.shared_bytes < 0 or shared_bytes > limit:
            raise InvalidDimensions(f"{shared_bytes} bytes of shared memory per block; the device has {limit}")
        need = plan.block_bytes(shared_bytes, threads)
        if need > BLOCK_BYTES:
            raise InvalidDimensions(
                f"a block needs {need} bytes of registers and local memory, more than {BLOCK_BYTES}"
            )

    # --------------------------------------------------------------------------------------------- running

    def _run(
        self,
        module: EmulatedModule,
        plan: KernelPlan,
        config: LaunchConfig,
        params: bytes,
        ranges: AccessRanges,
        deadline: Deadline,
    ) -> None:
        """Run a launch to its end; an access to memory that is released during the run is a fault from then on."""
        kernel = plan.code.function.name
        if module not in self.modules:
            raise KernelFault(f"the module of kernel {kernel} was unloaded before the kernel ran")
        launch = Launch(
            kernel=kernel,
            config=config,
            info=self._info,
            params=params,
            shared=plan.shared,
            frame=plan.frame,
            shared_bytes=plan.static_shared_bytes + config.shared_bytes,
            deadline=deadline,
            closing=self._closing,
            number=next(self._numbers),
            output=module.output,
        )
        label = f"the {len(params)} bytes of kernel parameters"
        plane = Plane(PARAM_WINDOW, np.frombuffer(params, np.uint8), label, writable=False)
        with np.errstate(all="ignore"), self._allocations.lease(ranges) as lease:
            address_map = AddressMap(lease, [*module.program.planes, plane])
            self._run_batches(module.program, plan, launch, address_map)

    def _run_batches(self, program: Program, plan: KernelPlan, launch: Launch, address_map: AddressMap) -> None:
        threads, total = prod(launch.config.block), prod(launch.config.grid)
        block_bytes = plan.block_bytes(launch.shared_bytes, threads)
        batch = max(1, min(total, self._lanes // threads, BATCH_BYTES // max(block_bytes, 1)))
        zeros = _zeros(batch * threads)
        for first in range(0, total, batch):
            geometry = BatchGeometry(launch.kernel, launch.config, first, min(batch, total - first))
            if geometry.lanes != zeros[32].size:
                zeros = _zeros(geometry.lanes)
                launch.constants.clear()
            memory = BatchMemory(
                geometry,
                address_map,
                self._allocations,
                self._atomicity,
                launch.shared_bytes,
                plan.frame_bytes,
                plan.granule_bytes,
                launch.check,
            )
            memory.drop_released()
            launch.check()
            machine = SimtMachine(launch, geometry, memory, [zeros[width] for width in plan.widths])
            run(machine, program.blocks, plan.code.pc)


def _zeros(lanes: int) -> dict[int, Array]:
    """Return the registers of lanes that have written none, read-only, by width."""
    zeros = {bits: np.zeros(lanes, dtype) for bits, dtype in RAW.items()}
    for values in zeros.values():
        values.flags.writeable = False
    return zeros


def _pack(function: Function, args: Sequence[bytes]) -> bytes:
    """Return the parameter buffer of a launch."""
    offsets, size = place(function.params)
    if len(args) != len(offsets):
        raise InvalidKernelArgs(f"{len(args)} arguments for {len(offsets)} parameters")
    buffer = bytearray(size)
    ends = [*offsets, size][1:]
    for index, (offset, end, value) in enumerate(zip(offsets, ends, args, strict=True)):
        if len(value) > end - offset or not value:
            raise InvalidKernelArgs(f"argument {index} has {len(value)} bytes where {end - offset} are expected")
        buffer[offset : offset + len(value)] = value
    return bytes(buffer)
