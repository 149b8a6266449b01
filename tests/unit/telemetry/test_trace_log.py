"""The log of traces: whole lines, bounded, and never in the way."""

import json
import logging
import os
import threading

import pytest

from tensorwasm.errors import InvalidArgs
from tensorwasm.telemetry.trace_log import Trace, TraceLog, open_trace_log


def trace(number):
    return Trace(1, 2, "", f"request-{number}", 3, "POST /x", 200, 12.5, [("queue", 0.0, 1.25)])


def test_traces_are_lines_of_json(tmp_path):
    log = open_trace_log(f"file:{tmp_path / 'traces'}")
    for number in range(100):
        log.append(trace(number))
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "traces").read_text().splitlines()]
    assert [each["request_id"] for each in lines] == [f"request-{number}" for number in range(100)]
    assert lines[0]["spans"] == [["queue", 0.0, 1.25]]
    assert (tmp_path / "traces").stat().st_mode & 0o777 == 0o600


def test_a_full_file_takes_no_more_until_it_is_moved(tmp_path, caplog):
    path = tmp_path / "traces"
    path.write_bytes(b"x" * 100)
    for _ in range(2):
        log = TraceLog(path, max_bytes=100)
        log.append(trace(1))
        log.close()
    assert path.stat().st_size == 100
    assert "is full" in caplog.text
    path.rename(tmp_path / "old")
    log = TraceLog(path, max_bytes=100)
    log.append(trace(2))
    log.close()
    assert json.loads(path.read_text())["request_id"] == "request-2"


def test_a_writer_that_waits_holds_up_nobody(tmp_path):
    going_on = threading.Event()

    class SlowLog(TraceLog):
        def _write(self, lines):
            assert going_on.wait(30)
            return super()._write(lines)

    log = SlowLog(tmp_path / "traces", queue_traces=2)
    for number in range(200):
        log.append(trace(number))
    assert log.dropped >= 200 - 2 - 64
    going_on.set()
    log.close()
    assert len((tmp_path / "traces").read_text().splitlines()) == 200 - log.dropped


def test_a_pipe_is_refused(tmp_path, caplog):
    os.mkfifo(tmp_path / "pipe")
    with os.fdopen(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)) as reader:
        log = TraceLog(tmp_path / "pipe")
        log.append(trace(1))
        log.close()
        assert not reader.read()
    assert "not a plain file" in caplog.text


@pytest.mark.parametrize("kind", ["folder", "link", "missing"])
def test_what_is_no_plain_file_is_not_written_to(tmp_path, caplog, kind):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING):
        log = TraceLog(tmp_path / (kind if kind != "missing" else "none/traces"))
        log.append(trace(1))
        log.close()
    assert "cannot be written" in caplog.text
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("where", ["stdout", "/path", "file:", "file:relative"])
def test_where_is_a_path(where):
    with pytest.raises(InvalidArgs, match="TENSOR_WASM_API_TRACE_LOG"):
        open_trace_log(where)


def test_there_may_be_none():
    assert open_trace_log("") is None
