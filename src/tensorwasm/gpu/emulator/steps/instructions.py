"""Which handler compiles which instruction, and the steps of the ops that `alu` and `collective` make of the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.alu import compile_op
from tensorwasm.gpu.emulator.collective import compile_lane_op, compile_warp_op
from tensorwasm.gpu.emulator.execution.machine import SimtMachine, Step
from tensorwasm.gpu.emulator.lanes import WARP_LANES, Array, Indices, narrow
from tensorwasm.gpu.emulator.ops import DTYPES, LaneMemoryOp, Op, WarpOp
from tensorwasm.gpu.emulator.program.builder import Builder
from tensorwasm.gpu.emulator.program.program import Reader, Writer, own, read_register, write_register
from tensorwasm.gpu.emulator.steps import access, calls, control, warp
from tensorwasm.gpu.emulator.steps.atomics import compile_atomic
from tensorwasm.gpu.emulator.steps.warp import FULL_MASK, compile_gathering
from tensorwasm.ptx.model import Instruction

Handler = Callable[[Builder, Instruction], None]

HANDLERS: Final[dict[str, Handler]] = {
    "mov": access.compile_mov,
    "cvta": access.compile_cvta,
    "isspacep": access.compile_isspacep,
    **dict.fromkeys(("ld", "ldu"), access.compile_load),
    "st": access.compile_store,
    **dict.fromkeys(("membar", "fence"), access.compile_fence),
    **dict.fromkeys(("prefetch", "prefetchu", "discard", "applypriority"), access.compile_hint),
    "createpolicy": access.compile_policy,
    **dict.fromkeys(("atom", "red"), compile_atomic),
    "shfl": warp.compile_shuffle,
    "vote": warp.compile_vote,
    "match": warp.compile_match,
    "activemask": warp.compile_active_mask,
    "elect": warp.compile_election,
    "redux": warp.compile_reduction,
    "bra": control.compile_branch,
    "brx": control.compile_indexed_branch,
    "call": calls.compile_call,
    "ret": calls.compile_return,
    "exit": control.compile_exit,
    **dict.fromkeys(("trap", "brkpt"), control.compile_trap),
    "nanosleep": control.compile_sleep,
    "pmevent": control.compile_nothing,
    **dict.fromkeys(("bar", "barrier"), control.compile_barrier),
}

_FENCE: Final = (
    r"((sc|acq_rel|acquire|release)\.)?(cta|gpu|sys|cluster)|mbarrier_init\.release\.cluster"
    r"|proxy\.(alias|async(\.(global|shared::cta|shared::\{cta,cluster\}))?)"
)
_ANY_COUNT: Final = (0, 1 << 30)
FORMS: Final[dict[str, tuple[tuple[int, int], str]]] = {
    "cvta": ((2, 2), r"(to\.)?[a-z:]+\.u64"),
    "isspacep": ((2, 2), r"[a-z:]+"),
    "membar": ((0, 0), r"(level\.)?(cta|gl|sys)|proxy\.(alias|async(\.(global|shared::cta))?)"),
    "fence": ((0, 0), _FENCE),
    "prefetch": (
        (1, 1),
        r"((global|local)\.)?L[12]|global\.L2::evict_(last|normal)|(const\.|param\.)?tensormap",
    ),
    "prefetchu": ((1, 1), r"L1"),
    "discard": ((2, 2), r"(global\.)?L2"),
    "applypriority": ((2, 2), r"(global\.)?L2::evict_normal"),
    "createpolicy": ((1, 4), r"(fractional|range|cvt)\..*b64"),
    "match": (_ANY_COUNT, r"(any|all)\.sync\.b(32|64)"),
    "elect": (_ANY_COUNT, r"sync"),
    **dict.fromkeys(("bra", "call"), (_ANY_COUNT, r"(uni(\.uni)*)?")),
    "brx": (_ANY_COUNT, r"idx(\.uni)?"),
    "ret": ((0, 0), r"(uni)?"),
    **dict.fromkeys(("exit", "trap", "brkpt"), ((0, 0), r"")),
    "nanosleep": ((1, 1), r"u32"),
    "pmevent": ((1, 1), r"(mask)?"),
    "bar": ((1, 4), r".*"),
    "barrier": ((0, 4), r".*"),
}
"""Fewest and most operands, and modifiers; handlers check what is not here."""

LACKING: Final[dict[str, str]] = {
    **dict.fromkeys(("tex", "tld4", "txq", "istypep"), "textures"),
    **dict.fromkeys(("suld", "sust", "sured", "suq"), "surfaces"),
    **dict.fromkeys(("wgmma", "setmaxnreg"), "asynchronous warpgroup products"),
    "tcgen05": "fifth-generation tensor cores",
    **dict.fromkeys(("mapa", "getctarank", "clusterlaunchcontrol"), "clusters"),
    "multimem": "multicast memory",
    "tensormap": "tensor maps",
    **dict.fromkeys(("alloca", "stacksave", "stackrestore"), "stack of variable size"),
    "griddepcontrol": "dependent launches",
}
"""Opcodes that the emulator lacks, and what they need."""


def compile_instruction(builder: Builder, instruction: Instruction) -> None:
    """Add the steps of one instruction."""
    opcode = instruction.opcode
    if opcode in LACKING:
        raise UnsupportedPtx(f"the emulator has no {LACKING[opcode]}")
    handler = HANDLERS.get(opcode) if opcode != "red" or instruction.modifiers[:1] != ("async",) else None
    if handler is not None:
        _check_form(instruction)
        handler(builder, instruction)
    elif (op := compile_op(instruction)) is not None:
        with np.errstate(all="ignore"):
            compile_arithmetic(builder, instruction, op)
    elif (warp_op := compile_warp_op(instruction)) is not None:
        compile_warp(builder, instruction, warp_op)
    elif (lane_op := compile_lane_op(instruction, builder.names.type_of)) is not None:
        compile_lane_memory(builder, instruction, lane_op)
    else:
        raise UnsupportedPtx("the emulator lacks this instruction")


def _check_form(instruction: Instruction) -> None:
    (fewest, most), modifiers = FORMS.get(instruction.opcode, (_ANY_COUNT, ".*"))
    if not re.fullmatch(modifiers, ".".join(instruction.modifiers)):
        raise UnsupportedPtx(f"the emulator lacks this form of {instruction.opcode}")
    if not fewest <= len(instruction.operands) <= most:
        raise MalformedPtx(f"{len(instruction.operands)} operands")


def _bind_operands(
    builder: Builder, instruction: Instruction, results: tuple[str, ...], sources: tuple[str, ...]
) -> tuple[list[Writer], list[Reader]]:
    """Return writers and readers for an instruction's operands, vectors and pairs flattened."""
    names = builder.names
    operands = names.elements(*instruction.operands)
    if len(operands) != len(results) + len(sources):
        raise MalformedPtx(f"{len(operands)} operands where {len(results) + len(sources)} are expected")
    if instruction.opcode != "cvt":
        for operand, ptx_type in zip(operands, (*results, *sources), strict=True):
            names.require_width(operand, ptx_type)
    writers = [names.writer(one, ptx_type) for one, ptx_type in zip(operands, results, strict=False)]
    readers = [names.reader(one, ptx_type) for one, ptx_type in zip(operands[len(results) :], sources, strict=True)]
    return writers, readers


