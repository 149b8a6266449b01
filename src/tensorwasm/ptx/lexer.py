"""The lexer: PTX text into tokens, and the cursor through which the parser reads them.

A token is its spelling. A dotted name is one token (``ld.global.f32``, ``%tid.x``); a directive keeps its dot
(``.reg``). Comments and white space separate tokens and are dropped. On request an instruction in the form that
compilers write most often is also one token, semicolon included: ``add.s32 %r1, %r2, 1;``.

Source: PTX ISA 4.1 to 4.4 (source format, comments, identifiers).
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Callable
from itertools import islice
from typing import Concatenate, Final, ParamSpec, TypeVar

from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx.model import Address, Float, Guard, Int, Name, Position
from tensorwasm.watch import UNLIMITED, Watch

_Item = TypeVar("_Item")
_Rest = ParamSpec("_Rest")

MAX_PTX_BYTES: Final = 8 << 20
MAX_TOKENS: Final = 3 << 20
MAX_NAME_CHARS: Final = 1 << 16

END: Final = ""
"""The token behind the last one."""

IDENTIFIER: Final = re.compile(r"[A-Za-z][\w$]*|[_$%][\w$]+|_", re.ASCII)
"""A name without a dot, and the sink ``_``."""

# Possessive quantifiers throughout: no input makes the expression visit a character more than a fixed number of times.
_BETWEEN: Final = r"\s*+ (?: (?: //[^\n]*+ | /\*(?:[^*]|\*(?!/))*+\*/ ) \s*+ )*+"
_TOKENS: Final = r"""
        (?:[A-Za-z][\w$]*+ | [_$%][\w$]++ | _ ) (?:\.\w++(?:::\w++)*+)*+
      | [;,()\[\]{}@:]
      | \.[A-Za-z_]\w*+(?:::\w++)*+
      | 0[xX][0-9a-fA-F]++U?+ | 0[fF][0-9a-fA-F]{8}(?![\w$]) | 0[dD][0-9a-fA-F]{16}(?![\w$]) | 0[bB][01]++U?+
      | (?:\d++(?:\.\d*+)?+ | \.\d++)(?:[eE][+-]?+\d++)?+U?+
      | "[^"\n]*+"?+
      | /\*(?s:.*+)
      | << | >> | <= | >= | == | != | && | \|\|
      | \Z
      | .
"""
_NAME: Final = r"(?: [A-Za-z][\w$]*+ | [_$%][\w$]++ | _ )"
_COUNT: Final = r"(?: 0 | [1-9]\d{0,8}+ )"
_PLAIN_OPERAND: Final = rf"""(?:
    {_NAME} (?:\.[xyzwrgba])?+ | -?+{_COUNT} | 0[fF][0-9a-fA-F]{{8}} | \[{_NAME} (?:\+{_COUNT})?+\]
)"""
_PLAIN_INSTRUCTION: Final = rf"""
    (?!call[.\s]) [a-z]\w*+(?:\.\w++(?:::\w++)*+)*+ [ \t]++ {_PLAIN_OPERAND} (?: ,[ \t]++ {_PLAIN_OPERAND} ){{0,4}}+ ;
