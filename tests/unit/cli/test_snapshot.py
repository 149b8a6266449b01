"""`tensor-wasm snapshot` over files."""

import json
import re

import pytest
from typer.testing import CliRunner
from wasmtime import wat2wasm

from strategies.live import GUEST
from tensorwasm import settings
from tensorwasm.cli.app import app
from tensorwasm.cli.local.snapshot import parse_call
from tensorwasm.errors import InvalidArgs, NotCapturable, TensorWasmError, WrongParent


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TENSOR_WASM_DEVICE", "emulator")
    settings.current.cache_clear()
    (tmp_path / "guest.wasm").write_bytes(bytes(wat2wasm(GUEST)))
    yield tmp_path
    settings.current.cache_clear()


@pytest.fixture
def snapshot(folder):
    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
        words = [str(folder / word) if re.search(r"\.(wasm|tws|txt)$", word) else word for word in arguments]
        done = CliRunner().invoke(app, ["snapshot", *words], input=stdin)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    return run


def test_a_saved_instance_is_restored(snapshot, folder):
    (folder / "input.txt").write_bytes(b"some input")
    code, text = snapshot(
        "save", "guest.wasm", "one.tws", "--call", "store [64, 77]", "--call", "vector", "--input", "input.txt"
    )
    assert code == 0
    first, second, saved = text.splitlines()
    assert (first, second[:8]) == ("store: ok", "vector: ")
    assert re.fullmatch(r"saved [0-9a-f]{64}: \d+ bytes in \d+", saved)
    code, text = snapshot("restore", "one.tws", "guest.wasm", "--call", "load[64]", "--call", "read [128, 99]")
    assert (code, text) == (0, "load: 77\nread: 10\n")


def test_a_module_is_read_from_standard_input(snapshot, folder):
    wasm = (folder / "guest.wasm").read_bytes()
    code, text = snapshot("save", "-", "one.tws", "--call", "store [64, 77]", stdin=wasm)
    assert code == 0, text
    code, text = snapshot("restore", "one.tws", "-", "--call", "load[64]", stdin=wasm)
    assert (code, text) == (0, "load: 77\n")


def test_a_chain_is_restored_with_its_parents_and_not_without(snapshot):
    snapshot("save", "guest.wasm", "one.tws", "--call", "store [70000, 1]")
    code, text = snapshot("restore", "one.tws", "guest.wasm", "--call", "store [64, 2]", "--save", "two.tws")
    assert code == 0
    code, text = snapshot("save", "guest.wasm", "three.tws", "--call", "store [64, 2]", "--parent", "one.tws")
    assert code == 0
    code, text = snapshot(
        "restore", "three.tws", "guest.wasm", "--parent", "one.tws", "--call", "load [64]", "--call", "load [70000]"
    )
    assert (code, text) == (0, "load: 2\nload: 0\n")
    with pytest.raises(WrongParent):
        snapshot("restore", "three.tws", "guest.wasm")
    with pytest.raises(WrongParent):
        snapshot("verify", "three.tws")
    assert snapshot("verify", "three.tws", "--parent", "one.tws")[1].startswith("ok: ")


def test_inspect_prints_sizes_and_names_but_no_data(snapshot):
    snapshot("save", "guest.wasm", "one.tws", "--call", "set-i32 [123456789]", "--grant", "cuda")
    code, text = snapshot("inspect", "one.tws")
    assert code == 0
    assert "123456789" not in text
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line.strip())
    assert lines["memory_bytes"] == "131072"
    assert lines["grants"] == "cuda"
    summary = json.loads(snapshot("inspect", "one.tws", "--json")[1])
    assert summary["memory_bytes"] == [131072]
    assert summary["gpu"] is True


def test_diff_prints_pages_globals_and_fields(snapshot):
    snapshot("save", "guest.wasm", "one.tws")
    snapshot("save", "guest.wasm", "two.tws", "--call", "store [70000, 1]", "--call", "set-i32 [5]")
    assert snapshot("diff", "one.tws", "one.tws") == (0, "the same\n")
    code, text = snapshot("diff", "one.tws", "two.tws")
    assert code == 1
    assert "memory 0: bytes 69632 to 73728" in text
    assert "global 0" in text
    code, text = snapshot("diff", "one.tws", "two.tws", "--json")
    assert (code, json.loads(text)["pages"]) == (1, 1)


def test_a_damaged_or_foreign_file_is_refused(snapshot, folder):
    snapshot("save", "guest.wasm", "one.tws")
    data = bytearray((folder / "one.tws").read_bytes())
    data[-1] ^= 1
    (folder / "bad.tws").write_bytes(data)
    for command in (["verify", "bad.tws"], ["inspect", "bad.tws"], ["restore", "bad.tws", "guest.wasm"]):
        with pytest.raises(TensorWasmError):
            snapshot(*command)
    (folder / "other.wasm").write_bytes(bytes(wat2wasm('(module (func (export "f")))')))
    with pytest.raises(TensorWasmError, match="module"):
        snapshot("restore", "one.tws", "other.wasm")
    with pytest.raises(InvalidArgs, match="cannot read"):
        snapshot("verify", "nothing.tws")


def test_an_instance_that_cannot_be_saved_leaves_no_file(snapshot, folder):
    wasi = '(module (import "wasi_snapshot_preview1" "sched_yield" (func (result i32))) (memory 1))'
    (folder / "wasi.wasm").write_bytes(bytes(wat2wasm(wasi)))
    with pytest.raises(NotCapturable, match="folders"):
        snapshot("save", "wasi.wasm", "one.tws", "--grant", f"dir:{folder}:ro")
    assert not (folder / "one.tws").exists()


@pytest.mark.parametrize(
    ("text", "call"),
    [("f", ("f", [])), ("f [1]", ("f", [1])), ('f["NaN", 2]', ("f", ["NaN", 2])), (" a b [ ]", ("a b", []))],
)
def test_a_call_is_a_name_and_an_optional_array(text, call):
    assert parse_call(text) == call


@pytest.mark.parametrize("text", ["", " ", "[1]", "f [1", "f [1] x"])
def test_an_invalid_call_is_refused(text):
    with pytest.raises(InvalidArgs):
        parse_call(text)
