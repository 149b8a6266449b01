"""`tensor-wasm snapshot` over artifacts, and `artifacts` over snapshots."""

import json
import re
import sys

import pytest
from typer.testing import CliRunner
from wasmtime import wat2wasm

from strategies.live import GUEST
from tensorwasm import settings
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.cli.app import app
from tensorwasm.errors import ArtifactNotFound, InvalidArgs, QuotaExceeded, UnknownKey

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="artifacts on disk need flock")

MODULE = bytes(wat2wasm(GUEST))
OLD, NEW = "0" * 64, "f" * 64


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Give a function that sets variables, from now on."""

    def give(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(f"TENSOR_WASM_{name}", value)
        settings.current.cache_clear()

    give(STATE_DIR=str(tmp_path / "state"), DEVICE="emulator")
    yield give
    settings.current.cache_clear()


@pytest.fixture
def run(given, tmp_path):
    (tmp_path / "guest.wasm").write_bytes(MODULE)

    def run_(*arguments: str, code: int = 0) -> str:
        words = [str(tmp_path / word) if re.search(r"\.(wasm|tws)$", word) else word for word in arguments]
        done = CliRunner().invoke(app, words)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code
        return done.output

    return run_


def kept(run):
    return sorted(row["kind"] for row in json.loads(run("artifacts", "ls", "--json")))


def test_artifacts_are_saved_restored_and_collected(run):
    run("snapshot", "save", "guest.wasm", "artifact:one", "--call", "store [64, 77]")
    assert run("snapshot", "restore", "artifact:one", "--call", "load [64]") == "load: 77\n"
    calls = ["--call", "store [64, 77]", "--call", "store [70000, 5]"]
    run("snapshot", "save", "guest.wasm", "artifact:two", *calls, "--parent", "artifact:one")
    run("artifacts", "unbind", "one")
    assert run("artifacts", "gc", "--grace", "0").startswith("collected 0 artifacts")
    assert run("snapshot", "restore", "artifact:two", "--call", "load [64]", "--call", "load [70000]") == (
        "load: 77\nload: 5\n"
    )
    assert run("snapshot", "verify", "artifact:two").startswith("ok: ")
    summary = json.loads(run("snapshot", "inspect", "artifact:two", "--json"))
    assert (summary["depth"], summary["module_hash"]) == (1, blake3(MODULE).hex())
    assert kept(run) == ["module", "snapshot", "snapshot"]
    assert run("artifacts", "verify").startswith("ok: 3 artifacts")
    run("artifacts", "unbind", "two")
    assert run("artifacts", "gc").startswith("collected 0 artifacts")
    assert "collected 3 artifacts" in run("artifacts", "gc", "--grace", "0")
    assert run("artifacts", "verify").startswith("ok: 0 artifacts")
    with pytest.raises(ArtifactNotFound):
        run("snapshot", "restore", "artifact:two")


def test_files_and_artifacts_can_be_combined(run, tmp_path):
    run("snapshot", "save", "guest.wasm", "one.tws", "--call", "store [64, 1]")
    run("snapshot", "restore", "one.tws", "guest.wasm", "--call", "store [70000, 2]", "--save", "artifact:two")
    assert run("snapshot", "diff", "artifact:two", "artifact:two") == "the same\n"
    assert "1 pages differ" in run("snapshot", "diff", "one.tws", "artifact:two", code=1)
    run("snapshot", "save", "guest.wasm", "three.tws", "--call", "store [64, 3]", "--parent", "artifact:two")
    restored = ["snapshot", "restore", "three.tws", "guest.wasm", "--parent", "artifact:two"]
    assert run(*restored, "--call", "load [64]", "--call", "load [70000]") == "load: 3\nload: 0\n"
    with pytest.raises(InvalidArgs, match="module"):
        run("snapshot", "restore", "one.tws")
    for parents in (["one.tws"], ["artifact:two", "artifact:two"]):
        options = [word for parent in parents for word in ("--parent", parent)]
        with pytest.raises(InvalidArgs, match="one artifact"):
            run("snapshot", "save", "guest.wasm", "artifact:four", *options)


def test_names_belong_to_a_tenant(run):
    for tenant, value in (("alice", 1), ("bob", 2)):
        run("snapshot", "save", "guest.wasm", "artifact:state", "--call", f"store [64, {value}]", "--tenant", tenant)
    run("artifacts", "unbind", "state", "--tenant", "bob")
    assert "collected 2 artifacts" in run("artifacts", "gc", "--grace", "0")
    restored = ["snapshot", "restore", "artifact:state", "--call", "load [64]", "--tenant"]
    assert run(*restored, "alice") == "load: 1\n"
    for tenant in ("bob", "default"):
        with pytest.raises(ArtifactNotFound):
            run(*restored, tenant)


def test_an_exceeded_quota_keeps_the_earlier_artifact(run, given):
    run("snapshot", "save", "guest.wasm", "artifact:state", "--call", "store [64, 1]")
    given(ARTIFACTS_COUNT="2")
    with pytest.raises(QuotaExceeded):
        run("snapshot", "save", "guest.wasm", "artifact:state", "--call", "store [64, 2]")
    assert run("snapshot", "restore", "artifact:state", "--call", "load [64]") == "load: 1\n"


def test_snapshots_are_renewed_with_a_new_key(run, given):
    given(SNAPSHOT_KEY=OLD)
    run("snapshot", "save", "guest.wasm", "artifact:one", "--call", "store [64, 1]")
    calls = ["--call", "store [64, 1]", "--call", "store [70000, 2]"]
    run("snapshot", "save", "guest.wasm", "artifact:two", *calls, "--parent", "artifact:one")
    restored = ["snapshot", "restore", "artifact:two", "--call", "load [64]", "--call", "load [70000]"]
    given(SNAPSHOT_KEY=NEW)
    refused = json.loads(run("artifacts", "renew", "--json", code=1))
    assert (refused["renewed"], [finding["state"] for finding in refused["findings"]]) == (0, ["refused"] * 2)
    assert "2 were not renewed" in run("artifacts", "renew", code=1)
    given(SNAPSHOT_TRUST=OLD)
    assert json.loads(run("artifacts", "renew", "--json")) == {"renewed": 2, "kept": 0, "findings": []}
    given(SNAPSHOT_TRUST="")
    assert run(*restored) == "load: 1\nload: 2\n"
    assert run("artifacts", "renew") == "renewed 0 snapshots; 2 needed nothing, 0 were not renewed\n"
    assert kept(run) == ["module", "snapshot", "snapshot"]
    given(SNAPSHOT_KEY=OLD)
    with pytest.raises(UnknownKey):
        run(*restored)
