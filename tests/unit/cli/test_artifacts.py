"""`tensor-wasm artifacts` over a folder."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tensorwasm.artifacts.backends.disk import DiskBackend
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.store import ContentStore
from tensorwasm.cli.app import app
from tensorwasm.cli.output import escaped
from tensorwasm.errors import InvalidArgs

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="artifacts on disk need flock")

MODULE, OTHER = b"module" * 100, b"other"


@pytest.fixture
def folder(tmp_path):
    store = ContentStore(DiskBackend(tmp_path / "store"))
    store.bind("alice", "main", store.put("alice", "module", MODULE))
    store.put("bob\x1b[2J", "kernel", OTHER)
    return tmp_path / "store"


@pytest.fixture
def artifacts(folder):
    def run(*arguments):
        done = CliRunner().invoke(app, ["artifacts", arguments[0], "--store", str(folder), *arguments[1:]])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    return run


def damage(folder):
    (blob,) = (folder / "alice" / "blobs").iterdir()
    blob.chmod(0o600)
    blob.write_bytes(b"rot")


def test_ls_lists_all_tenants_artifacts_without_control_characters(artifacts):
    code, text = artifacts("ls")
    assert code == 0
    assert "\x1b" not in text
    first, second = text.splitlines()
    assert first.split()[:3] == ["alice", "module", "600"]
    assert first.split()[-2:] == [blake3(MODULE).hex(), "main"]
    assert second.startswith(r"bob\x1b[2J")


def test_ls_of_one_tenant_as_json(artifacts):
    code, text = artifacts("ls", "--tenant", "alice", "--json")
    (row,) = json.loads(text)
    assert code == 0
    assert row.pop("made") <= row.pop("used")
    assert 0 < row.pop("stored_bytes") < 100
    assert row == {
        "tenant": "alice",
        "digest": blake3(MODULE).hex(),
        "kind": "module",
        "size_bytes": 600,
        "refers_to": [],
        "names": ["main"],
    }
    assert artifacts("ls", "--tenant", "nobody", "--json") == (0, "[]\n")


def test_gc_keeps_recent_and_named_artifacts(artifacts):
    assert artifacts("gc") == (0, "collected 0 artifacts of 0 bytes and 0 leftovers\n")
    code, text = artifacts("gc", "--grace", "0", "--json")
    assert (code, json.loads(text)) == (
        0,
        {
            "artifacts": [{"tenant": "bob\x1b[2J", "digest": blake3(OTHER).hex()}],
            "artifact_bytes": len(OTHER),
            "leftovers": 0,
            "findings": [],
        },
    )
    assert len(artifacts("ls")[1].splitlines()) == 1
    with pytest.raises(InvalidArgs):
        artifacts("gc", "--grace", "-1")


def test_gc_skips_a_tenant_with_a_damaged_catalog_and_reports_it(artifacts, folder):
    (folder / "alice" / "catalog").chmod(0o600)
    (folder / "alice" / "catalog").write_bytes(b"")
    code, text = artifacts("gc", "--grace", "0")
    assert code == 1
    assert "corrupt     alice" in text
    assert "collected 1 artifacts" in text


def test_verify_reports_ok_and_lists_unreachable_artifacts(artifacts):
    code, text = artifacts("verify")
    assert code == 0
    assert text.splitlines()[0].startswith("unreachable bob")
    assert text.splitlines()[-1] == "ok: 2 artifacts of 605 bytes"


def test_verify_exits_with_1_if_an_artifact_is_damaged(artifacts, folder):
    damage(folder)
    code, text = artifacts("verify")
    assert (code, text.splitlines()[-1]) == (1, "NOT OK: 2 artifacts of 605 bytes")
    code, text = artifacts("verify", "--json")
    found = json.loads(text)
    assert (code, found["ok"], found["count"]) == (1, False, 2)
    assert [(f["tenant"], f["state"], f["bad"]) for f in found["findings"]] == [
        ("alice", "corrupt", True),
        ("bob\x1b[2J", "unreachable", False),
    ]


@pytest.mark.parametrize("text", ["\x1b]0;x\x07", "\u202eabc", "\ud800", "a\nb", "\x9b31m"])
def test_escaped_text_is_printable(text):
    assert escaped(text).isprintable()
    assert escaped("plain \N{SNOWMAN}") == "plain \N{SNOWMAN}"


def test_the_default_store_is_in_the_state_folder(tmp_path):
    environment = {**os.environ, "TENSOR_WASM_STATE_DIR": str(tmp_path)}
    environment.pop("TENSOR_WASM_ARTIFACTS", None)
    command = [sys.executable, "-m", "tensorwasm.cli", "artifacts", "verify"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok: 0 artifacts of 0 bytes\n", "")
    assert (tmp_path / "artifacts").is_dir()
