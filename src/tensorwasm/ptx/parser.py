"""The parser: PTX text into a `Module`.

The functions that it and its neighbours are made of take a `Cursor`; their errors are stated at `parse_variants`.

Source: PTX ISA 11.1 (module directives), 11.2 (kernel and function directives).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gc_pause import gc_paused
from tensorwasm.ptx.check import check
from tensorwasm.ptx.declarations import SPACES, parse_linkage, parse_params, parse_variables
from tensorwasm.ptx.directives import BEFORE_NAME, IN_MODULE, parse_directive, parse_header_directives
from tensorwasm.ptx.lexer import END, Cursor, shown
from tensorwasm.ptx.model import Directive, Function, Module, Position, Refusal, Variable
from tensorwasm.ptx.statements import parse_body
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
        raise cursor.unsupported(f"PTX ISA {version[0]}.{version[1]}: versions {oldest} to {newest} are understood")
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
