"""Kernels of loaded modules: what a launch is refused for, and running it, a batch of blocks at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tensorwasm.errors import InvalidDimensions, InvalidHandle, InvalidKernel, InvalidKernelArgs, KernelFault
from tensorwasm.gpu.device.output import KernelOutput
from tensorwasm.gpu.device.port import LoadedModule
from tensorwasm.gpu.emulator.allocations import Allocations
from tensorwasm.gpu.emulator.engine import run
from tensorwasm.gpu.emulator.geometry import Geometry
from tensorwasm.gpu.emulator.lanes import Array
from tensorwasm.gpu.emulator.loader import load, unload
from tensorwasm.gpu.emulator.machine import Launch, Machine
from tensorwasm.gpu.emulator.memory import PARAM_WINDOW, Memory
from tensorwasm.gpu.emulator.operands import RAW
from tensorwasm.gpu.emulator.plan import Plan, make_plan
from tensorwasm.gpu.emulator.planes import Plane
from tensorwasm.gpu.emulator.program import Program, param_offsets
from tensorwasm.gpu.emulator.reach import Ground, Reach
from tensorwasm.ptx.layout import variable_bytes
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
MAX_BLOCK_THREADS: Final = 1024
MAX_BLOCK: Final = (1024, 1024, 64)
MAX_GRID: Final = ((1 << 31) - 1, 65535, 65535)


@dataclass(slots=True, eq=False)
class EmulatedModule:
    """A module on the emulator.

    Attributes:
        program: its code.
        output: what its kernels print.
        plans: of the kernels that were asked for so far.
    """

    program: Program
    output: KernelOutput
    plans: dict[str, Plan] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A launch that has been checked.

    Attributes:
        module: where the kernel is.
        plan: the kernel.
        config: its geometry.
        params: its parameter buffer.
    """

    kernels: Kernels
    module: EmulatedModule
    plan: Plan
    config: LaunchConfig
    params: bytes

    def run(self, reach: Reach, deadline: Deadline) -> None:
        """Run it to its end.

        Raises:
            KernelFault: the kernel broke a rule.
            InvokeTimeout: the deadline passed.
        """
        self.kernels.run(self, reach, deadline)


