"""Calls and returns.

Every function has its own registers and its own place in local memory, so that lanes anywhere in the program can run
side by side. A function that may call itself gets one place per call depth, and its caller's registers are saved.
Arguments and results are passed as bytes, ``(n, size)``; results at the beginning of local memory.

Source: PTX ISA 7.1 (Function Declarations and Definitions), 9.7.12.3 (call), 9.7.12.4 (ret).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.execution.machine import SimtMachine, Step
from tensorwasm.gpu.emulator.lanes import narrow, rows
from tensorwasm.gpu.emulator.memory.planes import Bytes, show_address
from tensorwasm.gpu.emulator.program.builder import Builder
from tensorwasm.gpu.emulator.program.names import frame_offset
from tensorwasm.gpu.emulator.program.program import (
    MAX_DEPTH,
    RAW,
    FunctionCode,
    Reader,
    RegisterSlot,
    own,
    read_register,
    scalars,
    shape_of,
)
from tensorwasm.gpu.emulator.steps.control import exit_lanes, jump
from tensorwasm.gpu.emulator.steps.printing import PRINTER, print_lanes
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import Arguments, Function, Instruction, Name, Operand, TargetList, Variable

Fetch = Callable[[SimtMachine], Bytes]
Deliver = Callable[[SimtMachine, Bytes], None]
ASSERTION: Final = "__assertfail"


def compile_return(builder: Builder, _instruction: Instruction) -> None:
    """Add a ``ret``: results go to local memory, lanes to where they were called from; from a kernel they exit."""
    code = builder.code
    if code.function.entry:
        builder.finish(exit_lanes)
        return
    returns = scalars(code.function.returns)
    fetches = [_fetch_home(home, result) for home, result in zip(code.results, returns, strict=True)]

    def end(machine: SimtMachine, _pc: int) -> int:
        start = 0
        for fetch in fetches:
            values = fetch(machine)
            machine.memory.frames.write(start, values, machine.active)
            start += values.shape[1]
        machine.depth -= 1
        return jump(machine, machine.return_pcs[machine.depth][machine.indices()])

    builder.finish(end)


@dataclass(frozen=True, slots=True)
class _Callees:
    """The functions that a call may enter; ``read`` reads each lane's choice, in a call through an address."""

    candidates: list[FunctionCode]
    by_address: dict[int, FunctionCode] = field(default_factory=dict)
    read: Reader | None = None

    def choose(self, machine: SimtMachine, site: Instruction) -> list[tuple[FunctionCode, NDArray[np.bool_] | None]]:
        """Return the functions that the active lanes call, and which lanes each; None for all."""
        if self.read is None:
            return [(self.candidates[0], None)]
        addresses = self.read(machine)
        chosen: list[tuple[FunctionCode, NDArray[np.bool_] | None]] = []
        for address in np.unique(addresses).tolist():
            mask = addresses == address
            code = self.by_address.get(address)
            if code is None:
                reason = f"calls {show_address(address)}, which is no function it may call"
                machine.fault(site, int(mask.argmax()), reason)
            chosen.append((code, mask))
        return chosen


def compile_call(builder: Builder, instruction: Instruction) -> None:
    """Add a ``call``, direct or through an address."""
    functions = builder.names.functions
    operands = list(instruction.operands)
    results = _take_list(operands)
    callee = operands.pop(0)
    arguments = _take_list(operands)
    if not isinstance(callee, Name):
        raise MalformedPtx("a function is expected")
    found = builder.names.find(callee.name)
    if not isinstance(found, Function):
        prototype, allowed = _targets(builder, operands)
        callees = _Callees(allowed, {code.address: code for code in allowed}, builder.names.reader(callee, "u64"))
        _emit(builder, instruction, callees, prototype, arguments, results)
    elif found.name in functions:
        _emit(builder, instruction, _Callees([functions[found.name]]), found, arguments, results)
    elif found.name == ASSERTION:
        builder.step(lambda machine: machine.fault(instruction, 0, "fails an assertion"))
    elif found.name == PRINTER:
        _emit_print(builder, instruction, found, arguments, results)
    else:
        raise UnsupportedPtx(f"calls function {found.name}, which the module does not define")


