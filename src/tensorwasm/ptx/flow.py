"""Kernel signatures: parameters, which of them are pointers, shared memory and the size of blocks.

One graph spans the entry and everything that it may call. Its nodes are registers and fields of parameters, its edges
copies and sums; the order of statements is ignored. A parameter is an address when its value, moved and added to what
is no parameter, is dereferenced as global memory or converted from a generic address.

Source: PTX ISA 5.1.6 (Parameter State Space), 7 (Abstracting the ABI), 9.7.9 (Data Movement and Conversion), 11.4
(Performance-Tuning Directives).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tensorwasm.ptx.layout import (
    ELEMENT_BYTES,
    HANDLE_OPCODES,
    TYPE_BYTES,
    access_align_bytes,
    address_spaces,
    place,
    variable_align,
    variable_bytes,
)
from tensorwasm.ptx.model import (
    Address,
    Block,
    Function,
    Instruction,
    Module,
    Name,
    Offset,
    Operand,
    Statement,
    TargetList,
    Variable,
    Vector,
)
from tensorwasm.ptx.reachability import aliases, find_kernel, reachable, variables
from tensorwasm.ptx.symbols import SymbolTable, module_symbols, split_call
from tensorwasm.values import NEVER, Deadline, Dim3, KernelParam, KernelSignature
from tensorwasm.watch import UNLIMITED, Watch

MAX_BLOCK_THREADS: Final = 1024

_Slot = tuple[SymbolTable | None, str]
"""A register or parameter: the table that declares it, and its name."""

_VARIABLES: Final[_Slot] = (None, "")
"""Stands for the address of any variable: a value that is added to one is no address itself."""
_BASES: Final = frozenset({"global", "const", "shared", "local"})

_COPIES: Final = {"mov": (2, 1, 2), "cvta": (2, 1, 2), "cvt": (2, 1, 2), "selp": (4, 1, 3), "mad": (4, 3, 4)}
"""Number of operands by opcode, and the range of those that the first operand may be a copy of."""

# These bound the work by a multiple of the text's size.
_MAX_PACKED: Final = 8
_MAX_TARGETS: Final = 16
_MAX_FIELDS: Final = 8
_OTHER_FIELDS: Final = -1
"""The offset that stands for all fields of a structure beyond the first `_MAX_FIELDS`."""


class _PointerUse(NamedTuple):
    """Whether a kernel uses a parameter as an address, and the alignment that its widest access needs, 1 if none."""

    pointer: bool = False
    align_bytes: int = 1


def signature(module: Module, entry: str, deadline: Deadline = NEVER) -> KernelSignature:
    """Return the signature of a kernel.

    A 64-bit parameter counts as a pointer if it is declared ``.ptr``, or if the kernel, or a function it calls, uses
    its value as an address of global memory. Pointers inside structures, or passed through memory, are not found.
    Takes time proportional to the size of what the kernel can reach.

    Raises:
        InvalidKernel: no kernel of that name has a body; the message names some that do.
        InvokeTimeout: the deadline passed.
    """
    function = find_kernel(module, entry)
    watch = Watch(deadline, "while the uses of the kernel's parameters were traced")
    reached = reachable(module, function, watch)
    functions = [item for item in reached if isinstance(item, Function)]
    uses = _Tracer(module_symbols(module, watch), aliases(module), function, functions).trace()
    shared = (each for each in watch.over(variables(reached)) if each.space == "shared")
    _, shared_bytes = place(each for each in shared if "extern" not in each.linkage)
    params = tuple(_param(param, use) for param, use in zip(function.params, uses, strict=True))
    return KernelSignature(entry, params, shared_bytes, thread_limit(function), _required_block(function))


def _param(param: Variable, use: _PointerUse) -> KernelParam:
    scalar = not param.shape and param.vector == 1
    size = variable_bytes(param)
    pointer = scalar and size == 8 and (param.pointer is not None or use.pointer)
    align = max(use.align_bytes, param.pointer[1] if param.pointer is not None else 1) if pointer else 1
    return KernelParam(param.name, size, variable_align(param), scalar, pointer, align)


def thread_limit(function: Function) -> int:
    """Return the most threads of a block that devices and a kernel's own declaration allow."""
    return min((MAX_BLOCK_THREADS, *map(math.prod, _block_sizes(function).values())))


