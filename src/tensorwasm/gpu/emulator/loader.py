"""Makes a PTX module ready to run: variables first, then functions, then the blocks of labels.

Source for initial values: PTX ISA 5.4.4 (Initializers), 5.4.6 (Alignment).
"""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import QuotaExceeded, TensorWasmError, UnsupportedPtx
from tensorwasm.gpu.emulator.execution.machine import CHECK_STEPS, BasicBlock, Step
from tensorwasm.gpu.emulator.memory.allocations import AllocationTable
from tensorwasm.gpu.emulator.program.builder import Builder, Finish, Item
from tensorwasm.gpu.emulator.program.names import Names
from tensorwasm.gpu.emulator.program.program import FunctionCode, Program, Targets
from tensorwasm.gpu.emulator.steps.instructions import compile_instruction
from tensorwasm.ptx.flow import components
from tensorwasm.ptx.initial import initial_bytes
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import (
    Directive,
    Function,
    Instruction,
    Module,
    Variable,
)
from tensorwasm.ptx.reachability import require_understood, statements
from tensorwasm.ptx.symbols import SymbolTable, module_symbols
from tensorwasm.values import Deadline
from tensorwasm.watch import UNLIMITED, Watch

_RETURN: Final = Instruction("ret")
_FALL_THROUGH: Final = Finish(lambda _following, _resolve: lambda _machine, pc: pc + 1)


def load(module: Module, allocations: AllocationTable, deadline: Deadline) -> Program:
    """Make a module ready to run; after an error, nothing is left on the device.

    Raises:
        UnsupportedPtx: the module asks for what the emulator lacks.
        MalformedPtx: operands do not fit their instruction.
        InvokeTimeout: the deadline passed.
    """
    if module.address_size != 64:
        raise UnsupportedPtx("32-bit addresses")
    watch = Watch(deadline, "while the PTX was made ready to run")
    for item in module.items:
        if isinstance(item, Directive) and item.name == "alias":
            raise UnsupportedPtx(".alias", *item.position)
    scope = module_symbols(module, watch)
    # Kernels come first: they share the first register slots, since only one runs at a time.
    bodies = [function for function in module.functions() if function.body is not None]
    bodies.sort(key=lambda one: not one.entry)
    codes = [FunctionCode(function, index) for index, function in enumerate(bodies)]
    program = Program(functions={code.function.name: code for code in codes})
    try:
        _build_functions(program, codes, scope, _declare_variables(module, scope, program, allocations))
        _find_recursion(program.functions, watch)
    except TensorWasmError:
        unload(program, allocations)
        raise
    return program


def unload(program: Program, allocations: AllocationTable) -> None:
    """Release a program's variables."""
    for plane in program.planes:
        allocations.free(plane.base)
    program.planes.clear()


# --------------------------------------------------------------------------------------------- variables


def _declare_variables(
    module: Module, scope: SymbolTable, program: Program, allocations: AllocationTable
) -> dict[int, int]:
    """Allocate and fill global and constant variables; return their addresses by the identity of the declaration."""
    addresses: dict[int, int] = {}
    defined = [one for one in module.variables() if scope.find(one.name) is one]
    inner = [one for function in module.functions() for one in statements(function.body or ())]
    defined += [one for one in scope.watch.over(inner) if isinstance(one, Variable)]
    held = [one for one in defined if one.space in ("global", "const") and "extern" not in one.linkage]
    for variable in scope.watch.over(held):
        try:
            size = variable_bytes(variable)
            plane = allocations.declare(variable.name, size, constant=variable.space == "const")
        except QuotaExceeded as error:
            raise UnsupportedPtx(f"{variable.name}: {error.message}", *variable.position) from None
        program.planes.append(plane)
        addresses[id(variable)] = plane.base

    def address_of(name: str) -> int:
        found = scope.find(name)
        if isinstance(found, Function) and found.name in program.functions:
            return program.functions[found.name].address
        if id(found) not in addresses:
            raise UnsupportedPtx(f"the address of {name} in an initializer")
        return addresses[id(found)]

    for variable, plane in zip(held, program.planes, strict=True):
        data = initial_bytes(variable, address_of, scope.watch)
        plane.data[: len(data)] = memoryview(data)
    return addresses


# --------------------------------------------------------------------------------------------- functions


def _build_functions(
    program: Program, codes: list[FunctionCode], scope: SymbolTable, addresses: dict[int, int]
) -> None:
    keys: dict[int, int] = {}
    targets = Targets(codes)
    for code in scope.watch.over(codes):
        require_understood(code.function)
        code.first_slot = 0 if code.function.entry else program.slots
        builder = Builder(Names(code, scope, addresses, program.functions, keys), targets, scope.watch)
        builder.build(code.function.body or (), compile_instruction)
        compile_instruction(builder, _RETURN)
        code.pc = len(program.blocks)
        program.blocks.extend(arrange(builder.items, code.pc, scope.watch))
        program.slots = max(program.slots, code.first_slot + len(code.widths))


def arrange(items: list[Item], first: int, watch: Watch = UNLIMITED) -> list[BasicBlock]:
    """Divide a function's items into blocks, numbered from ``first``.

    A block begins at every label, after every end, and where another would have too many steps between two checks of
    the deadline.
    """
    drafts: list[tuple[list[Step], Finish | None]] = [([], None)]
    labels: dict[int, int] = {}
    for item in watch.over(items):
        steps, finish = drafts[-1]
        if isinstance(item, int):
            if steps or finish is not None:
                drafts.append(([], None))
            labels[item] = first + len(drafts) - 1
        elif isinstance(item, Finish):
            if finish is not None or (item.alone and steps):
                drafts.append(([], None))
            drafts[-1] = (drafts[-1][0], item)
        else:
            if finish is not None or len(steps) >= CHECK_STEPS:
                drafts.append(([], None))
            drafts[-1][0].append(item)
    return [
        BasicBlock(tuple(steps), (finish or _FALL_THROUGH).make(index + 1, labels.__getitem__), len(steps) + 1)
        for index, (steps, finish) in watch.over(enumerate(drafts, first))
    ]


def _find_recursion(functions: dict[str, FunctionCode], watch: Watch) -> None:
    """Mark the functions that can reach themselves."""
    numbers = {name: number for number, name in enumerate(functions)}
    codes = list(functions.values())
    calls = [[numbers[name] for name in watch.over(code.callees)] for code in codes]
    for component in components(calls, range(len(calls)), watch):
        for number in component:
            codes[number].recursive = len(component) > 1 or number in calls[number]
