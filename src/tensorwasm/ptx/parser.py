"""The parser: PTX text into a `Module`.

The functions that it and its neighbours are made of take a `Cursor`; their errors are stated at `parse_variants`.

Source: PTX ISA 4.3 (Statements), 9.3 (Predicated Execution), 9.7.12 (Control Flow Instructions), 11.1 (module
directives), 11.2 (kernel and function directives), 11.3 (Control Flow Directives).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Literal

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gc_pause import gc_paused
from tensorwasm.ptx.declarations import SPACES, parse_linkage, parse_params, parse_variables
from tensorwasm.ptx.directives import BEFORE_NAME, IN_BODY, IN_MODULE, parse_directive, parse_header_directives
from tensorwasm.ptx.lexer import END, Cursor, shown
from tensorwasm.ptx.model import (
    Block,
    Directive,
    Function,
    Guard,
    Instruction,
    Label,
    Module,
    Operand,
    Position,
    Refusal,
    Statement,
    TargetList,
    Variable,
)
from tensorwasm.ptx.operands import parse_arguments, parse_element, parse_name, parse_operand, plain_operand
from tensorwasm.ptx.symbols import check
from tensorwasm.values import NEVER, NEWEST_PTX, OLDEST_PTX, Deadline
from tensorwasm.watch import Watch

_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)
_TARGET: Final = re.compile(r"sm_\d{1,4}[a-z]?|debug|texmode_\w+|map_f64_to_f32", re.ASCII)
_BOUNDARIES: Final = frozenset({END, ".version"})


def parse(text: str | bytes, deadline: Deadline = NEVER) -> Module:
    """Parse a text of one module as `parse_variants`; another one in it is malformed."""
    return _parse(text, deadline, single=True)[0]


def parse_variants(text: str | bytes, deadline: Deadline = NEVER) -> tuple[Module, ...]:
    """Parse modules that follow one another, each from its ``.version`` to the next, and check each for consistency.

    Takes time and memory proportional to the text. The same text gives the same modules. A function with a construct
    that is valid PTX but not supported is refused by itself: `extract` raises that for kernels that reach it.

    Args:
        text: PTX of an ISA from `OLDEST_PTX` to the major version of `NEWEST_PTX`, ASCII, at most ``MAX_PTX_BYTES``.
        deadline: when to stop.

    Raises:
        MalformedPtx: the text does not follow the grammar, or names an undeclared symbol; with line and column.
        UnsupportedPtx: a version of the ISA, or a construct outside functions, that is PTX but not supported.
        InvokeTimeout: the deadline passed.
    """
    return _parse(text, deadline, single=False)


def _parse(text: str | bytes, deadline: Deadline, *, single: bool) -> tuple[Module, ...]:
    """Read a text with plain instructions as single tokens, a form that fits nearly all compiler output.

    A text with a fault is read again in its smallest tokens, as the fault may be inside an instruction.
    """
    watch = Watch(deadline, "while the PTX was read")
    with gc_paused():
        with suppress(MalformedPtx):
            return _parse_modules(Cursor(text, watch, instructions=True), watch, single=single)
        return _parse_modules(Cursor(text, watch), watch, single=single)


def _parse_modules(cursor: Cursor, watch: Watch, *, single: bool) -> tuple[Module, ...]:
    modules = [_parse_module(cursor, watch)]
    while cursor.peek() != END:
        cursor.require(not single, "one module expected, but another begins here")
        modules.append(_parse_module(cursor, watch))
    return tuple(modules)


def _parse_module(cursor: Cursor, watch: Watch) -> Module:
    version = _parse_version(cursor)
    target = _parse_target(cursor)
    address_size = 32
    if cursor.accept(".address_size"):
        address_size = cursor.integer("an address size", 64)
        cursor.require(address_size in {32, 64}, "an address size must be 32 or 64", cursor.at - 1)
    items: list[Function | Variable | Directive] = []
    while cursor.peek() not in _BOUNDARIES:
        watch.step()
        items += _parse_item(cursor)
    module = Module(version, target, address_size, tuple(items))
    check(module, watch)
    return module


def _parse_version(cursor: Cursor) -> tuple[int, int]:
    cursor.expect(".version")
    match = _VERSION.fullmatch(cursor.peek())
    if match is None:
        raise cursor.error(f"a version such as 8.0 expected, not {shown(cursor.peek())}")
    version = int(match[1]), int(match[2])
    # A later minor version is read: the module may be a variant for another device.
    if version < OLDEST_PTX or version[0] > NEWEST_PTX[0]:
        oldest, newest = (".".join(map(str, each)) for each in (OLDEST_PTX, NEWEST_PTX))
        message = f"PTX ISA {version[0]}.{version[1]}: versions {oldest} to {newest} are understood"
        raise cursor.error(message, kind=UnsupportedPtx)
    cursor.at += 1
    return version


def _parse_target(cursor: Cursor) -> tuple[str, ...]:
    cursor.expect(".target")
    words: dict[str, None] = {}  # a set in order: a text may name very many
    while not words or cursor.accept(","):
        word = cursor.identifier("a target such as sm_80")
        is_new = _TARGET.fullmatch(word) and word not in words
        cursor.require(is_new, f"{shown(word)} is not a target, or appears twice", cursor.at - 1)
        words[word] = None
    cursor.require(any(word.startswith("sm_") for word in words), ".target names no architecture", cursor.at - 1)
    return tuple(words)


def _parse_item(cursor: Cursor) -> Iterable[Function | Variable | Directive]:
    directive = parse_directive(cursor, IN_MODULE)
    if directive is not None:
        return (directive,)
    linkage = parse_linkage(cursor)
    token = cursor.peek()
    if token in {".entry", ".func"}:
        return (_parse_function(cursor, linkage),)
    if token in SPACES and token not in {".reg", ".local", ".param"}:
        return parse_variables(cursor, linkage)
    raise cursor.error(f"a function, a variable or a directive expected, not {shown(token)}")


def _parse_function(cursor: Cursor, linkage: tuple[str, ...]) -> Function:
    entry = cursor.take() == ".entry"
    attributes = parse_directive(cursor, BEFORE_NAME)
    directives: tuple[Directive, ...] = () if attributes is None else (attributes,)
    returns = parse_params(cursor) if not entry and cursor.peek() == "(" else ()
    start = cursor.at
    position = cursor.position(start)
    name = cursor.identifier("the name of a function")
    module_arrays = cursor.arrays
    cursor.arrays = module_arrays.new_child()
    params: tuple[Variable, ...] = ()
    try:
        params = parse_params(cursor, entry=entry) if cursor.peek() == "(" else ()
        directives += parse_header_directives(cursor)
        body = None
        if not cursor.accept(";"):
            cursor.expect("{")
            body = parse_body(cursor)
    except UnsupportedPtx as error:
        cursor.at = start
        cursor.skip_function()
        refusal = Refusal(error.message, Position(error.line, error.column))
        return Function(entry, name, params, returns, linkage, (), (), position, refusal)
    finally:
        cursor.arrays = module_arrays
    return Function(entry, name, params, returns, linkage, directives, body, position)


# ----------------------------------------------------------------------------------------------------------- statements

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
