"""Each client command against a real server, as a process with its output and exit code."""

import json
import os
import subprocess
import sys

import pytest
from wasmtime import wat2wasm

GUEST = r"""(module
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (global $calls (mut i32) (i32.const 0))
  (data (i32.const 0) "hello\ff")
  (func (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1)))
  (func (export "half") (param f32) (result f32) (f32.mul (local.get 0) (f32.const 0.5)))
  (func (export "say") (drop (call $emit (i32.const 0) (i32.const 6))))
  (func (export "count") (result i32)
    (global.set $calls (i32.add (global.get $calls) (i32.const 1))) (global.get $calls))
  (func (export "spin") (loop (br 0)))
  (func (export "trap") unreachable))"""


@pytest.fixture(scope="module")
def run(server):
    """Run a client command, and return what came of it."""

    def run(*arguments, code=0, url=None, **environment):
        done = subprocess.run(
            [sys.executable, "-m", "tensorwasm.cli", *map(str, arguments), "--server", url or server.url],
            capture_output=True,
            check=False,
            timeout=100,
            env={**os.environ, "TENSOR_WASM_TOKEN": server.token, **environment},
        )
        assert done.returncode == code, done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    path = tmp_path_factory.mktemp("module") / "guest.wasm"
    path.write_bytes(wat2wasm(GUEST))
    return path


@pytest.fixture(scope="module")
def function(run, module):
    return run("deploy", module, "--timeout", "20").stdout.decode().strip()


def read(done):
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("export", "args", "printed"),
    [("add", "[2, 3]", b"5\n"), ("half", "[0.2]", b"0.1\n"), ("half", '["-Infinity"]', b'"-Infinity"\n')],
)
def test_invoke_prints_results_of_typed_arguments(run, function, export, args, printed):
    assert run("invoke", function, "--export", export, "--args", args).stdout == printed


def test_invoke_writes_what_the_guest_sent_whole_or_as_it_comes(run, function):
    assert run("invoke", function, "--export", "say").stdout == b"hello\xff"
    assert run("invoke", function, "--export", "say", "--stream").stdout == b"hello\xff"


@pytest.mark.parametrize("more", [(), ("--stream",)])
@pytest.mark.parametrize(
    ("export", "said"), [("trap", b"unreachable"), ("spin", b"deadline"), ("missing", b"missing_export")]
)
def test_a_failing_call_exits_1_with_a_message(run, function, export, said, more):
    done = run("invoke", function, "--export", export, "--timeout", "0.5", *more, code=1)
    assert said in done.stderr
    assert done.stderr.startswith(b"error: ")
    assert done.stdout == b""


def test_functions_are_shown_changed_and_deleted(run, module):
    function = run("deploy", module, "--name", "changed").stdout.decode().strip()
    assert function in {row["id"] for row in read(run("functions", "list", "--output", "json"))}
    run("functions", "update", function, module, "--memory", "2")
    run("functions", "alias", function, "old", "1")
    shown = read(run("functions", "show", function, "--output", "json"))
    assert (shown["current"], [row["version"] for row in shown["versions"]]) == (2, [1, 2])
    assert run("invoke", f"{function}@old", "--export", "add", "--args", "[1, 1]").stdout == b"2\n"
    assert b"version 1" in run("functions", "update", function, "--current", "1").stdout
    run("functions", "alias", function, "old", "--delete")
    run("invoke", f"{function}@old", code=1)
    run("functions", "delete", function)
    assert b"not_found" in run("functions", "show", function, code=1).stderr


def test_tokens_are_made_used_replaced_and_revoked(run, function):
    made = read(run("tokens", "create", "tests", "--tenants", "0,7", "--scope", "functions:read", "--output", "json"))
    run("functions", "show", function, TENSOR_WASM_TOKEN=made["token"])
    denied = run("invoke", function, "--export", "add", code=1, TENSOR_WASM_TOKEN=made["token"])
    assert b"scope_denied" in denied.stderr
    new = run("tokens", "rotate", made["id"]).stdout.decode().strip()
    run("functions", "show", function, TENSOR_WASM_TOKEN=new)
    assert b"unauthorized" in run("functions", "list", code=1, TENSOR_WASM_TOKEN=made["token"]).stderr
    rows = read(run("tokens", "list", "--output", "json"))
    replacing = next(row["id"] for row in rows if row["replaces"] == made["id"])
    run("tokens", "revoke", replacing)
    run("functions", "list", code=1, TENSOR_WASM_TOKEN=new)


def test_jobs_are_begun_waited_for_shown_and_cancelled(run, function):
    begin = ("invoke", function, "--async", "--export")
    assert run(*begin, "add", "--args", "[2, 3]", "--wait").stdout == b"5\n"
    once = [run(*begin, "add", "--args", "[2, 3]", "--idempotency-key", "tests").stdout for _ in range(2)]
    assert once[0] == once[1]
    job = once[0].decode().strip()
    assert run("jobs", "wait", job).stdout == b"5\n"
    assert read(run("jobs", "show", job, "--output", "json"))["status"] == "completed"
    trapped = run(*begin, "trap").stdout.decode().strip()
    assert b"unreachable" in run("jobs", "wait", trapped, code=1).stderr
    endless = run(*begin, "spin").stdout.decode().strip()
    run("jobs", "wait", endless, "--timeout", "0.1", code=1)
    run("jobs", "cancel", endless)
    assert b"cancelled" in run("jobs", "wait", endless, code=1).stderr
    rows = read(run("jobs", "list", "--function", function, "--output", "json"))
    assert {row["id"]: row["status"] for row in rows}[trapped] in {"failed", "dead"}
    assert job in run("jobs", "list", "--status", "completed").stdout.decode()


def test_a_session_keeps_its_state_between_calls(run, function):
    session = run("sessions", "open", function).stdout.decode().strip()
    calls = [run("sessions", "call", session, "--export", "count").stdout for _ in range(3)]
    assert calls == [b"1\n", b"2\n", b"3\n"]
    assert run("sessions", "save", session).stdout
    found = next(row for row in read(run("sessions", "list", "--output", "json")) if row["id"] == session)
    assert (found["calls"], found["saved_calls"]) == (3, 3)
    run("sessions", "close", session)
    assert b"not_found" in run("sessions", "call", session, "--export", "count", code=1).stderr


def test_another_tenants_function_is_denied(run, function):
    assert b"not_found" in run("functions", "show", function, "--tenant", "8", code=1).stderr


def test_metrics_are_shown_once_and_again_and_again(run):
    names = {row["name"] for row in read(run("metrics", "--output", "json"))}
    assert "tensor_wasm_http_requests_total" in names
    looks = run("observe", "--interval", "1", "--count", "2", "--output", "json").stdout.splitlines()
    assert json.loads(looks[1])["requests_per_s"] > 0


def test_a_command_without_a_token_names_the_missing_variable(run):
    assert b"TENSOR_WASM_TOKEN is not set" in run("functions", "list", code=1, TENSOR_WASM_TOKEN="").stderr


def test_a_route_that_is_not_there_is_3(server, run):
    assert b"endpoint_missing" in run("metrics", url=f"{server.url}/elsewhere", code=3).stderr
