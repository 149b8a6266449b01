"""Parsers of the directives that the model keeps as written: debugging, pragmas, performance tuning.

Source: PTX ISA 11.3 to 11.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tensorwasm.ptx.declarations import parse_attributes
from tensorwasm.ptx.lexer import Cursor, shown
from tensorwasm.ptx.model import Directive

_Readers = Mapping[str, Callable[[Cursor], Sequence[str]]]

_MAX_NUMBER: Final = (1 << 32) - 1
_SECTION_TOKEN: Final = re.compile(r"\.?[\w$%]+(?:\.\w+)*|[-+,:]", re.ASCII)
_TUNING: Final = {
    **dict.fromkeys(("maxntid", "reqntid", "reqnctapercluster"), 3),
    **dict.fromkeys(("local_maxnreg", "maxnreg", "minnctapersm", "maxnctapersm", "maxclusterrank"), 1),
    **dict.fromkeys(("abi_preserve", "abi_preserve_control"), 1),
    **dict.fromkeys(("noreturn", "explicitcluster", "blocksareclusters"), 0),
}
"""Directives of a function's header, with the most numbers they take."""


def parse_directive(cursor: Cursor, readers: _Readers) -> Directive | None:
    """Read a directive; return None if the next token begins none of ``readers``, a table of this module."""
    word = cursor.tokens[cursor.at]
    read = readers.get(word)
    if read is None:
        return None
    position = cursor.position(cursor.at)
    cursor.at += 1
    return Directive(word[1:], tuple(read(cursor)), position)


def parse_header_directives(cursor: Cursor) -> tuple[Directive, ...]:
    """Read the directives between a function's parameters and its body."""
    directives: list[Directive] = []
    while cursor.peek()[:1] == ".":
        directive = parse_directive(cursor, IN_HEADER)
        if directive is None:
            raise cursor.error(f"{shown(cursor.peek())} is not a directive of a function")
        directives.append(directive)
    return tuple(directives)


def _read_loc(cursor: Cursor) -> list[str]:
    """Read ``file line column``, and where the code was inlined."""
    words = [_number(cursor) for _ in range(3)]
    if cursor.accept(","):
        cursor.expect("function_name")
        words += ["function_name", cursor.identifier("a label")]
        if cursor.accept("+"):
            words += ["+", _number(cursor)]
        cursor.expect(",")
        cursor.expect("inlined_at")
        words += ["inlined_at", *[_number(cursor) for _ in range(3)]]
    return words


def _read_file(cursor: Cursor) -> list[str]:
    """Read ``index "name"`` with an optional time and size."""
    words = [_number(cursor), _string(cursor)]
    if cursor.accept(","):
        words.append(_number(cursor))
        cursor.expect(",")
        words.append(_number(cursor))
    return words


def _read_pragma(cursor: Cursor) -> tuple[str, ...]:
    words = cursor.comma_separated(_string)
    cursor.expect(";")
    return words


def _read_section(cursor: Cursor) -> list[str]:
    """Read ``name { ... }``: the name, then the tokens between the braces."""
    name = cursor.take()
    cursor.require(_SECTION_TOKEN.fullmatch(name), f"the name of a section expected, not {shown(name)}", cursor.at - 1)
    cursor.expect("{")
    words = [name]
    while not cursor.accept("}"):
        if cursor.at >= cursor.due:
            cursor.look()
        word = cursor.take()
        if not _SECTION_TOKEN.fullmatch(word):
            raise cursor.error(f"{shown(word)} is not debugging data", cursor.at - 1)
        words.append(word)
    return words


def _read_alias(cursor: Cursor) -> list[str]:
    alias = cursor.identifier("the name of an alias")
    cursor.expect(",")
    target = cursor.identifier("a function")
    cursor.expect(";")
    return [alias, target]


def _read_numbers(cursor: Cursor, most: int, least: int) -> list[str]:
    """Read up to ``most`` numbers, each ``least`` or greater."""
    words: list[str] = []
    while len(words) < most and (not words or cursor.accept(",")):
        words.append(_number(cursor, least))
    return words


def _number(cursor: Cursor, least: int = 0) -> str:
    """Take an integer and return it in decimal."""
    word = cursor.peek()
    if word.isdecimal() and len(word) < 10 and word[0] != "0":
        cursor.at += 1  # the usual form
        return word
    value = cursor.integer("a number", _MAX_NUMBER)
    cursor.require(value >= least, f"a number from {least} up expected", cursor.at - 1)
    return str(value)


def _string(cursor: Cursor) -> str:
    cursor.require(cursor.peek()[:1] == '"', f"a string expected, not {shown(cursor.peek())}")
    return cursor.take()


IN_BODY: Final[_Readers] = {
    ".loc": _read_loc,
    ".pragma": _read_pragma,
    ".file": _read_file,
    ".section": _read_section,
}
"""Directives that may stand among statements, and what reads their arguments."""

IN_MODULE: Final[_Readers] = {**IN_BODY, ".alias": _read_alias}
"""Directives that may stand among functions."""

BEFORE_NAME: Final[_Readers] = {".attribute": parse_attributes}
"""Directives that may stand before the name of a function."""

IN_HEADER: Final[_Readers] = {
    **BEFORE_NAME,
    ".pragma": _read_pragma,
    **{
        f".{name}": partial(_read_numbers, most=most, least=0 if name.startswith("abi_preserve") else 1)
        for name, most in _TUNING.items()
    },
}
"""Directives that may stand between a function's parameters and its body."""
