"""The numbers and the interpreter of Wasm that judge the offload of loops give what wasmtime gives."""

from __future__ import annotations

import re
from itertools import product

import pytest
from wasmtime import Instance, Module, Store, Trap, wat2wasm

from loops import CORPUS, ENGINE, LEVELS, as_bits, compile_c, corpus, memory_after_init, run_in_wasmtime
from oracles.wasm_interpreter import Interpreter
from oracles.wasm_numeric import ARITY, NUMERIC, Trapped

_EDGES = {
    "i32": "0 1 2 3 7 1f 20 21 7f 80 7fff 8000 7fffffff 80000000 80000001 ffffffff",
    "i64": "0 1 3 3f 40 41 80 7fffffff 80000000 ffffffff 4000004000000000 1000001 20000000000001 1000001000000001"
    " 7fffffffffffffff 8000000000000000 8000000000000001 ffffffffffffffff",
    "f32": "0 1 00800000 3f000000 3f800000 3fc00000 40200000 4b000001 4effffff 4f000000 4f7fffff 4f800000 5f000000"
    " 5f800000 7f7fffff 7f800000 7fc00000 7fa00001 3eaaaaab",
    "f64": "0 1 0010000000000000 3fe0000000000000 3ff0000000000000 3ff8000000000000 4004000000000000 36a0000000000001"
    " 3810000000000000 47efffffe0000000 47effffff0000000 41dfffffffc00000 41e0000000000000 41efffffffe00000"
    " 41f0000000000000 43e0000000000000 43f0000000000000 4330000000000001 3fd5555555555555 7fefffffffffffff"
    " 7ff0000000000000 7ff8000000000000 7ff4000000000001",
}
_SIGN = {"f32": 1 << 31, "f64": 1 << 63}
_BITS = {"i32": "i32", "i64": "i64", "f32": "i32", "f64": "i64"}


def _types(opcode: str) -> tuple[str, str]:
    """Return the type of an instruction's operands and of its result."""
    source = re.search(r"_([if](?:32|64))(?:_[su])?$", opcode)
    compared = re.search(r"\.(eqz|eq|ne|[lg][te](_[su])?)$", opcode)
    return source.group(1) if source else opcode[:3], "i32" if compared else opcode[:3]


def _function(opcode: str) -> str:
    operand, result = _types(opcode)
    given = [f"(local.get {at})" for at in range(ARITY[opcode])]
    if operand[0] == "f":
        given = [f"({operand}.reinterpret_{_BITS[operand]} {each})" for each in given]
    body = f"({opcode} {' '.join(given)})"
    if result[0] == "f":
        body = f"({_BITS[result]}.reinterpret_{result} {body})"
    parameters = " ".join([_BITS[operand]] * ARITY[opcode])
    return f'(func (export "{opcode}") (param {parameters}) (result {_BITS[result]}) {body})'


@pytest.fixture(scope="module")
def exports():
    store = Store(ENGINE)
    module = Module(ENGINE, wat2wasm(f"(module {' '.join(map(_function, NUMERIC))})"))
    return store, Instance(store, module, []).exports(store)


@pytest.mark.parametrize("opcode", NUMERIC)
def test_an_instruction_gives_the_bits_that_wasmtime_gives(exports, opcode):
    store, functions = exports
    operand, result = _types(opcode)
    values = [int(edge, 16) for edge in _EDGES[operand].split()]
    if operand in _SIGN:
        values = values + [value | _SIGN[operand] for value in values]
    for operands in product(values, repeat=ARITY[opcode]):
        try:
            found = functions[opcode](store, *operands) % (1 << int(result[1:]))
        except Trap:
            found = None
        try:
            expected = NUMERIC[opcode](*operands)
        except Trapped:
            expected = None
        assert found == expected, [f"{value:#x}" for value in operands]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("run", corpus(), ids=str)
def test_the_interpreter_leaves_the_memory_that_wasmtime_leaves(run, level):
    wasm = compile_c(run.source, level)
    expected, memory = run_in_wasmtime(wasm, run.name, *run.arguments)
    interpreter = Interpreter(wasm)
    interpreter.memory[:] = memory_after_init(wasm)
    parameters, results = interpreter.signature(run.name)
    try:
        found = interpreter.call_export(run.name, *as_bits(parameters, run.arguments))
    except Trapped:
        assert expected == "trap"
    else:
        assert found == ([] if expected is None else as_bits(results, (expected,)))
    assert interpreter.memory == memory


def test_the_interpreter_initialises_as_wasmtime_does():
    wasm = compile_c((CORPUS / "numbers.c").read_text(), "-O2")
    interpreter = Interpreter(wasm)
    interpreter.call_export("init")
    assert interpreter.memory == memory_after_init(wasm)
