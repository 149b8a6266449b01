"""The modules of the WebAssembly core test suite: the valid ones survive, the others give a module or our error."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from wasmtime import WasmtimeError

from oracles.guest import typed_error_of
from oracles.wasm import fault_of, module_texts, to_wasm, without_places
from tensorwasm.wasm.definitions import CodeEntry
from tensorwasm.wasm.module import decode, encode

SELECTION = sorted(Path(__file__).parents[2].glob("golden/wasm/spec/*.wast"))
WHOLE = os.environ.get("TENSOR_WASM_SPEC_SUITE")


def survives(wasm: bytes) -> None:
    module = decode(wasm)
    assert encode(module) == wasm
    bodies = tuple(CodeEntry.build(body.local_runs(), body.instructions()) for body in module.bodies)
    shortest = replace(module, bodies=bodies, kept=())
    assert fault_of(encode(shortest)) is None
    assert without_places(decode(encode(shortest))) == without_places(shortest)
    assert len(encode(shortest)) <= len(wasm)


def run(script: str) -> int:
    """Run a script's modules; return how many were valid."""
    valid = 0
    for text in module_texts(script):
        try:
            wasm = to_wasm(text)
        except WasmtimeError:
            continue  # meant to be malformed text, or of a proposal that wasmtime has dropped
        if fault_of(wasm) is None:
            survives(wasm)
            valid += 1
        else:
            typed_error_of(decode, wasm)
    return valid


def test_the_selection_is_there():
    assert len(SELECTION) > 30


@pytest.mark.parametrize("path", SELECTION, ids=lambda path: path.stem)
def test_every_valid_module_round_trips(path):
    assert run(path.read_text(encoding="utf-8")) > 0


@pytest.mark.skipif(not WHOLE, reason="TENSOR_WASM_SPEC_SUITE names no checkout of the WebAssembly test suite")
def test_every_valid_module_of_the_whole_suite_round_trips():
    scripts = sorted(Path(WHOLE).glob("**/*.wast"))
    valid = sum(run(path.read_text(encoding="utf-8", errors="replace")) for path in scripts)
    assert valid > 0
