"""Calls of functions: arguments, output, streams, jobs, sessions and snapshots."""

import base64
import io
import json
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.client import refuse
from tensorwasm.cli import entry
from tensorwasm.cli.remote import jobs
from tensorwasm.cli.remote.calls import decode_chunk, read_events
from tensorwasm.cli.remote.commands import format_result, writer
from tensorwasm.errors import Refused
from tensorwasm.server.streaming.streamed_call import KEEP_ALIVE, encode_chunk, encode_event

ID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
INVOKE = f"POST /functions/{ID}/invoke"
STREAM = f"{INVOKE}-stream"
ASYNC = f"{INVOKE}-async"


def outcome(result="ok", **more):
    return {"function_id": ID, "result": result, **more}


@pytest.mark.parametrize(
    ("result", "printed"),
    [
        ("ok", "ok"),
        ([5], "5"),
        ([2**63 - 1], str(2**63 - 1)),
        ([0.1], "0.1"),
        (["NaN"], '"NaN"'),
        ([1, 2.5], "[1, 2.5]"),
        ("\x1b[2Jx", "[2Jx"),
    ],
)
def test_results_are_printed_as_run_prints_them(server, cli, result, printed):
    server[INVOKE] = outcome(result)
    done = cli("invoke", ID)
    assert (done.code, done.out, server.bodies) == (0, f"{printed}\n", [{}])


def test_arguments_keep_every_digit(server, cli):
    server[INVOKE] = outcome()
    args = '[1, 2.0, 9007199254740993, -0.0, "NaN", NaN, -Infinity, 1e400, "0x10"]'
    assert cli("invoke", ID, "--export", "f", "--args", args).code == 0
    assert server.requests[0].content == (
        b'{"export": "f", "args": [1, 2.0, 9007199254740993, -0.0, "NaN", "NaN", "-Infinity", "Infinity", "0x10"]}'
    )


def test_all_inputs_of_a_guest_are_sent(server, cli, tmp_path):
    server[f"POST /functions/{ID}@live/invoke"] = outcome()
    (tmp_path / "in").write_bytes(b"\xff\0")
    given = ("--input", tmp_path / "in", "--stdin", tmp_path / "in", "--env", "A=1", "--timeout", "1.5")
    assert cli("invoke", f"{ID}@live", *given, "--", "x", "-y").code == 0
    encoded = base64.b64encode(b"\xff\0").decode()
    assert server.bodies == [
        {
            "input_b64": encoded,
            "stdin_b64": encoded,
            "env": {"A": "1"},
            "argv": [f"{ID}@live", "x", "-y"],
            "deadline_ms": 1500,
        }
    ]


def test_output_of_the_guest_is_printed_before_results(server, cli):
    server[INVOKE] = outcome([7], stdout={"text": "out\x07\n"}, stderr={"text": "err\n"}, output={"base64": "AAE="})
    done = cli("invoke", ID)
    assert (done.out, done.err) == ("out\x07\n\0\x017\n", "err\n")  # no terminal: every byte as it is
    server[INVOKE] = outcome(stdout={"text": "only this"})
    assert cli("invoke", ID).out == "only this"


def test_json_output_is_the_whole_answer(server, cli):
    server[INVOKE] = answer = outcome([7], stdout={"text": "\x1b\x7f"})
    done = cli("invoke", ID, "--output", "json")
    assert json.loads(done.out) == answer
    assert done.out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "arguments",
    [
        (ID, "--args", "{}"),
        (ID, "--args", "[1"),
        (ID, "--timeout", "0"),
        (ID, "--timeout", "nan"),
        (ID, "--input", "/nonexistent"),
        (ID, "--stream", "--async"),
        (ID, "--wait"),
        (ID, "--idempotency-key", "a"),
        (f"{ID}/1",),
        ("..",),
    ],
)
def test_invalid_arguments_are_refused_before_a_request(server, cli, arguments):
    assert cli("invoke", *arguments).code == 2
    assert not server.requests


