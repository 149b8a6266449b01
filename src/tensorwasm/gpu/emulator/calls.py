"""Calls and returns.

Every function has its own registers and its own place in local memory, so that lanes anywhere in the program can run
side by side. A function that may call itself gets one place per call depth, and its caller's registers are kept aside.
Arguments and results travel as bytes, ``(n, size)``.

Source: PTX ISA 7.1 (Function Declarations and Definitions), 9.7.12.3 (call), 9.7.12.4 (ret).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.builder import Builder, Resolve
from tensorwasm.gpu.emulator.control import leave
from tensorwasm.gpu.emulator.faults import Site, fault
from tensorwasm.gpu.emulator.lanes import narrow
from tensorwasm.gpu.emulator.machine import Machine
from tensorwasm.gpu.emulator.names import frame_offset
from tensorwasm.gpu.emulator.operands import RAW, Reader, Register, own, read_register
from tensorwasm.gpu.emulator.planes import shown_address
from tensorwasm.gpu.emulator.printing import PRINTER, print_lanes
from tensorwasm.gpu.emulator.program import (
    FUNCTION_STRIDE,
    FUNCTION_WINDOW,
    MAX_DEPTH,
    End,
    FunctionCode,
    Program,
    scalars,
    shape_of,
)
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import Arguments, Function, Instruction, Name, Operand, TargetList, Variable

Bytes = NDArray[np.uint8]
Fetch = Callable[[Machine], Bytes]
Deliver = Callable[[Machine, Bytes], None]
ASSERTION: Final = "__assertfail"


def compile_return(builder: Builder, _instruction: Instruction) -> None:
    """Add a ``ret``: results go to the mailbox, lanes to where they were called from; from a kernel they exit."""
    code = builder.code
    if code.function.entry:
        builder.finish(lambda _own, _following, _resolve: leave)
        return
    fetches = [
        _fetch_home(home, result) for home, result in zip(code.results, scalars(code.function.returns), strict=True)
    ]
    builder.finish(lambda _own, _following, _resolve: _return_end(fetches))


def _return_end(fetches: list[Fetch]) -> End:
    def end(machine: Machine) -> int:
        start = machine.launch.mailbox
        for fetch in fetches:
            values = fetch(machine)
            machine.memory.frames.write(start, values, machine.who)
            start += values.shape[1]
        machine.depth -= 1
        lanes = machine.indices()
        places = machine.return_pcs[machine.depth][lanes]
        first = int(places[0])
        if (places == first).all():
            return first
        machine.scheduler.park_each(places, np.full(lanes.size, machine.depth), lanes)
        return -1

    return end


def compile_call(builder: Builder, instruction: Instruction) -> None:
    """Add a ``call``, direct or through an address."""
    if any(word != "uni" for word in instruction.modifiers):
        raise UnsupportedPtx("the emulator lacks this form of call")
    operands = list(instruction.operands)
    results = _take_list(operands)
    callee = operands.pop(0)
    arguments = _take_list(operands)
    if not isinstance(callee, Name):
        raise MalformedPtx("a function is expected")
    found = builder.names.find(callee.name)
    if isinstance(found, Function):
        if found.name == ASSERTION and found.name not in builder.names.functions:
            site = builder.site(instruction)
            builder.step(lambda machine: fault(machine.geometry, site, int(machine.indices()[0]), "fails an assertion"))
            return
        if found.name == PRINTER and found.name not in builder.names.functions:
            _emit_print(builder, instruction, found, arguments, results)
            return
        if found.name not in builder.names.functions:
            raise UnsupportedPtx(f"calls function {found.name}, which the module does not define")
        builder.code.callees.add(found.name)
        _emit(builder, instruction, _Direct(builder.names.functions[found.name]), found, arguments, results)
        return
    prototype, allowed = _targets(builder, operands)
    choose = _Indirect(builder, builder.names.reader(callee, "u64"), allowed)
    _emit(builder, instruction, choose, prototype, arguments, results)


def _emit_print(
    builder: Builder, instruction: Instruction, declared: Function, arguments: list[Operand], results: list[Operand]
) -> None:
    sizes = [variable_bytes(one) for one in (*declared.params, *declared.returns)]
    if sizes != [8, 8, 4] or len(arguments) != 2 or len(results) != 1:
        raise MalformedPtx(f"{declared.name} takes the addresses of a format and of values, and returns a number")
    template, values = (_fetch(builder, one, param) for one, param in zip(arguments, declared.params, strict=True))
    deliver, site = _deliver(builder, results[0], declared.returns[0]), builder.site(instruction)
    builder.code.narrowest_bytes = 1

    def step(machine: Machine) -> None:
        formats, places = (fetch(machine).copy().view(np.uint64).reshape(-1) for fetch in (template, values))
        counts = np.array(print_lanes(machine, site, formats, places), np.uint32)
        deliver(machine, counts.view(np.uint8).reshape(-1, 4))

    builder.step(step)


def _take_list(operands: list[Operand]) -> list[Operand]:
    first = operands[0] if operands else None
    if not isinstance(first, Arguments):
        return []
    del operands[0]
    return list(first.elements)


def _targets(builder: Builder, operands: list[Operand]) -> tuple[Function, list[FunctionCode]]:
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
    first = targets[0].function
    shape = shape_of(first)
    if any(shape_of(one.function) != shape for one in targets):
        raise MalformedPtx("call targets with different parameters")
    return first, targets


class _Direct:
    """Chooses the one function that a call names."""

    def __init__(self, code: FunctionCode) -> None:
        self._code = code
        self.candidates = [code]

    def __call__(self, _machine: Machine, _site: Site) -> list[tuple[FunctionCode, NDArray[np.bool_] | None]]:
        return [(self._code, None)]


class _Indirect:
    """Chooses each lane's function by address."""

    def __init__(self, builder: Builder, read: Reader, allowed: list[FunctionCode]) -> None:
        self._read = read
        self.candidates = allowed
        self._by_index = {code.index: code for code in allowed}
        builder.code.callees.update(code.function.name for code in allowed)

    def __call__(self, machine: Machine, site: Site) -> list[tuple[FunctionCode, NDArray[np.bool_] | None]]:
        addresses = self._read(machine)
        chosen: list[tuple[FunctionCode, NDArray[np.bool_] | None]] = []
        for address in np.unique(addresses):
            index, rest = divmod(int(address) - FUNCTION_WINDOW, FUNCTION_STRIDE)
            code = self._by_index.get(index)
            mask = addresses == address
            if code is None or rest:
                lane = int(machine.indices()[mask.argmax()])
                fault(
                    machine.geometry,
                    site,
                    lane,
                    f"calls {shown_address(int(address))}, which is no function it may call",
                )
            chosen.append((code, mask))
        return chosen


