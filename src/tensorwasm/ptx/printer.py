"""The printer: a `Module` into PTX text.

Source: PTX ISA 4 to 6, 11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from tensorwasm.ptx.model import (
    Address,
    Arguments,
    Block,
    Directive,
    Float,
    Function,
    Generic,
    Initial,
    Instruction,
    Int,
    Label,
    Masked,
    Module,
    Name,
    Not,
    Offset,
    Operand,
    Pair,
    Property,
    Statement,
    TargetList,
    Variable,
    Vector,
)
from tensorwasm.ptx.reachability import require_understood
from tensorwasm.values import NEVER, Deadline
from tensorwasm.watch import Watch


def render(module: Module, deadline: Deadline = NEVER) -> str:
    """Return the text of a module: ASCII, the same for equal modules; ``parse`` returns the module again.

    Raises:
        UnsupportedPtx: a function of it is refused.
        InvokeTimeout: the deadline passed.
    """
    return "\n".join(Watch(deadline, "while the PTX was written").over(_module(module))) + "\n"


def render_instruction(instruction: Instruction) -> str:
    """Return one instruction without its semicolon, as messages show it."""
    guard = ""
    if instruction.guard is not None:
        guard = f"@{'!' * instruction.guard.negated}{_name(instruction.guard.predicate)} "
    return f"{guard}{instruction.mnemonic} {_list(instruction.operands)}".rstrip(" ")


def render_operand(operand: Operand | Initial) -> str:
    """Return one operand or initial value."""
    return _OPERANDS[type(operand)](operand)


# ------------------------------------------------------------------------------------------------- operands


def _name(operand: Name) -> str:
    return operand.name if operand.component is None else f"{operand.name}.{operand.component}"


def _list(operands: Iterable[Operand | Initial]) -> str:
    return ", ".join(map(render_operand, operands))


def _plus(base: str, offset: int) -> str:
    return f"{base}+{offset}" if offset else base


def _address(operand: Address) -> str:
    base = _plus(render_operand(operand.base), operand.offset)
    return f"[{base}, {_list(operand.coordinates)}]" if operand.coordinates else f"[{base}]"


_OPERANDS: Final[dict[type, Callable[[Any], str]]] = {
    Name: _name,
    Int: lambda operand: str(operand.value),
    Float: lambda operand: f"0f{operand.bits:08X}" if operand.width == 32 else f"0d{operand.bits:016X}",
    Offset: lambda operand: f"{_name(operand.base)}+{operand.offset}",
    Address: _address,
    Vector: lambda operand: f"{{{_list(operand.elements)}}}",
    Pair: lambda operand: f"{render_operand(operand.first)}|{render_operand(operand.second)}",
    Not: lambda operand: f"!{_name(operand.operand)}",
    Arguments: lambda operand: f"({_list(operand.elements)})",
    Generic: lambda value: _plus(f"generic({_name(value.base)})", value.offset),
    Masked: lambda value: f"{value.mask}({render_operand(value.address)})",
    Property: lambda value: f"{value.name} = {render_operand(value.value)}",
}


# --------------------------------------------------------------------------------------------- declarations


def _variable(variable: Variable) -> str:
    words = [f".{word}" for word in (*variable.linkage, variable.space)]
    if variable.attributes:
        words.append(_attribute(variable.attributes))
    if variable.align is not None:
        words.append(f".align {variable.align}")
    if variable.vector > 1:
        words.append(f".v{variable.vector}")
    words.append(f".{variable.type}")
    if variable.pointer is not None:
        space, align = variable.pointer
        words += [".ptr", *([f".{space}"] if space else []), *([f".align {align}"] if align else [])]
    count = "" if variable.count is None else f"<{variable.count}>"
    words.append(variable.name + count + "".join(f"[{size or ''}]" for size in variable.shape))
    return " ".join(words) + _initializer(variable)


def _attribute(attributes: tuple[str, ...]) -> str:
    return f".attribute({', '.join(f'.{attribute}' for attribute in attributes)})"


def _initializer(variable: Variable) -> str:
    values = variable.initializer
    if not values:
        return ""
    if isinstance(values[0], Property):
        return f" = {{{_list(values)}}}"
    rows = variable.shape if variable.vector == 1 else (*variable.shape, variable.vector)
    return " = " + _row(list(map(render_operand, values)), rows)


def _row(values: list[str], rows: tuple[int, ...]) -> str:
    if not rows:
        return values[0]
    if len(rows) == 1:
        return f"{{{', '.join(values)}}}"
    step = math.prod(rows[1:])
    return f"{{{', '.join(_row(values[at : at + step], rows[1:]) for at in range(0, len(values), step))}}}"


def _params(params: tuple[Variable, ...]) -> str:
    return f"({', '.join(map(_variable, params))})"


# ----------------------------------------------------------------------------------------------- directives


def _loc(words: tuple[str, ...]) -> str:
    place, inlined = " ".join(words[:3]), words[3:]
    if not inlined:
        return f".loc {place}"
    at = inlined.index("inlined_at")
    return f".loc {place}, function_name {''.join(inlined[1:at])}, inlined_at {' '.join(inlined[at + 1 :])}"


def _file(words: tuple[str, ...]) -> str:
    return f".file {' '.join(words[:2])}" + "".join(f", {word}" for word in words[2:])


def _section(words: tuple[str, ...]) -> str:
    lines = [f".section {words[0]} {{"]
    fresh = True
    for index, word in enumerate(words[1:], 1):
        starts = word in _DATA_TYPES or words[index + 1 : index + 2] == (":",)
        if fresh or starts:
            lines.append(word)
        else:
            apart = word not in _PUNCTUATION and words[index - 1] not in _PUNCTUATION
            lines[-1] += f" {word}" if apart else word
        fresh = word == ":"
    return "\n".join([*lines, "}"])


_DATA_TYPES: Final = frozenset({".b8", ".b16", ".b32", ".b64"})
_PUNCTUATION: Final = frozenset({",", "+", "-", ":"})

_DIRECTIVES: Final[dict[str, Callable[[tuple[str, ...]], str]]] = {
    "loc": _loc,
    "file": _file,
    "section": _section,
    "attribute": _attribute,
    "pragma": lambda words: f".pragma {', '.join(words)};",
    "alias": lambda words: f".alias {', '.join(words)};",
}


def _directive(directive: Directive) -> str:
    special = _DIRECTIVES.get(directive.name)
    if special is not None:
        return special(directive.arguments)
    return f".{directive.name} {', '.join(directive.arguments)}".rstrip(" ")


# ----------------------------------------------------------------------------------------------- statements


def _target_list(targets: TargetList) -> str:
    if targets.prototype is None:
        return f"{targets.label}: .{targets.kind} {', '.join(targets.targets)};"
    prototype = targets.prototype
    words = [_params(prototype.returns), prototype.name, _params(prototype.params)]
    return f"{targets.label}: .callprototype {' '.join([*words, *map(_directive, prototype.directives)])};"


_STATEMENTS: Final[dict[type, Callable[[Any], str]]] = {
    Instruction: lambda instruction: render_instruction(instruction) + ";",
    Label: lambda label: f"{label.name}:",
    Variable: lambda variable: _variable(variable) + ";",
    Directive: _directive,
    TargetList: _target_list,
}


def _body(body: tuple[Statement, ...], indent: str) -> Iterator[str]:
    yield indent + "{"
    for statement in body:
        if isinstance(statement, Block):
            yield from _body(statement.body, indent + "\t")
        else:
            yield indent + "\t" * (not isinstance(statement, Label)) + _STATEMENTS[type(statement)](statement)
    yield indent + "}"


# -------------------------------------------------------------------------------------------------- modules


def _function(function: Function) -> Iterator[str]:
    require_understood(function)
    words = [f".{word}" for word in function.linkage]
    words.append(".entry" if function.entry else ".func")
    words += [_directive(directive) for directive in function.directives if directive.name == "attribute"]
    if function.returns:
        words.append(_params(function.returns))
    yield " ".join([*words, function.name])
    yield _params(function.params)
    yield from (_directive(directive) for directive in function.directives if directive.name != "attribute")
    if function.body is None:
        yield ";"
    else:
        yield from _body(function.body, "")


def _module(module: Module) -> Iterator[str]:
    yield f".version {module.version[0]}.{module.version[1]}"
    yield f".target {', '.join(module.target)}"
    yield f".address_size {module.address_size}"
    for item in module.items:
        if isinstance(item, Function):
            yield from _function(item)
        else:
            yield _STATEMENTS[type(item)](item)
