"""At every limit of the format, of the engine and of ours, and just past it: a module runs, or is refused by name."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tensorwasm import Runtime
from tensorwasm.errors import TensorWasmError
from tensorwasm.guest.engine.engine import MAX_INSTANCE_BYTES, MAX_TABLE_ELEMENTS, MAX_TABLES
from tensorwasm.values import Limits
from tensorwasm.wasm.definitions import ACTIVE, PASSIVE, CodeEntry, DataSegment, ElementSegment, Global
from tensorwasm.wasm.module import CustomSection, Module, encode
from tensorwasm.wasm.preamble import Export, Import
from tensorwasm.wasm.types import FuncType, GlobalType, MemoryType, TableType

SOON_S = 60.0
PROC_EXIT = "wasi_snapshot_preview1", "proc_exit"
NOTHING, EXIT = FuncType(), FuncType(("i32",))
EMPTY = CodeEntry.build((), ())
ZERO = (("i32.const", 0),)
MUTABLE = Global(GlobalType("i32", mutable=True), ZERO)


def one(body: CodeEntry = EMPTY, signature: FuncType = NOTHING, **more: object) -> Module:
    """Return a module with one function, ``main``, and more."""
    first = len([item for item in more.get("imports", ()) if item.kind == "func"])
    exports = (Export("main", "func", first), *more.pop("exports", ()))
    types = (signature, *more.pop("types", ()))
    return Module(types=types, functions=(0,), bodies=(body,), exports=exports, **more)


def in_table(count: int) -> Module:
    return Module(
        types=(NOTHING,),
        functions=(0,),
        bodies=(EMPTY,),
        exports=(Export("main", "func", 0),),
        tables=(TableType(count, None),),
        elements=(ElementSegment(ACTIVE, (0,) * count, offset=ZERO),),
    )


def functions(count: int) -> Module:
    return Module(
        types=(NOTHING,), functions=(0,) * count, bodies=(EMPTY,) * count, exports=(Export("main", "func", 0),)
    )


def escaping(count: int) -> Module:
    return Module(
        types=(NOTHING,),
        functions=(0,) * count,
        bodies=(EMPTY,) * count,
        exports=(Export("main", "func", 0),),
        elements=(ElementSegment("declarative", tuple(range(count))),),
    )


def imports(count: int) -> Module:
    return one(imports=(Import(*PROC_EXIT, "func", 1),) * count, types=(EXIT,))


def exports(count: int) -> Module:
    return one(exports=tuple(Export(f"e{i}", "func", 0) for i in range(count - 1)))


def nested(depth: int) -> Module:
    return one(CodeEntry.build((), [("block", None)] * depth + [("end",)] * depth))


def labels(count: int) -> Module:
    return one(CodeEntry.build((), [("block", None), ("i32.const", 0), ("br_table", (0,) * count), ("end",)]))


def code(size_bytes: int) -> Module:
    return one(CodeEntry(b"\0" + b"\x01" * (size_bytes - 2) + b"\x0b"))


def catches(count: int) -> Module:
    body = [("block", None), ("try_table", None, (("catch_all", None, 0),) * count), ("end",), ("end",)]
    return one(CodeEntry.build((), body), tags=(0,))


KINDS = {"invalid_wasm", "module_too_large", "module_memory_too_large", "unsupported_proposal", "compile_failed"}
RUNS, REFUSED = "runs", "refused"
CASES: list[tuple[str, Callable[[int], Module], int, str]] = [
    ("types", lambda n: one(types=(EXIT,) * (n - 1)), 20_000, RUNS),
    ("types", lambda n: one(types=(EXIT,) * (n - 1)), 100_001, "module_too_large"),
    ("params", lambda n: one(types=(FuncType(("i32",) * n),)), 1_000, RUNS),
    ("params", lambda n: one(types=(FuncType(("i32",) * n),)), 1_001, "module_too_large"),
    ("results", lambda n: one(types=(FuncType((), ("i32",) * n),)), 1_000, RUNS),
    ("results", lambda n: one(types=(FuncType((), ("i32",) * n),)), 1_001, "module_too_large"),
    ("imports", imports, 16_500, RUNS),
    ("imports", imports, 100_001, "module_too_large"),
    ("functions in a table", escaping, 1_000, RUNS),
    ("functions", functions, MAX_INSTANCE_BYTES // 32 + 1, "module_memory_too_large"),
    ("functions", functions, 1_000_001, "module_too_large"),
    ("globals", lambda n: one(globals=(MUTABLE,) * n), 65_600, RUNS),
    ("exports", exports, 20_000, RUNS),
    ("exports", exports, 100_001, "module_too_large"),
    ("tables", lambda n: one(tables=(TableType(1, None),) * n), MAX_TABLES, RUNS),
    ("tables", lambda n: one(tables=(TableType(1, None),) * n), MAX_TABLES + 1, "module_memory_too_large"),
    ("tables", lambda n: one(tables=(TableType(1, None),) * n), 101, "module_too_large"),
    ("elements", in_table, 32_800, RUNS),
    ("elements", in_table, MAX_TABLE_ELEMENTS, RUNS),
    ("elements", in_table, MAX_TABLE_ELEMENTS + 1, "module_memory_too_large"),
    ("element segments", lambda n: one(elements=(ElementSegment(PASSIVE, (0,)),) * n), 10_000, RUNS),
    ("element segments", lambda n: one(elements=(ElementSegment(PASSIVE, (0,)),) * n), 100_001, REFUSED),
    (
        "data segments",
        lambda n: one(memories=(MemoryType(1, 1),), data=(DataSegment(PASSIVE, b"x"),) * n),
        100_000,
        RUNS,
    ),
    (
        "data segments",
        lambda n: one(memories=(MemoryType(1, 1),), data=(DataSegment(PASSIVE, b"x"),) * n),
        100_001,
        REFUSED,
    ),
    (
        "data count",
        lambda n: one(memories=(MemoryType(1, 1),), data=(DataSegment(PASSIVE),) * n, data_count=n),
        9,
        RUNS,
    ),
    ("memory", lambda n: one(memories=(MemoryType(n, None),)), 4096, RUNS),
    ("memory", lambda n: one(memories=(MemoryType(n, None),)), 4097, "module_memory_too_large"),
    ("memory", lambda n: one(memories=(MemoryType(1, n),)), 1 << 16, RUNS),
    ("memory", lambda n: one(memories=(MemoryType(1, n),)), (1 << 16) + 1, REFUSED),
    ("memories", lambda n: one(memories=(MemoryType(1, 1),) * n), 2, "unsupported_proposal"),
    ("memories", lambda n: one(memories=(MemoryType(1, 1),) * n), 101, "module_too_large"),
    ("tags", lambda n: one(tags=(0,) * n), 65_600, RUNS),
    ("tags", lambda n: one(tags=(0,) * n), 1_000_001, "module_too_large"),
    ("catches", catches, 2_000, RUNS),
    ("catches", catches, 10_001, REFUSED),
    ("locals", lambda n: one(CodeEntry.build([(n, "i32")], ())), 50_000, RUNS),
    ("locals", lambda n: one(CodeEntry.build([(n, "i32")], ())), 50_001, REFUSED),
    ("locals", lambda n: one(CodeEntry.build([(1, "i32")] * n, ())), 50_001, REFUSED),
    ("nesting", nested, 10_000, RUNS),
    ("labels", labels, 65_000, RUNS),
    ("labels", labels, 65_522, REFUSED),
    ("code", code, 1_000_000, RUNS),
    ("code", code, 7_654_322, REFUSED),
    ("export name", lambda n: one(exports=(Export("x" * n, "func", 0),)), 100_000, RUNS),
    ("export name", lambda n: one(exports=(Export("x" * n, "func", 0),)), 100_001, REFUSED),
    ("import name", lambda n: one(imports=(Import("x" * n, "f", "func", 0),)), 100_000, "unknown_import"),
    ("custom section", lambda n: one(customs=(CustomSection("x", b"\0" * n),)), 8_000_000, RUNS),
]


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator", limits=Limits(memory_bytes=4096 << 16, table_elements=MAX_TABLE_ELEMENTS)) as made:
        yield made


def fate(runtime: Runtime, wasm: bytes) -> str:
    try:
        assert runtime.load(wasm).invoke("main").values == ()
    except TensorWasmError as error:
        return error.kind
    return RUNS


@pytest.mark.parametrize(
    ("make", "count", "expected"), [case[1:] for case in CASES], ids=[f"{case[0]}-{case[2]}" for case in CASES]
)
def test_a_module_at_a_limit_runs_or_is_refused_by_name(runtime, make, count, expected):
    wasm = encode(make(count))
    began_s = time.monotonic()
    found = fate(runtime, wasm)
    assert found in KINDS if expected == REFUSED else found == expected
    assert time.monotonic() - began_s < SOON_S


def test_the_size_of_a_module_is_a_limit_that_says_its_number():
    wasm = encode(one(customs=(CustomSection("x", b"\0" * 1000),)))
    with Runtime("emulator", limits=Limits(module_bytes=len(wasm))) as runtime:
        assert fate(runtime, wasm) == RUNS
        assert fate(runtime, wasm + b"\0\x02\x01x") == "module_too_large"


def test_the_counted_memory_of_a_module_is_what_the_engine_keeps(runtime):
    """Just below our own limit no module is too large for the pool, whatever it declares."""
    bodies, count = (EMPTY,) * 100, 100_000
    mixed = Module(
        types=(NOTHING, EXIT),
        imports=(Import(*PROC_EXIT, "func", 1),) * count,
        functions=(0,) * 100,
        bodies=bodies,
        globals=(MUTABLE,) * ((MAX_INSTANCE_BYTES - count * 64 - 100 * 32 - 9 * 16) // 16),
        tags=(0,) * 9,
        exports=(Export("main", "func", count),),
        elements=(ElementSegment("declarative", tuple(range(count + 100))),),
    )
    assert fate(runtime, encode(mixed)) == RUNS