def _emit(
    builder: Builder,
    instruction: Instruction,
    choose: _Direct | _Indirect,
    declared: Function,
    arguments: list[Operand],
    results: list[Operand],
) -> None:
    params, returns = scalars(declared.params), scalars(declared.returns)
    arguments = [scalar for one in arguments for scalar in builder.names.elements(one)]
    results = [scalar for one in results for scalar in builder.names.elements(one)]
    if len(arguments) != len(params) or len(results) != len(returns):
        raise MalformedPtx(f"{len(arguments)} arguments and {len(results)} results do not fit {declared.name}")
    fetches = [_fetch(builder, one, param) for one, param in zip(arguments, params, strict=True)]
    code, site = builder.code, builder.site(instruction)

    def make(_own: int, following: int, _resolve: Resolve) -> End:
        def end(machine: Machine) -> int:
            return _enter(machine, site, code, choose, fetches, following)

        return end

    builder.finish(make)
    delivers = [_deliver(builder, one, result) for one, result in zip(results, returns, strict=True)]
    sizes = [variable_bytes(result) for result in returns]
    builder.step(_landing(code, choose.candidates, delivers, sizes))


def _enter(
    machine: Machine,
    site: Site,
    caller: FunctionCode,
    choose: _Direct | _Indirect,
    fetches: list[Fetch],
    following: int,
) -> int:
    depth = machine.depth
    if depth >= MAX_DEPTH and any(code.recursive for code in choose.candidates):
        fault(machine.geometry, site, int(machine.indices()[0]), f"calls more than {MAX_DEPTH} functions deep")
    if len(machine.return_pcs) <= depth:
        machine.return_pcs.append(np.zeros(machine.lanes, np.int64))
    machine.return_pcs[depth][machine.indices() if machine.who is not None else slice(None)] = following
    arguments = [fetch(machine) for fetch in fetches]
    chosen = choose(machine, site)
    if _reenters(caller, choose.candidates):
        _save(machine, caller)
    whole = machine.who
    for code, mask in chosen:
        machine.depth = depth + 1
        machine.activate(whole if mask is None or mask.all() else narrow(whole, mask, machine.lanes))
        _open_frame(machine, code)
        for home, values in zip(code.formals, arguments, strict=True):
            _store_home(machine, home, values if mask is None else values[mask], code)
        if len(chosen) == 1:
            return code.pc
        machine.scheduler.park(code.pc, machine.depth, machine.who)
    return -1