def _required_block(function: Function) -> Dim3 | None:
    return _block_sizes(function).get("reqntid")


def _block_sizes(function: Function) -> dict[str, Dim3]:
    """Return the sizes of ``maxntid`` and ``reqntid``. Of several the last counts, as for ptxas."""
    sizes: dict[str, Dim3] = {}
    for each in function.directives:
        if each.name in {"maxntid", "reqntid"}:
            x, y, z = (*map(int, each.arguments), 1, 1)[:3]
            sizes[each.name] = x, y, z
    return sizes


# ------------------------------------------------------------------------------------------------ the graph


@dataclass(slots=True)
class _Tracer:
    module: SymbolTable
    aliases: dict[str, str]
    entry: Function
    functions: list[Function]
    nodes: dict[tuple[_Slot, int], int] = field(default_factory=dict)
    offsets: dict[_Slot, set[int]] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    sums: list[tuple[int, int, int]] = field(default_factory=list)
    links: dict[tuple[_Slot, _Slot], None] = field(default_factory=dict)
    accesses: list[tuple[int, int]] = field(default_factory=list)
    outer: dict[str, SymbolTable] = field(default_factory=dict)
    registers: dict[SymbolTable, dict[str, list[int]]] = field(default_factory=dict)

    def trace(self) -> tuple[_PointerUse, ...]:
        """Build the graph, propagate parameters along it, and evaluate the accesses."""
        for function in self.functions:
            table = self.outer[function.name] = SymbolTable(self.module)
            for variable in (*function.returns, *function.params):
                table.declare(variable.name, variable)
        for function in self.functions:
            self._walk(self.outer[function.name], function.body or ())
        watch, seeds = self.module.watch, self._seeds()
        for source, target in watch.over(self.links):
            for offset in sorted(self.offsets.get(source, set()) | self.offsets.get(target, set())):
                self.copies.append((self._node(source, offset), self._node(target, offset)))
        # First all parameters that a value contains as terms; then only its base, which is summed with no parameter.
        terms = propagate(self._successors([(source, target) for source, target, _ in self.sums]), seeds, watch)
        based = [(source, target) for source, target, other in self.sums if not terms[other]]
        bases = propagate(self._successors(based), seeds, watch)
        pointers = 0
        aligned: dict[int, int] = {}
        for node, align in watch.over(self.accesses):
            pointers |= bases[node]
            aligned[align] = aligned.get(align, 0) | terms[node]
        return tuple(
            _PointerUse(bool(pointers >> index & 1), max((1, *(one for one in aligned if aligned[one] >> index & 1))))
            for index in range(len(self.entry.params))
        )

    def _successors(self, more: Iterable[tuple[int, int]]) -> list[list[int]]:
        successors: list[list[int]] = [[] for _ in self.nodes]
        for source, target in self.module.watch.over((*self.copies, *more)):
            successors[source].append(target)
        return successors

    def _seeds(self) -> dict[int, int]:
        table = self.outer[self.entry.name]
        seeds = {self._node(_VARIABLES, 0): 1 << len(self.entry.params)}
        for index, param in enumerate(self.entry.params):
            if not param.shape and param.vector == 1 and TYPE_BYTES.get(param.type) == 8:
                seeds[self._node((table, param.name), 0)] = 1 << index
        return seeds

    # -- names ------------------------------------------------------------------------------------------------

    def _node(self, slot: _Slot, offset: int) -> int:
        known = self.offsets.setdefault(slot, set())
        if offset not in known and len(known) >= _MAX_FIELDS:
            offset = _OTHER_FIELDS
        known.add(offset)
        return self.nodes.setdefault((slot, offset), len(self.nodes))

    def _slots(self, table: SymbolTable, operand: Operand, *spaces: str) -> list[_Slot]:
        """Return the variable that ``operand`` names, in a list, or nothing if none of these spaces has it."""
        if isinstance(operand, Name) and (found := table.locate(operand.name)) is not None:
            owner, symbol = found
            if isinstance(symbol, Variable) and symbol.space in spaces:
                return [(owner, operand.name)]
        return []

    def _registers(self, table: SymbolTable, operand: Operand) -> list[int]:
        """Return the nodes of the registers in a name, or in a vector as ``mov`` packs them."""
        known = self.registers.setdefault(table, {})
        nodes: list[int] = []
        for element in _elements(operand):
            if isinstance(element, Name):
                if element.name not in known:
                    known[element.name] = [self._node(slot, 0) for slot in self._slots(table, element, "reg")]
                nodes += known[element.name]
        return nodes

    def _variable(self, table: SymbolTable, operand: Operand) -> list[int]:
        """Return the node that stands for every variable's address, if ``operand`` is one."""
        symbol = table.find(operand.base.name if isinstance(operand, Offset) else getattr(operand, "name", ""))
        return [self._node(_VARIABLES, 0)] if isinstance(symbol, Variable) and symbol.space in _BASES else []

    # -- statements -------------------------------------------------------------------------------------------

    def _walk(self, table: SymbolTable, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, TargetList):
                table.declare(statement.label, statement)
        for statement in table.watch.over(body):
            match statement:
                case Instruction():
                    flow = _FLOWS.get(statement.opcode)
                    if flow is not None:
                        flow(self, table, statement)
                    if statement.opcode not in HANDLE_OPCODES:
                        self._access(table, statement)
                case Variable():
                    table.declare(statement.name, statement)
                    self.registers.pop(table, None)
                case Block():
                    self._walk(SymbolTable(table), statement.body)

    def _access(self, table: SymbolTable, instruction: Instruction) -> None:
        addresses = [operand for operand in instruction.operands if isinstance(operand, Address)]
        if not addresses:
            return
        align = access_align_bytes(instruction)
        for address, space in zip(addresses, address_spaces(instruction, len(addresses)), strict=False):
            if space in {"global", "generic"}:
                self.accesses += [(node, align) for node in self._registers(table, address.base)]

    def copy(self, table: SymbolTable, instruction: Instruction) -> None:
        """Add edges from the sources of an instruction of `_COPIES`."""
        opcode, operands, words = instruction.opcode, instruction.operands, instruction.modifiers
        count, start, stop = _COPIES[opcode]
        if len(operands) != count or (opcode == "cvt" and not {"u64", "s64"}.issuperset(words[-2:])):
            return
        targets = self._registers(table, operands[0])
        for source in operands[start:stop]:
            nodes = self._registers(table, source) or self._variable(table, source)
            self.copies += [(node, end) for node in nodes for end in targets]
        if opcode == "cvta" and "to" in words:  # only a generic address is converted so
            self.accesses += [(node, 1) for node in self._registers(table, operands[1])]

    def add(self, table: SymbolTable, instruction: Instruction) -> None:
        """Add edges from the terms of a sum or a difference; what is subtracted is never the base."""
        if len(instruction.operands) != 3:
            return
        subtracts = instruction.opcode == "sub"
        ends, lefts, rights = (self._registers(table, operand) for operand in instruction.operands)
        for end in ends:
            self.sums += [(a, end, b) for a in lefts for b in rights]
            self.sums += [(b, end, b) for b in rights] if subtracts else [(b, end, a) for a in lefts for b in rights]
            if not rights:
                self.copies += [(node, end) for node in lefts]
            elif not lefts and not subtracts:
                self.copies += [(node, end) for node in rights]

    def transfer(self, table: SymbolTable, instruction: Instruction) -> None:
        """Add edges between the registers and the parameter of a load or store of 64-bit values."""
        words, operands, load = instruction.modifiers, instruction.operands, instruction.opcode == "ld"
        size = ELEMENT_BYTES.get(words[-1], 0) if words else 0
        if size != 8 or len(operands) != 2 or not any(word.partition("::")[0] == "param" for word in words):
            return
        values, address = operands if load else operands[::-1]
        if not isinstance(address, Address):
            return
        for slot in self._slots(table, address.base, "param"):
            for index, element in enumerate(_elements(values)):
                for register in self._registers(table, element):
                    node = self._node(slot, address.offset + index * size)
                    self.copies.append((node, register) if load else (register, node))

    def call(self, table: SymbolTable, instruction: Instruction) -> None:
        """Link the arguments and results of a call to the parameters of every function that it may reach."""
        at, taken, given = split_call(instruction)
        callees = {operand.name for operand in instruction.operands[at:] if isinstance(operand, Name)}
        for name in tuple(callees):
            targets = table.find(name)
            if isinstance(targets, TargetList):
                callees.update(targets.targets[:_MAX_TARGETS])
        for callee in sorted(callees):
            name = self.aliases.get(callee, callee)
            found, inner = self.module.find(name), self.outer.get(name)
            if isinstance(found, Function) and inner is not None:
                for operand, variable in zip(given, found.params, strict=False):
                    for slot in self._slots(table, operand, "param", "reg"):
                        self.links[slot, (inner, variable.name)] = None
                for operand, variable in zip(taken, found.returns, strict=False):
                    for slot in self._slots(table, operand, "param", "reg"):
                        self.links[(inner, variable.name), slot] = None


