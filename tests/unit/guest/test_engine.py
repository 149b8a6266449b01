from __future__ import annotations

import re
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wasmtime import _bindings

from oracles.guest import typed_error_of
from tensorwasm.errors import (
    CapacityExhausted,
    InvalidWasm,
    ModuleMemoryTooLarge,
    ModuleTooLarge,
    UnsupportedProposal,
)
from tensorwasm.guest.engine import engine as engines
from tensorwasm.guest.engine.engine import GPU_RESIDENT_BYTES, PROPOSALS, Engine, EngineConfig
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.runtime.deploy.deployer import Deployer
from tensorwasm.settings import current
from tensorwasm.values import MIB, WASM_PAGE_BYTES, Limits
from tensorwasm.wasm.sections import HEADER

BUSY = """(module (memory (export "memory") 1 4) (table 2 funcref) (global (mut i32) (i32.const 1))
  (func $f (export "f") (param i32 f64) (result i64) (i64.const 7))
  (elem (i32.const 0) $f) (data (i32.const 8) "abc"))"""


def test_equal_configurations_share_an_engine(engine):
    assert Engine.shared(EngineConfig(slots=64)) is engine
    assert Engine.shared(EngineConfig(slots=8)) is not engine


def test_the_number_of_engines_is_bounded(monkeypatch):
    monkeypatch.setattr(Engine, "_shared", dict.fromkeys(range(engines.MAX_ENGINES)))
    with pytest.raises(CapacityExhausted, match="32 engines"):
        Engine.shared(EngineConfig(slots=5))


@pytest.mark.parametrize("stack_bytes", [0, 1, (16 << 10) - 1, 1 << 40])
def test_an_impossible_stack_is_refused(stack_bytes):
    with pytest.raises(CapacityExhausted, match="Wasm stack"):
        Engine(EngineConfig(slots=1, stack_bytes=stack_bytes))


@pytest.mark.parametrize(
    "wasm", [b"", b"\0", b"not wasm at all", b"\x7fELF" + bytes(100), HEADER[:-1], HEADER + b"\x0b"]
)
def test_bytes_that_are_not_wasm_are_refused(engine, wasm):
    with pytest.raises(InvalidWasm):
        compile_module(engine, wasm)


def test_every_cut_is_refused_or_valid(engine, wat):
    whole = wat(BUSY)
    for length in range(len(whole)):
        error = typed_error_of(compile_module, engine, whole[:length])
        assert error is None or isinstance(error, InvalidWasm)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_damaged_module_compiles_or_is_refused(engine, wat, position, value):
    damaged = bytearray(wat(BUSY))
    damaged[position % len(damaged)] = value
    error = typed_error_of(compile_module, engine, bytes(damaged))
    assert error is None or isinstance(error, (InvalidWasm, ModuleMemoryTooLarge))


def test_a_module_of_65_mib_is_refused_before_it_is_read(engine):
    with pytest.raises(ModuleTooLarge, match="68157440 bytes; the limit is 67108864"):
        compile_module(engine, bytes(65 * MIB))


def test_memory_over_the_limit_is_refused_before_compiling(engine, wat):
    for text in ("(module (memory 4097))", '(module (import "e" "m" (memory 4097)))'):
        with pytest.raises(ModuleMemoryTooLarge, match="268500992 bytes of memory; the limit is 268435456"):
            compile_module(engine, wat(text))
    assert compile_module(engine, wat("(module (memory 4096 65536))")).preamble.memory_bytes == 256 * MIB


def test_64_bit_memory_sizes_do_not_overflow(engine, wat):
    with pytest.raises(UnsupportedProposal):
        compile_module(engine, wat("(module (memory i64 0xffffffffffff))"))


