"""PTX text into a `Module`.

Source: PTX ISA 11.1 (module directives), 11.2 (kernel and function directives).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, TypeVar

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gc_pause import gc_paused
from tensorwasm.ptx.check import check
from tensorwasm.ptx.declarations import SPACES, parse_attributes, parse_linkage, parse_params, parse_variables
from tensorwasm.ptx.directives import IN_MODULE, parse_tuning
from tensorwasm.ptx.lexer import END, Cursor, shown
from tensorwasm.ptx.model import Directive, Function, Module, Position, Refusal, Variable
from tensorwasm.ptx.statements import parse_body
from tensorwasm.values import NEVER, NEWEST_PTX, OLDEST_PTX, Deadline
from tensorwasm.watch import Watch

_Read = TypeVar("_Read")
_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)
_BOUNDARIES: Final = frozenset({END, ".version"})
_TARGET: Final = re.compile(r"sm_\d{1,4}[a-z]?|debug|texmode_\w+|map_f64_to_f32", re.ASCII)


def parse(text: str | bytes, deadline: Deadline = NEVER) -> Module:
    """Parse one module; otherwise like `parse_variants`.

    Raises:
        MalformedPtx: as there, or another module follows.
        UnsupportedPtx: as there.
        InvokeTimeout: the deadline passed.
    """
    return _parse(text, deadline, _parse_only)


def parse_variants(text: str | bytes, deadline: Deadline = NEVER) -> tuple[Module, ...]:
    """Parse modules that follow one another, each from its ``.version`` to the next, and check each for consistency.

    Takes time and memory proportional to the text, whatever it says. The same text gives the same modules.
    A function with a construct that is PTX but not understood here is refused by itself: `extract` raises that for
    what reaches it.

    Args:
        text: PTX of an ISA from `OLDEST_PTX` to the major version of `NEWEST_PTX`, ASCII, at most ``MAX_PTX_BYTES``.
        deadline: when to give up.

    Returns:
        At least one module, in the order of the text.

    Raises:
        MalformedPtx: the text does not follow the grammar, or names what it does not declare; with line and column.
        UnsupportedPtx: a version of the ISA, or a construct outside functions, that is PTX but not understood here.
        InvokeTimeout: the deadline passed.
    """
    return _parse(text, deadline, _parse_all)


def _parse(text: str | bytes, deadline: Deadline, read: Callable[[Cursor, Watch], _Read]) -> _Read:
    """Read a text with plain instructions as single tokens, as fits nearly all that compilers write.

    A text with a fault is read again in its smallest tokens: one may lie inside an instruction.
    """
    watch = Watch(deadline, "while the PTX was read")
    with gc_paused():
        with suppress(MalformedPtx):
            return read(Cursor(text, watch, instructions=True), watch)
        return read(Cursor(text, watch), watch)


def _parse_only(cursor: Cursor, watch: Watch) -> Module:
    module = _parse_module(cursor, watch)
    if cursor.peek() != END:
        raise cursor.error("one module expected, and here begins another")
    return module


def _parse_all(cursor: Cursor, watch: Watch) -> tuple[Module, ...]:
    modules = [_parse_module(cursor, watch)]
    while cursor.peek() != END:
        modules.append(_parse_module(cursor, watch))
    return tuple(modules)


def _parse_module(cursor: Cursor, watch: Watch) -> Module:
    version = _parse_version(cursor)
    target = _parse_target(cursor)
    address_size = _parse_address_size(cursor)
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
    if version < OLDEST_PTX or version[0] > NEWEST_PTX[0]:  # a later minor one may be a variant that no device takes
        oldest, newest = (".".join(map(str, each)) for each in (OLDEST_PTX, NEWEST_PTX))
        raise cursor.unsupported(f"PTX ISA {version[0]}.{version[1]}: versions {oldest} to {newest} are understood")
    cursor.at += 1
    return version


def _parse_target(cursor: Cursor) -> tuple[str, ...]:
    cursor.expect(".target")
    words: dict[str, None] = {}
    while True:
        word = cursor.identifier("a target such as sm_80")
        if not _TARGET.fullmatch(word) or word in words:
            raise cursor.error(f"{shown(word)} is no target, or is there twice", cursor.at - 1)
        words[word] = None
        if not cursor.accept(","):
            break
    if not any(word.startswith("sm_") for word in words):
        raise cursor.error(".target names no architecture", cursor.at - 1)
    return tuple(words)


def _parse_address_size(cursor: Cursor) -> int:
    """Read ``.address_size``, which is 32 bits when left out."""
    if not cursor.accept(".address_size"):
        return 32
    size = cursor.integer("an address size", 64)
    if size not in {32, 64}:
        raise cursor.error("addresses have 32 or 64 bits", cursor.at - 1)
    return size


def _parse_item(cursor: Cursor) -> Iterable[Function | Variable | Directive]:
    directive = IN_MODULE.get(cursor.peek())
    if directive is not None:
        return (directive(cursor),)
    linkage = parse_linkage(cursor)
    token = cursor.peek()
    if token in {".entry", ".func"}:
        return (_parse_function(cursor, linkage),)
    if token in SPACES and token not in {".reg", ".local", ".param"}:
        return parse_variables(cursor, linkage)
    raise cursor.error(f"a function, a variable or a directive expected, not {shown(token)}")


def _parse_function(cursor: Cursor, linkage: tuple[str, ...]) -> Function:
    entry = cursor.take() == ".entry"
    directives: tuple[Directive, ...] = ()
    if cursor.peek() == ".attribute":
        at = cursor.position(cursor.at)
        cursor.at += 1
        directives = (Directive("attribute", parse_attributes(cursor), at),)
    returns = parse_params(cursor) if not entry and cursor.peek() == "(" else ()
    start = cursor.at
    position = cursor.position(start)
    name = cursor.identifier("the name of a function")
    params: tuple[Variable, ...] = ()
    module_arrays = cursor.arrays
    cursor.arrays = module_arrays.new_child()
    try:
        params = parse_params(cursor, entry=entry) if cursor.peek() == "(" else ()
        directives += parse_tuning(cursor)
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