"""
_FLAGS: Final = re.ASCII | re.VERBOSE | re.DOTALL
_TOKEN: Final = re.compile(f"{_BETWEEN} ({_TOKENS})", _FLAGS)
_TOKEN_OR_INSTRUCTION: Final = re.compile(f"{_BETWEEN} ({_PLAIN_INSTRUCTION} | {_TOKENS})", _FLAGS)

_SHOWN_CHARS: Final = 40
_STRIDE: Final = 256
"""Tokens read between two checks of the deadline."""


def shown(token: str) -> str:
    """Return a token quoted and shortened, for messages."""
    if token == END:
        return "the end of the text"
    return repr(token if len(token) <= _SHOWN_CHARS else token[:_SHOWN_CHARS] + "...")


class Cursor:
    """A position in the token list.

    Its methods raise `MalformedPtx`, with line and column, where the text is not what they read, and `InvokeTimeout`
    after the deadline. The dictionaries hold what was parsed before, so that each spelling is parsed once.

    Attributes:
        tokens: spellings, `END` last.
        arrays: bytes of an element, by the name of each array declared so far, inner blocks first.
        at: index of the next token.
        known: operands made of a single token.
        plain: operands of instructions that are one token, by spelling with the comma or semicolon behind.
        guards: predicates in front of instructions, by spelling and whether they are negated.
        mnemonics: opcode and modifiers.
        padding_left: zeros that initializers may still leave out: it bounds the memory that a short text can ask for.
        due: index of the token at which to check the deadline again.
    """

    __slots__ = (
        "_lines", "_starts", "_watch", "arrays", "at", "due", "guards", "known", "mnemonics", "padding_left",
        "plain", "tokens",
    )  # fmt: skip

    def __init__(self, text: str | bytes, watch: Watch = UNLIMITED, *, instructions: bool = False) -> None:
        """Split the whole text into tokens; ``instructions`` is whether a plain instruction is one token."""
        source = decode(text)
        self._lines = array("I", [0])
        self._watch = watch
        self._lines.extend(newline.end() for newline in watch.over(re.finditer("\n", source)))
        self.tokens: list[str] = []
        self._starts = array("I")
        self.arrays: ChainMap[str, int] = ChainMap()
        self.at = self.due = 0
        self.known: dict[str, Name | Int | Float] = {}
        self.guards: dict[tuple[str, bool], Guard] = {}
        self.mnemonics: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.plain: dict[str, Name | Int | Float | Address] = {}
        self.padding_left = 1 << 20
        self._read(source, _TOKEN_OR_INSTRUCTION if instructions else _TOKEN)

    def _read(self, source: str, pattern: re.Pattern[str]) -> None:
        matches = islice(pattern.finditer(source), MAX_TOKENS + 1)
        while some := list(islice(matches, _STRIDE)):
            self._watch.look()
            self.tokens += [match[1] for match in some]
            self._starts.extend([match.start(1) for match in some])
        if self.tokens[-1] != END:
            raise MalformedPtx(f"more than {MAX_TOKENS} tokens")
        if self.tokens[-2:] == [END, END]:  # the end matches again behind white space or a comment
            self.tokens.pop()
        # A pass over all tokens is slow: the text as a whole shows whether one of them can be wrong.
        if '"' in source or "/*" in self.tokens[-2:][0] or max(map(len, self.tokens)) > MAX_NAME_CHARS:
            for index, token in enumerate(self.tokens):
                if len(token) > MAX_NAME_CHARS or token[:1] == '"' or token[:2] == "/*":
                    self._check_long(index, token)

    def _check_long(self, index: int, token: str) -> None:
        self.require(not token.startswith("/*"), "a comment that does not end", index)
        closed = token[0] != '"' or (len(token) > 1 and token[-1] == '"')
        self.require(closed, "a string that does not end", index)
        self.require(len(token) <= MAX_NAME_CHARS, f"a token of more than {MAX_NAME_CHARS} characters", index)

    def look(self) -> None:
        """Check the deadline. Loops that take a token in every turn call this once ``at`` has reached ``due``."""
        self.due = self.at + _STRIDE
        self._watch.look()

    def position(self, index: int) -> Position:
        """Return the position where token ``index`` begins."""
        start = self._starts[index]
        lines = self._lines
        line = bisect_right(lines, start)
        return Position(line, start - lines[line - 1] + 1)

    def error(self, message: str, index: int | None = None, kind: type[MalformedPtx] = MalformedPtx) -> MalformedPtx:
        """Return the error to raise for token ``index``, by default the next; `UnsupportedPtx` is for valid PTX."""
        return kind(message, *self.position(self.at if index is None else index))

    def require(self, condition: object, message: str, index: int | None = None) -> None:
        """Raise `error` unless the condition holds; for checks that are rare, as the message is always made."""
        if not condition:
            raise self.error(message, index)

    def peek(self) -> str:
        """Return the next token without taking it."""
        return self.tokens[self.at]

    def take(self) -> str:
        """Take the next token, which must not be the end."""
        token = self.tokens[self.at]
        if token == END:
            raise self.error("the text ends too early")
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        """Take the next token if it is ``token``; return whether it was."""
        if self.tokens[self.at] == token:
            self.at += 1
            if self.at >= self.due:
                self.look()
            return True
        return False

    def expect(self, token: str) -> None:
        """Take the next token, which must be ``token``."""
        if self.tokens[self.at] != token:
            raise self.error(f"{token!r} expected, not {shown(self.tokens[self.at])}")
        self.at += 1

    def comma_separated(
        self, parse: Callable[Concatenate[Cursor, _Rest], _Item], *args: _Rest.args, **options: _Rest.kwargs
    ) -> tuple[_Item, ...]:
        """Read one item or more, separated by commas, each by ``parse(self, *args, **options)``."""
        items = [parse(self, *args, **options)]
        while self.accept(","):
            items.append(parse(self, *args, **options))
        return tuple(items)

    def skip_function(self) -> None:
        """Take the rest of a function, up to its semicolon or to the brace that ends its body."""
        depth = 0
        while True:
            if self.at >= self.due:
                self.look()
            word = self.take()
            depth += (word == "{") - (word == "}")
            if depth <= 0 and word[-1] in {";", "}"}:
                return

    def identifier(self, what: str) -> str:
        """Take an identifier without dots; ``what`` names it in the message."""
        token = self.tokens[self.at]
        if not IDENTIFIER.fullmatch(token):
            raise self.error(f"{what} expected, not {shown(token)}")
        self.at += 1
        return token

    def integer(self, what: str, most: int) -> int:
        """Take an unsigned integer literal of at most ``most``; ``what`` names it in the message."""
        token = self.tokens[self.at]
        value = literal(token)
        if value is None:
            raise self.error(f"{what} expected, not {shown(token)}")
        if value > most:
            raise self.error(f"{what} is {shown(token)}, more than {most}")
        self.at += 1
        return value


def decode(text: str | bytes) -> str:
    """Return PTX as a string, without the NUL that compiler libraries count as its last character.

    Raises:
        MalformedPtx: too long, another NUL, or a character that is not ASCII.
    """
    if len(text) > MAX_PTX_BYTES:
        raise MalformedPtx(f"{len(text)} bytes of PTX, more than {MAX_PTX_BYTES}")
    source = (text if isinstance(text, str) else str(text, "latin-1")).removesuffix("\0")
    if source.isascii() and "\0" not in source:
        return source
    fault = re.search(r"[^\x01-\x7f]", source)
    at = fault.start() if fault else 0
    line, column = source.count("\n", 0, at) + 1, at - source.rfind("\n", 0, at)
    raise MalformedPtx(f"character {source[at]!a}: PTX is ASCII without NUL", line, column)


_BASES: Final = {"x": 16, "X": 16, "b": 2, "B": 2}
_LONGEST_INTEGER: Final = 80  # 64 binary digits, prefix, suffix and some leading zeros


def literal(token: str) -> int | None:
    """Return the value of an integer literal (PTX ISA 4.5.1), or None if the token is not one.

    It may be past 64 bits; for an extremely long literal it is 2**64.
    """
    digits = token.removesuffix("U")
    if not digits[:1].isdigit() or not digits.isalnum():
        return None
    if len(digits) > _LONGEST_INTEGER:
        return 1 << 64
    base = _BASES.get(digits[1:2], 8 if digits[0] == "0" else 10)
    try:
        return int(digits, base)
    except ValueError:
        return None
