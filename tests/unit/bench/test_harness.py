from hypothesis import given
from hypothesis import strategies as st
from wasmtime import Engine, Module

from tensorwasm.bench.harness import FUNCTION_BYTES, make_module


@given(seed=st.integers(0, 1000), functions=st.integers(1, 300))
def test_modules_of_every_size_are_valid_and_reproducible(seed, functions):
    wasm = make_module(functions * FUNCTION_BYTES, seed)
    Module.validate(Engine(), wasm)
    assert wasm == make_module(functions * FUNCTION_BYTES, seed)


def test_the_size_of_a_module_is_about_the_requested_size():
    assert 0.9e6 < len(make_module(1_000_000)) < 1.1e6