def _elements(operand: Operand) -> tuple[Operand, ...]:
    return operand.elements[:_MAX_PACKED] if isinstance(operand, Vector) else (operand,)


_FLOWS: Final[dict[str, Callable[[_Tracer, SymbolTable, Instruction], None]]] = {
    **dict.fromkeys(_COPIES, _Tracer.copy),
    "add": _Tracer.add,
    "sub": _Tracer.add,
    "ld": _Tracer.transfer,
    "st": _Tracer.transfer,
    "call": _Tracer.call,
}


# ---------------------------------------------------------------------------------------------- propagation


def propagate(successors: Sequence[Sequence[int]], seeds: dict[int, int], watch: Watch = UNLIMITED) -> list[int]:
    """Return for each node of a graph the union of the seeds that reach it, its own included.

    Each edge is followed twice, however the graph is shaped.

    Args:
        successors: for each node the targets of its edges.
        seeds: bit mask that a node starts with, by node.
        watch: ends the work.
    """
    masks = [0] * len(successors)
    for node, mask in seeds.items():
        masks[node] |= mask
    for component in reversed(components(successors, seeds, watch)):
        mask = 0
        for node in component:
            mask |= masks[node]
        for node in watch.over(component):
            masks[node] = mask
            for successor in successors[node]:
                masks[successor] |= mask
    return masks


