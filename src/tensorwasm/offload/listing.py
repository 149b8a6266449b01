"""A parallel order of a nest as text: its arrays, the loops in which kernels run, and what each statement does."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from tensorwasm.offload.codegen.iterations import statements_of
from tensorwasm.offload.nest import (
    Affine,
    Carried,
    Cell,
    Constant,
    Floor,
    Index,
    Input,
    Load,
    SetCell,
    Statement,
    Store,
    Term,
    TurningScalar,
    Value,
    While,
)
from tensorwasm.offload.program import (
    Array,
    Block,
    Compute,
    Execute,
    Expression,
    For,
    HostLoop,
    If,
    Kernel,
    NestProgram,
)

_DEEPEST: Final = 12
"""Operations in operations of a value; what lies deeper is left out."""
_INFIX: Final[Mapping[str, str]] = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floor_div": "//",
    "mod": "%",
    "eq": "==",
    "le": "<=",
    "lt": "<",
    "and": "and",
    "or": "or",
}


def list_program(program: NestProgram) -> list[str]:
    """Return the lines of a program's listing.

    ``c0``, ``c1`` ... are the counters of the nest's loops, ``A0`` ... its arrays, of which an element is named by
    its offset in bytes.
    """
    lines = [
        f"A{each.number}: bytes {each.first:#x} to {each.first + each.size_bytes - 1:#x}, {_use(each)}"
        for each in program.arrays
    ]
    for storage in program.cells:
        place = "a register of a thread" if storage.private else f"{storage.count} elements of scratch memory"
        lines.append(f"{_cell(storage.cell)}: {storage.cell.type}, {place}")
    lines += _steps(program.steps, "")
    numbers = {number for step in program.steps for number in _numbers(step)}
    firsts = {each.number: each.first for each in program.arrays}
    for statement, counters in sorted(statements_of(program.nest.body), key=lambda each: each[0].number):
        if statement.number in numbers:
            lines.append(f"S{statement.number}({', '.join(f'c{counter}' for counter in counters)}):")
            lines += (f"  {line}" for line in _effects(statement, program.array_of, firsts))
    return lines


def _use(array: Array) -> str:
    uses = {"read": array.read, "filled" if array.filled else "written": array.written}
    return " and ".join(word for word, applies in uses.items() if applies)


def _steps(steps: tuple[HostLoop | Kernel, ...], indent: str) -> Iterator[str]:
    for step in steps:
        if isinstance(step, Kernel):
            yield f"{indent}kernel {step.number}:"
            yield from _block(step.body, f"{indent}  ")
        else:
            yield f"{indent}host: for {step.variable} = {_expression(step.first)} to {_expression(step.last)}"
            yield from _steps(step.body, f"{indent}  ")


def _block(block: Block, indent: str) -> Iterator[str]:
    for part in block:
        if isinstance(part, Execute):
            yield f"{indent}S{part.statement}({', '.join(map(_expression, part.counters))})"
        elif isinstance(part, For):
            step = f" step {part.step}" if part.step != 1 else ""
            word = "parallel" if part.parallel else "for"
            yield f"{indent}{word} {part.variable} = {_expression(part.first)} to {_expression(part.last)}{step}"
            yield from _block(part.body, f"{indent}  ")
        else:
            yield f"{indent}if {_expression(part.condition)}"
            yield from _block(part.then, f"{indent}  ")
            if part.otherwise:
                yield f"{indent}else"
                yield from _block(part.otherwise, f"{indent}  ")


def _expression(expression: Expression) -> str:
    if not isinstance(expression, Compute):
        return str(expression)
    operands = [_expression(each) for each in expression.operands]
    return _applied(expression.operator, operands)


def _applied(operator: str, operands: list[str]) -> str:
    if operator in _INFIX and len(operands) == 2:
        return f"({operands[0]} {_INFIX[operator]} {operands[1]})"
    return f"{operator}({', '.join(operands)})"


def _numbers(part: HostLoop | Kernel | For | If | Execute) -> Iterator[int]:
    """Yield the numbers of the statements that a part runs."""
    if isinstance(part, Execute):
        yield part.statement
        return
    for inner in (*part.then, *part.otherwise) if isinstance(part, If) else part.body:
        yield from _numbers(inner)


def _effects(statement: Statement, arrays: Mapping[Load | Store, int], firsts: Mapping[int, int]) -> Iterator[str]:
    """Yield what a statement stores and hands on; its loads are where their values are used."""
    texts = _ValueTexts(arrays, firsts)
    for effect in statement.effects:
        match effect:
            case Store(value=value):
                yield f"{texts.place(effect)} = {texts.text(value)}"
            case SetCell(cell=cell, value=value):
                yield f"{_cell(cell)} = {texts.text(value)}"
            case While():
                yield from texts.turns(effect)


class _ValueTexts:
    """Texts of values, with arrays for addresses."""

    def __init__(self, arrays: Mapping[Load | Store, int], firsts: Mapping[int, int]) -> None:
        self._arrays = arrays
        self._firsts = firsts
        self._scalars: dict[TurningScalar, str] = {}

    def place(self, access: Load | Store) -> str:
        """Return what an access touches."""
        number = self._arrays[access]
        pointer = replace(access.pointer, constant=access.pointer.constant + access.offset - self._firsts[number])
        return f"{_type_of(access)} A{number}[{_affine(pointer)}]"

    def turns(self, loop: While) -> Iterator[str]:
        """Yield the lines of a loop of data."""
        names = [self._scalars.setdefault(scalar, f"y{len(self._scalars)}") for scalar in loop.scalars]
        yield from (f"{name} = {self.text(value)}" for name, value in zip(names, loop.initial, strict=True))
        yield f"if {self.text(loop.entered)}, repeat:" if loop.entered is not None else "repeat:"
        for effect in loop.effects:
            if isinstance(effect, While):
                yield from (f"  {line}" for line in self.turns(effect))
        yield f"  again = {self.text(loop.again)}"
        yield from (f"  next {name} = {self.text(value)}" for name, value in zip(names, loop.after, strict=True))

    def text(self, value: Value, depth: int = 0) -> str:
        """Return a value's text, without what lies too deep."""
        match value:
            case Constant():
                return _number(value)
            case Input(local=local):
                return f"local{local}"
            case Index(affine=affine):
                return f"({_affine(affine)})"
            case Carried() | TurningScalar():
                return _carried(value) if isinstance(value, Carried) else self._scalars[value]
            case Load():
                return self.place(value)
        name = value.opcode.partition(".")[2] or value.opcode
        inner = [self.text(each, depth + 1) for each in value.operands] if depth < _DEEPEST else ["..."]
        return _applied(name, inner)


def _type_of(access: Load | Store) -> str:
    kind, _, width = access.opcode.partition(".")
    return f"{kind}{width.removeprefix('load').removeprefix('store')}"


def _number(value: Constant) -> str:
    bits = value.bits.to_bytes(8, "little")
    formats = {"i32": "<i", "i64": "<q", "f32": "<f", "f64": "<d"}
    return repr(struct.unpack_from(formats[value.type], bits)[0])


def _affine(affine: Affine) -> str:
    parts = [f"{coefficient}*{_term(term)}" for term, coefficient in affine.terms]
    if affine.constant or not parts:
        parts.append(str(affine.constant))
    return " + ".join(parts)


def _term(term: Term) -> str:
    return f"(({_affine(term.value)}) // {term.divisor})" if isinstance(term, Floor) else f"c{term}"


def _carried(value: Carried) -> str:
    others = ", ".join(f"c{counter}" for counter in value.others)
    return f"{_cell(value.cell)}[{others}]" if others else _cell(value.cell)


def _cell(cell: Cell) -> str:
    return f"x{cell.number}"