def _emit_print(
    builder: Builder, instruction: Instruction, declared: Function, arguments: list[Operand], results: list[Operand]
) -> None:
    sizes = [variable_bytes(one) for one in (*declared.params, *declared.returns)]
    if sizes != [8, 8, 4] or len(arguments) != 2 or len(results) != 1:
        raise MalformedPtx(f"{declared.name} takes the addresses of a format and of values, and returns a number")
    template, values = (_fetch(builder, one, param) for one, param in zip(arguments, declared.params, strict=True))
    deliver = _deliver(builder, results[0], declared.returns[0])
    builder.code.note_access(1)

    def step(machine: SimtMachine) -> None:
        formats, places = (fetch(machine).copy().view(np.uint64).reshape(-1) for fetch in (template, values))
        counts = np.array(print_lanes(machine, instruction, formats, places), np.uint32)
        deliver(machine, counts.view(np.uint8).reshape(-1, 4))

    builder.step(step)


def _take_list(operands: list[Operand]) -> list[Operand]:
    """Take the list of arguments or results that operands begin with; empty if they do not."""
    first = operands[0] if operands else None
    if not isinstance(first, Arguments):
        return []
    del operands[0]
    return list(first.elements)


def _targets(builder: Builder, operands: list[Operand]) -> tuple[Function, list[FunctionCode]]:
    """Return the declaration that a call through an address follows, and the functions that it may enter."""
    found = builder.names.find(operands[0].name) if operands and isinstance(operands[0], Name) else None
    if not isinstance(found, TargetList):
        raise MalformedPtx("a call through an address needs a prototype or targets")
    if found.prototype is not None:
        fits = builder.targets.by_shape.get(shape_of(found.prototype), [])
        builder.targets.spend(len(fits))
        return found.prototype, fits
    builder.targets.spend(len(found.targets))
    targets = [builder.names.functions[name] for name in found.targets if name in builder.names.functions]
    if not targets or len(targets) != len(found.targets):
        raise UnsupportedPtx("lists a call target that the module does not define")
    if len({shape_of(one.function) for one in targets}) > 1:
        raise MalformedPtx("call targets with different parameters")
    return targets[0].function, targets


def _emit(
    builder: Builder,
    instruction: Instruction,
    callees: _Callees,
    declared: Function,
    arguments: list[Operand],
    results: list[Operand],
) -> None:
    """Add the end of a block that enters functions, and the step at which their lanes return."""
    code = builder.code
    code.callees.update(callee.function.name for callee in callees.candidates)
    params, returns = scalars(declared.params), scalars(declared.returns)
    arguments, results = builder.names.elements(*arguments), builder.names.elements(*results)
    if len(arguments) != len(params) or len(results) != len(returns):
        raise MalformedPtx(f"{len(arguments)} arguments and {len(results)} results do not fit {declared.name}")
    fetches = [_fetch(builder, one, param) for one, param in zip(arguments, params, strict=True)]
    builder.finish(lambda machine, pc: _enter(machine, instruction, code, callees, fetches, pc + 1))
    pairs = zip(results, returns, strict=True)
    delivers = [(_deliver(builder, one, result), variable_bytes(result)) for one, result in pairs]
    builder.step(_landing(code, callees.candidates, delivers))


def _enter(
    machine: SimtMachine,
    site: Instruction,
    caller: FunctionCode,
    callees: _Callees,
    fetches: list[Fetch],
    following: int,
) -> int:
    """Send the active lanes into the functions that they call; return where those that stay active run, or -1."""
    depth, whole = machine.depth, machine.active
    if depth >= MAX_DEPTH and any(code.recursive for code in callees.candidates):
        machine.fault(site, 0, f"calls more than {MAX_DEPTH} functions deep")
    if len(machine.return_pcs) <= depth:
        machine.return_pcs.append(np.zeros(machine.lanes, np.int64))
    machine.return_pcs[depth][rows(whole)] = following
    arguments = [fetch(machine) for fetch in fetches]
    chosen = callees.choose(machine, site)
    if _reenters(caller, callees.candidates):
        machine.steps += len(caller.widths)
        for slot in range(caller.first_slot, caller.first_slot + len(caller.widths)):
            register = machine.regs[slot]
            saved = machine.saved.get((depth, slot))
            if saved is None:
                saved = machine.saved[depth, slot] = np.zeros_like(register)
            saved[rows(whole)] = register[rows(whole)]
    for code, mask in chosen:
        machine.depth = depth + 1
        machine.activate(whole if mask is None or mask.all() else narrow(whole, mask, machine.lanes))
        _clear_frame(machine, code)
        for home, values in zip(code.formals, arguments, strict=True):
            _store_home(machine, home, values if mask is None else values[mask])
        if len(chosen) == 1:
            return code.pc
        machine.scheduler.park(code.pc, machine.depth, machine.active)
    return -1