def components(successors: Sequence[Sequence[int]], starts: Iterable[int], watch: Watch) -> list[list[int]]:
    """Return the strongly connected components reachable from ``starts``, each after all that it leads to.

    Tarjan's algorithm with an explicit stack, as a graph may be deeper than Python's recursion limit.
    """
    order = [0] * len(successors)  # 1-based time of the first visit, 0 before it
    lowest = [0] * len(successors)
    path: list[int] = []
    on_path = bytearray(len(successors))
    components: list[list[int]] = []
    time = 0
    for start in starts:
        work = [(start, 0)] if not order[start] else []
        while work:
            watch.step()
            node, at = work.pop()
            if not at:
                time += 1
                order[node] = lowest[node] = time
                path.append(node)
                on_path[node] = 1
            else:
                lowest[node] = min(lowest[node], lowest[successors[node][at - 1]])
            for index in range(at, len(successors[node])):
                successor = successors[node][index]
                if not order[successor]:
                    work += [(node, index + 1), (successor, 0)]
                    break
                if on_path[successor]:
                    lowest[node] = min(lowest[node], order[successor])
            else:
                if lowest[node] == order[node]:
                    components.append(_cut(path, on_path, node))
    return components


def _cut(path: list[int], on_path: bytearray, node: int) -> list[int]:
    """Take the end of ``path`` from ``node`` on."""
    component: list[int] = []
    while on_path[node]:
        component.append(path.pop())
        on_path[component[-1]] = 0
    return component
