from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.wasm import Running, fault_of, to_wasm
from strategies.wasm import modules
from strategies.wasm_programs import ACTIVE_DATA, ACTIVE_ELEMENTS, PASSIVE_DATA, PASSIVE_ELEMENTS, PRIVATE, programs
from tensorwasm.errors import InvalidWasm
from tensorwasm.wasm import edit
from tensorwasm.wasm.definitions import DECLARATIVE, PASSIVE, CodeEntry, Global
from tensorwasm.wasm.module import CustomSection, Module, decode, encode
from tensorwasm.wasm.names import read_function_names
from tensorwasm.wasm.preamble import Export
from tensorwasm.wasm.types import FuncType, GlobalType
from timing import costs_less

I32 = GlobalType("i32", mutable=True)
GLOBALS = {f"p.{name}": index for index, name in enumerate(PRIVATE, 1)}
LANES = ("p.lane0", "p.lane1")
CONSTANTS = {"i32": "i32.const", "i64": "i64.const", "f32": "f32.const", "f64": "f64.const"}
EXAMPLES = settings(max_examples=60)


def probe(name: str, segment: int) -> tuple[FuncType, CodeEntry]:
    """Return a function that traps if and only if a segment of at least one item was dropped."""
    at, one = ("i32.const", 0), ("i32.const", 1)
    return FuncType(), CodeEntry.build([], [at, at, one, (name, segment, 0)])


def lane(index: int) -> tuple[FuncType, CodeEntry]:
    """Return a function that gives half of the global that is a ``v128``, which wasmtime-py cannot read."""
    return FuncType((), ("i64",)), CodeEntry.build([], [("global.get", 5), ("i64x2.extract_lane", index)])


def instrumented(module: Module) -> tuple[Module, dict[str, str]]:
    """Show what is private and mark what is dropped; return for each mark the function that tells the truth."""
    segments = [("memory.init", index) for index in ACTIVE_DATA + PASSIVE_DATA]
    segments += [("table.init", index) for index in ACTIVE_ELEMENTS + PASSIVE_ELEMENTS]
    module, marks = edit.add_globals(module, [Global(I32, (("i32.const", 0),))] * len(segments))
    of = dict(zip(segments, marks, strict=True))
    module = edit.mark_drops(
        module,
        {index: mark for (name, index), mark in of.items() if name == "memory.init"},
        {index: mark for (name, index), mark in of.items() if name == "table.init"},
    )
    module, probes = edit.add_functions(module, [probe(*segment) for segment in segments])
    module, lanes = edit.add_functions(module, [lane(0), lane(1)])
    shown = [Export(name, "global", index) for name, index in GLOBALS.items()]
    shown += [Export(f"p.mark{mark}", "global", mark) for mark in marks]
    shown += [Export(f"p.probe{mark}", "func", index) for mark, index in zip(marks, probes, strict=True)]
    shown += [Export(f"p.lane{number}", "func", index) for number, index in enumerate(lanes)]
    shown += [Export("p.table", "table", 0), Export("p.v128", "global", 5), Export("p.ref", "global", 6)]
    return edit.add_exports(module, shown), {f"p.mark{mark}": f"p.probe{mark}" for mark in marks}


@EXAMPLES
@given(programs())
def test_an_instrumented_program_behaves_the_same(program):
    wasm = to_wasm(program.text)
    module, marks = instrumented(decode(wasm))
    edited = encode(module)
    assert fault_of(edited) is None
    running = Running(edited)
    assert running.observe(program.calls, ["seen"]) == Running(wasm).observe(program.calls, ["seen"])
    for number, (mark, truth) in enumerate(marks.items()):
        at_start = number in ACTIVE_DATA or number == len(ACTIVE_DATA + PASSIVE_DATA)
        assert (running.value(mark) == 1 or at_start) == (running.call(truth) is not None)


