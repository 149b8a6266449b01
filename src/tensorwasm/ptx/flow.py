"""Where kernel parameters flow: which of them become addresses.

One graph spans the entry and everything it may call. Its nodes are registers and slots of parameters, its edges
copies and sums; statements are taken in any order. A parameter is an address when its value, moved and added to what
is no parameter, is dereferenced as global memory or converted from a generic address.

Source: PTX ISA 5.1.6 (Parameter State Space), 7 (Abstracting the ABI), 9.7.9 (Data Movement and Conversion).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.ptx.accesses import ELEMENT_BYTES, HANDLES, access_bytes, spaces
from tensorwasm.ptx.check import module_scope
from tensorwasm.ptx.graph import propagate
from tensorwasm.ptx.layout import TYPE_BYTES
from tensorwasm.ptx.model import (
    Address,
    Arguments,
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
from tensorwasm.ptx.reach import aliases
from tensorwasm.ptx.scope import Scope
from tensorwasm.watch import UNLIMITED, Watch


@dataclass(frozen=True, slots=True)
class Use:
    """How a kernel uses one of its parameters as an address.

    Attributes:
        pointer: whether it does.
        align_bytes: the alignment that the widest access needs, 1 if none.
    """

    pointer: bool = False
    align_bytes: int = 1


def trace(module: Module, entry: Function, functions: Iterable[Function], watch: Watch = UNLIMITED) -> tuple[Use, ...]:
    """Return how the entry, and what it calls, uses each of its parameters.

    Takes time proportional to the size of the functions.

    Args:
        module: consistent, as ``parse`` returns it.
        entry: one of its kernels.
        functions: the functions that the entry can reach, itself included.
        watch: ends the work.

    Raises:
        InvokeTimeout: the deadline has passed.
    """
    tracer = _Tracer(module_scope(module, watch), aliases(module), entry, tuple(functions))
    return tracer.uses()


# ------------------------------------------------------------------------------------------------ the graph

_Slot = tuple[int, str]
"""A register or parameter: which scope declares it, and its name."""

_VARIABLES: Final[_Slot] = (0, "")
"""Stands for the address of any variable: what is added to one is no address itself."""
_BASES: Final = frozenset({"global", "const", "shared", "local"})


@dataclass(slots=True)
class _Access:
    node: int
    align_bytes: int
    pointer: bool


@dataclass(slots=True)
class _Tracer:
    module: Scope
    aliases: dict[str, str]
    entry: Function
    functions: tuple[Function, ...]
    scopes: list[Scope] = field(default_factory=list)
    nodes: dict[tuple[int, str, int], int] = field(default_factory=dict)
    offsets: dict[_Slot, set[int]] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    sums: list[tuple[int, int, int]] = field(default_factory=list)
    links: dict[tuple[_Slot, _Slot], None] = field(default_factory=dict)
    accesses: list[_Access] = field(default_factory=list)
    outer: dict[str, Scope] = field(default_factory=dict)
    registers: dict[int, dict[str, int | None]] = field(default_factory=dict)

    def uses(self) -> tuple[Use, ...]:
        """Build the graph, propagate, and read off the accesses."""
        for function in self.functions:
            self.outer[function.name] = self._open(self.module, (*function.returns, *function.params))
        for function in self.functions:
            self._walk(self.outer[function.name], function.body or ())
        watch, seeds = self.module.watch, self._seeds()
        for source, target in watch.over(self.links):
            for offset in sorted(self.offsets.get(source, set()) | self.offsets.get(target, set())):
                self.copies.append((self._node(source, offset), self._node(target, offset)))
        # All that is summed into a value; then only what is its base: summed with nothing that stems from a parameter.
        everything = propagate(self._successors([(source, target) for source, target, _ in self.sums]), seeds, watch)
        based = [(source, target) for source, target, other in self.sums if not everything[other]]
        bases = propagate(self._successors(based), seeds, watch)
        pointers = 0
        aligned: dict[int, int] = {}
        for access in watch.over(self.accesses):
            pointers |= bases[access.node] if access.pointer else 0
            aligned[access.align_bytes] = aligned.get(access.align_bytes, 0) | everything[access.node]
        return tuple(
            Use(bool(pointers >> index & 1), max((1, *(align for align in aligned if aligned[align] >> index & 1))))
            for index in range(len(self.entry.params))
        )

    def _successors(self, more: Iterable[tuple[int, int]]) -> list[list[int]]:
        successors: list[list[int]] = [[] for _ in self.nodes]
        for source, target in self.module.watch.over((*self.copies, *more)):
            successors[source].append(target)
        return successors

    def _seeds(self) -> dict[int, int]:
        scope = self.outer[self.entry.name]
        seeds = {self._node(_VARIABLES, 0): 1 << len(self.entry.params)}
        for index, param in enumerate(self.entry.params):
            if not param.shape and param.vector == 1 and TYPE_BYTES.get(param.type) == 8:
                seeds[self._node((id(scope), param.name), 0)] = 1 << index
        return seeds

    # -- names ------------------------------------------------------------------------------------------------

    def _open(self, parent: Scope, declared: Iterable[Variable] = ()) -> Scope:
        scope = Scope(parent)
        self.scopes.append(scope)  # kept alive: slots are told apart by its identity
        for variable in declared:
            scope.declare(variable.name, variable)
        return scope

    def _node(self, slot: _Slot, offset: int) -> int:
        known = self.offsets.setdefault(slot, set())
        if offset not in known and len(known) >= _MOST_FIELDS:
            offset = _OTHER_FIELDS
        known.add(offset)
        return self.nodes.setdefault((*slot, offset), len(self.nodes))

    def _slot(self, scope: Scope, operand: Operand, space: str) -> _Slot | None:
        """Return the variable of that space that ``operand`` names, or None."""
        found = scope.locate(operand.name) if isinstance(operand, Name) else None
        if found is None or not isinstance(operand, Name):
            return None
        owner, symbol = found
        if not isinstance(symbol, Variable) or symbol.space != space:
            return None
        return id(owner), operand.name

    def _registers(self, scope: Scope, operand: Operand) -> list[int]:
        """Return the nodes of the registers in a name, or in a vector as ``mov`` packs them."""
        elements = operand.elements[:_MOST_PACKED] if isinstance(operand, Vector) else (operand,)
        nodes = [self._register(scope, element.name) for element in elements if isinstance(element, Name)]
        return [node for node in nodes if node is not None]

    def _register(self, scope: Scope, name: str) -> int | None:
        known = self.registers.setdefault(id(scope), {})
        if name not in known:
            slot = self._slot(scope, Name(name), "reg")
            known[name] = None if slot is None else self._node(slot, 0)
        return known[name]

    def _variable(self, scope: Scope, operand: Operand) -> list[int]:
        """Return the node that stands for every variable's address, if ``operand`` is one."""
        symbol = scope.find(operand.base.name if isinstance(operand, Offset) else getattr(operand, "name", ""))
        return [self._node(_VARIABLES, 0)] if isinstance(symbol, Variable) and symbol.space in _BASES else []

    # -- statements -------------------------------------------------------------------------------------------

    def _walk(self, scope: Scope, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, TargetList):
                scope.declare(statement.label, statement)
        for statement in scope.watch.over(body):
            if isinstance(statement, Instruction):
                flow = _FLOWS.get(statement.opcode)
                if flow is not None:
                    flow(self, scope, statement)
                if statement.opcode not in HANDLES:
                    self._access(scope, statement)
            elif isinstance(statement, Variable):
                scope.declare(statement.name, statement)
                self.registers.pop(id(scope), None)
            elif isinstance(statement, Block):
                self._walk(self._open(scope), statement.body)

    def _access(self, scope: Scope, instruction: Instruction) -> None:
        addresses = [operand for operand in instruction.operands if isinstance(operand, Address)]
        if not addresses:
            return
        align = access_bytes(instruction)
        for address, space in zip(addresses, spaces(instruction, len(addresses)), strict=False):
            if space in {"global", "generic"}:
                self.accesses += [_Access(node, align, True) for node in self._registers(scope, address.base)]

    def copy(self, scope: Scope, target: Operand, *sources: Operand) -> None:
        """Note that ``target`` may be any of ``sources``."""
        targets = self._registers(scope, target)
        for source in sources:
            nodes = self._registers(scope, source) or self._variable(scope, source)
            self.copies += [(node, end) for node in nodes for end in targets]

    def add(self, scope: Scope, target: Operand, left: Operand, right: Operand) -> None:
        """Note that ``target`` is the sum of ``left`` and ``right``."""
        ends, lefts, rights = (self._registers(scope, operand) for operand in (target, left, right))
        for end in ends:
            self.sums += [(a, end, b) for a in lefts for b in rights] + [(b, end, a) for a in lefts for b in rights]
            self.copies += [(node, end) for node in (lefts if not rights else [] if lefts else rights)]

    def subtract(self, scope: Scope, target: Operand, left: Operand, right: Operand) -> None:
        """Note that ``target`` is ``left`` less ``right``, which is never its base."""
        ends, lefts, rights = (self._registers(scope, operand) for operand in (target, left, right))
        for end in ends:
            self.sums += [(a, end, b) for a in lefts for b in rights] + [(b, end, b) for b in rights]
            self.copies += [(node, end) for node in lefts if not rights]

    def slot(self, scope: Scope, values: Operand, address: Operand, *, size: int, load: bool) -> None:
        """Note that ``values`` are loaded from, or stored to, a parameter."""
        slot = self._slot(scope, address.base, "param") if isinstance(address, Address) else None
        if slot is None or not isinstance(address, Address):
            return
        elements = values.elements[:_MOST_PACKED] if isinstance(values, Vector) else (values,)
        for index, element in enumerate(elements):
            for register in self._registers(scope, element):
                node = self._node(slot, address.offset + index * size)
                self.copies.append((node, register) if load else (register, node))

    def call(self, scope: Scope, callee: str, taken: tuple[Operand, ...], given: tuple[Operand, ...]) -> None:
        """Note that a call gives ``given`` to a function and takes ``taken`` from it."""
        name = self.aliases.get(callee, callee)
        found, inner = self.module.find(name), self.outer.get(name)
        if not isinstance(found, Function) or inner is None:
            return
        for operand, variable in zip(given, found.params, strict=False):
            self.links.update(((slot, (id(inner), variable.name)), None) for slot in self._slots(scope, operand))
        for operand, variable in zip(taken, found.returns, strict=False):
            self.links.update((((id(inner), variable.name), slot), None) for slot in self._slots(scope, operand))

    def _slots(self, scope: Scope, operand: Operand) -> list[_Slot]:
        found = self._slot(scope, operand, "param") or self._slot(scope, operand, "reg")
        return [] if found is None else [found]

    def convert(self, scope: Scope, operand: Operand) -> None:
        """Note that ``operand`` is converted from a generic address."""
        self.accesses += [_Access(node, 1, True) for node in self._registers(scope, operand)]


