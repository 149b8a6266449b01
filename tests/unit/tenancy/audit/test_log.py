"""The log keeps up, waits for a disk, records what it lost, and never blocks the caller of `append`."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from tensorwasm.errors import InvalidArgs, StoreUnavailable, TensorWasmError
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.audit import AuditLog, AuditRecord, actor_of, open_audit, outcome_of, sinks, verify
from tensorwasm.tenancy.audit import log as log_module
from tensorwasm.tenancy.audit.chain import Chain
from tensorwasm.tenancy.audit.records import Notice, encode
from tensorwasm.tenancy.principal import Principal

WAIT_S = 20.0
BEARER = Principal("bearer", "token-1", frozenset({9, 3}))
LONG_S = 3600.0


def _record(number=0, principal=BEARER):
    actor = principal and actor_of(principal)
    return AuditRecord(number, f"r{number}", actor, "invoke_function", {"tenant_id": 3}, outcome_of(200), 1.5, "::1")


def _said(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _records(path):
    return [said["ts_unix_ms"] for said in _said(path) if "notice" not in said]


def _notices(path):
    counts = Counter()
    for said in _said(path):
        if "notice" in said:
            counts[said["notice"]] += said.get("count", 0)
    return counts


class Disk:
    """A disk that can be full, or not answer; each attempt to write sets `tried`."""

    def __init__(self, monkeypatch):
        self.full = False
        self.answers = threading.Event()
        self.answers.set()
        self.tried = threading.Event()
        self._write = sinks.write_all
        monkeypatch.setattr(sinks, "write_all", self.write_all)

    def write_all(self, descriptor, data):
        self.tried.set()
        assert self.answers.wait(WAIT_S)
        if self.full:
            self._write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        self._write(descriptor, data)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def test_records_are_written_in_order_as_the_contract_has_them(tmp_path):
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    for number in range(1000):
        log.append(_record(number))
    log.close()
    assert _records(path) == list(range(1000))
    said = _said(path)[1]
    assert {name: said[name] for name in said if name not in {"seq", "prev", "hash"}} == {
        "ts_unix_ms": 0,
        "request_id": "r0",
        "actor": {"kind": "bearer", "token_id": "token-1", "scope": {"kind": "tenant_set", "tenants": [3, 9]}},
        "action": "invoke_function",
        "resource": {"tenant_id": 3},
        "outcome": {"status_code": 200},
        "latency_ms": 1.5,
        "peer_addr": "::1",
        "client_cert_subject": None,
    }
    found = verify(path)
    assert (found.ok, found.lines) == (True, 1001)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("principal", "said"),
    [
        (
            Principal("bearer", "a", None),
            {"kind": "bearer", "token_id": "a", "scope": {"kind": "wildcard", "tenants": []}},
        ),
        (Principal("dev", "dev", None), {"kind": "dev", "token_id": None, "scope": {"kind": "dev", "tenants": []}}),
        (
            Principal("oidc", "https://i#s", frozenset({2**64 - 1, 0})),
            {"kind": "oidc", "token_id": "https://i#s", "scope": {"kind": "tenant_set", "tenants": [0, 2**64 - 1]}},
        ),
    ],
)
def test_actors_are_recorded_with_their_scope(principal, said):
    assert json.loads(bytes(actor_of(principal))) == said
    assert actor_of(principal) is actor_of(principal)


def test_an_actor_whose_principal_was_replaced_is_the_new_one():
    actor_of(Principal("bearer", "token-1", frozenset({1})))
    assert json.loads(bytes(actor_of(BEARER)))["scope"]["tenants"] == [3, 9]


def test_as_many_lines_as_are_flushed_at_once_are_on_the_disk_without_waiting(tmp_path, monkeypatch):
    synced = threading.Event()
    monkeypatch.setattr(sinks, "write_head", lambda _path, head: head.seq > 10 and synced.set())
    log = AuditLog(tmp_path / "audit.log", flush_s=LONG_S, flush_lines=10)
    for number in range(10):
        log.append(_record(number))
    assert synced.wait(WAIT_S)
    assert len(_records(tmp_path / "audit.log")) == 10
    log.close()


def test_a_reopened_log_continues_its_chain(tmp_path):
    path = tmp_path / "audit.log"
    for start in (0, 5, 10):
        log = AuditLog(path)
        for number in range(start, start + 5):
            log.append(_record(number))
        log.close()
    assert _records(path) == list(range(15))
    assert [said["notice"] for said in _said(path) if "notice" in said] == ["opened", "resumed", "resumed"]
    assert verify(path).ok


def test_after_a_kill_the_chain_continues_without_losing_flushed_lines(tmp_path):
    path = tmp_path / "audit.log"
    code = (
        "import sys, pathlib, msgspec; from tensorwasm.tenancy.audit import *\n"
        "log = AuditLog(pathlib.Path(sys.argv[1]), flush_s=0.001, flush_lines=8); n = 0\n"
        "while True:\n"
        "    log.append(AuditRecord(n, 'r', msgspec.Raw(b'{}'), 'a', {}, outcome_of(200), 0.0))\n"
        "    n += 1\n"
        "    if n % 50 == 0: print(log.statistics().written, flush=True)\n"
    )
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
            written = next(int(line) for line in process.stdout if int(line) > 200)
            process.send_signal(signal.SIGKILL)
        assert verify(path).ok
        assert verify(path).lines >= written
    AuditLog(path).close()
    assert verify(path).ok


def test_a_process_that_is_killed_before_its_first_flush_leaves_a_log_that_holds(tmp_path):
    """A case of 2026-11-23: a kill between the first lines and the first head, on a disk that was slow to answer."""
    path = tmp_path / "audit.log"
    opened = sinks.open_file(path)
    opened.sink.write(Chain(opened.head.seq, opened.head.hash).link(encode(Notice(1, "opened", 0))))
    opened.sink.close()
    assert verify(path).ok


def test_only_one_process_writes_a_file(tmp_path):
    log = AuditLog(tmp_path / "audit.log")
    with pytest.raises(StoreUnavailable, match="another process writes it"):
        AuditLog(tmp_path / "audit.log")
    log.close()
    AuditLog(tmp_path / "audit.log").close()


def test_links_folders_and_devices_are_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for path in (tmp_path / "link", tmp_path, Path("/dev/null"), tmp_path / "none" / "audit.log"):
        with pytest.raises(TensorWasmError):
            AuditLog(path)
    assert not (tmp_path / "target").exists()


def test_records_wait_for_a_full_disk_and_one_error_is_logged(tmp_path, disk, caplog):
    caplog.set_level(logging.WARNING)
    path = tmp_path / "audit.log"
    log = AuditLog(path, flush_s=0.001)
    disk.full = True
    for number in range(100):
        log.append(_record(number))
    for _ in range(3):
        disk.tried.clear()
        assert disk.tried.wait(WAIT_S)
    assert log.statistics().failing
    disk.full = False
    log.close()
    assert not log.statistics().failing
    assert _records(path) == list(range(100))
    assert verify(path).ok
    assert [entry.levelname for entry in caplog.records] == ["ERROR", "WARNING"]
    assert "No space left on device" in caplog.text


def test_records_dropped_during_a_disk_stall_are_counted_in_a_line(tmp_path, disk):
    path = tmp_path / "audit.log"
    disk.answers.clear()
    log = AuditLog(path, queue_lines=10, flush_lines=2)
    assert disk.tried.wait(WAIT_S)
    for number in range(25):
        log.append(_record(number))
    seen = log.statistics()
    assert (seen.dropped, seen.waiting) == (15, 11)
    disk.answers.set()
    log.close()
    assert _records(path) == list(range(10))
    assert _notices(path)["dropped"] == 15
    assert verify(path).ok


def test_a_disk_that_never_answers_does_not_keep_the_log_from_closing(tmp_path, disk, caplog):
    disk.answers.clear()
    log = AuditLog(tmp_path / "audit.log")
    log.append(_record())
    assert disk.tried.wait(WAIT_S)
    log.close(0.01)
    assert "1 records that could not be written" in caplog.text or "2 records" in caplog.text
    log.append(_record())
    assert log.statistics().dropped == 1
    disk.answers.set()
    log._thread.join(WAIT_S)


def test_a_flood_of_refused_credentials_is_a_count(tmp_path):
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    for number in range(10_000):
        log.append(_record(number, None))
    log.append(_record(7))
    log.close()
    written = [said for said in _said(path) if said.get("actor", 0) is None]
    assert 100 <= len(written) < 1000
    assert _notices(path)["suppressed"] == 10_000 - len(written) == log.statistics().suppressed
    assert _records(path)[-1] == 7


def test_after_a_file_was_moved_a_new_one_continues_its_chain(tmp_path):
    path, old = tmp_path / "audit.log", tmp_path / "audit.log.1"
    log = AuditLog(path, flush_s=LONG_S)
    for number in range(5):
        log.append(_record(number))
    path.rename(old)
    log.append(_record(5))
    log.reopen()
    log.close()
    assert _records(old) + _records(path) == list(range(6))
    assert verify(old, path).ok
    assert verify(path).ok
    assert verify(path).first_seq > 1


def test_lines_that_a_moved_file_cannot_take_go_into_the_new_one(tmp_path, disk):
    path, old = tmp_path / "audit.log", tmp_path / "audit.log.1"
    AuditLog(path).close()
    log = AuditLog(path, flush_s=LONG_S)
    path.rename(old)
    disk.full = True
    log.append(_record(1))
    disk.tried.clear()
    log.reopen()
    assert disk.tried.wait(WAIT_S)
    disk.full = False
    log.close()
    assert _records(old) + _records(path) == [1]
    assert verify(old, path).ok


def test_reopening_a_file_that_was_not_moved_changes_nothing(tmp_path):
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    log.reopen()
    log.append(_record())
    log.close()
    assert list(_notices(path)) == ["opened"]
    assert verify(path).ok


def test_a_new_file_that_cannot_be_opened_is_tried_again_and_the_old_one_written(tmp_path, monkeypatch, caplog):
    path, old = tmp_path / "audit.log", tmp_path / "audit.log.1"
    tried = threading.Event()
    opening = log_module.open_file

    def refuse(*_):
        tried.set()
        raise StoreUnavailable("not now")

    log = AuditLog(path, flush_s=0.001)
    path.rename(old)
    monkeypatch.setattr(log_module, "open_file", refuse)
    log.append(_record(1))
    log.reopen()
    assert tried.wait(WAIT_S)
    monkeypatch.setattr(log_module, "open_file", opening)
    log.append(_record(2))
    log.close()
    assert _records(old) + _records(path) == [1, 2]
    assert verify(old, path).ok


def test_standard_output_gets_a_chain_of_its_own(capfd):
    log = AuditLog("stdout")
    log.append(_record())
    log.close()
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    assert (first["seq"], first["notice"], second["prev"]) == (1, "opened", first["hash"])


def test_the_setting_none_writes_nothing(tmp_path):
    log = open_audit(ServiceSettings.from_environment({"TENSOR_WASM_API_AUDIT_LOG": "none"}), tmp_path)
    log.append(_record())
    log.close()
    assert log.statistics().waiting == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["", "file"])
def test_the_setting_selects_the_destination(tmp_path, where):
    path = tmp_path / ("audit.log" if not where else "other.log")
    environment = {"TENSOR_WASM_API_AUDIT_LOG": where and f"file:{path}"}
    open_audit(ServiceSettings.from_environment(environment), tmp_path).close()
    assert verify(path).ok


@pytest.mark.parametrize("where", ["syslog", "file:relative", "file:", "/path"])
def test_an_invalid_destination_is_refused(tmp_path, where):
    with pytest.raises(InvalidArgs, match="TENSOR_WASM_API_AUDIT_LOG"):
        open_audit(ServiceSettings.from_environment({"TENSOR_WASM_API_AUDIT_LOG": where}), tmp_path)


def test_descriptors_are_closed(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(5):
        log = AuditLog(tmp_path / f"audit{number}.log")
        (tmp_path / f"audit{number}.log").rename(tmp_path / f"old{number}.log")
        log.reopen()
        log.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no weight of its own")
def test_what_writes_steps_back_from_the_event_loop(tmp_path, disk):
    before = set(threading.enumerate())
    log = AuditLog(tmp_path / "audit.log", flush_s=LONG_S)
    assert disk.tried.wait(WAIT_S)  # its first line
    (writer,) = set(threading.enumerate()) - before
    assert os.getpriority(os.PRIO_PROCESS, writer.native_id) > os.getpriority(os.PRIO_PROCESS, os.getpid())
    log.close()