def test_a_failed_guest_exits_with_1(server, cli):
    server[INVOKE] = refuse(500, "wasm_error", "the guest trapped: unreachable")
    done = cli("invoke", ID)
    assert (done.code, done.err) == (1, "error: wasm_error: the guest trapped: unreachable\n")


@pytest.mark.parametrize("answer", [[], outcome(stdout={"base64": "?"}), outcome(output={"base64": 7})])
def test_a_malformed_answer_exits_with_1(server, cli, answer):
    server[INVOKE] = (200, answer)
    done = cli("invoke", ID)
    assert (done.code, done.err.split(":")[1]) == (1, " malformed_answer")


# ---------------------------------------------------------------- streams


def events(*chunks, last=encode_event("done", '{"status":"ok"}')):  # noqa: B008 - bytes do not change
    return httpx.Response(200, content=b"".join(map(encode_chunk, chunks)) + KEEP_ALIVE + last)


def test_a_stream_is_written_unchanged(server, capfdbinary):
    server[STREAM] = events(b"caf\xc3", b"\xa9\r\n\0", b"\xff", b"line\nline")
    assert entry.dispatch(["invoke", ID, "--stream"]) == 0
    assert capfdbinary.readouterr().out == b"caf\xc3\xa9\r\n\0\xffline\nline"
    assert server.requests[0].headers["Accept"] == "text/event-stream"


def test_an_error_event_is_reported_after_the_chunks(server, cli):
    server[STREAM] = events(b"a", last=encode_event("error", '{"reason":"deadline_elapsed","message":"\x7flate"}'))
    done = cli("invoke", ID, "--stream")
    assert (done.code, done.out, done.err) == (1, "a", "error: deadline_elapsed: late\n")


def test_a_stream_without_an_end_is_reported(server, cli):
    server[STREAM] = events(b"a", last=b"event: chunk\ndata: cut")
    done = cli("invoke", ID, "--stream")
    assert (done.code, done.out, done.err.split(":")[1]) == (1, "a", " server_unreachable")


def test_events_are_printed_as_lines_of_json(server, cli):
    server[STREAM] = events(b"a", b"\xff")
    lines = list(map(json.loads, cli("invoke", ID, "--stream", "--output", "json").out.splitlines()))
    assert lines == [
        {"event": "chunk", "data": "a"},
        {"event": "chunk-base64", "data": "/w=="},
        {"event": "done", "status": "ok"},
    ]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(1, 30))
def test_chunks_are_read_whatever_the_pieces(chunks, piece_bytes):
    sent = b"".join(map(encode_chunk, chunks)) + encode_event("done", "{}")
    pieces = [sent[i : i + piece_bytes] for i in range(0, len(sent), piece_bytes)]
    *found, last = read_events(pieces)
    assert [decode_chunk(*event) for event in found] == chunks
    assert last == ("done", "{}")


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_any_stream_is_read_or_refused(pieces):
    with suppress(Refused):
        for name, data in read_events(pieces):
            decode_chunk(name, data)


def test_an_event_that_is_too_long_is_refused():
    with pytest.raises(Refused):
        list(read_events([b"data: " + b"x" * (1 << 20)] * 2))


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_a_terminal_gets_no_control_characters(pieces):
    shown = io.BytesIO()
    write = writer(Terminal(shown, encoding="utf-8"))
    for piece in pieces:
        write(piece)
    assert all(character in "\n\t" or character.isprintable() for character in shown.getvalue().decode())


def test_a_terminal_gets_whole_characters_from_divided_bytes():
    shown = io.BytesIO()
    write = writer(Terminal(shown, encoding="utf-8"))
    for piece in (b"caf\xc3", b"\xa9\x1b[31m", b"\n"):
        write(piece)
    assert shown.getvalue().decode() == "café[31m\n"


@given(st.recursive(st.none() | st.floats() | st.text(), st.lists))
def test_any_result_can_be_printed(result):
    assert format_result(result) == "" or format_result(result).isprintable()


# ---------------------------------------------------------------- jobs