_MOST_PACKED: Final = 8
_MOST_TARGETS: Final = 16
_MOST_FIELDS: Final = 8
_OTHER_FIELDS: Final = -1
"""Where all fields of a structure count as one, beyond the first so many: so that work stays in proportion."""


# ------------------------------------------------------------------------------- how instructions move values


def _flow_move(tracer: _Tracer, scope: Scope, instruction: Instruction) -> None:
    if len(instruction.operands) == 2:
        tracer.copy(scope, *instruction.operands)


def _flow_address(tracer: _Tracer, scope: Scope, instruction: Instruction) -> None:
    _flow_move(tracer, scope, instruction)
    if "to" in instruction.modifiers and len(instruction.operands) == 2:
        tracer.convert(scope, instruction.operands[1])


def _flow_convert(tracer: _Tracer, scope: Scope, instruction: Instruction) -> None:
    if all(word in {"u64", "s64"} for word in instruction.modifiers[-2:]):
        _flow_move(tracer, scope, instruction)


def _flow_select(tracer: _Tracer, scope: Scope, instruction: Instruction) -> None:
    if len(instruction.operands) == 4:
        tracer.copy(scope, *instruction.operands[:3])


def _flow_add(tracer: _Tracer, scope: Scope, instruction: Instruction) -> None:
    if len(instruction.operands) == 3:
        tracer.add(scope, *instruction.operands)


