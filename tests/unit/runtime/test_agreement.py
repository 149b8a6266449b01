"""What a guest is answered does not depend on how it runs: blocking or as a fiber, in Python or compiled."""

from __future__ import annotations

import pytest
from wasmtime import wat2wasm

from tensorwasm import Runtime
from tensorwasm.errors import QuotaExceeded
from tensorwasm.values import Limits

SOON_S = 60.0
MODULE = "wasi:cuda/host@0.3.0"
WHILE_RECORDING = {
    "memcpy_h2d": ("i32 i32 i32 i32", "(i32.const 1) (i32.const 0) (i32.const -1) (i32.const 4)", -2),
    "memcpy_d2h": ("i32 i32 i32 i32", "(i32.const -1) (i32.const 1) (i32.const 0) (i32.const 4)", -2),
    "unload": ("i64", "(i64.const -1)", -3),
    "graph_destroy": ("i64", "(i64.const 7)", -9),
    "stream_destroy": ("i64", "(i64.const 0)", -9),
}
"""Functions that wait for all work first: parameters, arguments, and the answer while a stream records."""


@pytest.fixture(params=["off", "on"])
def runtime(request, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_NATIVE", request.param)
    with Runtime("emulator") as made:
        yield made


def guest(name):
    params, args, _ = WHILE_RECORDING[name]
    text = f"""(module
      (import "{MODULE}" "wasi_cuda_graph_begin" (func $begin (param i64) (result i32)))
      (import "{MODULE}" "wasi_cuda_{name}" (func $call (param {params}) (result i32)))
      (memory (export "memory") 1)
      (func (export "main") (result i32 i32) (call $begin (i64.const 0)) (call $call {args})))"""
    return bytes(wat2wasm(text))


@pytest.mark.parametrize("name", WHILE_RECORDING)
def test_a_stream_that_records_changes_no_order_of_checks(runtime, name):
    function = runtime.load(guest(name))
    expected = 0, WHILE_RECORDING[name][2]
    assert function.invoke(grants=["cuda"]).values == expected
    assert function.submit(grants=["cuda"]).result(SOON_S).values == expected


@pytest.mark.parametrize("memory", ["managed", "vmm"])
def test_memory_over_a_cap_is_the_same_refusal(runtime, memory):
    runtime.share().accounts.register("tiny", 1 << 16, 1 << 15)
    function = runtime.load(guest("unload"))
    asked = {"grants": ["cuda"], "tenant": "tiny", "memory_kind": memory}
    with pytest.raises(QuotaExceeded) as blocking:
        function.invoke(**asked)
    with pytest.raises(QuotaExceeded) as submitted:
        function.submit(**asked).result(SOON_S)
    assert submitted.value.message == blocking.value.message


def test_a_guest_may_have_thirty_years():
    with Runtime("emulator", limits=Limits(wall_s=1e9)) as runtime:
        function = runtime.load(guest("unload"))
        assert function.submit(grants=["cuda"]).result(SOON_S).values == (0, -3)
