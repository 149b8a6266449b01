"""Statements of a function's body.

Source: PTX ISA 4.3 (Statements), 9.3 (Predicated Execution), 9.7.12 (Control Flow Instructions), 11.3 (Control Flow
Directives).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from tensorwasm.ptx.declarations import LINKAGES, SPACES, parse_linkage, parse_params, parse_variables
from tensorwasm.ptx.directives import IN_BODY, parse_tuning
from tensorwasm.ptx.lexer import END, Cursor, shown
from tensorwasm.ptx.model import Block, Function, Guard, Instruction, Label, Operand, Statement, TargetList
from tensorwasm.ptx.operands import parse_arguments, parse_name, parse_operand

MAX_BLOCK_DEPTH: Final = 32

_MNEMONIC: Final = re.compile(r"[a-z]\w*(?:\.\w+(?:::\w+)*)*", re.ASCII)

_MODIFIER: Final = re.compile(r"\.[A-Za-z_]\w*(?:::\w+)*", re.ASCII)


def parse_body(cursor: Cursor, depth: int = 0) -> tuple[Statement, ...]:
    """Read statements up to and including the closing brace; the opening one is already taken.

    Raises:
        MalformedPtx: a statement is none, or blocks nest too deep.
        UnsupportedPtx: an operand indexes an array.
        InvokeTimeout: the deadline has passed.
    """
    if depth > MAX_BLOCK_DEPTH:
        raise cursor.error(f"blocks nested more than {MAX_BLOCK_DEPTH} deep")
    statements: list[Statement] = []
    tokens = cursor.tokens
    while True:
        if cursor.at >= cursor.due:
            cursor.look()
        word = tokens[cursor.at]
        special = _SPECIAL.get(word[:1])
        if special is not None:
            statements += special(cursor, depth)
        elif word == "}":
            cursor.at += 1
            return tuple(statements)
        elif tokens[cursor.at + 1] == ":":
            statements.append(_parse_label(cursor))
        else:
            statements.append(_parse_instruction(cursor))


def _parse_block(cursor: Cursor, depth: int) -> Iterable[Statement]:
    position = cursor.position(cursor.at)
    cursor.at += 1
    return (Block(parse_body(cursor, depth + 1), position),)


def _parse_guarded(cursor: Cursor, _depth: int) -> Iterable[Statement]:
    start = cursor.at
    cursor.at += 1
    negated = cursor.accept("!")
    guard = Guard(parse_name(cursor), negated)
    return (_parse_instruction(cursor, guard, start),)


def _parse_dotted(cursor: Cursor, _depth: int) -> Iterable[Statement]:
    word = cursor.peek()
    if word in SPACES or word in LINKAGES:
        return parse_variables(cursor, parse_linkage(cursor))
    parse = IN_BODY.get(word)
    if parse is None:
        raise cursor.error(f"{shown(word)} has no place among statements")
    return (parse(cursor),)


def _refuse_end(cursor: Cursor, _depth: int) -> Iterable[Statement]:
    raise cursor.error("the text ends inside a body")


_SPECIAL: Final[dict[str, Callable[[Cursor, int], Iterable[Statement]]]] = {
    "{": _parse_block,
    "@": _parse_guarded,
    ".": _parse_dotted,
    END: _refuse_end,
}


# ---------------------------------------------------------------------------------------------- instructions


def _parse_instruction(cursor: Cursor, guard: Guard | None = None, start: int | None = None) -> Instruction:
    """Read an instruction; ``start`` is the index of its guard."""
    position = cursor.position(cursor.at if start is None else start)
    opcode, modifiers = _parse_mnemonic(cursor)
    if opcode == "call":
        operands = _parse_call(cursor)
    elif cursor.peek() == ";":
        operands = []
    else:
        operands = [parse_operand(cursor)]
        while cursor.accept(","):
            operands.append(parse_operand(cursor))
    cursor.expect(";")
    return Instruction(opcode, modifiers, tuple(operands), guard, position)


def _parse_mnemonic(cursor: Cursor) -> tuple[str, tuple[str, ...]]:
    word = cursor.peek()
    known = cursor.mnemonics.get(word)
    if known is None:
        if not _MNEMONIC.fullmatch(word):
            raise cursor.error(f"an instruction expected, not {shown(word)}")
        opcode, *modifiers = word.split(".")
        known = cursor.mnemonics[word] = (opcode, tuple(modifiers))
    cursor.at += 1
    if cursor.peek()[:1] != ".":
        return known
    apart: list[str] = []
    while _MODIFIER.fullmatch(cursor.peek()):
        apart.append(cursor.take()[1:])
    return known[0], known[1] + tuple(apart)


def _parse_call(cursor: Cursor) -> list[Operand]:
    """Read ``(returns), function, (arguments), prototype``, of which only the function must be there."""
    operands: list[Operand] = []
    if cursor.peek() == "(":
        operands.append(parse_arguments(cursor))
        cursor.expect(",")
    operands.append(parse_name(cursor))
    if cursor.accept(","):
        operands.append(parse_arguments(cursor) if cursor.peek() == "(" else parse_name(cursor))
        if cursor.accept(","):
            operands.append(parse_name(cursor))
    return operands


# ---------------------------------------------------------------------------------------------------- labels


def _parse_label(cursor: Cursor) -> Label | TargetList:
    position = cursor.position(cursor.at)
    name = cursor.identifier("a label")
    if name == "_":
        raise cursor.error("_ is no label", cursor.at - 1)
    cursor.expect(":")
    word = cursor.peek()
    if word == ".callprototype":
        cursor.at += 1
        return TargetList(name, "callprototype", (), _parse_prototype(cursor), position)
    if word == ".branchtargets":
        cursor.at += 1
        return TargetList(name, "branchtargets", _parse_targets(cursor), None, position)
    if word == ".calltargets":
        cursor.at += 1
        return TargetList(name, "calltargets", _parse_targets(cursor), None, position)
    return Label(name, position)


def _parse_targets(cursor: Cursor) -> tuple[str, ...]:
    targets = [cursor.identifier("a target")]
    while cursor.accept(","):
        targets.append(cursor.identifier("a target"))
    cursor.expect(";")
    return tuple(targets)


def _parse_prototype(cursor: Cursor) -> Function:
    position = cursor.position(cursor.at)
    returns = parse_params(cursor, anonymous=True) if cursor.peek() == "(" else ()
    name = cursor.identifier("_")
    params = parse_params(cursor, anonymous=True) if cursor.peek() == "(" else ()
    directives = parse_tuning(cursor)
    cursor.expect(";")
    return Function(False, name, params, returns, (), directives, None, position)
