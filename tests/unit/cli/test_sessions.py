"""Sessions from the command line: opened, called, saved, ended."""

import base64
import json

ID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
SESSION = {
    "id": ID,
    "status": "live\x1b[2J",
    "calls": 3,
    "saved_calls": 2,
    "used_unix_ms": 0,
    "version": 1,
    "function_id": "f",
}


def test_a_session_is_opened_with_what_its_guest_gets(server, cli, tmp_path):
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


def test_a_session_is_saved_and_ended(server, cli):
    server[f"POST /sessions/{ID}/snapshot"] = (201, {"id": "s", "size_bytes": 1})
    server[f"DELETE /sessions/{ID}"] = (204, None)
    assert cli("sessions", "save", ID).out == "s\n"
    assert json.loads(cli("sessions", "save", ID, "--output", "json").out) == {"id": "s", "size_bytes": 1}
    assert cli("sessions", "close", ID).code == 0
    assert cli("sessions", "close", "..").code == 2
