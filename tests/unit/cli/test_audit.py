"""`tensor-wasm audit verify`: what it prints, and its exit code."""

import json

import pytest

from tensorwasm.cli.entry import dispatch
from tensorwasm.tenancy.audit import AuditLog, AuditRecord, outcome_of


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    for number in range(5):
        log.append(AuditRecord(number, "r", None, "create_function", {}, outcome_of(200), 0.5))
    log.close()
    return path


def test_an_intact_log_is_ok(path, capsys):
    assert dispatch(["audit", "verify", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ok: 6 lines, 1 to 6, the last with hash ")
    assert json.loads(path.read_bytes().splitlines()[-1])["hash"] in out


def test_a_changed_line_is_reported_with_its_number(path, capsys):
    path.write_bytes(path.read_bytes().replace(b'"ts_unix_ms":2,', b'"ts_unix_ms":9,'))
    assert dispatch(["audit", "verify", str(path)]) == 1
    assert capsys.readouterr().out.startswith(f"{path}:4: not a line as it was written\nNOT OK: 5 lines, 1 to 6")


def test_a_truncated_log_is_reported_unless_its_head_is_ignored(path, capsys):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert dispatch(["audit", "verify", "--json", str(path)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["lines"]) == (False, 3)
    assert found["findings"] == [
        {"path": str(path), "line": 0, "detail": "the end is cut off: 3 lines had been flushed that are not there"}
    ]
    assert dispatch(["audit", "verify", "--no-head", str(path)]) == 0


def test_a_log_that_cannot_be_read_is_an_error(tmp_path, capsys):
    assert dispatch(["audit", "verify", str(tmp_path / "none.log")]) == 1
    assert capsys.readouterr().err.startswith("error: store_unavailable: ")