def restored(module: Module, running: Running, marks: dict[str, str]) -> Module:
    """Make the module that starts where an instance stands."""
    dropped = [bool(running.value(mark)) for mark in marks]
    data_count = len(module.data)
    module = edit.drop_data(module, [*ACTIVE_DATA, *(i for i in range(data_count) if dropped[i])])
    elements = range(len(ACTIVE_ELEMENTS + PASSIVE_ELEMENTS))
    gone = {*ACTIVE_ELEMENTS, *(i for i in elements if dropped[data_count + i])}
    kept = (replace(item, mode=DECLARATIVE, offset=()) if i in gone else item for i, item in enumerate(module.elements))
    values = {index: ((CONSTANTS[name[2:]], constant(name, running)),) for name, index in GLOBALS.items()}
    values[0] = (("i32.const", running.value("seen")),)
    values[5] = (("v128.const", struct.pack("<qq", running.call("p.lane0"), running.call("p.lane1"))),)
    globals_ = (replace(item, init=values.get(i, item.init)) for i, item in enumerate(module.globals))
    module = replace(module, elements=tuple(kept), globals=tuple(globals_))
    module = edit.set_memory_minimum(module, {0: len(running.memory()) >> 16})
    return edit.remove_start(module)


def constant(name: str, running: Running) -> int:
    value = running.value(name)
    kinds = {"p.f32": ("<f", "<I"), "p.f64": ("<d", "<Q")}
    if name not in kinds:
        return value
    as_float, as_bits = kinds[name]
    return struct.unpack(as_bits, struct.pack(as_float, value))[0]


@EXAMPLES
@given(programs(with_tables=False), st.integers(0, 12))
def test_a_module_made_from_an_instance_continues_its_state(program, stop):
    module, marks = instrumented(decode(to_wasm(program.text)))
    first = Running(encode(module))
    first.observe(program.calls[:stop])
    second = Running(encode(restored(module, first, marks)))
    second.write(first.memory())
    numbers = ["seen", *GLOBALS]
    assert second.observe(program.calls[stop:], numbers) == first.observe(program.calls[stop:], numbers)
    assert [second.call(name) for name in LANES] == [first.call(name) for name in LANES]


@EXAMPLES
@given(modules(), st.data())
def test_every_edit_of_a_valid_module_is_valid(module, data):
    spaces = {
        "func": len(module.imported("func")) + len(module.functions),
        "table": len(module.imported("table")) + len(module.tables),
        "memory": len(module.imported("memory")) + len(module.memories),
        "global": len(module.imported("global")) + len(module.globals),
    }
    prefix = edit.free_prefix(module, "p.")
    everything = [Export(f"{prefix}{kind}{i}", kind, i) for kind, count in spaces.items() for i in range(count)]
    edited = edit.add_exports(decode(encode(module)), everything)
    drops = edit.find_drops(edited)
    edited, marks = edit.add_globals(edited, [Global(I32, (("i32.const", 0),))] * sum(map(len, drops)))
    data_marks = dict(zip(sorted(drops[0]), marks, strict=False))
    edited = edit.mark_drops(edited, data_marks, dict(zip(sorted(drops[1]), marks[len(drops[0]) :], strict=True)))
    edited = edit.drop_data(edited, data.draw(st.sets(st.integers(0, 3))))
    edited, _ = edit.add_functions(edited, [(FuncType((), ("i64",)), CodeEntry.build([], [("i64.const", 1)]))] * 2)
    encoded = encode(edit.remove_start(edited))
    assert fault_of(encoded) is None
    again = decode(encoded)
    assert (len(again.data), len(again.elements)) == (len(module.data), len(module.elements))
    assert again.exports[: len(module.exports)] == module.exports
    assert edit.find_drops(again) == drops
    assert edit.find_escaping(again) == list(range(spaces["func"]))