def _flow_subtract(tracer: _Tracer, scope: Scope, instruction: Instruction) -> None:
    if len(instruction.operands) == 3:
        tracer.subtract(scope, *instruction.operands)


def _flow_multiply_add(tracer: _Tracer, scope: Scope, instruction: Instruction) -> None:
    if len(instruction.operands) == 4:
        tracer.copy(scope, instruction.operands[0], instruction.operands[3])


def _flow_load(tracer: _Tracer, scope: Scope, instruction: Instruction) -> None:
    _flow_slot(tracer, scope, instruction, load=True)


def _flow_store(tracer: _Tracer, scope: Scope, instruction: Instruction) -> None:
    _flow_slot(tracer, scope, instruction, load=False)


def _flow_slot(tracer: _Tracer, scope: Scope, instruction: Instruction, *, load: bool) -> None:
    words = instruction.modifiers
    size = ELEMENT_BYTES.get(words[-1], 0) if words else 0
    if size == 8 and len(instruction.operands) == 2 and any(word.partition("::")[0] == "param" for word in words):
        values, address = instruction.operands if load else instruction.operands[::-1]
        tracer.slot(scope, values, address, size=size, load=load)


def _flow_call(tracer: _Tracer, scope: Scope, instruction: Instruction) -> None:
    at = next(index for index, operand in enumerate(instruction.operands) if isinstance(operand, Name))
    before, after = instruction.operands[:at], instruction.operands[at + 1 :]
    taken = next((operand.elements for operand in before if isinstance(operand, Arguments)), ())
    given = next((operand.elements for operand in after if isinstance(operand, Arguments)), ())
    callees = {operand.name for operand in (instruction.operands[at], *after) if isinstance(operand, Name)}
    for name in tuple(callees):
        targets = scope.find(name)
        if isinstance(targets, TargetList):
            callees.update(targets.targets[:_MOST_TARGETS])
    for name in sorted(callees):
        tracer.call(scope, name, taken, given)


_FLOWS: Final[dict[str, Callable[[_Tracer, Scope, Instruction], None]]] = {
    "mov": _flow_move,
    "cvta": _flow_address,
    "cvt": _flow_convert,
    "selp": _flow_select,
    "add": _flow_add,
    "sub": _flow_subtract,
    "mad": _flow_multiply_add,
    "ld": _flow_load,
    "st": _flow_store,
    "call": _flow_call,
}
