"""Decoding of large modules in a process of its own: `tensorwasm.runtime.deploy.module_reader`."""

import io
import os
import sys
import threading
from concurrent.futures import CancelledError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wasmtime import wat2wasm

from tensorwasm import Runtime
from tensorwasm.errors import (
    CapacityExhausted,
    CompileFailed,
    CompileMemory,
    CompileTimeout,
    InvalidWasm,
    ModuleTooLarge,
    NotCapturable,
    UnsupportedProposal,
)
from tensorwasm.guest.engine import child_process
from tensorwasm.guest.engine.compile_capacity import ALONE
from tensorwasm.guest.engine.compiler import CompileLimits, Compiler
from tensorwasm.guest.saved.instrumented import instrument
from tensorwasm.runtime.deploy import module_reader, pieces, reader_process
from tensorwasm.runtime.deploy.deployer import StopHook
from tensorwasm.runtime.deploy.module_reader import ModuleReader
from tensorwasm.runtime.deploy.pieces import PieceReader
from tensorwasm.values import MIB
from tensorwasm.wasm import preamble
from tensorwasm.wasm.binary import name, sized, unsigned, vector
from tensorwasm.wasm.sections import HEADER, MAX_CUSTOMS, read_sections

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no limits on a process")

TYPES = b"\x01\x04\x01\x60\x00\x00"
WASM = bytes(
    wat2wasm(
        """(module (import "wasi:cuda/host" "f" (func)) (table 3 funcref) (elem (i32.const 0) 1 1)
        (memory (export "memory") 1) (global $g (mut i32) (i32.const 7)) (data (i32.const 8) "text")
        (func (export "main") (result i32) (global.get $g)))"""
    )
)


@pytest.fixture
def reader(monkeypatch):
    """A reader that does everything in a process, however short."""
    monkeypatch.setattr(module_reader, "HERE_BYTES", -1)
    return ModuleReader(Compiler(CompileLimits()))


def section(number, body):
    return bytes([number]) + sized(body)


def globals_of(count, expression=b"\x41\x00\x41\x00\x6a\x0b"):
    """Return a module that takes long to read: each first value is computed."""
    return HEADER + section(6, unsigned(count) + (b"\x7f\x01" + expression) * count)


def test_what_is_read_elsewhere_is_what_is_read_here(reader):
    assert reader.scan(WASM, ALONE) == preamble.scan(WASM)
    assert reader.instrument(WASM, ALONE) == instrument(WASM)
    assert reader.explain(WASM, ALONE) is None


def test_a_long_module_is_read_whole(reader):
    exports = vector([name(f"f{index}") + b"\x00\x00" for index in range(3000)])
    module = HEADER + TYPES + section(3, b"\x01\x00") + section(7, exports) + section(10, b"\x01\x02\x00\x0b")
    module += section(0, b"\x01n" + os.urandom(MIB))
    assert reader.scan(module, ALONE) == preamble.scan(module)
    assert reader.instrument(module, ALONE) == instrument(module)


@pytest.mark.parametrize(
    ("reading", "wasm", "error"),
    [
        ("scan", b"no module", InvalidWasm),
        ("scan", HEADER + section(1, b"\x05\x60"), InvalidWasm),
        ("scan", HEADER + section(6, unsigned(2_000_000) + bytes(2_000_000)), ModuleTooLarge),
        ("scan", HEADER + section(2, b"\x01" + name("a") + name("b") + b"\x09"), InvalidWasm),
        ("instrument", bytes(wat2wasm('(module (import "env" "m" (memory 1)))')), NotCapturable),
    ],
    ids=["magic", "cut", "large", "kind", "import"],
)
def test_errors_are_those_of_reading_here(reader, reading, wasm, error):
    with pytest.raises(error) as there:
        getattr(reader, reading)(wasm, ALONE)
    with pytest.raises(error) as here:
        {"scan": preamble.scan, "instrument": instrument}[reading](wasm)
    assert type(there.value) is type(here.value)
    assert there.value.message == here.value.message


def test_the_proposal_for_which_a_module_was_refused_is_named(reader):
    atomic = HEADER + TYPES + section(3, b"\x01\x00") + section(10, b"\x01\x05\x00\xfe\x03\x00\x0b")
    found = reader.explain(atomic, ALONE)
    assert isinstance(found, UnsupportedProposal)
    assert "threads" in found.message