JOB = {"id": "j", "status": "running", "function_id": ID, "tenant_id": 0, "created_unix_ms": 0}
COMPLETED = {**JOB, "status": "completed", "result": outcome([5])}
FAILED = {**JOB, "status": "failed", "result": {"kind": "wasm_error", "message": "the guest\x1b trapped"}}


@pytest.fixture
def patient(monkeypatch):
    """No pause between two questions."""
    monkeypatch.setattr(jobs.time, "sleep", lambda _seconds: None)


def test_a_job_is_begun_and_its_id_printed(server, cli):
    server[ASYNC] = (202, {"job_id": "j"})
    done = cli("invoke", ID, "--async", "--args", "[1]", "--idempotency-key", "once")
    assert (done.code, done.out, server.bodies) == (0, "j\n", [{"args": [1]}])
    assert server.requests[0].headers["Idempotency-Key"] == "once"


def test_invoke_waits_for_a_job(server, cli, patient):
    server[ASYNC] = (202, {"job_id": "j"})
    server["GET /jobs/j/wait"] = [JOB, JOB, COMPLETED]
    done = cli("invoke", ID, "--async", "--wait")
    assert (done.code, done.out, len(server.requests)) == (0, "5\n", 4)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (FAILED, "wasm_error: the guest trapped"),
        ({**JOB, "status": "cancelled"}, "cancelled: the job is cancelled"),
        ({**JOB, "status": "dead", "result": {"kind": "interrupted", "message": "gone"}}, "interrupted: gone"),
    ],
)
def test_a_job_that_did_not_complete_exits_with_1(server, cli, patient, job, said):
    server["GET /jobs/j/wait"] = job
    done = cli("jobs", "wait", "j")
    assert (done.code, done.err) == (1, f"error: {said}\n")


def test_waiting_ends_at_the_timeout(server, cli, patient):
    server["GET /jobs/j/wait"] = JOB
    done = cli("jobs", "wait", "j", "--timeout", "0.01")
    assert (done.code, "it goes on" in done.err) == (1, True)


def test_jobs_are_listed_by_status_and_function(server, cli):
    server["GET /jobs"] = {"jobs": [JOB], "next": None}
    done = cli("jobs", "list", "--status", "running", "--function", ID)
    assert done.out.splitlines()[1].split()[:2] == ["j", "running"]
    assert server.asked == [f"GET /jobs?limit=100&status=running&function_id={ID}"]


def test_a_job_is_shown_with_its_result(server, cli):
    server["GET /jobs/j"] = [COMPLETED, FAILED, JOB]
    assert cli("jobs", "show", "j").out.endswith("\n5\n")
    assert cli("jobs", "show", "j").out.endswith("\nwasm_error: the guest trapped\n")
    assert json.loads(cli("jobs", "show", "j", "--output", "json").out) == JOB


def test_a_job_is_cancelled(server, cli):
    server["DELETE /jobs/j"] = {**JOB, "status": "cancelled"}
    assert "cancelled" in cli("jobs", "cancel", "j").out


def test_output_and_stack_of_a_failed_guest_are_printed(server, cli):
    frame = {"function": 1, "name": "f", "offset": 84, "file": "a.c\x1b", "line": 3}
    left = {"stdout": {"text": "out\n"}, "stderr": {"text": "err\n"}, "backtrace": [frame]}
    server[INVOKE] = httpx.Response(500, json={"error": {"kind": "wasmtime", "message": "it trapped", **left}})
    done = cli("invoke", ID)
    assert (done.code != 0, done.out) == (True, "out\n")
    assert done.err.startswith("err\n")
    assert "f (function 1, byte 0x54, a.c\\x1b:3)" in done.err


# ---------------------------------------------------------------- sessions

SESSION = {
    "id": ID,
    "status": "live\x1b[2J",
    "calls": 3,
    "saved_calls": 2,
    "used_unix_ms": 0,
    "version": 1,
    "function_id": "f",
}