@EXAMPLES
@given(modules())
def test_no_code_refers_to_a_function_that_does_not_escape(module):
    steps = [step for body in module.bodies for step in body.instructions()]
    assert {step[1] for step in steps if step[0] == "ref.func"} <= set(edit.find_escaping(module))


@EXAMPLES
@given(modules())
def test_an_edit_of_nothing_changes_nothing(module):
    decoded = decode(encode(module))
    assert edit.mark_drops(decoded, {}, {}) == decoded
    assert edit.drop_data(decoded, ()) == decoded
    assert edit.add_functions(decoded, [])[0] == decoded
    assert edit.set_memory_minimum(decoded, {}) == decoded


EMPTY = decode(to_wasm("(module)"))


@pytest.mark.parametrize("value", ["i32", "i64", "f32", "f64", "v128", "funcref", "externref"])
def test_a_global_of_any_type_is_appended(value):
    init = {"v128": ("v128.const", bytes(range(16))), "funcref": ("ref.null", value), "externref": ("ref.null", value)}
    constant = init.get(value, (f"{value}.const", 3))
    module, indices = edit.add_globals(EMPTY, [Global(GlobalType(value, mutable=True), (constant,))])
    running = Running(encode(edit.add_exports(module, [Export("g", "global", indices[0])])))
    bits = {"f32": 3.0 * 2**-149, "f64": 3.0 * 2**-1074, "funcref": None, "externref": None}
    assert value == "v128" or running.value("g") == bits.get(value, 3)


def test_an_added_function_takes_the_signature_that_is_there():
    module = decode(to_wasm("(module (type (func)) (type (func (param i32))))"))
    module, indices = edit.add_functions(
        module, [(FuncType(("i32",)), CodeEntry.build([], [])), (FuncType(("i64",)), CodeEntry.build([], []))]
    )
    assert (len(module.types), module.functions, indices) == (3, (1, 2), range(2))


def test_indices_count_what_is_imported():
    module = decode(to_wasm('(module (import "m" "m" (memory 1)) (memory 2))'))
    assert edit.set_memory_minimum(module, {1: 5}).memories[0].minimum == 5
    for index in (0, 2):
        with pytest.raises(ValueError, match="no memory of that index"):
            edit.set_memory_minimum(module, {index: 9})


def test_two_exports_of_one_name_are_refused_and_a_free_prefix_is_found():
    module = decode(to_wasm('(module (func (export "p.f")) (func (export "p.1.g")))'))
    with pytest.raises(ValueError, match="one name"):
        edit.add_exports(module, [Export("p.f", "func", 1)])
    prefix = edit.free_prefix(module, "p.")
    assert prefix.startswith("p.")
    assert not any(item.name.startswith(prefix) for item in module.exports)


def test_a_free_prefix_is_found_in_linear_time():
    taken = ["p.", *(f"p.{number}.x" for number in range(1, 100_000))]
    module = Module(exports=tuple(Export(name, "func", 0) for name in reversed(taken)))
    found = set()
    assert costs_less(
        5, lambda: found.add(edit.free_prefix(module, "p."))
    )  # a look at every name for each took minutes
    assert found == {"p.100000."}


def test_a_drop_with_layoutded_numbers_is_marked():
    module = decode(to_wasm('(module (global (mut i32) i32.const 0) (func) (data "x"))'))
    padded = CodeEntry(b"\x00\xfc\x89\x80\x80\x80\x00\x80\x80\x80\x80\x00\x0b")
    module = Module(
        **{name: getattr(module, name) for name in ("types", "functions", "globals", "data", "data_count")},
        bodies=(padded,),
    )
    assert edit.find_drops(module) == ({0}, frozenset())
    marked = edit.mark_drops(module, {0: 0}, {})
    assert marked.bodies[0].instructions() == [("data.drop", 0), ("i32.const", 1), ("global.set", 0)]


