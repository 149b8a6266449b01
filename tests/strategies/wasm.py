"""Valid modules of every form, streams of instructions, programs that run, and bytes that are nearly a module."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tensorwasm.wasm.definitions import ACTIVE, DECLARATIVE, PASSIVE, CodeEntry, DataSegment, ElementSegment, Global
from tensorwasm.wasm.module import CustomSection, Module, encode
from tensorwasm.wasm.opcodes import OPCODES
from tensorwasm.wasm.preamble import Export, Import
from tensorwasm.wasm.sections import read_sections
from tensorwasm.wasm.types import FuncType, GlobalType, MemoryType, TableType

U32, U64 = (1 << 32) - 1, (1 << 64) - 1
NUMBERS = ("i32", "i64", "f32", "f64", "v128")
REFERENCES = ("funcref", "externref", "exnref")
CATCHES = ("catch", "catch_ref", "catch_all", "catch_all_ref")
BLOCKS = ("block", "loop", "if", "try_table")

value_types = st.sampled_from(NUMBERS + REFERENCES)
signatures = st.builds(
    FuncType, st.lists(value_types, max_size=3).map(tuple), st.lists(value_types, max_size=3).map(tuple)
)
indices = st.integers(0, 300) | st.integers(0, U32)
i32s = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-200, 200)
i64s = st.integers(-(1 << 63), (1 << 63) - 1) | i32s
f32s, f64s = st.integers(0, U32), st.integers(0, U64)
bytes16 = st.binary(min_size=16, max_size=16)
CONSTANTS = {
    "i32": st.tuples(st.just("i32.const"), i32s),
    "i64": st.tuples(st.just("i64.const"), i64s),
    "f32": st.tuples(st.just("f32.const"), f32s),
    "f64": st.tuples(st.just("f64.const"), f64s),
    "v128": st.tuples(st.just("v128.const"), bytes16),
    "funcref": st.just(("ref.null", "funcref")),
    "externref": st.just(("ref.null", "externref")),
    "exnref": st.just(("ref.null", "exnref")),
}
FREE = {
    "index": indices,
    "i32": i32s,
    "i64": i64s,
    "f32": f32s,
    "f64": f64s,
    "bytes16": bytes16,
    "lane": st.integers(0, 255),
    "memarg": st.tuples(st.integers(0, 31), st.integers(0, U64) | st.integers(0, 200), indices),
    "block": st.none() | value_types | st.integers(0, U32),
    "labels": st.lists(indices, min_size=1, max_size=140).map(tuple),
    "catches": st.lists(
        st.tuples(st.sampled_from(CATCHES[:2]), indices, indices)
        | st.tuples(st.sampled_from(CATCHES[2:]), st.none(), indices),
        max_size=140,
    ).map(tuple),
    "types": st.lists(value_types, max_size=3).map(tuple),
    "reference": st.sampled_from(REFERENCES),
}
"""By kind of immediate, whatever the format can say, valid or not."""


def instructions_of(opcode):
    """Return an opcode's instructions with whatever immediates."""
    return st.tuples(st.just(opcode.name), *(FREE[kind] for kind in opcode.immediates))


any_instructions = st.sampled_from(OPCODES).flatmap(instructions_of)