def test_a_session_is_opened_with_the_input_of_its_guest(server, cli, tmp_path):
    server["POST /sessions"] = (201, SESSION)
    (tmp_path / "in").write_bytes(b"\xff")
    done = cli("sessions", "open", "f@live", "--input", tmp_path / "in", "--env", "A=1", "--", "-x")
    assert (done.code, done.out) == (0, f"{ID}\n")
    encoded = base64.b64encode(b"\xff").decode()
    assert server.bodies == [{"function": "f@live", "input_b64": encoded, "argv": ["f@live", "-x"], "env": {"A": "1"}}]
    assert json.loads(cli("sessions", "open", "f", "--output", "json").out) == SESSION
    assert cli("sessions", "open", "f/g").code == 2


def test_sessions_are_listed(server, cli):
    server["GET /sessions"] = {"sessions": [SESSION], "next": None}
    head, row = cli("sessions", "list").out.splitlines()
    assert head.split() == ["ID", "STATUS", "CALLS", "SAVED", "CALLS", "USED", "VERSION", "FUNCTION", "ID"]
    assert row.split() == [ID, "live[2J", "3", "2", "1970-01-01", "00:00:00", "1", "f"]
    assert json.loads(cli("sessions", "list", "--output", "json").out) == [SESSION]


def test_a_session_is_called(server, cli):
    server[f"POST /sessions/{ID}/invoke"] = {"session_id": ID, "result": [4], "stdout": {"text": "out\n"}}
    done = cli("sessions", "call", ID, "--export", "f", "--args", "[1]", "--timeout", "2", "--durable")
    assert (done.code, done.out) == (0, "out\n4\n")
    assert server.bodies == [{"export": "f", "args": [1], "deadline_ms": 2000, "durable": True}]


def test_a_session_is_saved_and_closed(server, cli):
    server[f"POST /sessions/{ID}/snapshot"] = (201, {"id": "s", "size_bytes": 1})
    server[f"DELETE /sessions/{ID}"] = (204, None)
    assert cli("sessions", "save", ID).out == "s\n"
    assert json.loads(cli("sessions", "save", ID, "--output", "json").out) == {"id": "s", "size_bytes": 1}
    assert cli("sessions", "close", ID).code == 0
    assert cli("sessions", "close", "..").code == 2


# ---------------------------------------------------------------- snapshots

SNAPSHOT = {"id": ID, "size_bytes": 5, "created_unix_ms": 0, "function_id": ID, "version": 1}


def test_snapshots_are_listed_shown_restored_and_deleted(server, cli):
    server["GET /snapshots"] = {"snapshots": [SNAPSHOT], "next": None}
    server[f"GET /snapshots/{ID}"] = SNAPSHOT
    server[f"POST /snapshots/{ID}/restore"] = (201, {"instance_id": "there"})
    server[f"DELETE /snapshots/{ID}"] = (204, None)
    assert ID in cli("snapshots", "list").out
    assert "5" in cli("snapshots", "show", ID).out
    assert cli("snapshots", "restore", ID).out == "there\n"
    assert cli("snapshots", "delete", ID).code == 0
    assert cli("snapshots", "show", "a/b").code == 2


def test_a_snapshot_is_fetched_whole_or_not_at_all(server, cli, tmp_path):
    path = tmp_path / "state.tws"
    server[f"GET /snapshots/{ID}/content"] = httpx.Response(200, content=b"state")
    assert cli("snapshots", "fetch", ID, path).code == 0
    assert path.read_bytes() == b"state"
    server[f"GET /snapshots/{ID}/content"] = refuse(404, "not_found", "there is no such snapshot")
    assert cli("snapshots", "fetch", ID, tmp_path / "none.tws").code == 1
    assert cli("snapshots", "fetch", ID, tmp_path / "no" / "folder").code == 2
    assert [each.name for each in tmp_path.iterdir()] == ["state.tws"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is not there")
def test_a_file_that_cannot_be_replaced_is_reported(server, cli):
    server[f"GET /snapshots/{ID}/content"] = httpx.Response(200, content=b"state")
    assert cli("snapshots", "fetch", ID, "/dev/full").code == 2