def test_only_bodies_that_drop_are_rewritten():
    wasm = to_wasm(
        '(module (func i64.const 0xd7c i64.const 9 drop drop) (func data.drop 0 elem.drop 0) (data "x") (elem func 0))'
    )
    module = decode(wasm)
    marked = edit.mark_drops(module, {0: 5}, {})
    assert marked.bodies[0] is module.bodies[0]
    assert marked.bodies[1].instructions()[1:3] == [("i32.const", 1), ("global.set", 5)]
    assert edit.mark_drops(module, {7: 5}, {7: 5}).bodies[1] is module.bodies[1]


def test_a_malformed_body_that_may_drop_is_invalid_wasm():
    module = decode(to_wasm("(module (func))"))
    broken = Module(functions=module.functions, bodies=(CodeEntry(b"\x00\xfc\x09", at=77),))
    with pytest.raises(InvalidWasm, match=r"\(at byte 80\)"):
        edit.find_drops(broken)


def test_dropped_segments_are_empty_and_keep_their_indices():
    wasm = to_wasm("""(module (memory 1) (data (i32.const 0) "abc") (data "def")
        (func (export "m") i32.const 0 i32.const 0 i32.const 1 memory.init 0))""")
    module = edit.drop_data(decode(wasm), [0])
    assert (module.data[0].mode, module.data[1].data) == (PASSIVE, b"def")
    running = Running(encode(edit.add_exports(module, [Export("memory", "memory", 0)])))
    assert running.memory()[:3] == bytes(3)
    assert running.call("m") is not None


@EXAMPLES
@given(programs())
def test_a_program_with_more_imports_behaves_the_same(program):
    wasm = to_wasm(program.text)
    module = decode(wasm)
    edited, indices = edit.add_function_imports(module, [("m", "f", FuncType(("i64",), ("i32", "f64")))])
    body = CodeEntry.build([], [("unreachable",)])
    # Instead of an import, which this engine has nothing for, a function of the same index.
    first, imported = indices[0], len(module.imported("func"))
    inlined = replace(
        edited,
        imports=module.imports,
        functions=(edited.imports[-1].type, *edited.functions),
        bodies=(body, *edited.bodies),
    )
    assert first == imported
    assert fault_of(encode(edited)) is None
    assert Running(encode(inlined)).observe(program.calls, ["seen"]) == Running(wasm).observe(program.calls, ["seen"])


@EXAMPLES
@given(modules())
def test_added_imports_leave_a_valid_module_whose_functions_have_moved(module):
    module = decode(encode(module))
    count = len(module.imported("func"))
    edited, indices = edit.add_function_imports(module, [("m", f"f{number}", FuncType()) for number in range(3)])
    assert (list(indices), fault_of(encode(edited))) == ([count, count + 1, count + 2], None)
    escaping = edit.find_escaping(module)
    assert edit.find_escaping(edited) == [index + 3 if index >= count else index for index in escaping]


def test_names_move_with_their_functions_and_tables_of_code_places_go():
    text = '(module (import "m" "a" (func $a)) (func $first (local $x i32)) (func $second (call $first)))'
    module = decode(to_wasm(text))
    module = replace(module, customs=(*module.customs, CustomSection(".debug_line", b"?", 11)))
    edited, _ = edit.add_function_imports(module, [("m", "g", FuncType())])
    again = decode(encode(edited))
    assert read_function_names(again) == {0: "a", 2: "first", 3: "second"}
    assert [custom.name for custom in again.customs] == ["name"]
    assert again.bodies[1].instructions() == [("call", 2)]


@pytest.mark.parametrize("data", [b"\x01", b"\x01\x05\x01", b"\x01\x03\x01\x00\x7f", b"\x02\x02\x01\xff"])
def test_malformed_names_are_no_names_and_go(data):
    module = Module(customs=(CustomSection("name", data),))
    assert read_function_names(module) == {}
    assert edit.add_function_imports(module, [("m", "g", FuncType())])[0].customs == ()
