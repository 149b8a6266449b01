from __future__ import annotations

import pytest
from wasmtime import wat2wasm

from tensorwasm.errors import NotCapturable
from tensorwasm.guest.saved import instrumented
from tensorwasm.guest.saved.instrumented import instrument


def drops(mode: str) -> bytes:
    """A module with a function of some length that drops its one segment."""
    return bytes(wat2wasm(f'(module (memory 1) (data {mode} "x") (func (export "drop") {"nop " * 100} (data.drop 0)))'))


def test_no_more_code_is_looked_through_for_drops_than_takes_a_moment(monkeypatch):
    assert [drop.segment for drop in instrument(drops("")).data] == [0]
    monkeypatch.setattr(instrumented, "MAX_SUSPECT_BYTES", 100)
    with pytest.raises(NotCapturable, match="more than 100 bytes"):
        instrument(drops(""))
    assert instrument(drops("(i32.const 0)")).data == ()  # dropped before any code runs: nothing to look for
