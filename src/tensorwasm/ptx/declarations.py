"""Parsers of declarations: registers, variables, parameters and their initializers.

Source: PTX ISA 5.1 to 5.5, 11.2 (parameters), 11.6 (linking).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tensorwasm.ptx.constants import parse_constant, parse_integer, starts_constant
from tensorwasm.ptx.layout import OPAQUE_TYPES, REGISTER_TYPES, TYPE_BYTES, element_bytes
from tensorwasm.ptx.lexer import Cursor, shown
from tensorwasm.ptx.model import Generic, Initial, Int, Masked, Name, Offset, Position, Property, StateSpace, Variable
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


class _Common(NamedTuple):
    """What the declarators of one declaration share."""

    space: StateSpace
    type: str
    vector: int
    align: int | None
    linkage: tuple[str, ...]
    attributes: tuple[str, ...]


def parse_linkage(cursor: Cursor) -> tuple[str, ...]:
    """Read the linkage directives in front of a declaration, which may not repeat."""
    linkage: list[str] = []
    while cursor.peek() in LINKAGES:
        word = cursor.peek()[1:]
        cursor.require(word not in linkage, f".{word} appears twice")
        linkage.append(word)
        cursor.at += 1
    return tuple(linkage)


def parse_variables(cursor: Cursor, linkage: tuple[str, ...] = ()) -> tuple[Variable, ...]:
    """Read a declaration from its state space to its semicolon."""
    variables = cursor.comma_separated(_parse_declarator, _parse_common(cursor, linkage))
    cursor.expect(";")
    return variables


def parse_params(cursor: Cursor, *, anonymous: bool = False, entry: bool = False) -> tuple[Variable, ...]:
    """Read a parenthesised parameter list.

    Args:
        cursor: at the opening parenthesis.
        anonymous: whether ``_`` is a name, as in prototypes.
        entry: whether the list is a kernel's, whose parameters may be hidden and must have a size.
    """
    cursor.expect("(")
    params: list[Variable] = []
    if cursor.accept(")"):
        return ()
    while not params or cursor.accept(","):
        params.append(_parse_param(cursor, anonymous=anonymous, entry=entry))
        cursor.require(len(params) <= MAX_PARAMS, f"more than {MAX_PARAMS} parameters")
    cursor.expect(")")
    return tuple(params)


def _parse_param(cursor: Cursor, *, anonymous: bool, entry: bool) -> Variable:
    start = cursor.at
    common = _parse_common(cursor, ("hidden",) if entry and cursor.accept(".hidden") else ())
    cursor.require(common.space in {"param", "reg"}, "a parameter must be in .param or .reg", start)
    pointer = _parse_pointer(cursor)
    position = cursor.position(cursor.at)
    name = cursor.identifier("the name of a parameter")
    cursor.require(anonymous or name != "_", "a parameter needs a name", cursor.at - 1)
    shape = _parse_shape(cursor, common)
    cursor.require(not entry or shape[:1] != (0,), "a kernel's parameter must have a size", start)
    return _variable(common, name, shape, position, pointer=pointer)


def _parse_pointer(cursor: Cursor) -> tuple[str, int] | None:
    if not cursor.accept(".ptr"):
        return None
    space = _POINTER_SPACES.get(cursor.peek(), "")
    if space:
        cursor.at += 1
    return space, _parse_align(cursor) if cursor.accept(".align") else 0


def _parse_align(cursor: Cursor) -> int:
    align = cursor.integer("an alignment", MAX_ALIGN)
    cursor.require(align.bit_count() == 1, "an alignment must be a power of two", cursor.at - 1)
    return align


def _parse_common(cursor: Cursor, linkage: tuple[str, ...]) -> _Common:
    """Read state space, attributes, alignment, vector length and type; the ISA allows some of them in any order."""
    space = SPACES.get(cursor.peek())
    if space is None:
        raise cursor.error(f"a state space expected, not {shown(cursor.peek())}")
    cursor.at += 1
    attributes: tuple[str, ...] = ()
    align: int | None = None
    vector, kind = 1, ""
    while cursor.peek()[:1] == "." and cursor.peek() != ".ptr":
        word = cursor.take()
        match word:
            case ".attribute":
                attributes += parse_attributes(cursor)
            case ".align" if align is None:
                align = _parse_align(cursor)
            case _ if word in _VECTORS and vector == 1:
                vector = _VECTORS[word]
            case _ if word in _TYPES and not kind:
                kind = _TYPES[word]
            case _:
                raise cursor.error(f"{shown(word)} is not allowed in this declaration", cursor.at - 1)
    holds = kind and (space == "reg" or kind != "pred")
    cursor.require(holds, "a declaration needs a type that its state space can hold")
    cursor.require(space != "param" or vector == 1, "a parameter cannot be a vector")
    return _Common(space, kind, vector, align, linkage, attributes)


def _variable(
    common: _Common,
    name: str,
    shape: tuple[int, ...],
    position: Position,
    *,
    count: int | None = None,
    pointer: tuple[str, int] | None = None,
    initializer: tuple[Initial, ...] = (),
) -> Variable:
    return Variable(
        common.space,
        common.type,
        name,
        common.vector,
        common.align,
        shape,
        count,
        common.linkage,
        pointer,
        initializer,
        common.attributes,
        position,
    )


def parse_attributes(cursor: Cursor) -> tuple[str, ...]:
    """Read the list of ``.attribute``, each attribute as one string without its dot."""
    cursor.expect("(")
    attributes = cursor.comma_separated(_parse_attribute)
    cursor.expect(")")
    return attributes


def _parse_attribute(cursor: Cursor) -> str:
    if cursor.accept(".managed"):
        return "managed"
    cursor.require(cursor.accept(".unified"), f"{shown(cursor.peek())} is not an attribute")
    cursor.expect("(")
    first = cursor.integer("a part of a unified identifier", (1 << 64) - 1)
    cursor.expect(",")
    second = cursor.integer("a part of a unified identifier", (1 << 64) - 1)
    cursor.expect(")")
    return f"unified({first},{second})"


def _parse_declarator(cursor: Cursor, common: _Common) -> Variable:
    position = cursor.position(cursor.at)
    name = cursor.identifier("a name")
    cursor.require(name not in {"_", "WARP_SZ"}, f"{name} cannot be declared", cursor.at - 1)
    count: int | None = None
    if cursor.accept("<"):
        count = cursor.integer("a number of registers", MAX_REGISTERS)
        cursor.expect(">")
        numbered = count and common.space == "reg"
        cursor.require(numbered, "only registers can be numbered, and from one up", cursor.at - 2)
    shape = _parse_shape(cursor, common)
    initializer: tuple[Initial, ...] = ()
    if cursor.accept("="):
        writable = common.space in {"global", "const"}
        cursor.require(writable, "only .global and .const variables have initial values", cursor.at - 1)
        initializer = _parse_initializer(cursor, common, shape)
    sized = shape[:1] != (0,) or initializer or "extern" in common.linkage
    cursor.require(sized, "an array that is not .extern must have a size")
    variable = _variable(common, name, shape, position, count=count, initializer=initializer)
    if shape:
        cursor.arrays[name] = element_bytes(variable)
    else:
        cursor.arrays.pop(name, None)
    return variable


def _parse_shape(cursor: Cursor, common: _Common) -> tuple[int, ...]:
    shape: list[int] = []
    start = cursor.at
    while cursor.accept("["):
        size = 0 if cursor.peek() == "]" else parse_integer(cursor)
        cursor.require(size >= 0, "the size of an array is negative", start)
        shape.append(size)
        cursor.expect("]")
        if len(shape) > MAX_DIMENSIONS or 0 in shape[1:]:
            raise cursor.error(f"at most {MAX_DIMENSIONS} dimensions, all but the first with a size", start)
    cursor.require(not shape or common.space != "reg", "registers cannot form arrays", start)
    size_bytes = math.prod(size or 1 for size in shape) * TYPE_BYTES.get(common.type, 8) * common.vector
    cursor.require(size_bytes < 1 << 63, "an array larger than any memory", start)
    return tuple(shape)


# ---------------------------------------------------------------------------------------- initial values


def _parse_initializer(cursor: Cursor, common: _Common, shape: tuple[int, ...]) -> tuple[Initial, ...]:
    if common.type in OPAQUE_TYPES:
        cursor.expect("{")
        properties = cursor.comma_separated(_parse_property)
        cursor.expect("}")
        return properties
    rows = shape if common.vector == 1 else (*shape, common.vector)
    if not rows:
        return (_parse_initial(cursor),)
    values: list[Initial] = []
    _parse_row(cursor, rows, values)
    cursor.require(not len(values) % common.vector, "a vector has all of its initial values or none", cursor.at - 1)
    return tuple(values)


def _parse_property(cursor: Cursor) -> Property:
    name = cursor.identifier("a property")
    cursor.expect("=")
    if starts_constant(cursor.peek()):
        return Property(name, Int(parse_integer(cursor)))
    return Property(name, Name(cursor.identifier("a value")))


def _parse_row(cursor: Cursor, rows: tuple[int, ...], values: list[Initial]) -> None:
    """Read ``{...}`` of an array of shape ``rows`` and append it to ``values``."""
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
        _pad(cursor, values, start + index * row)
        if len(rows) > 1:
            _parse_row(cursor, rows[1:], values)
        else:
            values.append(_parse_initial(cursor))
        index += 1


def _pad(cursor: Cursor, values: list[Initial], length: int) -> None:
    missing = length - len(values)
    if missing > 0:
        cursor.padding_left -= missing
        cursor.require(cursor.padding_left >= 0, "initializers that leave out too many values")
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
    if isinstance(value, Int) and cursor.accept("("):
        address = _parse_symbol(cursor)
        cursor.expect(")")
        cursor.require(value.value, "a mask that selects no bits", start)
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
    return Offset(name, parse_offset(cursor)) if cursor.peek() in {"+", "-"} else name