class Context:
    """What a module declares, as a body sees it: from this follows which immediates are valid."""

    def __init__(self, module: Module, function: int, local_count: int, declared: tuple[int, ...]) -> None:
        self.types = module.types
        self.functions = [item.type for item in module.imported("func")] + list(module.functions)
        self.tables = [item.type for item in module.imported("table")] + list(module.tables)
        self.memories = [item.type for item in module.imported("memory")] + list(module.memories)
        self.globals = [item.type for item in module.imported("global")] + [item.type for item in module.globals]
        self.tags = [item.type for item in module.imported("tag")] + list(module.tags)
        self.elements = module.elements
        self.data_count = len(module.data)
        self.declared = declared
        self.signature = self.types[module.functions[function]]
        self.local_count = len(self.signature.params) + local_count
        self.labels: list[tuple[str, ...]] = [self.signature.results]

    def domain(self, name: str) -> list[tuple[Any, ...]]:
        """Return the valid indices of an instruction that has only such immediates."""
        family, _, operation = name.partition(".")
        if family in {"local", "ref"}:
            return [(index,) for index in (range(self.local_count) if family == "local" else self.declared)]
        if family == "global":
            settable = operation == "get"
            return [(i,) for i, item in enumerate(self.globals) if settable or item.mutable]
        if family == "data":
            return [(index,) for index in range(self.data_count)]
        if family == "elem":
            return [(index,) for index in range(len(self.elements))]
        return self._space(name)

    def _space(self, name: str) -> list[tuple[Any, ...]]:
        tables, memories = range(len(self.tables)), range(len(self.memories))
        type_of = [table.element for table in self.tables]
        match name:
            case "throw":
                return [(i,) for i in range(len(self.tags))]
            case "call":
                return [(i,) for i in range(len(self.functions))]
            case "return_call":
                return [(i,) for i, kind in enumerate(self.functions) if self._returns(kind)]
            case "call_indirect" | "return_call_indirect":
                kinds = [kind for kind in range(len(self.types)) if name == "call_indirect" or self._returns(kind)]
                return [(kind, i) for kind in kinds for i in tables if type_of[i] == "funcref"]
            case "table.init":
                return [(e, i) for e, item in enumerate(self.elements) for i in tables if item.type == type_of[i]]
            case "table.copy":
                return [(a, b) for a in tables for b in tables if type_of[a] == type_of[b]]
            case "memory.copy":
                return [(a, b) for a in memories for b in memories]
            case "memory.init":
                return [(d, i) for d in range(self.data_count) for i in memories]
            case "br" | "br_if":
                return [(depth,) for depth in range(len(self.labels))]
        return [(i,) for i in (tables if name.startswith("table.") else memories)]

    def _returns(self, kind: int) -> bool:
        return self.types[kind].results == self.signature.results


