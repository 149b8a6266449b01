"""Directives that the model keeps as they are: debugging, pragmas, performance tuning.

Source: PTX ISA 11.3 to 11.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from tensorwasm.ptx.declarations import parse_attributes
from tensorwasm.ptx.lexer import Cursor, shown
from tensorwasm.ptx.model import Directive

_COUNT: Final = (1 << 32) - 1

TUNING: Final = {
    "local_maxnreg": 1,
    "maxnreg": 1,
    "maxntid": 3,
    "reqntid": 3,
    "minnctapersm": 1,
    "maxnctapersm": 1,
    "reqnctapercluster": 3,
    "maxclusterrank": 1,
    "abi_preserve": 1,
    "abi_preserve_control": 1,
    "noreturn": 0,
    "explicitcluster": 0,
    "blocksareclusters": 0,
}
"""Directives of a function's header, with the most numbers they take."""

_SECTION_TOKEN: Final = re.compile(r"\.?[\w$%]+(?:\.\w+)*|[-+,:]", re.ASCII)


def parse_loc(cursor: Cursor) -> Directive:
    """Read ``.loc file line column``, and where it was inlined.

    Raises:
        MalformedPtx: it is something else.
    """
    position = cursor.position(cursor.at)
    cursor.expect(".loc")
    words = [_number(cursor) for _ in range(3)]
    if cursor.accept(","):
        _expect_word(cursor, "function_name", words)
        words.append(cursor.identifier("a label"))
        if cursor.accept("+"):
            words += ["+", _number(cursor)]
        cursor.expect(",")
        _expect_word(cursor, "inlined_at", words)
        words += [_number(cursor) for _ in range(3)]
    return Directive("loc", tuple(words), position)


def parse_file(cursor: Cursor) -> Directive:
    """Read ``.file index "name"`` with an optional time and size.

    Raises:
        MalformedPtx: it is something else.
    """
    position = cursor.position(cursor.at)
    cursor.expect(".file")
    words = [_number(cursor), _string(cursor)]
    if cursor.accept(","):
        words.append(_number(cursor))
        cursor.expect(",")
        words.append(_number(cursor))
    return Directive("file", tuple(words), position)


def parse_pragma(cursor: Cursor) -> Directive:
    """Read ``.pragma "one", "two";``.

    Raises:
        MalformedPtx: it is something else.
    """
    position = cursor.position(cursor.at)
    cursor.expect(".pragma")
    words = [_string(cursor)]
    while cursor.accept(","):
        words.append(_string(cursor))
    cursor.expect(";")
    return Directive("pragma", tuple(words), position)


def parse_section(cursor: Cursor) -> Directive:
    """Read ``.section name { ... }``: the name, then the tokens between the braces.

    Raises:
        MalformedPtx: it is something else, or what is between the braces is no debugging data.
        InvokeTimeout: the deadline has passed.
    """
    position = cursor.position(cursor.at)
    cursor.expect(".section")
    name = cursor.take()
    if not _SECTION_TOKEN.fullmatch(name):
        raise cursor.error(f"the name of a section expected, not {shown(name)}", cursor.at - 1)
    cursor.expect("{")
    words = [name]
    while not cursor.accept("}"):
        if cursor.at >= cursor.due:
            cursor.look()
        word = cursor.take()
        if not _SECTION_TOKEN.fullmatch(word):
            raise cursor.error(f"{shown(word)} is no debugging data", cursor.at - 1)
        words.append(word)
    return Directive("section", tuple(words), position)


def parse_alias(cursor: Cursor) -> Directive:
    """Read ``.alias name, function;``.

    Raises:
        MalformedPtx: it is something else.
    """
    position = cursor.position(cursor.at)
    cursor.expect(".alias")
    alias = cursor.identifier("the name of an alias")
    cursor.expect(",")
    target = cursor.identifier("a function")
    cursor.expect(";")
    return Directive("alias", (alias, target), position)


def parse_tuning(cursor: Cursor) -> tuple[Directive, ...]:
    """Read the directives between a function's parameters and its body.

    Raises:
        MalformedPtx: one of them is unknown or has wrong numbers.
    """
    directives: list[Directive] = []
    while cursor.peek()[:1] == ".":
        position = cursor.position(cursor.at)
        word = cursor.peek()
        if word == ".pragma":
            directives.append(parse_pragma(cursor))
            continue
        if word == ".attribute":
            cursor.at += 1
            directives.append(Directive("attribute", parse_attributes(cursor), position))
            continue
        most = TUNING.get(word[1:])
        if most is None:
            raise cursor.error(f"{shown(word)} is no directive of a function")
        cursor.at += 1
        least = 0 if word.startswith(".abi_preserve") else 1
        directives.append(Directive(word[1:], _numbers(cursor, most, least), position))
    return tuple(directives)


def _numbers(cursor: Cursor, most: int, least: int) -> tuple[str, ...]:
    if not most:
        return ()
    words = [_number(cursor, least)]
    while len(words) < most and cursor.accept(","):
        words.append(_number(cursor, least))
    return tuple(words)


def _number(cursor: Cursor, least: int = 0) -> str:
    """Take an integer and return it in decimal, so that readers need no other form."""
    word = cursor.peek()
    if word.isdecimal() and len(word) < 10 and word[0] != "0":
        cursor.at += 1  # as it is nearly always
        return word
    value = cursor.integer("a number", _COUNT)
    if value < least:
        raise cursor.error(f"a number from {least} up expected", cursor.at - 1)
    return str(value)


def _string(cursor: Cursor) -> str:
    if cursor.peek()[:1] != '"':
        raise cursor.error(f"a string expected, not {shown(cursor.peek())}")
    return cursor.take()


def _expect_word(cursor: Cursor, word: str, words: list[str]) -> None:
    cursor.expect(word)
    words.append(word)


IN_BODY: Final[dict[str, Callable[[Cursor], Directive]]] = {
    ".loc": parse_loc,
    ".pragma": parse_pragma,
    ".file": parse_file,
    ".section": parse_section,
}
"""Directives that may stand among statements."""

IN_MODULE: Final = {**IN_BODY, ".alias": parse_alias}
"""Directives that may stand among functions."""
