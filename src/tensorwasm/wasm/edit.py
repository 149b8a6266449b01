"""Edits: each takes a module and gives another, in which every index that existed still means the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, Final, TypeVar

from tensorwasm.wasm.declarations import Export
from tensorwasm.wasm.definitions import DECLARATIVE, PASSIVE, Body, Data, Element, Expression, Global
from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.module import Module
from tensorwasm.wasm.types import FuncType

_T = TypeVar("_T")

_DATA_DROP: Final = "data.drop"
_ELEM_DROP: Final = "elem.drop"
# 0xFC 9 and 0xFC 13, their numbers padded or not: a body without either drops nothing.
_MAY_DROP: Final = re.compile(rb"\xfc(?:[\x09\x0d]|[\x89\x8d]\x80{0,3}\x00)")


def free_prefix(module: Module, stem: str) -> str:
    """Return a text that begins with ``stem`` and that no export's name begins with."""
    taken = {item.name.removeprefix(stem).partition(".")[0] for item in module.exports if item.name.startswith(stem)}
    if not taken:
        return stem
    number = next(number for number in count(1) if str(number) not in taken)
    return f"{stem}{number}."


def add_exports(module: Module, exports: Iterable[Export]) -> Module:
    """Export more.

    Raises:
        ValueError: two exports would have one name.
    """
    everything = (*module.exports, *exports)
    if len({item.name for item in everything}) != len(everything):
        raise ValueError("two exports of one name")
    return replace(module, exports=everything)


def add_globals(module: Module, added: Collection[Global]) -> tuple[Module, range]:
    """Append globals; return their indices too."""
    first = len(module.imported("global")) + len(module.globals)
    return replace(module, globals=(*module.globals, *added)), range(first, first + len(added))


def add_functions(module: Module, added: Collection[tuple[FuncType, Body]]) -> tuple[Module, range]:
    """Append functions, and the signatures that the module lacks; return the functions' indices too.

    They may name data segments: a module without a data count gets one.
    """
    first = len(module.imported("func")) + len(module.functions)
    types = list(module.types)
    types += [signature for signature in dict.fromkeys(signature for signature, _ in added) if signature not in types]
    edited = replace(
        module,
        types=tuple(types),
        functions=(*module.functions, *(types.index(signature) for signature, _ in added)),
        bodies=(*module.bodies, *(body for _, body in added)),
        data_count=len(module.data) if added else module.data_count,
    )
    return edited, range(first, first + len(added))


def replace_initialisers(module: Module, initialisers: Mapping[int, Expression]) -> Module:
    """Give globals other first values.

    Args:
        module: to be edited.
        initialisers: by index of the global, imported ones counted.

    Raises:
        ValueError: a global is imported, or there is none of that index.
    """
    return replace(module, globals=_change(module, "global", module.globals, "init", initialisers))


def set_memory_minimum(module: Module, minimum_pages: Mapping[int, int]) -> Module:
    """Give memories another size at the start.

    Args:
        module: to be edited.
        minimum_pages: pages of 64 KiB, by index of the memory, imported ones counted.

    Raises:
        ValueError: a memory is imported, or there is none of that index.
    """
    return replace(module, memories=_change(module, "memory", module.memories, "minimum", minimum_pages))


def set_table_minimum(module: Module, minimum: Mapping[int, int]) -> Module:
    """Give tables another length at the start.

    Args:
        module: to be edited.
        minimum: elements, by index of the table, imported ones counted.

    Raises:
        ValueError: a table is imported, or there is none of that index.
    """
    return replace(module, tables=_change(module, "table", module.tables, "minimum", minimum))


def _change(
    module: Module, kind: str, items: tuple[_T, ...], attribute: str, values: Mapping[int, object]
) -> tuple[_T, ...]:
    first = len(module.imported(kind))
    if any(not first <= index < first + len(items) for index in values):
        raise ValueError(f"no {kind} of that index is defined here")
    dynamic: tuple[Any, ...] = items
    return tuple(
        replace(item, **{attribute: values[index]}) if index in values else item
        for index, item in enumerate(dynamic, first)
    )