def _reenters(caller: FunctionCode, candidates: list[FunctionCode]) -> bool:
    return caller.recursive and any(code.recursive for code in candidates)


def _open_frame(machine: Machine, code: FunctionCode) -> None:
    """Leave nothing of an earlier call's local variables."""
    machine.steps += len(code.variables)
    for key, variable in code.variables.items():
        if variable.space in ("local", "param"):
            machine.memory.frames.clear(frame_offset(machine, key), variable_bytes(variable), machine.who)


def _save(machine: Machine, caller: FunctionCode) -> None:
    machine.steps += len(caller.widths)
    for slot in range(caller.first_slot, caller.first_slot + len(caller.widths)):
        register = machine.regs[slot]
        kept = machine.saved.get((machine.depth, slot))
        if kept is None:
            kept = machine.saved[machine.depth, slot] = np.zeros_like(register)
        rows = slice(None) if machine.who is None else machine.who
        kept[rows] = register[rows]


def _landing(
    caller: FunctionCode, candidates: list[FunctionCode], delivers: list[Deliver], sizes: list[int]
) -> Callable[[Machine], None]:
    def land(machine: Machine) -> None:
        if _reenters(caller, candidates):
            machine.steps += len(caller.widths)
            rows = slice(None) if machine.who is None else machine.who
            for slot in range(caller.first_slot, caller.first_slot + len(caller.widths)):
                machine.write(slot, machine.saved[machine.depth, slot][rows].copy())
        start = machine.launch.mailbox
        for deliver, size in zip(delivers, sizes, strict=True):
            deliver(machine, machine.memory.frames.read(start, size, machine.who))
            start += size

    return land


# ---------------------------------------------------------------------------------------------- transport


def _fetch(builder: Builder, operand: Operand, declared: Variable) -> Fetch:
    """Return how an argument is read: a ``.param`` variable, a register or a constant."""
    size = variable_bytes(declared)
    variable = builder.names.variable(operand.name) if isinstance(operand, Name) else None
    if variable is not None and variable.space == "param" and not builder.names.kernel_parameter(variable):
        if variable_bytes(variable) != size:
            raise MalformedPtx(f"{variable.name} has {variable_bytes(variable)} bytes where {size} are expected")
        return _fetch_frame(builder.names.key(variable), size)
    if declared.type == "pred":
        return _as_bytes(builder.names.reader(operand, "pred"))
    if size not in (1, 2, 4, 8):
        raise MalformedPtx(f"a parameter of {size} bytes cannot be a register")
    kind = declared.type if declared.type in ("f32", "f64") else f"b{size * 8}"
    return _as_bytes(builder.names.reader(operand, kind))


def _as_bytes(read: Reader) -> Fetch:
    def fetch(machine: Machine) -> Bytes:
        values = np.ascontiguousarray(read(machine))
        return values.view(np.uint8).reshape(values.size, -1)

    return fetch


def _fetch_frame(key: int, size: int) -> Fetch:
    return lambda machine: machine.memory.frames.read(frame_offset(machine, key), size, machine.who).copy()


def _fetch_home(home: Register | int, declared: Variable) -> Fetch:
    if isinstance(home, int):
        return _fetch_frame(home, variable_bytes(declared))
    return _as_bytes(read_register(home, RAW[home.bits]))


def _store_home(machine: Machine, home: Register | int, values: Bytes, _code: FunctionCode) -> None:
    if isinstance(home, int):
        machine.memory.frames.write(frame_offset(machine, home), values, machine.who)
    else:
        machine.write(home.slot, own(np.ascontiguousarray(values).view(RAW[home.bits]).reshape(-1), (values,)))


def _deliver(builder: Builder, operand: Operand, declared: Variable) -> Deliver:
    """Return how a result reaches the caller: a ``.param`` variable or a register."""
    size = variable_bytes(declared)
    if isinstance(operand, Name) and operand.name == "_":
        return lambda _machine, _values: None
    variable = builder.names.variable(operand.name) if isinstance(operand, Name) else None
    if variable is not None and variable.space == "param":
        if variable_bytes(variable) != size:
            raise MalformedPtx(f"{variable.name} has {variable_bytes(variable)} bytes where {size} are expected")
        key = builder.names.key(variable)
        return lambda machine, values: machine.memory.frames.write(frame_offset(machine, key), values, machine.who)
    kind = "pred" if declared.type == "pred" else f"b{size * 8}"
    write, raw = builder.names.writer(operand, kind), RAW[1 if kind == "pred" else size * 8]
    return lambda machine, values: write(machine, np.ascontiguousarray(values).view(raw).reshape(-1).copy())


__all__ = ["Program", "compile_call", "compile_return"]
