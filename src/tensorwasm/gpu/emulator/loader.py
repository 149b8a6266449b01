"""Makes a PTX module ready to run: variables first, then functions, then the places of blocks."""

from __future__ import annotations

from tensorwasm.errors import QuotaExceeded, TensorWasmError, UnsupportedPtx
from tensorwasm.gpu.emulator.allocations import Allocations
from tensorwasm.gpu.emulator.builder import Builder, Finish, Item, Resolve
from tensorwasm.gpu.emulator.instructions import compile_instruction
from tensorwasm.gpu.emulator.machine import CHECK_STEPS, Machine
from tensorwasm.gpu.emulator.names import Names
from tensorwasm.gpu.emulator.program import Block, End, FunctionCode, Program, Step, Targets
from tensorwasm.gpu.emulator.variables import initial_bytes
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import Directive, Function, Instruction, Module, Variable
from tensorwasm.ptx.reachability import require_understood, statements
from tensorwasm.ptx.symbols import SymbolTable
from tensorwasm.values import Deadline
from tensorwasm.watch import UNLIMITED, Watch

_RETURN = Instruction("ret")


def load(module: Module, allocations: Allocations, deadline: Deadline) -> Program:
    """Make a module ready to run.

    Raises:
        UnsupportedPtx: the module asks for what the emulator lacks.
        MalformedPtx: operands do not fit their instruction.
        InvokeTimeout: the deadline passed; nothing is left on the device.
    """
    if module.address_size != 64:
        raise UnsupportedPtx("32-bit addresses")
    watch = Watch(deadline, "while the PTX was made ready to run")
    scope = _module_scope(module, watch)
    program = Program()
    _list_functions(module, program)
    try:
        addresses = _declare_variables(module, scope, program, allocations)
        _build_functions(program, scope, addresses)
        _find_recursion(program, watch)
    except TensorWasmError:
        unload(program, allocations)
        raise
    return program


def unload(program: Program, allocations: Allocations) -> None:
    """Release a program's variables."""
    for plane in program.planes:
        allocations.free(plane.base)
    program.planes.clear()


def _module_scope(module: Module, watch: Watch) -> SymbolTable:
    """Return the names of a module; a definition hides its declarations."""
    scope = SymbolTable(watch=watch)
    for item in watch.over(module.items):
        if isinstance(item, Directive):
            if item.name == "alias":
                raise UnsupportedPtx(".alias", item.position.line, item.position.column)
            continue
        before = scope.symbols.get(item.name)
        weaker = (isinstance(item, Function) and item.body is None) or "extern" in getattr(item, "linkage", ())
        if before is None or not weaker:
            scope.symbols.pop(item.name, None)
            scope.declare(item.name, item)
    return scope


def _list_functions(module: Module, program: Program) -> None:
    """Number the functions: kernels share the first register slots, since only one runs at a time."""
    bodies = [function for function in module.functions() if function.body is not None]
    for function in sorted(bodies, key=lambda one: not one.entry):
        code = FunctionCode(function, len(program.by_index), 0)
        program.by_index.append(code)
        program.functions[function.name] = code


# --------------------------------------------------------------------------------------------- variables


def _declare_variables(
    module: Module, scope: SymbolTable, program: Program, allocations: Allocations
) -> dict[int, int]:
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
            where = variable.position
            raise UnsupportedPtx(f"{variable.name}: {error.message}", where.line, where.column) from None
        program.planes.append(plane)
        addresses[id(variable)] = plane.base

    def place(name: str) -> int:
        found = scope.find(name)
        if isinstance(found, Function) and found.name in program.functions:
            return program.functions[found.name].address
        if id(found) not in addresses:
            raise UnsupportedPtx(f"the address of {name} in an initializer")
        return addresses[id(found)]

    for variable, plane in zip(held, program.planes, strict=True):
        data = initial_bytes(variable, place, scope.watch)
        plane.data[: len(data)] = memoryview(data)
    return addresses


# --------------------------------------------------------------------------------------------- functions


def _build_functions(program: Program, scope: SymbolTable, addresses: dict[int, int]) -> None:
    keys: dict[int, int] = {}
    targets = Targets.of(program.by_index)
    kernels = 0
    for code in scope.watch.over(program.by_index):
        require_understood(code.function)
        code.first_slot = 0 if code.function.entry else program.slots
        builder = Builder(Names(code, scope, addresses, program.functions, keys), targets, scope.watch)
        builder.build(compile_instruction)
        compile_instruction(builder, _RETURN)
        code.pc = len(program.blocks)
        program.blocks.extend(arrange(builder.items, code.pc, scope.watch))
        end = code.first_slot + len(code.widths)
        if code.function.entry:
            kernels = max(kernels, end)
        program.slots = max(program.slots, kernels, end)


def arrange(items: list[Item], first: int, watch: Watch = UNLIMITED) -> list[Block]:
    """Divide a function's items into blocks, numbered from ``first``.

    A block begins at every label and after every end, and where another would grow too long between two looks at the
    clock.

    Raises:
        InvokeTimeout: the deadline has passed.
    """
    drafts: list[tuple[list[Step], Finish | None]] = [([], None)]
    places: dict[int, int] = {}
    for item in watch.over(items):
        steps, finish = drafts[-1]
        if isinstance(item, int):
            if steps or finish is not None:
                drafts.append(([], None))
            places[item] = first + len(drafts) - 1
        elif isinstance(item, Finish):
            if finish is not None or (item.alone and steps):
                drafts.append(([], None))
            drafts[-1] = (drafts[-1][0], item)
        else:
            if finish is not None or len(steps) >= CHECK_STEPS:
                drafts.append(([], None))
            drafts[-1][0].append(item)
    resolve: Resolve = places.__getitem__
    return [
        Block(tuple(steps), _end(finish, first + index, resolve), len(steps) + 1)
        for index, (steps, finish) in watch.over(enumerate(drafts))
    ]


def _end(finish: Finish | None, own: int, resolve: Resolve) -> End:
    if finish is not None:
        return finish.make(own, own + 1, resolve)
    following = own + 1

    def fall(_machine: Machine) -> int:
        return following

    return fall


def _find_recursion(program: Program, watch: Watch) -> None:
    """Mark the functions that can reach themselves, by Tarjan's strongly connected components, without recursion."""
    functions = program.functions
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in functions:
        if root in order:
            continue
        work = [(root, iter(sorted(functions[root].callees)))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            name, callees = work[-1]
            for callee in watch.over(callees):
                if callee not in order:
                    order[callee] = low[callee] = len(order)
                    stack.append(callee)
                    on_stack.add(callee)
                    work.append((callee, iter(sorted(functions[callee].callees))))
                    break
                if callee in on_stack:
                    low[name] = min(low[name], order[callee])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == order[name]:
                    _close_component(functions, stack, on_stack, name)


def _close_component(functions: dict[str, FunctionCode], stack: list[str], on_stack: set[str], root: str) -> None:
    component = [stack.pop()]
    while component[-1] != root:
        component.append(stack.pop())
    on_stack.difference_update(component)
    if len(component) > 1 or root in functions[root].callees:
        for name in component:
            functions[name].recursive = True
