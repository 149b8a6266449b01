from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.wasm import Running, fault_of
from strategies.wasm import modules
from tensorwasm.offload import module as offload_module
from tensorwasm.offload.analysis.regions import LoopRegion
from tensorwasm.offload.cut import INTERFACE, cut, guard_signature
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.lanes import crossing_number, lane_count
from tensorwasm.offload.module import cut_module
from tensorwasm.wasm.definitions import CodeEntry
from tensorwasm.wasm.module import Module, decode, encode
from tensorwasm.wasm.preamble import Export, Import
from tensorwasm.wasm.types import FuncType, MemoryType

KINDS = ("i32", "i64", "f32", "f64")
FUEL = len(KINDS)
STORE_BYTES = {"i32": 4, "i64": 8, "f32": 4, "f64": 8}
EXAMPLES = settings(max_examples=150)
TAKEN = 1
ROOT = Path(__file__).parents[3]

locals_ = st.integers(0, len(KINDS) - 1)


@st.composite
def statements(draw, labels: int = 1, depth: int = 0):
    """Draw code over locals of each kind, inside so many labels, the outermost of which ends the function."""
    code: list[tuple] = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(("set", "block", "loop", "if", "br_if", "br_table") if depth < 4 else ("set",)))
        condition = [("local.get", 0), ("i32.const", draw(st.integers(0, 3))), ("i32.and",)]
        match kind:
            case "set":
                code += draw(updates())
            case "br_if":
                code += [*condition, ("br_if", draw(st.integers(0, labels - 1)))]
            case "br_table":
                code += [("block", None), *condition]
                code += [("br_table", tuple(draw(st.lists(st.integers(0, labels), min_size=1, max_size=4)))), ("end",)]
            case _:
                code += condition if kind == "if" else []
                code.append((kind, None))
                if kind == "loop":
                    code += [("local.get", FUEL), ("i32.eqz",), ("br_if", labels)]
                    code += [("local.get", FUEL), ("i32.const", 1), ("i32.sub",), ("local.set", FUEL)]
                code += draw(statements(labels + 1, depth + 1))
                code.append(("end",))
    return code


@st.composite
def updates(draw):
    local = draw(locals_)
    kind = KINDS[local]
    constant = draw(st.integers(0, 1 << 31) if kind[0] == "f" else st.integers(-9, 9))
    operation = draw(st.sampled_from(("add", "sub", "mul")))
    return [("local.get", local), (f"{kind}.const", constant), (f"{kind}.{operation}",), ("local.set", local)]


def whole(code: list[tuple]) -> Module:
    """Make a module whose export runs code and then stores all locals."""
    stores: list[tuple] = []
    for local, kind in enumerate(KINDS):
        stores += [("i32.const", 8 * local), ("local.get", local), (f"{kind}.store", (0, 0, 0))]
    body = CodeEntry.build([(1, "i32")], [*fuel(), ("block", None), *code, ("end",), *stores])
    return Module(
        types=(FuncType(KINDS),),
        functions=(0,),
        memories=(MemoryType(1, 1),),
        exports=(Export("f", "func", 0), Export("memory", "memory", 0)),
        bodies=(body,),
    )


def fuel() -> list[tuple]:
    return [("i32.const", 40), ("local.set", FUEL)]


def ranges(code: list[tuple]) -> list[tuple[int, int]]:
    """Return the places of each block and loop without a type, and of its end."""
    found, open_ = [], []
    for place, instruction in enumerate(code):
        if instruction[0] in {"block", "loop", "if", "try_table"}:
            open_.append(place)
        elif instruction[0] == "end":
            first = open_.pop()
            if code[first][0] in {"block", "loop"} and code[first][1] is None:
                found.append((first, place))
    return found


def with_guards(module: Module, guards: list[LoopRegion], taken: int = 0, off: int = 0) -> Module:
    """Replace the imported guards by functions that give back what they get."""
    edited = cut(module, guards)
    imports = [item for item in edited.imports if item.module != INTERFACE]
    bodies = []
    for guard in guards:
        places = {local: number for number, (local, _) in enumerate(guard.inputs)}
        outputs = [("local.get", places[local]) for local, _ in guard.outputs]
        bodies.append(CodeEntry.build([], [("i32.const", taken), ("i32.const", off), *outputs]))
    types = tuple(item.type for item in edited.imports if item.module == INTERFACE)
    return replace(
        edited, imports=tuple(imports), functions=(*types, *edited.functions), bodies=(*bodies, *edited.bodies)
    )


def region(function, first, last, inputs, outputs, globals_=()) -> LoopRegion:
    return LoopRegion(function, first, last, tuple(inputs), tuple(outputs), globals_, 1)