# ------------------------------------------------------------------------------------- each lane for itself


def compile_arithmetic(builder: Builder, instruction: Instruction, op: Op) -> None:
    """Add the step of an instruction that every lane executes for itself: read, compute all lanes at once, write."""
    results = op.results[:-1] if op.writes_carry else op.results
    sources = op.sources[:-1] if op.reads_carry else op.sources
    writers, readers = _bind_operands(builder, instruction, results, sources)
    if op.writes_carry:
        writers.append(write_register(builder.names.carry(), "pred"))
    if op.reads_carry:
        readers.append(read_register(builder.names.carry(), DTYPES["pred"]))
    builder.step(_one_result(op, writers[0], readers) if len(writers) == 1 else _several_results(op, writers, readers))


def _one_result(op: Op, write: Writer, readers: list[Reader]) -> Step:
    run = op.run
    if len(readers) == 1:
        (read,) = readers

        def step_one(machine: SimtMachine) -> None:
            source = read(machine)
            write(machine, own(_array(run(source)), (source,)))

        return step_one
    if len(readers) == 2:
        first, second = readers

        def step_two(machine: SimtMachine) -> None:
            left, right = first(machine), second(machine)
            write(machine, own(_array(run(left, right)), (left, right)))

        return step_two

    def step(machine: SimtMachine) -> None:
        sources = tuple(read(machine) for read in readers)
        write(machine, own(_array(run(*sources)), sources))

    return step


def _array(values: Array | tuple[Array, ...]) -> Array:
    return values[0] if isinstance(values, tuple) else values


def _several_results(op: Op, writers: list[Writer], readers: list[Reader]) -> Step:
    def step(machine: SimtMachine) -> None:
        sources = tuple(read(machine) for read in readers)
        values = [own(value, sources) for value in op.run(*sources)]
        for write, value in zip(writers, values, strict=True):
            write(machine, value)

    return step


# -------------------------------------------------------------------------------------------- whole warps


class WarpView:
    """`WarpMemory` of a machine."""

    def __init__(self, machine: SimtMachine, site: Instruction, lanes: Indices) -> None:
        """Begin a view; ``lanes`` is ``(warps, 32)``."""
        self._machine, self._site, self._lanes = machine, site, lanes

    def load(self, space: str, addresses: NDArray[np.uint64], dtype: np.dtype[Any]) -> Array:
        """Read one element per address."""
        lanes, flat = self._flatten(addresses)
        return self._machine.memory.load(space, self._site, lanes, flat, dtype).reshape(addresses.shape)

    def store(self, space: str, addresses: NDArray[np.uint64], values: Array) -> None:
        """Write one element per address."""
        lanes, flat = self._flatten(addresses)
        self._machine.memory.store(space, self._site, lanes, flat, np.ascontiguousarray(values).reshape(-1))

    def fault(self, warp: int, lane: int, reason: str) -> NoReturn:
        """Raise `KernelFault` for one lane."""
        self._machine.geometry.fault(self._site, int(self._lanes[warp, lane]), reason)

    def _flatten(self, addresses: NDArray[np.uint64]) -> tuple[Indices, NDArray[np.uint64]]:
        """Return accessing lane and address of each access."""
        lanes = self._lanes[:, : addresses.shape[1]]
        lanes = lanes.reshape(lanes.shape + (1,) * (addresses.ndim - 2))
        flat = np.ascontiguousarray(addresses, np.uint64).reshape(-1)
        return np.broadcast_to(lanes, addresses.shape).reshape(-1), flat


