"""What wasmtime says is passed on without what is nobody's business: addresses, backtraces, paths of this machine."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.guest.engine import capi, traps

TRACE = b"\n\nStack backtrace:\n   0: wasmtime::x\n             at /root/.cargo/registry/src/wasmtime/src/x.rs:10:5\n"
FRAMES = b"error while executing at wasm backtrace:\n    0:   0x2a - <unknown>!f\n    1:   0x40 - m!g"
_new = capi.bind("wasmtime_error_new")


@pytest.mark.rule("16-messages")
@pytest.mark.parametrize(
    ("said", "passed_on"),
    [
        (b"it failed" + TRACE, "it failed"),
        (b"it failed\n\nCaused by:\n    0: at 0x7f5512345678\n    1: there\n" + TRACE, "it failed: at ?: there"),
        (FRAMES + b"\n\nCaused by:\n    access at 0xdeadbeef", "access at ?"),
        (b"offset 0x2a", "offset 0x2a"),
        (b"\x1b[31mred\x07", "[31mred"),
    ],
)
def test_addresses_and_paths_are_left_out(said, passed_on):
    assert traps.explain(_new(said)) == passed_on


@given(st.text(max_size=600) | st.builds("{}{:#x}{}".format, st.text(), st.integers(1 << 32, 1 << 64), st.text()))
def test_a_text_becomes_one_line_of_some_length_without_addresses(text):
    line = traps.clean(text)
    assert line.isprintable()
    assert len(line) <= 400
    assert not re.search(r"0x[0-9a-f]{8}", line)
