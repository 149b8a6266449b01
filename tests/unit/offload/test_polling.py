"""Code that polls does the same, and no guest can go on for long without a poll."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oracles.wasm import Running, fault_of, to_wasm
from strategies.wasm import modules
from tensorwasm.offload import polling
from tensorwasm.offload.module import cut_module
from tensorwasm.offload.polling import add_polls, has_long_indices
from tensorwasm.wasm.definitions import CodeEntry
from tensorwasm.wasm.module import Module, decode, encode
from tensorwasm.wasm.types import FuncType

from .test_cut import statements, whole

STOPPED = "TrapCode.UNREACHABLE"
ENDLESS = {
    "an empty loop": '(func (export "f") loop br 0 end)',
    "a loop that carries a number": """(func (export "f") (local f64)
        loop (local.set 0 (f64.add (local.get 0) (f64.const 1)))
        (br_if 0 (f64.ne (local.get 0) (f64.const -1))) end)""",
    "a table of branches": '(func (export "f") loop (br_table 0 0 (i32.const 5)) end)',
    "a loop with a result": '(func (export "f") (drop (loop (result i32) br 0)))',
    "a loop around one that never runs": """(func (export "f") (local i32) loop
        block (br_if 0 (i32.eqz (local.get 0))) loop (br_if 0 (local.get 0)) end end br 0 end)""",
    "a short loop that is left and begun again": """(func (export "f") (local i32) loop
        (local.set 0 (i32.const 2))
        loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))) end br 0 end)""",
    "a loop that is left for one outside": '(func (export "f") loop loop br 1 end end)',
    "a loop that calls": '(func $g) (func (export "f") loop call $g br 0 end)',
    "a loop around a loop that calls": '(func $g) (func (export "f") loop loop call $g end br 0 end)',
    "a loop in a function that a loop calls": """(func $g (local i32) loop
        (br_if 0 (i32.lt_u (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 3))) end)
        (func (export "f") loop call $g br 0 end)""",
    "a loop that returns": '(func $g loop return end) (func (export "f") loop call $g br 0 end)',
    "a tail call": '(func $f (export "f") return_call $f)',
    "tail calls by a table": """(type $t (func)) (table 1 1 funcref) (elem (i32.const 0) $f)
        (func $f (export "f") (return_call_indirect (type $t) (i32.const 0)))""",
    "calls that double": " ".join(
        ["(func $c0)", *(f"(func $c{n} call $c{n - 1} call $c{n - 1})" for n in range(1, 60))]
    )
    + '(func (export "f") call $c59)',
    "a loop of fills": """(memory 16) (func (export "f") loop
        (memory.fill (i32.const 0) (i32.const 0) (i32.const 0x100000)) br 0 end)""",
    "a loop of thrown exceptions": """(tag $e) (func (export "f") loop
        block (try_table (catch $e 0) throw $e) end br 0 end)""",
    "a loop of exceptions that a called loop throws": """(tag $e)
        (func $g (local i32) loop (br_if 0 (i32.lt_u
            (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 9))) end throw $e)
        (func (export "f") loop block (try_table (catch $e 0) call $g) end br 0 end)""",
}


def with_poll(module: Module, code: list[tuple]) -> Module:
    """Return a module that polls, with code in place of the import."""
    edited = add_polls(module, "host")
    (kind,) = (item.type for item in edited.imports if item.module == "host")
    imports = tuple(item for item in edited.imports if item.module != "host")
    return replace(
        edited,
        imports=imports,
        functions=(kind, *edited.functions),
        bodies=(CodeEntry.build([], code), *edited.bodies),
    )


@settings(max_examples=200)
@given(statements(), st.sampled_from((-5, 1, 7, 40, 1 << 22)))
def test_code_that_polls_does_the_same(code, budget):
    module = whole(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polling, "FIRST_BUDGET", budget)
        edited = encode(with_poll(module, [("i32.const", budget)]))
    assert fault_of(edited) is None
    for args in ((1, 2, 1.5, -2.5), (-7, 1 << 40, float("nan"), -0.0), (6, 0, 0.0, float("inf"))):
        before, after = Running(encode(module)), Running(edited)
        assert after.call("f", *args) == before.call("f", *args)
        assert after.memory() == before.memory()


@settings(max_examples=100)
@given(modules())
def test_a_module_that_polls_is_valid(module):
    module = decode(encode(module))
    assume(not has_long_indices(module))
    assert fault_of(encode(add_polls(module, "host"))) is None


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_guest_polls(text):
    module = decode(to_wasm(f"(module {text})"))
    running = Running(encode(with_poll(module, [("unreachable",)])))
    assert running.call("f") == STOPPED


def test_a_small_function_without_loops_and_calls_stays():
    module = decode(to_wasm('(module (func (export "f") (result i32) (i32.const 7)))'))
    assert add_polls(module, "host").bodies == module.bodies
    assert add_polls(module, "host").types[-1] == FuncType((), ("i32",))


EXIT_WITH_A_VALUE = """(memory (export "memory") 1) (func (export "f") (param i32 i32) (result i32)
    (block (result i32) (loop
        (drop (br_if 1 (i32.const 7) (i32.eq (i32.load (local.get 0)) (i32.const 3))))
        (local.set 0 (i32.add (local.get 0) (i32.const 4)))
        (br_if 0 (i32.ne (local.get 0) (local.get 1)))) (i32.const 9)))"""
RETURN_BY_BRANCH = EXIT_WITH_A_VALUE.replace("(block (result i32) (loop", "(loop").replace(
    "(i32.const 9)))", "(i32.const 9))"
)
EXIT_TO_A_LOOP = """(type $t (func (param i32) (result i32))) (func (export "f") (param i32) (result i32)
    (local i32) (i32.const 5)
    (loop (type $t) (local.set 1)
        (loop (drop (br_if 1 (local.get 1) (i32.eqz (local.get 0))))
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
        (local.get 1)))"""


@pytest.mark.parametrize(
    "text", [EXIT_WITH_A_VALUE, RETURN_BY_BRANCH, EXIT_TO_A_LOOP], ids=["block", "function", "loop"]
)
def test_a_counting_loop_that_is_left_with_a_value(text):
    assert fault_of(encode(add_polls(decode(to_wasm(f"(module {text})")), "host"))) is None


def test_what_is_made_of_many_loops_and_locals_is_bounded():
    loop = "(loop (br_if 0 (i32.ne (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 9))))"
    wasm = to_wasm(f'(module (func (export "f") (local {"i32 i64 " * 2000}) {loop * 60}))')
    assert len(encode(add_polls(decode(wasm), "host"))) < 30_000


def test_a_loop_that_counts_for_more_than_a_number_holds():
    grows = "(drop (memory.grow (i32.const 0)))" * 33_000
    wasm = to_wasm(f'(module (memory 1) (func (export "f") (local i32) (loop {grows} (br_if 0 (local.get 0)))))')
    assert fault_of(encode(add_polls(decode(wasm), "host"))) is None


def test_loops_that_are_nested_too_deep_are_not_cut():
    wasm = to_wasm(f'(module (memory (export "memory") 1) (func (export "f") {"loop " * 900} {"end " * 900}))')
    assert cut_module(wasm).wasm == b""