def compile_warp(builder: Builder, instruction: Instruction, op: WarpOp) -> None:
    """Add an instruction that whole warps execute together."""
    writers, readers = _bind_operands(builder, instruction, op.results, op.sources)
    builder.code.note_access(1 if any(word in ("s8", "u8", "b8") for word in instruction.modifiers) else 2)

    def act(machine: SimtMachine, _masks: Array) -> None:
        lanes = machine.indices().reshape(-1, WARP_LANES)
        sources = [read(machine).reshape(-1, WARP_LANES) for read in readers]
        results = op.run(WarpView(machine, instruction, lanes), *sources) or ()
        flat = [own(np.ascontiguousarray(result).reshape(-1), ()) for result in results]
        for write, values in zip(writers, flat, strict=True):
            write(machine, values)

    def read_masks(machine: SimtMachine) -> Array:
        if machine.geometry.threads % WARP_LANES or machine.live_lanes != machine.lanes:
            short = machine.live_bits()[machine.geometry.warp[machine.indices()]] != FULL_MASK
            machine.fault_where(instruction, short, "needs all 32 lanes of its warp, and some are missing")
        return np.full(machine.count, FULL_MASK)

    compile_gathering(builder, instruction, read_masks, act)


# -------------------------------------------------------------------- each lane for itself, on memory with state


class LaneView:
    """`LaneMemory` of a machine."""

    def __init__(self, machine: SimtMachine, site: Instruction) -> None:
        self._machine, self._site, self.queue = machine, site, machine.queue

    def load(
        self,
        space: str,
        lanes: Indices,
        addresses: NDArray[np.uint64],
        dtype: np.dtype[Any],
        count: int = 1,
        *,
        atomic: bool = False,
    ) -> Array:
        """Read ``count`` consecutive elements per lane, ``(lanes, count)``."""
        if not lanes.size:
            return np.empty((0, count), dtype)
        found = self._machine.memory.load(space, self._site, lanes, addresses, dtype, count, atomic=atomic)
        return found.reshape(-1, count)

    def store(
        self, space: str, lanes: Indices, addresses: NDArray[np.uint64], values: Array, *, atomic: bool = False
    ) -> None:
        """Write ``(lanes, count)`` values."""
        if lanes.size:
            found = values.reshape(-1) if values.ndim == 2 and values.shape[1] == 1 else values
            self._machine.memory.store(space, self._site, lanes, addresses, found, atomic=atomic)

    def unset(self, space: str, lanes: Indices, addresses: NDArray[np.uint64], size_bytes: int) -> None:
        """Make shared memory uninitialised."""
        if lanes.size:
            self._machine.memory.unset(space, self._site, lanes, addresses, size_bytes)

    def blocks(self, lanes: Indices) -> Indices:
        """Return the block of each lane."""
        return self._machine.geometry.block[lanes]

    def synchronize(self, lanes: Indices) -> None:
        """Order all accesses so far in the blocks of these lanes before all later ones."""
        if lanes.size:
            self._machine.memory.races.synchronize_blocks(np.unique(self._machine.geometry.block[lanes]))

    def fault(self, lane: int, reason: str) -> NoReturn:
        """Raise `KernelFault` for one lane."""
        self._machine.geometry.fault(self._site, lane, reason)


def compile_lane_memory(builder: Builder, instruction: Instruction, op: LaneMemoryOp) -> None:
    """Add an instruction that lanes execute for themselves, on memory that keeps state."""
    writers, readers = _bind_operands(builder, instruction, op.results, op.sources)
    builder.code.note_access(4)

    def run(machine: SimtMachine) -> tuple[Array, ...]:
        sources = [read(machine) for read in readers]
        results = op.run(LaneView(machine, instruction), machine.indices(), *sources) or ()
        for write, values in zip(writers, results, strict=True):
            write(machine, own(values, tuple(sources)).copy())
        return results

    if not op.waits:
        builder.step(run)
        return

    def end(machine: SimtMachine, pc: int) -> int:
        machine.spins += 1
        (passed,) = run(machine)
        if passed.all():
            return pc + 1
        if not passed.any():
            machine.scheduler.yield_turn(pc + 1, machine.depth, machine.active)
            return -1
        machine.scheduler.yield_turn(pc + 1, machine.depth, narrow(machine.active, ~passed, machine.lanes))
        machine.activate(narrow(machine.active, passed, machine.lanes))
        return pc + 1

    builder.finish(end)
