"""Parsers of the statements of a function's body.

Source: PTX ISA 4.3 (Statements), 9.3 (Predicated Execution), 9.7.12 (Control Flow Instructions), 11.3 (Control Flow
Directives).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, Literal

from tensorwasm.ptx.declarations import SPACES, parse_params, parse_variables
from tensorwasm.ptx.directives import IN_BODY, parse_directive, parse_header_directives
from tensorwasm.ptx.lexer import END, Cursor, shown
from tensorwasm.ptx.model import Block, Function, Guard, Instruction, Label, Operand, Statement, TargetList
from tensorwasm.ptx.operands import parse_arguments, parse_element, parse_name, parse_operand, plain_operand

MAX_BLOCK_DEPTH: Final = 32

_MNEMONIC: Final = re.compile(r"[a-z]\w*(?:\.\w+(?:::\w+)*)*", re.ASCII)
_MODIFIER: Final = re.compile(r"\.[A-Za-z_]\w*(?:::\w+)*", re.ASCII)
_BETWEEN: Final = frozenset({",", ";"})
_LISTS: Final[dict[str, Literal["branchtargets", "calltargets"]]] = {
    ".branchtargets": "branchtargets",
    ".calltargets": "calltargets",
}


def parse_body(cursor: Cursor, depth: int = 0) -> tuple[Statement, ...]:
    """Read statements up to and including the closing brace; the opening one is already taken."""
    cursor.require(depth <= MAX_BLOCK_DEPTH, f"blocks nested more than {MAX_BLOCK_DEPTH} deep")
    statements: list[Statement] = []
    tokens, mnemonics = cursor.tokens, cursor.mnemonics
    while True:
        at = cursor.at
        if at >= cursor.due:
            cursor.look()
        word = tokens[at]
        if word[-1:] == ";" != word:  # a whole instruction in one token
            statements.append(_plain_instruction(cursor))
        elif word in mnemonics and tokens[at + 1] != ":":
            statements.append(_parse_instruction(cursor))
        elif (special := _SPECIAL.get(word[:1])) is not None:
            statements += special(cursor, depth)
        elif word == "}":
            cursor.at += 1
            return tuple(statements)
        elif tokens[at + 1] == ":":
            statements.append(_parse_label(cursor))
        else:
            statements.append(_parse_instruction(cursor))


def _parse_block(cursor: Cursor, depth: int) -> Iterable[Statement]:
    position = cursor.position(cursor.at)
    cursor.at += 1
    cursor.arrays = cursor.arrays.new_child()
    body = parse_body(cursor, depth + 1)
    cursor.arrays = cursor.arrays.parents
    return (Block(body, position),)


def _parse_guarded(cursor: Cursor, _depth: int) -> Iterable[Statement]:
    start = cursor.at
    cursor.at += 1
    negated = cursor.accept("!")
    word = cursor.tokens[cursor.at]
    guard = cursor.guards.get((word, negated))
    if guard is None:
        guard = cursor.guards[word, negated] = Guard(parse_name(cursor), negated)
    else:
        cursor.at += 1
    word = cursor.tokens[cursor.at]
    parse = _plain_instruction if word[-1:] == ";" != word else _parse_instruction
    return (parse(cursor, guard, start),)


def _parse_dotted(cursor: Cursor, _depth: int) -> Iterable[Statement]:
    if cursor.peek() in SPACES:
        return parse_variables(cursor)
    directive = parse_directive(cursor, IN_BODY)
    if directive is None:
        raise cursor.error(f"{shown(cursor.peek())} is not allowed among statements")
    return (directive,)


def _refuse_end(cursor: Cursor, _depth: int) -> Iterable[Statement]:
    raise cursor.error("the text ends inside a body")


_SPECIAL: Final[dict[str, Callable[[Cursor, int], Iterable[Statement]]]] = {
    "{": _parse_block,
    "@": _parse_guarded,
    ".": _parse_dotted,
    END: _refuse_end,
}
"""Parsers of statements that begin with a character other than that of a name."""


# ---------------------------------------------------------------------------------------------- instructions


def _plain_instruction(cursor: Cursor, guard: Guard | None = None, start: int | None = None) -> Instruction:
    """Take an instruction that is one token, whose form the lexer has checked; otherwise as `_parse_instruction`."""
    at = cursor.at
    position = cursor.position(at if start is None else start)
    plain = cursor.plain
    word, *written = cursor.tokens[at].split()
    mnemonic = cursor.mnemonics.get(word) or _split_mnemonic(cursor, word)
    operands = tuple([plain.get(each) or plain_operand(cursor, each) for each in written])
    cursor.at = at + 1
    return Instruction(mnemonic[0], mnemonic[1], operands, guard, position)


def _parse_instruction(cursor: Cursor, guard: Guard | None = None, start: int | None = None) -> Instruction:
    """Read an instruction; ``start`` is the index of its guard."""
    at = cursor.at
    position = cursor.position(at if start is None else start)
    tokens, known = cursor.tokens, cursor.known
    mnemonic = cursor.mnemonics.get(tokens[at])
    at += 1
    if mnemonic is None or tokens[at][:1] == ".":
        mnemonic = _parse_mnemonic(cursor)
        at = cursor.at
    opcode, modifiers = mnemonic
    operands: list[Operand] = []
    if opcode == "call":
        cursor.at = at
        operands = _parse_call(cursor)
        at = cursor.at
    elif tokens[at] != ";":
        while True:
            operand: Operand | None = known.get(tokens[at])
            if operand is not None and tokens[at + 1] in _BETWEEN:  # the usual case: one word that was seen before
                at += 1
            else:
                cursor.at = at
                indexed = tokens[at : at + 2][-1] == "[" and tokens[at] not in {"[", "{"}
                operand = parse_element(cursor, opcode) if indexed else parse_operand(cursor)
                at = cursor.at
            operands.append(operand)
            if tokens[at] != ",":
                break
            at += 1
            if at >= cursor.due:
                cursor.at = at
                cursor.look()
    cursor.at = at
    cursor.expect(";")
    return Instruction(opcode, modifiers, tuple(operands), guard, position)


def _parse_mnemonic(cursor: Cursor) -> tuple[str, tuple[str, ...]]:
    word = cursor.peek()
    known = cursor.mnemonics.get(word)
    if known is None:
        cursor.require(_MNEMONIC.fullmatch(word), f"an instruction expected, not {shown(word)}")
        known = _split_mnemonic(cursor, word)
    cursor.at += 1
    apart: list[str] = []
    while _MODIFIER.fullmatch(cursor.peek()):
        apart.append(cursor.take()[1:])
    return known[0], known[1] + tuple(apart)


def _split_mnemonic(cursor: Cursor, word: str) -> tuple[str, tuple[str, ...]]:
    opcode, *modifiers = word.split(".")
    made = cursor.mnemonics[word] = (opcode, tuple(modifiers))
    return made


def _parse_call(cursor: Cursor) -> list[Operand]:
    """Read ``(returns), function, (arguments), prototype``; only the function is required."""
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
    cursor.require(name != "_", "_ is not a label", cursor.at - 1)
    cursor.expect(":")
    if cursor.accept(".callprototype"):
        return TargetList(name, "callprototype", (), _parse_prototype(cursor), position)
    kind = _LISTS.get(cursor.peek())
    if kind is None:
        return Label(name, position)
    cursor.at += 1
    targets = cursor.comma_separated(Cursor.identifier, "a target")
    cursor.expect(";")
    return TargetList(name, kind, targets, None, position)


def _parse_prototype(cursor: Cursor) -> Function:
    position = cursor.position(cursor.at)
    returns = parse_params(cursor, anonymous=True) if cursor.peek() == "(" else ()
    name = cursor.identifier("_")
    params = parse_params(cursor, anonymous=True) if cursor.peek() == "(" else ()
    directives = parse_header_directives(cursor)
    cursor.expect(";")
    return Function(False, name, params, returns, (), directives, None, position)