@st.composite
def guards_of(draw, module: Module):
    """Draw guards of some blocks and loops of a module, with any locals."""
    guards = []
    imported = len(module.imported("func"))
    for function, body in enumerate(module.bodies):
        params = module.types[module.functions[function]].params
        kinds = [*params, *(kind for count, kind in body.local_runs() for _ in range(count))]
        numeric = [(local, kind) for local, kind in enumerate(kinds) if kind in KINDS]
        some = st.lists(st.sampled_from(numeric), unique=True, max_size=5) if numeric else st.just([])
        for first, last in ranges(body.instructions()):
            if draw(st.booleans()):
                inputs = draw(some)
                outputs = draw(st.lists(st.sampled_from(inputs), unique=True)) if inputs else []
                guards.append(region(imported + function, first, last, inputs, outputs))
    return draw(st.permutations(guards))


@EXAMPLES
@given(statements(), st.data())
def test_guards_that_decline_change_nothing(code, data):
    module = whole(code)
    edited = encode(with_guards(module, data.draw(guards_of(module)), off=data.draw(st.integers(0, 2))))
    assert fault_of(edited) is None
    for args in ((1, 2, 1.5, -2.5), (-7, 1 << 40, float("nan"), -0.0), (6, 0, 0.0, float("inf"))):
        before, after = Running(encode(module)), Running(edited)
        assert after.call("f", *args) == before.call("f", *args)
        assert after.memory() == before.memory()


@settings(max_examples=60)
@given(modules(), st.data())
def test_a_cut_module_is_valid(module, data):
    module = decode(encode(module))
    edited = cut(module, data.draw(guards_of(module)))
    assert fault_of(encode(edited)) is None


def test_a_region_that_its_guard_ran_is_skipped_with_its_outputs_set():
    loop = [("loop", None), ("i32.const", 9), ("local.set", 0), ("f32.const", 0), ("local.set", 2), ("end",)]
    module = whole(loop)
    first = len(fuel()) + 1
    guard = region(0, first, first + 5, ((0, "i32"), (2, "f32"), (3, "f64")), ((3, "f64"), (0, "i32")))
    running = Running(encode(with_guards(module, [guard], TAKEN)))
    running.call("f", 4, 0, 1.5, 2.5)
    assert running.memory()[:32] == bytes.fromhex("0400000000000000 0000000000000000 0000c03f00000000 0000000000000440")
    assert guard_signature(guard) == FuncType(("i32", "i32", "i64"), ("i32", "i32", "i64", "i32"))
    assert cut(module, [guard]).imports == (Import(INTERFACE, "region0", "func", 1),)


@pytest.mark.parametrize("kind", KINDS)
def test_the_lanes_of_a_vector_cross_one_by_one(kind):
    content = bytes(range(100, 116))
    code = [("v128.const", content), ("local.set", 0), ("loop", None), ("v128.const", bytes(16)), ("local.set", 0)]
    code += [("end",), ("i32.const", 0), ("local.get", 0), ("v128.store", (0, 0, 0))]
    body = CodeEntry.build([(1, "v128")], code)
    exports = (Export("f", "func", 0), Export("memory", "memory", 0))
    module = Module(
        types=(FuncType(()),), functions=(0,), memories=(MemoryType(1, 1),), exports=exports, bodies=(body,)
    )
    lanes = [(crossing_number(0, lane), kind) for lane in range(lane_count(kind))]
    for outputs in ([], lanes, lanes[::-1], lanes[1:]):
        running = Running(encode(with_guards(module, [region(0, 2, 5, lanes[::-1], outputs)], TAKEN)))
        running.call("f")
        assert running.memory()[:16] == content


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*/*.wasm")), ids=lambda file: file.stem)
def test_the_regions_of_an_example_are_cut_out(file):
    found = cut_module(file.read_bytes())
    assert len(found.regions) > 20
    assert fault_of(found.wasm) is None


@pytest.mark.parametrize(
    "module",
    [Module(), whole([("loop", None), ("end",)]), replace(whole([("loop", None), ("end",)]), exports=())],
    ids=["empty", "one loop", "hidden memory"],
)
def test_a_module_has_regions_only_if_the_host_finds_its_memory(module):
    found = cut_module(encode(module))
    assert (len(found.regions), bool(found.wasm)) == (bool(module.exports), bool(module.bodies))


def test_regions_beyond_the_limits_stay(monkeypatch):
    monkeypatch.setattr(offload_module, "MAX_REGIONS", 1)
    found = cut_module(encode(whole([("loop", None), ("end",)] * 3)))
    assert (len(found.regions), [each.reason for each in found.declined]) == (1, [DeclineReason.TOO_LARGE] * 3)
    monkeypatch.setattr(offload_module, "MAX_MODULE_BYTES", 8)
    assert cut_module(encode(whole([("loop", None), ("end",)]))).regions == ()