def _reenters(caller: FunctionCode, candidates: list[FunctionCode]) -> bool:
    """Return whether the caller may be active again during the call, so that its registers have to be saved."""
    return caller.recursive and any(code.recursive for code in candidates)


def _clear_frame(machine: SimtMachine, code: FunctionCode) -> None:
    """Make the local variables zero: an earlier call may have left values in them."""
    machine.steps += len(code.variables)
    for key, variable in code.variables.items():
        if variable.space in ("local", "param"):
            machine.memory.frames.clear(frame_offset(machine, key), variable_bytes(variable), machine.active)


def _landing(caller: FunctionCode, candidates: list[FunctionCode], delivers: list[tuple[Deliver, int]]) -> Step:
    """Return the step after a call: restores registers and delivers results, each with its size in bytes."""

    def land(machine: SimtMachine) -> None:
        if _reenters(caller, candidates):
            machine.steps += len(caller.widths)
            active = rows(machine.active)
            for slot in range(caller.first_slot, caller.first_slot + len(caller.widths)):
                machine.write(slot, machine.saved[machine.depth, slot][active].copy())
        start = 0
        for deliver, size in delivers:
            deliver(machine, machine.memory.frames.read(start, size, machine.active))
            start += size

    return land


# ----------------------------------------------------------------------------------- arguments and results


def _frame_variable(builder: Builder, operand: Operand, size: int) -> int | None:
    """Return the key of a ``.param`` variable in local memory; None for any other operand."""
    variable = builder.names.variable(operand)
    if variable is None or variable.space != "param":
        return None
    if variable_bytes(variable) != size:
        raise MalformedPtx(f"{variable.name} has {variable_bytes(variable)} bytes where {size} are expected")
    return builder.names.key(variable)


def _fetch(builder: Builder, operand: Operand, declared: Variable) -> Fetch:
    """Return a reader of an argument: a ``.param`` variable, a register or a constant."""
    size = variable_bytes(declared)
    is_kernel_parameter = builder.names.param_offset(builder.names.variable(operand)) is not None
    key = None if is_kernel_parameter else _frame_variable(builder, operand, size)
    if key is not None:
        return _fetch_frame(key, size)
    kind = declared.type
    if kind != "pred":
        if size not in (1, 2, 4, 8):
            raise MalformedPtx(f"a parameter of {size} bytes cannot be a register")
        kind = kind if kind in ("f32", "f64") else f"b{size * 8}"
    return _as_bytes(builder.names.reader(operand, kind))


def _as_bytes(read: Reader) -> Fetch:
    def fetch(machine: SimtMachine) -> Bytes:
        values = np.ascontiguousarray(read(machine))
        return values.view(np.uint8).reshape(values.size, -1)

    return fetch


def _fetch_frame(key: int, size: int) -> Fetch:
    return lambda machine: machine.memory.frames.read(frame_offset(machine, key), size, machine.active).copy()


def _fetch_home(home: RegisterSlot | int, declared: Variable) -> Fetch:
    if isinstance(home, int):
        return _fetch_frame(home, variable_bytes(declared))
    return _as_bytes(read_register(home, RAW[home.bits]))


def _store_home(machine: SimtMachine, home: RegisterSlot | int, values: Bytes) -> None:
    if isinstance(home, int):
        machine.memory.frames.write(frame_offset(machine, home), values, machine.active)
    else:
        machine.write(home.slot, own(np.ascontiguousarray(values).view(RAW[home.bits]).reshape(-1), (values,)))


def _deliver(builder: Builder, operand: Operand, declared: Variable) -> Deliver:
    """Return a writer of a result of a call: to a ``.param`` variable or a register."""
    size = variable_bytes(declared)
    if isinstance(operand, Name) and operand.name == "_":
        return lambda _machine, _values: None
    key = _frame_variable(builder, operand, size)
    if key is not None:
        return lambda machine, values: machine.memory.frames.write(frame_offset(machine, key), values, machine.active)
    kind = "pred" if declared.type == "pred" else f"b{size * 8}"
    write, raw = builder.names.writer(operand, kind), RAW[1 if kind == "pred" else size * 8]
    return lambda machine, values: write(machine, np.ascontiguousarray(values).view(raw).reshape(-1).copy())