class Kernels:
    """The modules of a device.

    Args:
        info: the device.
        allocations: its memory.
        lanes: threads that run side by side, at least those of one block.
        closing: set when everything has to stop.
    """

    def __init__(self, info: DeviceInfo, allocations: Allocations, lanes: int, closing: threading.Event) -> None:
        self._info, self._allocations, self._lanes, self._closing = info, allocations, lanes, closing
        self._atomicity = threading.Lock()
        self._numbers = itertools.count(1)
        self._modules: set[EmulatedModule] = set()

    def __len__(self) -> int:
        """Return how many modules are loaded."""
        return len(self._modules)

    def load(self, module: Module, deadline: Deadline, output: KernelOutput | None = None) -> EmulatedModule:
        """Make a module's kernels ready to launch; what they print goes to ``output``, by default nowhere.

        Raises:
            UnsupportedPtx: the module asks for what the emulator lacks, by name.
            MalformedPtx: operands do not fit their instruction.
            InvokeTimeout: the deadline passed; nothing was loaded.
        """
        loaded = EmulatedModule(load(module, self._allocations, deadline), output or KernelOutput())
        self._modules.add(loaded)
        return loaded

    def unload(self, loaded: LoadedModule) -> None:
        """Release a module; nothing happens if it is not loaded."""
        if isinstance(loaded, EmulatedModule) and loaded in self._modules:
            self._modules.discard(loaded)
            unload(loaded.program, self._allocations)

    def clear(self) -> None:
        """Forget every module."""
        self._modules.clear()

    # -------------------------------------------------------------------------------------------- checking

    def module(self, loaded: LoadedModule) -> EmulatedModule:
        """Return a module that is loaded here.

        Raises:
            InvalidHandle: it is not.
        """
        if not isinstance(loaded, EmulatedModule) or loaded not in self._modules:
            raise InvalidHandle("the module is not loaded on this device")
        return loaded

    def plan(self, module: EmulatedModule, entry: str) -> Plan:
        """Return a kernel of a module.

        Raises:
            InvalidKernel: it has no such kernel.
        """
        plan = module.plans.get(entry)
        if plan is None:
            code = module.program.functions.get(entry)
            if code is None or not code.function.entry:
                raise InvalidKernel(f"the module has no kernel {entry}")
            plan = module.plans[entry] = make_plan(module.program, entry)
        return plan

    def prepare(self, loaded: LoadedModule, entry: str, config: LaunchConfig, args: Sequence[bytes]) -> KernelCall:
        """Check a launch.

        Raises:
            InvalidHandle: the module is not loaded here.
            InvalidKernel: the module has no such kernel.
            InvalidKernelArgs: the arguments are not of the parameters' sizes.
            InvalidDimensions: more threads or memory than this device or this kernel takes.
        """
        module = self.module(loaded)
        plan = self.plan(module, entry)
        self._check(plan, config, plan.static_shared_bytes + config.shared_bytes)
        return KernelCall(self, module, plan, config, _pack(plan.code.function, args))

    def _check(self, plan: Plan, config: LaunchConfig, shared_bytes: int) -> None:
        x, y, z = config.block
        threads = x * y * z
        most = thread_limit(plan.code.function)
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

    # --------------------------------------------------------------------------------------------- running

    def run(self, call: KernelCall, reach: Reach, deadline: Deadline) -> None:
        """Run a launch to its end; memory that is released meanwhile is out of its reach from then on.

        Raises:
            KernelFault: the kernel broke a rule, or its module is no longer loaded.
            InvokeTimeout: the deadline passed.
            DeviceLost: the device was closed.
        """
        plan = call.plan
        if call.module not in self._modules:
            raise KernelFault(f"the module of kernel {plan.code.function.name} was unloaded before the kernel ran")
        launch = Launch(
            kernel=plan.code.function.name,
            config=call.config,
            info=self._info,
            params=call.params,
            shared=plan.shared,
            frame=plan.frame,
            mailbox=plan.mailbox,
            shared_bytes=plan.static_shared_bytes + call.config.shared_bytes,
            deadline=deadline,
            closing=self._closing,
            number=next(self._numbers),
            output=call.module.output,
        )
        with np.errstate(all="ignore"), self._allocations.using(reach) as use:
            ground = Ground(use, [*call.module.program.planes, _param_plane(call.params)])
            self._run_batches(call.module.program, plan, launch, ground)

    def _run_batches(self, program: Program, plan: Plan, launch: Launch, ground: Ground) -> None:
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
            self._run_batch(program, plan, launch, ground, geometry, zeros)

    def _run_batch(
        self,
        program: Program,
        plan: Plan,
        launch: Launch,
        ground: Ground,
        geometry: Geometry,
        zeros: dict[int, Array],
    ) -> None:
        memory = Memory(
            geometry,
            ground,
            self._allocations,
            self._atomicity,
            launch.shared_bytes,
            plan.frame_bytes,
            plan.granule_bytes,
            launch.check,
        )
        memory.settle()
        machine = Machine(launch, geometry, memory, [zeros[width] for width in plan.widths])
        machine.check()
        run(machine, program.blocks, plan.code.pc)


def thread_limit(function: Function) -> int:
    """Return the most threads of a block that the device and a kernel's own declaration allow."""
    limit = MAX_BLOCK_THREADS
    for directive in function.directives:
        if directive.name in ("maxntid", "reqntid"):
            threads = 1
            for word in directive.arguments:
                threads *= int(word) if word.isdigit() else 1
            limit = min(limit, threads)
    return limit


def param_sizes(plan: Plan) -> list[int]:
    """Return the bytes of each parameter of a kernel."""
    return [variable_bytes(param) for param in plan.code.function.params]


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