def remove_start(module: Module) -> Module:
    """Let instantiating run nothing."""
    return replace(module, start=None)


def drop_data(module: Module, indices: Collection[int]) -> Module:
    """Make data segments what they are once they were copied or dropped: passive and empty.

    Source: Wasm core 2.0, 4.5.4: instantiating drops every active segment, and a dropped one has no bytes.
    """
    return replace(
        module, data=tuple(Data(PASSIVE) if index in indices else item for index, item in enumerate(module.data))
    )


def drop_elements(module: Module, indices: Collection[int]) -> Module:
    """Make element segments what they are once they were copied or dropped: without elements.

    They become declarative, so that the functions in them stay declared for ``ref.func``.

    Source: Wasm core 2.0, 4.5.4: instantiating drops every active and every declarative segment.
    """
    return replace(
        module,
        elements=tuple(
            Element(DECLARATIVE, item.items, item.type) if index in indices else item
            for index, item in enumerate(module.elements)
        ),
    )


def declare_functions(module: Module, functions: Collection[int]) -> Module:
    """Allow ``ref.func`` of functions, by a declarative segment behind the others."""
    return replace(module, elements=(*module.elements, Element(DECLARATIVE, tuple(functions))))


def suspect_bytes(module: Module) -> int:
    """Return the size of all bodies that may hold a drop: those that `find_drops` and `mark_drops` have to decode."""
    return sum(len(body.raw) for body in module.bodies if _MAY_DROP.search(body.raw))


def find_drops(module: Module) -> tuple[frozenset[int], frozenset[int]]:
    """Return the data segments and the element segments that code may drop.

    Raises:
        InvalidWasm: a body that may hold a drop is malformed.
    """
    found: dict[str, set[int]] = {_DATA_DROP: set(), _ELEM_DROP: set()}
    for body in module.bodies:
        if _MAY_DROP.search(body.raw):
            for name, *immediates in body.instructions():
                if name in found:
                    found[name].update(immediates)
    return frozenset(found[_DATA_DROP]), frozenset(found[_ELEM_DROP])


def mark_drops(module: Module, data: Mapping[int, int], elements: Mapping[int, int]) -> Module:
    """Let code set a global to 1 after it drops a segment.

    Args:
        module: to be edited.
        data: by index of the data segment, the index of a mutable global of type ``i32``.
        elements: the same for element segments.

    Raises:
        InvalidWasm: a body that may hold a drop is malformed.
    """
    drops = {(_DATA_DROP, segment): index for segment, index in data.items()}
    drops |= {(_ELEM_DROP, segment): index for segment, index in elements.items()}
    marks: dict[Instruction, tuple[Instruction, ...]] = {
        drop: (drop, ("i32.const", 1), ("global.set", index)) for drop, index in drops.items()
    }
    bodies = tuple(_mark(body, marks) if _MAY_DROP.search(body.raw) else body for body in module.bodies)
    return replace(module, bodies=bodies)


def _mark(body: Body, marks: Mapping[Instruction, tuple[Instruction, ...]]) -> Body:
    instructions = body.instructions()
    if marks.keys().isdisjoint(instructions):
        return body
    marked = [part for instruction in instructions for part in marks.get(instruction, (instruction,))]
    return Body.build(body.local_runs(), marked)


def find_escaping(module: Module) -> list[int]:
    """Return the functions that a table or a global can come to hold, ascending.

    A function is reached by reference only if the module names it outside of its code: ``ref.func`` is valid for no
    other. So this needs no look at the code, and holds for a module that an engine accepted.

    Source: Wasm core 2.0, 3.4.1 and 3.4.10: the set of references declared.
    """
    found = {item.index for item in module.exports if item.kind == "func"}
    expressions = [item.init for item in module.globals]
    for element in module.elements:
        found.update(item for item in element.items if isinstance(item, int))
        expressions += [item for item in element.items if not isinstance(item, int)]
    for expression in expressions:
        found.update(instruction[1] for instruction in expression if instruction[0] == "ref.func")
    return sorted(found)
