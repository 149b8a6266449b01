"""A log of many files is one chain; files that it deletes are recorded, and files that others delete are found."""

import errno
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neighbours import until
from tensorwasm.tenancy.audit import AuditLog, AuditRecord, actor_of, log_files, outcome_of, verify
from tensorwasm.tenancy.principal import Principal

ACTOR = actor_of(Principal("bearer", "token-1", frozenset({3})))
LONG_S = 3600.0


def _record(number):
    return AuditRecord(number, f"r{number}", ACTOR, "invoke_function", {}, outcome_of(200), 1.5, "::1")


def _write(path, counts, **more):
    """Write so many records in turns of the log, each of which may fill a file; return the numbers that were used."""
    log = AuditLog(path, flush_s=LONG_S, **more)
    numbers = iter(range(sum(counts)))
    for count in counts:
        for _ in range(count):
            log.append(_record(next(numbers)))
        written = log.statistics().written
        log._wake.set()
        until(lambda written=written, count=count: log.statistics().written >= written + count)
    log.close()


def _numbers(paths):
    lines = [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]
    return [line["ts_unix_ms"] for line in lines if "notice" not in line]


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=8), full_bytes=st.integers(1, 9000))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_files_follow_one_another_in_one_chain(tmp_path_factory, counts, full_bytes):
    path = tmp_path_factory.mktemp("log") / "audit.log"
    _write(path, counts, full_bytes=full_bytes)
    files = log_files(path)
    assert _numbers(files) == list(range(sum(counts)))
    found = verify(*files)
    assert found.ok, found.findings
    assert (found.first_seq, found.removed) == (1, None)
    assert all(each.stat().st_size >= full_bytes for each in files[:-1])


@pytest.mark.parametrize("keep", [1, 2])
def test_the_oldest_files_are_deleted_with_a_line_about_each(tmp_path, keep):
    path = tmp_path / "audit.log"
    _write(path, [20] * 6, full_bytes=1000, keep=keep)
    files = log_files(path)
    assert len(files) == keep + 1
    found = verify(*files)
    assert found.ok, found.findings
    assert found.removed is not None
    assert found.removed.seq == found.first_seq - 1
    lines = [line for each in files for line in map(json.loads, each.read_bytes().splitlines())]
    assert any(each.get("notice") == "removed" and each["last_seq"] == found.removed.seq for each in lines)


def test_a_file_removed_by_others_is_found(tmp_path):
    path = tmp_path / "audit.log"
    _write(path, [20] * 4, full_bytes=1000)
    first, second = log_files(path)[:2]
    moved = second.rename(tmp_path / "moved")
    assert not verify(*log_files(path)).ok
    moved.rename(second)
    first.unlink()
    found = verify(*log_files(path))
    assert (found.removed, found.first_seq > 1) == (None, True)


def test_a_log_continues_after_a_process_ended_between_two_files(tmp_path):
    path = tmp_path / "audit.log"
    _write(path, [20], full_bytes=0)
    lines = len(path.read_bytes().splitlines())
    path.rename(f"{path}.{lines:016}")
    _write(path, [5], full_bytes=0)
    found = verify(*log_files(path))
    assert found.ok, found.findings
    assert found.lines == lines + 6


def test_if_no_new_file_can_be_made_the_full_one_is_still_written(tmp_path, monkeypatch):
    path = tmp_path / "audit.log"
    rename = Path.rename

    def refuse(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", refuse)
    _write(path, [20, 20], full_bytes=1000)
    assert log_files(path) == (path,)
    assert verify(path).ok
    monkeypatch.setattr(Path, "rename", rename)
    _write(path, [1], full_bytes=1000)
    assert len(log_files(path)) == 2
    assert verify(*log_files(path)).ok


def test_a_file_that_is_full_as_the_log_is_closed_loses_nothing(tmp_path, caplog):
    path = tmp_path / "audit.log"
    log = AuditLog(path, flush_s=LONG_S, full_bytes=1000)
    for number in range(20):
        log.append(_record(number))
    log.close()
    assert log.statistics().waiting == 0
    assert not caplog.text
    assert verify(*log_files(path)).ok