def _align_of(name: str) -> int:
    """Return the widest alignment that is valid, as a power of two."""
    found = re.search(r"(?:load|store)(\d+)(x\d+)?", name)
    bits = 64 if found and found.group(2) else int((found or re.match(r"[a-z](\d+)", name)).group(1))
    return (bits // 8).bit_length() - 1


def _lanes_of(name: str) -> int:
    found = re.match(r"[if]\d+x(\d+)", name)
    return int(found.group(1)) if found else 128 // int(re.search(r"(\d+)_lane", name).group(1))


@st.composite
def _valid_instruction(draw, opcode, context):
    """Draw an instruction that is valid where the stack is polymorphic, or None if there can be none."""
    name, kinds = opcode.name, opcode.immediates
    if kinds and set(kinds) == {"index"}:
        domain = context.domain(name)
        return (name, *draw(st.sampled_from(domain))) if domain else None
    values = []
    for kind in kinds:
        if kind == "memarg":
            if not context.memories:
                return None
            memory = draw(st.integers(0, len(context.memories) - 1))
            offset = draw(st.integers(0, U64 if context.memories[memory].is_64 else U32))
            values.append((draw(st.integers(0, _align_of(name))), offset, memory))
        elif kind == "labels":
            same = [depth for depth, results in enumerate(context.labels) if results == context.labels[0]]
            values.append(tuple(draw(st.lists(st.sampled_from(same), min_size=1, max_size=140))))
        elif kind == "lane":
            values.append(draw(st.integers(0, _lanes_of(name) - 1)))
        elif name == "i8x16.shuffle":
            values.append(bytes(draw(st.lists(st.integers(0, 31), min_size=16, max_size=16))))
        elif kind == "types":
            values.append((draw(value_types),))
        else:
            values.append(draw(FREE[kind]))
    return (name, *values)


STRUCTURE = frozenset({*BLOCKS, "else", "end"})
PLAIN = [opcode for opcode in OPCODES if opcode.name not in STRUCTURE]


@st.composite
def _sequence(draw, context, depth):
    """Draw instructions, each behind an ``unreachable``, so that the stack holds whatever it wants."""
    out = []
    for opcode in draw(st.lists(st.sampled_from(PLAIN), max_size=5)):
        instruction = draw(_valid_instruction(opcode, context))
        if instruction is not None:
            out += [("unreachable",), instruction]
    if depth < 3 and draw(st.booleans()):
        out += draw(_block(context, depth))
    return [*out, ("unreachable",)]


@st.composite
def _catches(draw, context):
    """Draw catches whose labels, counted from outside of the block, take what they give."""
    given = [("catch_all", None, ()), ("catch_all_ref", None, ("exnref",))]
    for tag, kind in enumerate(context.tags):
        params = context.types[kind].params
        given += [("catch", tag, params), ("catch_ref", tag, (*params, "exnref"))]
    fitting = [
        (name, tag, depth)
        for name, tag, values in given
        for depth, results in enumerate(context.labels)
        if results == values
    ]
    return tuple(draw(st.lists(st.sampled_from(fitting), max_size=3))) if fitting else ()


@st.composite
def _block(draw, context, depth):
    kind = draw(st.sampled_from(BLOCKS))
    block = draw(st.none() | value_types | st.integers(0, len(context.types) - 1))
    signature = context.types[block] if isinstance(block, int) else FuncType((), (block,) if block else ())
    catches = (draw(_catches(context)),) if kind == "try_table" else ()
    context.labels.insert(0, signature.params if kind == "loop" else signature.results)
    out = [("unreachable",), (kind, block, *catches), *draw(_sequence(context, depth + 1))]
    if kind == "if":
        out += [("else",), *draw(_sequence(context, depth + 1))]
    context.labels.pop(0)
    return [*out, ("end",)]


@st.composite
def _bodies(draw, module, declared):
    bodies = []
    for function in range(len(module.functions)):
        local_runs = draw(st.lists(st.tuples(st.integers(0, 3), value_types), max_size=3))
        context = Context(module, function, sum(count for count, _ in local_runs), declared)
        bodies.append(CodeEntry.build(local_runs, draw(_sequence(context, 0))))
    return tuple(bodies)


@st.composite
def memory_types(draw):
    is_64 = draw(st.booleans())
    minimum = draw(st.integers(0, 3))
    maximum = draw(st.none() | st.integers(minimum, (1 << 48) if is_64 else 1 << 16))
    return MemoryType(minimum, maximum, is_64=is_64)


@st.composite
def table_types(draw):
    minimum = draw(st.integers(0, 9))
    is_64 = draw(st.booleans())
    maximum = draw(st.none() | st.integers(minimum, U64 if is_64 else U32))
    return TableType(minimum, maximum, draw(st.sampled_from(REFERENCES)), is_64)


global_types = st.builds(GlobalType, value_types, st.booleans())


@st.composite
def _expressions(draw, value, functions, constants):
    """Draw a constant expression of a type, from the immutable imported globals too."""
    choices = [CONSTANTS[value].map(lambda constant: (constant,))]
    if value == "funcref" and functions:
        choices.append(st.tuples(st.tuples(st.just("ref.func"), st.integers(0, functions - 1))))
    known = [index for index, item in enumerate(constants) if item.value == value and not item.mutable]
    if known:
        choices.append(st.tuples(st.tuples(st.just("global.get"), st.sampled_from(known))))
    expression = draw(st.one_of(choices))
    if value in {"i32", "i64"} and draw(st.booleans()):
        other = draw(CONSTANTS[value])
        operation = draw(st.sampled_from(("add", "sub", "mul")))
        expression = (*expression, other, (f"{value}.{operation}",))
    return expression


@st.composite
def _elements(draw, functions, constants, tables):
    kind = draw(st.sampled_from(REFERENCES))
    fitting = [index for index, table in enumerate(tables) if table.element == kind]
    mode = draw(st.sampled_from((ACTIVE, PASSIVE, DECLARATIVE) if fitting else (PASSIVE, DECLARATIVE)))
    if kind == "funcref" and functions and draw(st.booleans()):
        items = draw(st.lists(st.integers(0, functions - 1), max_size=4))
    else:
        items = draw(st.lists(_expressions(kind, functions, constants), max_size=3))
    if mode != ACTIVE:
        return ElementSegment(mode, tuple(items), kind)
    table = draw(st.sampled_from(fitting))
    offset = draw(_expressions("i64" if tables[table].is_64 else "i32", 0, constants))
    return ElementSegment(mode, tuple(items), kind, table, offset)


@st.composite
def _data(draw, memories, constants):
    data = draw(st.binary(max_size=20))
    if not memories or draw(st.booleans()):
        return DataSegment(PASSIVE, data)
    memory = draw(st.integers(0, len(memories) - 1))
    return DataSegment(
        ACTIVE, data, memory, draw(_expressions("i64" if memories[memory].is_64 else "i32", 0, constants))
    )


def _throwable(types):
    """Return the signatures that a tag can have."""
    return [index for index, kind in enumerate(types) if not kind.results]


@st.composite
def _imports(draw, types):
    kinds = {
        "func": st.integers(0, len(types) - 1),
        "table": table_types(),
        "memory": memory_types(),
        "global": global_types,
        "tag": st.sampled_from(_throwable(types)),
    }
    one = st.sampled_from(sorted(kinds)).flatmap(
        lambda kind: st.builds(Import, st.text(max_size=5), st.text(max_size=5), st.just(kind), kinds[kind])
    )
    return tuple(draw(st.lists(one, max_size=4)))


def _declared(module):
    """Return the functions that are named outside of code."""
    found = {item.index for item in module.exports if item.kind == "func"}
    expressions = [item.init for item in module.globals]
    for element in module.elements:
        for item in element.items:
            if isinstance(item, int):
                found.add(item)
            else:
                expressions.append(item)
    found |= {step[1] for expression in expressions for step in expression if step[0] == "ref.func"}
    return tuple(sorted(found))


@st.composite
def modules(draw):
    """Draw a module that is valid, with every section and every instruction."""
    types = (*draw(st.lists(signatures, max_size=3)), FuncType())
    imports = draw(_imports(types))
    module = Module(
        types=types,
        imports=imports,
        functions=tuple(draw(st.lists(st.integers(0, len(types) - 1), max_size=3))),
        tables=tuple(draw(st.lists(table_types(), max_size=2))),
        memories=tuple(draw(st.lists(memory_types(), max_size=2))),
        tags=tuple(draw(st.lists(st.sampled_from(_throwable(types)), max_size=2))),
    )
    all_functions = [item.type for item in module.imported("func")] + list(module.functions)
    tables = [item.type for item in module.imported("table")] + list(module.tables)
    memories = [item.type for item in module.imported("memory")] + list(module.memories)
    constants = [item.type for item in module.imported("global")]
    functions = len(all_functions)
    kinds = draw(st.lists(global_types, max_size=3))
    globals_ = tuple(Global(kind, draw(_expressions(kind.value, functions, constants))) for kind in kinds)
    spaces = {
        "func": functions,
        "table": len(tables),
        "memory": len(memories),
        "global": len(constants) + len(globals_),
    }
    filled = [kind for kind, count in spaces.items() if count]
    names = draw(st.lists(st.text(max_size=6), unique=True, max_size=4 if filled else 0))
    exports = []
    for name in names:
        kind = draw(st.sampled_from(filled))
        exports.append(Export(name, kind, draw(st.integers(0, spaces[kind] - 1))))
    starts = [index for index, kind in enumerate(all_functions) if types[kind] == FuncType()]
    data = tuple(draw(st.lists(_data(memories, constants), max_size=3)))
    module = replace(
        module,
        globals=globals_,
        exports=tuple(exports),
        start=draw(st.sampled_from([None, *starts])),
        elements=tuple(draw(st.lists(_elements(functions, constants, tables), max_size=3))),
        data=data,
        data_count=len(data),
    )
    module = replace(module, bodies=draw(_bodies(module, _declared(module))))
    if not _names_data(module) and draw(st.booleans()):
        module = replace(module, data_count=None)
    return replace(module, customs=draw(_customs(module)))


def _names_data(module):
    steps = (step for body in module.bodies for step in body.instructions())
    return any(step[0] in {"memory.init", "data.drop"} for step in steps)


@st.composite
def _customs(draw, module):
    places = [0, *(number for number, _, _ in read_sections(encode(module)))]
    one = st.builds(CustomSection, st.text(max_size=5), st.binary(max_size=10), st.sampled_from(places))
    return tuple(sorted(draw(st.lists(one, max_size=3)), key=lambda custom: places.index(custom.after)))


def padded(value: int, width: int) -> bytes:
    """Encode an unsigned number in a given number of bytes."""
    out = [value >> 7 * place & 0x7F | 0x80 for place in range(width)]
    return bytes([*out[:-1], out[-1] & 0x7F])


@st.composite
def damaged(draw, wholes):
    """Draw bytes of a module with some flipped, cut out or put in."""
    wasm = bytearray(draw(wholes))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(wasm)))
        match draw(st.sampled_from(("set", "cut", "insert", "end"))):
            case "set":
                wasm[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del wasm[at : at + draw(st.integers(1, 9))]
            case "insert":
                wasm[at:at] = draw(st.binary(max_size=6) | st.just(b"\xff\xff\xff\xff\x0f"))
            case "end":
                del wasm[at:]
    return bytes(wasm)
