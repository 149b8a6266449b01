"""Parsers of the operands of instructions.

Source: PTX ISA 6 (Instruction Operands).
"""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx.constants import ADDITIVE, parse_constant, parse_integer, starts_constant, wrap_signed
from tensorwasm.ptx.lexer import IDENTIFIER, Cursor, shown
from tensorwasm.ptx.model import Address, Arguments, Float, Int, Name, Not, Offset, Operand, Pair, Vector

MAX_OPERAND_DEPTH: Final = 16

_COMPONENTS: Final = frozenset("xyzwrgba")
_SIGNS: Final = frozenset({"+", "-"})
_ENDS: Final = frozenset({",", ";", "}", "]", ")"})


def parse_operand(cursor: Cursor, depth: int = 0) -> Operand:
    """Read one operand; ``depth`` counts the operands around it."""
    word = cursor.peek()
    known = cursor.known.get(word)
    if known is not None and cursor.tokens[cursor.at + 1] in _ENDS:
        cursor.at += 1
        return known
    if depth > MAX_OPERAND_DEPTH:
        raise cursor.error(f"operands nested more than {MAX_OPERAND_DEPTH} deep")
    if word == "[":
        return _parse_address(cursor, depth)
    if word == "{":
        cursor.at += 1
        return Vector(_parse_list(cursor, "}", depth + 1))
    if word == "!" and not starts_constant(cursor.tokens[cursor.at + 1]):
        cursor.at += 1
        return Not(parse_name(cursor))
    return _parse_number(cursor) if starts_constant(word) else _parse_named(cursor, depth)


def plain_operand(cursor: Cursor, written: str) -> Name | Int | Float | Address:
    """Return an operand of an instruction that is one token; ``written`` ends with its comma or semicolon."""
    word = written[:-1]
    operand: Name | Int | Float | Address
    if word[0] == "[":
        name, _, offset = word[1:-1].partition("+")
        operand = Address(_plain_name(cursor, name), int(offset or 0))
    elif word[0] in "-0123456789":
        is_float = word[1:2] in {"f", "F"}
        operand = Float(int.from_bytes(bytes.fromhex(word[2:]), "big"), 32) if is_float else Int(int(word))
    else:
        operand = _plain_name(cursor, word)
    cursor.plain[written] = operand
    return operand


def _plain_name(cursor: Cursor, word: str) -> Name:
    known = cursor.known.get(word)
    if type(known) is Name:
        return known
    name, _, component = word.partition(".")
    made = cursor.known[word] = Name(name, component or None)
    return made


def parse_arguments(cursor: Cursor) -> Arguments:
    """Read a parenthesised list of ``call``."""
    cursor.expect("(")
    return Arguments(_parse_list(cursor, ")"))


def _parse_list(cursor: Cursor, close: str, depth: int = 0) -> tuple[Operand, ...]:
    """Read operands up to and including ``close``; the opening bracket is already taken."""
    if cursor.accept(close):
        return ()
    elements = cursor.comma_separated(parse_operand, depth)
    cursor.expect(close)
    return elements


def parse_name(cursor: Cursor) -> Name:
    """Read a name, with its component if it has one."""
    word = cursor.peek()
    name, dot, component = word.partition(".")
    if not IDENTIFIER.fullmatch(name):
        raise cursor.error(f"an operand expected, not {shown(word)}")
    if dot and component not in _COMPONENTS:
        raise cursor.error(f"{shown(component)} is not a component of a vector")
    cursor.at += 1
    return Name(name, component or None)


def parse_offset(cursor: Cursor) -> int:
    """Read the terms ``+4-2`` that may follow a name; 0 without any."""
    total = 0
    tokens = cursor.tokens
    while tokens[cursor.at] in _SIGNS:
        minus = cursor.take() == "-"
        start = cursor.at
        term = parse_integer(cursor, ADDITIVE + 1)
        if cursor.at == start + 1:
            cursor.known.setdefault(tokens[start], Int(term))
        total += -term if minus else term
    return wrap_signed(total)


def parse_element(cursor: Cursor, opcode: str) -> Address | Offset:
    """Read ``name[index]``: for ``mov`` the address of an array element, for others the element itself."""
    start = cursor.at
    array = Name(cursor.identifier("an operand"))
    element_bytes = cursor.arrays.get(array.name)
    if element_bytes is None:
        raise cursor.error(f"{shown(array.name)} is not an array", start)
    cursor.expect("[")
    if not starts_constant(cursor.peek()):
        parse_name(cursor)
        raise cursor.error("an array that is indexed by a register: write [register+bytes]", kind=UnsupportedPtx)
    offset = wrap_signed(parse_integer(cursor) * element_bytes)
    cursor.expect("]")
    return Offset(array, offset) if opcode == "mov" else Address(array, offset)


def _parse_number(cursor: Cursor) -> Int | Float:
    start = cursor.at
    value = parse_constant(cursor)
    if cursor.at == start + 1:
        cursor.known[cursor.tokens[start]] = value
    return value


def _parse_named(cursor: Cursor, depth: int) -> Operand:
    word = cursor.peek()
    name = parse_name(cursor)
    follower = cursor.peek()
    if follower in _ENDS:
        cursor.known[word] = name
    elif follower == "|":
        cursor.at += 1
        return Pair(name, parse_operand(cursor, depth + 1))
    elif follower in _SIGNS:
        return Offset(name, parse_offset(cursor))
    elif follower[:1] == "." and follower[1:] in _COMPONENTS and name.component is None:
        cursor.at += 1
        return Name(name.name, follower[1:])
    return name


def _parse_address(cursor: Cursor, depth: int) -> Address:
    tokens, at = cursor.tokens, cursor.at + 1
    simple = cursor.known.get(tokens[at])
    if type(simple) is Name:  # the two forms that nearly all addresses have
        if tokens[at + 1] == "]":
            cursor.at = at + 2
            return Address(simple)
        term = cursor.known.get(tokens[at + 2]) if tokens[at + 1] == "+" else None
        if type(term) is Int and tokens[at + 3] == "]":
            cursor.at = at + 4
            return Address(simple, wrap_signed(term.value))
    cursor.at = at
    base: Name | Int
    offset = 0
    if starts_constant(tokens[at]):
        base = Int(parse_integer(cursor))
    else:
        base = parse_name(cursor)
        if base.component is None:
            cursor.known.setdefault(tokens[at], base)
        offset = parse_offset(cursor)
    if cursor.accept(","):
        return Address(base, offset, _parse_list(cursor, "]", depth + 1))
    cursor.expect("]")
    return Address(base, offset)
