"""Damaged modules: what a wrong guard might write, for the exam of the verifier.

A text that a verifier accepts must be harmless, whoever wrote it. So damage a guarded module, and run what is accepted.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

from msgspec import structs

from tensorwasm.ptx.model import (
    Address,
    Block,
    Function,
    Guard,
    Instruction,
    Int,
    Label,
    Module,
    Name,
    Operand,
    Statement,
    Variable,
    Vector,
)

_IMMEDIATES = (0, 1, 4, -1, -4, -16, 255, 1 << 12, 1 << 23, (1 << 23) + 4, 1 << 26, (1 << 31) - 1, 1 << 32, -(1 << 32))
_WORDS = (
    {"u8", "b8", "s8", "u16", "b16", "s16", "u32", "b32", "s32", "f32", "u64", "b64", "s64", "f64"},
    {"global", "shared", "local", "const", "param"},
    {"v2", "v4"},
    {"lt", "le", "gt", "ge", "eq", "ne"},
    {"add", "and", "or", "xor", "sub", "min", "max"},
)
"""Modifiers and opcodes that are put in each other's place."""
_MOVED = 0.35
"""How many faults leave an instruction as it is, but not where it is."""


def damage(module: Module, seed: int, times: int = 1) -> Module:
    """Return a module with ``times`` faults in its functions, made of the seed alone; it need not be consistent."""
    rng = random.Random(seed)
    for _ in range(times):
        places = [index for index, item in enumerate(module.items) if isinstance(item, Function) and item.body]
        index = rng.choice(places)
        function = module.items[index]
        names = _registers(function)
        body = _damaged(rng, function.body, names)
        module = replace(
            module, items=(*module.items[:index], replace(function, body=body), *module.items[index + 1 :])
        )
    return module


def _registers(function: Function) -> dict[str, list[Name]]:
    """Return the registers that a function mentions, by type; numbered ones are of their family's."""
    kinds: dict[str, str] = {}
    found: dict[str, list[Name]] = defaultdict(list)
    for statement in (*function.params, *function.returns, *_flat(function.body or ())):
        if isinstance(statement, Variable) and statement.space == "reg":
            kinds[statement.name] = statement.type
    for statement in _flat(function.body or ()):
        if isinstance(statement, Instruction):
            for name in _names(statement.operands):
                kind = kinds.get(name.name) or kinds.get(name.name.rstrip("0123456789"))
                if kind and name not in found[kind]:
                    found[kind].append(name)
    return found


def _flat(body: tuple[Statement, ...]) -> Iterator[Statement]:
    for statement in body:
        if isinstance(statement, Block):
            yield from _flat(statement.body)
        else:
            yield statement


def _names(operands: tuple[Operand, ...]) -> Iterator[Name]:
    for operand in operands:
        match operand:
            case Name():
                yield operand
            case Address(base=Name() as base):
                yield base
            case Vector():
                yield from _names(operand.elements)


def _damaged(rng: random.Random, body: tuple[Statement, ...], names: dict[str, list[Name]]) -> tuple[Statement, ...]:
    """Return a body with one fault, perhaps in a block inside it."""
    at = rng.randrange(len(body))
    statement = body[at]
    if isinstance(statement, Block) and statement.body:
        return (*body[:at], replace(statement, body=_damaged(rng, statement.body, names)), *body[at + 1 :])
    if not isinstance(statement, Instruction) or rng.random() < _MOVED:
        return _moved(rng, body, at)
    made = rng.choice(_CHANGES)(rng, statement, names)
    return (*body[:at], made, *body[at + 1 :]) if made != statement else _moved(rng, body, at)


def _moved(rng: random.Random, body: tuple[Statement, ...], at: int) -> tuple[Statement, ...]:
    """Leave a statement out, move it by some places, or repeat it elsewhere."""
    movable = [index for index, each in enumerate(body) if isinstance(each, Instruction | Label)]
    if not movable:
        return body
    at = at if at in movable else rng.choice(movable)
    rest = [*body[:at], *body[at + 1 :]]
    how = rng.choice(("leave out", "move", "repeat"))
    if how == "leave out" and isinstance(body[at], Instruction):
        return tuple(rest)
    to = max(0, min(len(rest), at + rng.choice((-5, -2, -1, 1, 2, 5))))
    if how == "repeat" and isinstance(body[at], Instruction):
        rest = list(body)
    rest.insert(to, body[at])
    return tuple(rest)


# ------------------------------------------------------------------------------------------ faults of an instruction


def _other_register(rng: random.Random, instruction: Instruction, names: dict[str, list[Name]]) -> Instruction:
    mentioned = list(_names(instruction.operands))
    if not mentioned:
        return instruction
    old = rng.choice(mentioned)
    group = next((group for group in names.values() if old in group), [old])
    new = rng.choice(group)
    return structs.replace(instruction, operands=tuple(_renamed(each, old, new) for each in instruction.operands))


def _renamed(operand: Operand, old: Name, new: Name) -> Operand:
    match operand:
        case Name() if operand == old:
            return new
        case Address() if operand.base == old:
            return structs.replace(operand, base=new)
        case Vector():
            return Vector(tuple(_renamed(each, old, new) for each in operand.elements))
    return operand


def _other_number(rng: random.Random, instruction: Instruction, _names: dict[str, list[Name]]) -> Instruction:
    places = [at for at, each in enumerate(instruction.operands) if isinstance(each, Int | Address)]
    if not places:
        return instruction
    at, value = rng.choice(places), rng.choice(_IMMEDIATES)
    old = instruction.operands[at]
    new = structs.replace(old, offset=value) if isinstance(old, Address) else Int(value)
    return structs.replace(instruction, operands=(*instruction.operands[:at], new, *instruction.operands[at + 1 :]))


def _other_word(rng: random.Random, instruction: Instruction, _names: dict[str, list[Name]]) -> Instruction:
    words = [instruction.opcode, *instruction.modifiers]
    places = [(at, group) for at, word in enumerate(words) for group in _WORDS if word in group]
    if not places:
        return instruction
    at, group = rng.choice(places)
    words[at] = rng.choice(sorted(group))
    return structs.replace(instruction, opcode=words[0], modifiers=tuple(words[1:]))


def _no_word(rng: random.Random, instruction: Instruction, _names: dict[str, list[Name]]) -> Instruction:
    if not instruction.modifiers:
        return instruction
    at = rng.randrange(len(instruction.modifiers))
    return structs.replace(instruction, modifiers=instruction.modifiers[:at] + instruction.modifiers[at + 1 :])


def _other_guard(rng: random.Random, instruction: Instruction, names: dict[str, list[Name]]) -> Instruction:
    guard = instruction.guard
    if guard is not None:
        changed = rng.choice((None, Guard(guard.predicate, not guard.negated)))
    elif names.get("pred"):
        changed = Guard(rng.choice(names["pred"]), rng.random() < 0.5)
    else:
        return instruction
    return structs.replace(instruction, guard=changed)


_CHANGES: tuple[Callable[[random.Random, Instruction, dict[str, list[Name]]], Instruction], ...] = (
    _other_register,
    _other_register,
    _other_number,
    _other_number,
    _other_word,
    _no_word,
    _other_guard,
)