def test_huge_and_many_tables_are_refused(engine, wat):
    with pytest.raises(ModuleMemoryTooLarge, match="a table of 4294967295 elements"):
        compile_module(engine, wat("(module (table 0xffffffff funcref))"))
    with pytest.raises(ModuleMemoryTooLarge, match="5 tables"):
        compile_module(engine, wat("(module" + "(table 1 funcref)" * 5 + ")"))
    with pytest.raises(ModuleMemoryTooLarge, match="the limit is 10"):
        compile_module(engine, wat("(module (table 11 funcref))"), Limits(table_elements=10))


@pytest.mark.parametrize(
    "text",
    [
        "(module (func (result f32) (f32.const 0.5)))",
        '(module (func (result i32 i64) (i32.const 1) (i64.const 2)) (func (export "f") (return_call 2)) (func))',
        "(module (memory 1) (func (memory.fill (i32.const 0) (i32.const 0) (i32.const 1))))",
        "(module (func (param v128) (result v128) (f32x4.relaxed_min (local.get 0) (local.get 0))))",
        "(module (func (param f32) (result i32) (i32.trunc_sat_f32_s (local.get 0))))",
        "(module (func (param i32) (result i32) (i32.extend8_s (local.get 0))))",
        '(module (global (export "g") (mut i32) (i32.const 1)))',
        "(module (global i32 (i32.add (i32.const 1) (i32.const 2))))",
        "(module (tag $e (param i32)) (func (block (result i32) (try_table (catch $e 0)) (i32.const 1)) drop))",
        "(module (table 1 exnref) (global exnref (ref.null exn)) (func (param exnref) (throw_ref (local.get 0))))",
        "(module (table 1 funcref) (func (drop (table.grow 0 (ref.null func) (i32.const 1)))))",
    ],
)
def test_proposals_that_are_on(engine, wat, text):
    assert compile_module(engine, wat(text)).address


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("(module (memory i64 1))", "the memory64 proposal"),
        ("(module (table i64 1 funcref))", "the memory64 proposal"),
        ("(module (memory 1) (memory 1))", "the multi-memory proposal"),
        ("(module (memory 1 1 shared))", "the threads proposal"),
        ("(module (memory 1) (func (drop (i32.atomic.load (i32.const 0)))))", "the threads proposal"),
        ("(module (memory 1 (pagesize 1)))", "the custom-page-sizes proposal"),
        ("(module (type (struct)))", "the gc proposal"),
        ("(module (rec (type (func))))", "the gc proposal"),
        ("(module (func (local anyref)))", "the gc proposal"),
        ("(module (func (drop (ref.i31 (i32.const 1)))))", "the gc proposal"),
        ("(module (table 1 externref))", "externref"),
        ("(module (func (param externref)))", "externref"),
        ("(module (global externref (ref.null extern)))", "externref"),
        ('(module (import "a" "b" (global externref)))', "externref"),
        ("(module (type $f (func)) (func (param (ref null $f))))", "the function-references proposal"),
        ("(module (type $f (func)) (func $g) (elem declare func $g) (func (call_ref $f (ref.func $g))))", "the func"),
        ("(module (func $f) (table 1 funcref (ref.func $f)))", "the function-references proposal"),
        ("(module (type $f (func)) (type (cont $f)))", "the stack-switching proposal"),
        (
            "(module (func (param i64 i64) (drop (drop (i64.mul_wide_s (local.get 0) (local.get 1))))))",
            "the wide-arithmetic proposal",
        ),
        ("(module (tag) (func try catch 0 end))", "the legacy form of the exception-handling proposal"),
        ("(module (tag) (func try delegate 0))", "-mllvm -wasm-use-legacy-eh=false"),
    ],
)
def test_proposals_that_are_off_are_refused_by_name(engine, wat, text, name):
    with pytest.raises(UnsupportedProposal, match=name):
        compile_module(engine, wat(text))
    with pytest.raises(UnsupportedProposal, match=name):
        Deployer(current()).deploy(engine, wat(text), Limits(), "default")


