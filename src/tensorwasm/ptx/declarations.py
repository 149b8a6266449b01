"""Declarations: registers, variables, parameters and their initializers.

Source: PTX ISA 5.1 to 5.5, 11.2 (parameters), 11.6 (linking).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tensorwasm.ptx.constants import parse_constant, parse_whole, starts_constant
from tensorwasm.ptx.layout import OPAQUE_TYPES, REGISTER_TYPES, TYPE_BYTES, element_bytes
from tensorwasm.ptx.lexer import Cursor, shown
from tensorwasm.ptx.model import (
    Generic,
    Initial,
    Int,
    Masked,
    Name,
    Offset,
    Property,
    StateSpace,
    Variable,
)
from tensorwasm.ptx.operands import parse_offset

MAX_REGISTERS: Final = 1 << 20
MAX_DIMENSIONS: Final = 16
MAX_ALIGN: Final = 1 << 20
MAX_PARAMS: Final = 1 << 12

LINKAGES: Final = frozenset({".extern", ".visible", ".weak", ".common"})
SPACES: Final[dict[str, StateSpace]] = {
    ".reg": "reg",
    ".const": "const",
    ".global": "global",
    ".local": "local",
    ".param": "param",
    ".shared": "shared",
    ".tex": "tex",
}
_POINTER_SPACES: Final = {".const": "const", ".global": "global", ".local": "local", ".shared": "shared"}
_VECTORS: Final = {".v2": 2, ".v4": 4}
_TYPES: Final = {f".{name}": name for name in REGISTER_TYPES | OPAQUE_TYPES}


class _Shared(NamedTuple):
    """What the declarators of one declaration have in common."""

    space: StateSpace
    type: str
    vector: int
    align: int | None
    linkage: tuple[str, ...]
    attributes: tuple[str, ...]


def parse_linkage(cursor: Cursor) -> tuple[str, ...]:
    """Read the linkage directives in front of a declaration, none of them twice.

    Raises:
        MalformedPtx: one of them is there twice.
    """
    linkage: list[str] = []
    while cursor.peek() in LINKAGES:
        word = cursor.peek()[1:]
        if word in linkage:
            raise cursor.error(f".{word} is there twice")
        linkage.append(word)
        cursor.at += 1
    return tuple(linkage)


def parse_variables(cursor: Cursor, linkage: tuple[str, ...] = ()) -> tuple[Variable, ...]:
    """Read a declaration from its state space to its semicolon.

    Raises:
        MalformedPtx: not a declaration, or one that makes no sense.
    """
    shared = _parse_shared(cursor, linkage)
    variables = [_parse_declarator(cursor, shared)]
    while cursor.accept(","):
        variables.append(_parse_declarator(cursor, shared))
    cursor.expect(";")
    return tuple(variables)


def parse_params(cursor: Cursor, *, anonymous: bool = False, entry: bool = False) -> tuple[Variable, ...]:
    """Read a parenthesised parameter list.

    Args:
        cursor: at the opening parenthesis.
        anonymous: whether ``_`` is a name, as in prototypes.
        entry: whether it is a kernel's, whose parameters may be hidden and have all their sizes.

    Raises:
        MalformedPtx: not a parameter list, or too long.
    """
    cursor.expect("(")
    params: list[Variable] = []
    if cursor.accept(")"):
        return ()
    while True:
        params.append(_parse_param(cursor, anonymous=anonymous, entry=entry))
        if len(params) > MAX_PARAMS:
            raise cursor.error(f"more than {MAX_PARAMS} parameters")
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return tuple(params)


def _parse_param(cursor: Cursor, *, anonymous: bool, entry: bool) -> Variable:
    start = cursor.at
    shared = _parse_shared(cursor, ("hidden",) if entry and cursor.accept(".hidden") else ())
    if shared.space not in {"param", "reg"}:
        raise cursor.error("a parameter is in .param or .reg", start)
    pointer = _parse_pointer(cursor)
    position = cursor.position(cursor.at)
    name = cursor.identifier("the name of a parameter")
    if name == "_" and not anonymous:
        raise cursor.error("a parameter needs a name", cursor.at - 1)
    shape = _parse_shape(cursor, shared)
    if entry and shape[:1] == (0,):
        raise cursor.error("a kernel's parameter has a size", start)
    return Variable(
        shared.space,
        shared.type,
        name,
        shared.vector,
        shared.align,
        shape,
        None,
        shared.linkage,
        pointer,
        position=position,
    )


def _parse_pointer(cursor: Cursor) -> tuple[str, int] | None:
    if not cursor.accept(".ptr"):
        return None
    space = _POINTER_SPACES.get(cursor.peek(), "")
    if space:
        cursor.at += 1
    return space, _parse_align(cursor) if cursor.accept(".align") else 0


def _parse_align(cursor: Cursor) -> int:
    align = cursor.integer("an alignment", MAX_ALIGN)
    if align.bit_count() != 1:
        raise cursor.error("an alignment is a power of two", cursor.at - 1)
    return align


def _parse_shared(cursor: Cursor, linkage: tuple[str, ...]) -> _Shared:
    """Read state space, attributes, alignment, vector length and type; the ISA lets some of them change places."""
    space = SPACES.get(cursor.peek())
    if space is None:
        raise cursor.error(f"a state space expected, not {shown(cursor.peek())}")
    cursor.at += 1
    attributes: tuple[str, ...] = ()
    align: int | None = None
    vector = 1
    kind = ""
    while cursor.peek()[:1] == "." and cursor.peek() != ".ptr":
        word = cursor.take()
        if word == ".attribute":
            attributes += parse_attributes(cursor)
        elif word == ".align" and align is None:
            align = _parse_align(cursor)
        elif word in _VECTORS and vector == 1:
            vector = _VECTORS[word]
        elif word in _TYPES and not kind:
            kind = _TYPES[word]
        else:
            raise cursor.error(f"{shown(word)} has no place in this declaration", cursor.at - 1)
    if not kind or (space != "reg" and kind == "pred"):
        raise cursor.error("a declaration needs a type that its state space can hold")
    if space == "param" and vector > 1:
        raise cursor.error("a parameter is no vector")
    return _Shared(space, kind, vector, align, linkage, attributes)


def parse_attributes(cursor: Cursor) -> tuple[str, ...]:
    """Read the list of ``.attribute``, each attribute in one string without its dot.

    Raises:
        MalformedPtx: not such a list.
    """
    cursor.expect("(")
    attributes: list[str] = []
    while True:
        word = cursor.take()
        if word == ".managed":
            attributes.append("managed")
        elif word == ".unified":
            cursor.expect("(")
            first = cursor.integer("a part of a unified identifier", (1 << 64) - 1)
            cursor.expect(",")
            second = cursor.integer("a part of a unified identifier", (1 << 64) - 1)
            cursor.expect(")")
            attributes.append(f"unified({first},{second})")
        else:
            raise cursor.error(f"{shown(word)} is no attribute", cursor.at - 1)
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return tuple(attributes)


def _parse_declarator(cursor: Cursor, shared: _Shared) -> Variable:
    position = cursor.position(cursor.at)
    name = cursor.identifier("a name")
    if name in {"_", "WARP_SZ"}:
        raise cursor.error(f"{name} cannot be declared", cursor.at - 1)
    count: int | None = None
    if cursor.accept("<"):
        count = cursor.integer("a number of registers", MAX_REGISTERS)
        cursor.expect(">")
        if not count or shared.space != "reg":
            raise cursor.error("only registers can be numbered, and from one up", cursor.at - 2)
    shape = _parse_shape(cursor, shared)
    initializer: tuple[Initial, ...] = ()
    if cursor.accept("="):
        if shared.space not in {"global", "const"}:
            raise cursor.error("only .global and .const variables have initial values", cursor.at - 1)
        initializer = _parse_initializer(cursor, shared, shape)
    if shape[:1] == (0,) and not initializer and "extern" not in shared.linkage:
        raise cursor.error("an array that is not .extern has a size")
    variable = Variable(
        shared.space,
        shared.type,
        name,
        shared.vector,
        shared.align,
        shape,
        count,
        shared.linkage,
        None,
        initializer,
        shared.attributes,
        position,
    )
    if shape:
        cursor.arrays[name] = element_bytes(variable)
    else:
        cursor.arrays.pop(name, None)
    return variable


def _parse_shape(cursor: Cursor, shared: _Shared) -> tuple[int, ...]:
    shape: list[int] = []
    start = cursor.at
    while cursor.accept("["):
        if cursor.peek() == "]":
            shape.append(0)
        else:
            size = parse_whole(cursor)
            if size < 0:
                raise cursor.error("the size of an array is negative", start)
            shape.append(size)
        cursor.expect("]")
        if len(shape) > MAX_DIMENSIONS or 0 in shape[1:]:
            raise cursor.error(f"at most {MAX_DIMENSIONS} dimensions, all but the first with a size", start)
    if shape and shared.space == "reg":
        raise cursor.error("registers form no arrays", start)
    if math.prod(size or 1 for size in shape) * TYPE_BYTES.get(shared.type, 8) * shared.vector >= 1 << 63:
        raise cursor.error("an array past the end of any memory", start)
    return tuple(shape)


# ---------------------------------------------------------------------------------------- initial values


def _parse_initializer(cursor: Cursor, shared: _Shared, shape: tuple[int, ...]) -> tuple[Initial, ...]:
    if shared.type in OPAQUE_TYPES:
        return _parse_properties(cursor)
    rows = shape if shared.vector == 1 else (*shape, shared.vector)
    if not rows:
        return (_parse_initial(cursor),)
    values: list[Initial] = []
    _parse_row(cursor, rows, values)
    if len(values) % shared.vector:
        raise cursor.error("a vector's initial values are all or none", cursor.at - 1)
    return tuple(values)


def _parse_row(cursor: Cursor, rows: tuple[int, ...], values: list[Initial]) -> None:
    """Read ``{...}`` of an array of shape ``rows`` onto ``values``, which end where the row begins."""
    cursor.expect("{")
    start = len(values)
    row = math.prod(rows[1:])
    index = 0
    while not cursor.accept("}"):
        if cursor.at >= cursor.due:
            cursor.look()
        if index:
            cursor.expect(",")
        if rows[0] and index >= rows[0]:
            raise cursor.error("more initial values than elements")
        _fill(cursor, values, start + index * row)
        if len(rows) > 1:
            _parse_row(cursor, rows[1:], values)
        else:
            values.append(_parse_initial(cursor))
        index += 1


def _fill(cursor: Cursor, values: list[Initial], length: int) -> None:
    missing = length - len(values)
    if missing > 0:
        cursor.padding_left -= missing
        if cursor.padding_left < 0:
            raise cursor.error("initializers that leave out too many values")
        values.extend([Int(0)] * missing)


def _parse_initial(cursor: Cursor) -> Initial:
    token = cursor.peek()
    known = cursor.known.get(token)
    if isinstance(known, Int) and cursor.tokens[cursor.at + 1] in {",", "}"}:
        cursor.at += 1
        return known
    if not starts_constant(token):
        return _parse_symbol(cursor)
    start = cursor.at
    value = parse_constant(cursor)
    if cursor.peek() == "(" and isinstance(value, Int):
        cursor.at += 1
        address = _parse_symbol(cursor)
        cursor.expect(")")
        if not value.value:
            raise cursor.error("a mask that selects no bits", start)
        return Masked(value.value, address)
    if cursor.at == start + 1:
        cursor.known[token] = value
    return value


def _parse_symbol(cursor: Cursor) -> Name | Offset | Generic:
    name = Name(cursor.identifier("an initial value"))
    if name.name == "generic" and cursor.accept("("):
        base = Name(cursor.identifier("a variable"))
        cursor.expect(")")
        return Generic(base, parse_offset(cursor))
    if cursor.peek() in {"+", "-"}:
        return Offset(name, parse_offset(cursor))
    return name


def _parse_properties(cursor: Cursor) -> tuple[Property, ...]:
    cursor.expect("{")
    properties: list[Property] = []
    while True:
        name = cursor.identifier("a property")
        cursor.expect("=")
        number = starts_constant(cursor.peek())
        value = Int(parse_whole(cursor)) if number else Name(cursor.identifier("a value"))
        properties.append(Property(name, value))
        if not cursor.accept(","):
            break
    cursor.expect("}")
    return tuple(properties)
