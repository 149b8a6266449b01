"""Edits: each takes a module and returns another, in which every index that existed still means the same.

The exception is `add_function_imports`: imports come first in an index space, so the functions behind them move.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Final

from tensorwasm.wasm.definitions import PASSIVE, CodeEntry, DataSegment, Global
from tensorwasm.wasm.instructions import Instruction
from tensorwasm.wasm.module import CustomSection, Module
from tensorwasm.wasm.names import SECTION as NAMES
from tensorwasm.wasm.names import shift_names
from tensorwasm.wasm.preamble import Export, Import
from tensorwasm.wasm.types import FuncType

_DATA_DROP: Final = "data.drop"
_ELEM_DROP: Final = "elem.drop"
# 0xFC 9 and 0xFC 13, their numbers padded or not: a body that matches neither drops nothing.
_CALLS: Final = frozenset({"call", "return_call", "ref.func"})
_MAY_CALL: Final = re.compile(rb"[\x10\x12\xd2]")
_OF_CODE: Final = (".debug_", "metadata.code.", "reloc.", "linking")
"""Beginnings of the names of custom sections that refer to code by its place."""
_MAY_DROP: Final = re.compile(rb"\xfc(?:[\x09\x0d]|[\x89\x8d]\x80{0,3}\x00)")


def free_prefix(module: Module, stem: str) -> str:
    """Return a text that begins with ``stem`` and that no export's name begins with."""
    taken = {item.name.removeprefix(stem).partition(".")[0] for item in module.exports if item.name.startswith(stem)}
    if not taken:
        return stem
    number = next(number for number in count(1) if str(number) not in taken)
    return f"{stem}{number}."


def add_exports(module: Module, exports: Iterable[Export]) -> Module:
    """Append exports.

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


def add_functions(module: Module, added: Collection[tuple[FuncType, CodeEntry]]) -> tuple[Module, range]:
    """Append functions, and the signatures that the module lacks; return the functions' indices too.

    The functions may name data segments: a module without a data count gets one.
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


def add_function_imports(module: Module, added: Collection[tuple[str, str, FuncType]]) -> tuple[Module, range]:
    """Append imports of functions, by module, name and type, behind those that there are; return their indices too.

    Every reference to a function behind them moves, in code, exports, elements, globals, the start and names. Custom
    sections that refer to code by its place are dropped.

    Raises:
        InvalidWasm: a body is malformed.
    """
    first, count = len(module.imported("func")), len(added)
    types = list(module.types)
    types += [signature for signature in dict.fromkeys(each[2] for each in added) if signature not in types]
    imports = [Import(owner, name, "func", types.index(signature)) for owner, name, signature in added]

    def moved(index: int) -> int:
        return index + count if index >= first else index

    def moved_in(code: Iterable[Instruction]) -> tuple[Instruction, ...]:
        return tuple((step[0], moved(step[1])) if step[0] in _CALLS else step for step in code)

    def moved_body(body: CodeEntry) -> CodeEntry:
        if not _MAY_CALL.search(body.raw):
            return body
        code = body.instructions()
        places = [place for place, step in enumerate(code) if step[0] in _CALLS and step[1] >= first]
        for place in places:
            name, index = code[place]
            code[place] = name, index + count
        return CodeEntry.build(body.local_runs(), code) if places else body

    edited = replace(
        module,
        types=tuple(types),
        imports=(*module.imports, *imports),
        globals=tuple(replace(item, init=moved_in(item.init)) for item in module.globals),
        exports=tuple(
            replace(item, index=moved(item.index)) if item.kind == "func" else item for item in module.exports
        ),
        start=None if module.start is None else moved(module.start),
        elements=tuple(
            replace(each, items=tuple(moved(item) if isinstance(item, int) else moved_in(item) for item in each.items))
            for each in module.elements
        ),
        bodies=tuple(map(moved_body, module.bodies)),
        customs=tuple(_moved_customs(module, first, count)),
    )
    return edited, range(first, first + count)


def _moved_customs(module: Module, first: int, by: int) -> Iterator[CustomSection]:
    for custom in module.customs:
        if custom.name == NAMES:
            renamed = shift_names(custom, first, by)
            if renamed is not None:
                yield renamed
        elif not custom.name.startswith(_OF_CODE):
            yield custom


def set_memory_minimum(module: Module, minimum_pages: Mapping[int, int]) -> Module:
    """Change the size of memories at the start: pages of 64 KiB, by index of the memory, imported ones counted.

    Raises:
        ValueError: a memory is imported, or does not exist.
    """
    memories = dict(enumerate(module.memories, len(module.imported("memory"))))
    if not minimum_pages.keys() <= memories.keys():
        raise ValueError("no memory of that index is defined here")
    memories |= {index: replace(memories[index], minimum=pages) for index, pages in minimum_pages.items()}
    return replace(module, memories=tuple(memories.values()))


def remove_start(module: Module) -> Module:
    """Remove the start function: instantiating then runs no code."""
    return replace(module, start=None)


def drop_data(module: Module, indices: Collection[int]) -> Module:
    """Make data segments passive and empty, as they are after they were copied or dropped.

    Source: Wasm core 2.0, 4.5.4: instantiating drops every active segment, and a dropped one has no bytes.
    """
    data = (DataSegment(PASSIVE) if index in indices else item for index, item in enumerate(module.data))
    return replace(module, data=tuple(data))


def suspect_bytes(module: Module) -> int:
    """Return the size of all bodies that may hold a drop: `find_drops` and `mark_drops` have to decode these."""
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
    """Make code set a global to 1 after it drops a segment.

    ``data`` and ``elements`` map the index of a segment to the index of a mutable global of type ``i32``.

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


def _mark(body: CodeEntry, marks: Mapping[Instruction, tuple[Instruction, ...]]) -> CodeEntry:
    instructions = body.instructions()
    if marks.keys().isdisjoint(instructions):
        return body
    marked = [part for instruction in instructions for part in marks.get(instruction, (instruction,))]
    return CodeEntry.build(body.local_runs(), marked)


def find_escaping(module: Module) -> list[int]:
    """Return the functions that a table or a global can come to hold, ascending.

    Code can refer only to functions that the module also names outside of it (otherwise ``ref.func`` is invalid), so
    the code need not be read. The module must be valid.

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