def test_every_proposal_that_the_engine_knows_is_set():
    known = {name for name in vars(_bindings) if name.startswith("wasmtime_config_wasm_") and name.endswith("_set")}
    assert known == {f"wasmtime_config_{name}_set" for name in PROPOSALS if name.startswith("wasm_")}


def test_messages_show_nothing_of_this_machine(engine, wat, monkeypatch):
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    body = bytearray(wat('(module (func (export "f") (result i32) (i32.const 1)))'))
    body[body.rindex(b"\x41")] = 0x16
    with pytest.raises(InvalidWasm) as caught:
        compile_module(engine, bytes(body))
    message = caught.value.message
    assert re.search(r"translation error: Invalid input WebAssembly code at offset \d+: \w+", message)
    assert not any(leak in message for leak in ("/root", "/home", ".rs", "0x7f", "\n", "tensorwasm"))


def test_a_full_pool_is_refused_until_a_sandbox_is_closed(wat):
    small = Engine(EngineConfig(slots=2))
    prepared = Linker(small).prepare(compile_module(small, wat(BUSY)))
    first, second = Instance(prepared), Instance(prepared)
    with pytest.raises(CapacityExhausted, match="all 2 sandboxes"):
        Instance(prepared)
    first.close()
    third = Instance(prepared)
    assert third.call("f", [1, 2.0]) == [7]
    second.close()
    third.close()
    assert small.free_slots == 2


def test_threads_share_an_engine(engine, wat):
    wasm = wat(BUSY)
    results: list[object] = []

    def work() -> None:
        with Instance(Linker(engine).prepare(compile_module(engine, wasm))) as instance:
            results.extend(instance.call("f", [1, 2.5]) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[7]] * 400


SOILED = """(module (memory (export "memory") 2)
  (func (export "soil") (param $pages i32)
    (drop (memory.grow (i32.sub (local.get $pages) (memory.size))))
    (memory.fill (i32.const 0) (i32.const 255) (i32.shl (local.get $pages) (i32.const 16)))))"""
OTHER = """(module (memory (export "memory") 2) (data (i32.const 70000) "abc")
  (func (export "grow") (param $pages i32) (drop (memory.grow (i32.sub (local.get $pages) (memory.size))))))"""
PAGES = 3 * GPU_RESIDENT_BYTES // 2 // WASM_PAGE_BYTES


def test_what_a_guest_left_in_memory_that_stays_mapped_is_cleared(wat):
    engine = Engine(EngineConfig(slots=1, resident_bytes=GPU_RESIDENT_BYTES))
    soiled, other = (Linker(engine, ()).prepare(compile_module(engine, wat(text))) for text in (SOILED, OTHER))
    for pages in (PAGES, 2, PAGES, 20):
        for linked, export in ((soiled, "soil"), (other, "grow"), (soiled, "soil")):
            with Instance(linked) as guest:
                assert not bytes(guest.memory.read(0, guest.memory.size_bytes)).replace(b"abc", bytes(3)).strip(b"\0")
                if export == "grow":
                    guest.call("grow", (PAGES,))
                    left = bytes(guest.memory.read(0, guest.memory.size_bytes))
                    assert len(left) == PAGES * WASM_PAGE_BYTES
                    assert not left.replace(b"abc", bytes(3)).strip(b"\0")
                else:
                    guest.call("soil", (pages,))


@pytest.mark.parametrize(("resident_bytes", "faults"), [(64 << 10, range(150, 500)), (GPU_RESIDENT_BYTES, range(20))])
def test_a_guest_touches_few_pages_anew_where_memory_stays_mapped(wat, resident_bytes, faults):
    resource = pytest.importorskip("resource", reason="NO COUNT OF PAGE FAULTS on this system")
    engine = Engine(EngineConfig(slots=1, resident_bytes=resident_bytes))
    linked, seen = Linker(engine, ()).prepare(compile_module(engine, wat(SOILED))), 0
    for _ in range(3):
        with Instance(linked) as guest:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            guest.call("soil", (13,))
            seen = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert seen in faults