def test_only_what_takes_long_is_read_elsewhere(monkeypatch):
    reader, asked = ModuleReader(Compiler(CompileLimits())), []
    monkeypatch.setattr(reader, "_ask", lambda reading, *_: asked.append(reading))
    code = section(0, b"\x01n" + bytes(4 * MIB))
    reader.scan(WASM + code, ALONE)
    reader.scan(globals_of(1000), ALONE)
    assert asked == []
    reader.scan(globals_of(100_000), ALONE)
    reader.instrument(WASM + code, ALONE)
    assert asked == ["scan", "instrument"]


def test_a_module_that_takes_too_long_is_refused(reader, monkeypatch):
    monkeypatch.setattr(module_reader, "SECONDS", 0.05)
    with pytest.raises(CompileTimeout, match=r"more than 0\.05 s"):
        reader.scan(globals_of(900_000), ALONE)


def test_a_module_that_takes_too_much_memory_is_refused(reader, monkeypatch):
    monkeypatch.setattr(module_reader, "MEMORY_BYTES", 100 * MIB)
    types = HEADER + section(1, unsigned(99_000) + (b"\x60\x7d" + b"\x7f" * 125 + b"\x00") * 99_000)
    with pytest.raises(CompileMemory, match="100 MiB"):
        reader.scan(types, ALONE)


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("os.kill(os.getpid(), 9)", CapacityExhausted),
        ("os.kill(os.getpid(), 11)", CompileFailed),
        ("os._exit(0)", CompileFailed),
        ("os.write(1, b'?')", CompileFailed),
    ],
)
def test_a_process_that_fails_is_a_typed_error(reader, monkeypatch, tmp_path, program, error):
    path = tmp_path / "program.py"
    path.write_text(f"import os\n{program}")
    monkeypatch.setattr(reader_process, "__file__", str(path))
    with pytest.raises(error):
        reader.scan(WASM, ALONE)


def test_reading_that_nobody_waits_for_is_ended(reader, monkeypatch):
    work, seen, real = StopHook(), [], child_process._converse

    def converse(child, *rest):
        seen.append(child)
        threading.Timer(0.0, work.stop).start()
        real(child, *rest)

    monkeypatch.setattr(child_process, "_converse", converse)
    with pytest.raises(CancelledError):
        reader.scan(globals_of(900_000), ALONE, work)
    assert seen[0].returncode == -9
    assert reader._compiler.capacity.gate.statistics().waiting == 0


def test_a_module_of_custom_sections_alone_is_refused():
    most = HEADER + b"\x00\x01\x00" * MAX_CUSTOMS
    assert len(list(read_sections(most))) == MAX_CUSTOMS
    with pytest.raises(ModuleTooLarge, match="custom sections"):
        preamble.scan(most + b"\x00\x01\x00")


VALUES = st.recursive(
    st.none() | st.integers() | st.text() | st.binary(max_size=2000),
    lambda inner: st.lists(inner, max_size=9) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=9),
    max_leaves=20,
)


@settings(deadline=None)
@given(VALUES, st.integers(1, 5), st.integers(1, 50))
def test_values_in_pieces_come_back_whole_and_cut_ones_do_not(value, items, size_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "MOST_ITEMS", items)
        patch.setattr(pieces, "MOST_BYTES", size_bytes)
        sink = io.BytesIO()
        pieces.write(value, sink)
        assert PieceReader(memoryview(sink.getvalue())).read() == value
        with pytest.raises(EOFError):
            PieceReader(memoryview(sink.getvalue())[:-1]).read()


def test_a_module_that_is_being_instrumented_does_not_delay_another(monkeypatch):
    """A case of 2026-11-28: `functools.cached_property` has one lock for all instances."""
    with Runtime("emulator", slots=8) as runtime:
        module = bytes(wat2wasm('(module (memory 1) (func (export "main")))'))
        slow, quick = (runtime.load(module + section(0, b"\x01n" + bytes([number]))) for number in range(2))
        begun, go, real = threading.Event(), threading.Event(), runtime.deployer.instrument

        def instrument_slowly(wasm, tenant):
            if wasm.endswith(b"\x00"):
                begun.set()
                assert go.wait(60)
            return real(wasm, tenant)

        monkeypatch.setattr(runtime.deployer, "instrument", instrument_slowly)
        thread = threading.Thread(target=lambda: slow.instrumented)
        thread.start()
        assert begun.wait(60)
        assert quick.instrumented.memory is not None
        go.set()
        thread.join()
        assert slow.instrumented is slow.instrumented
