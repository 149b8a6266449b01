"""Deploying and changing functions: requests, output, and refusals before a request."""

import base64
import io
import json
import sys
import urllib.parse
from types import SimpleNamespace

import pytest

from fakes.client import refuse
from tensorwasm.cli.remote import functions

WASM = b"\0asm\1\0\0\0"
ID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "adder.wasm"
    path.write_bytes(WASM)
    return path


def test_a_module_is_sent_unchanged_and_its_id_is_printed(server, cli, module):
    server["POST /functions"] = {"id": ID}
    done = cli("deploy", module)
    assert (done.code, done.out) == (0, f"{ID}\n")
    assert server.asked == ["POST /functions?name=adder&if_exists=new_version"]
    assert (server.requests[0].content, server.requests[0].headers["Content-Type"]) == (WASM, "application/wasm")


def test_given_options_are_sent_with_the_module(server, cli, module):
    server["POST /functions"] = {"id": ID}
    options = (
        "--name",
        "added",
        "--grant",
        "cuda",
        "--memory",
        64,
        "--timeout",
        2.5,
        "--env",
        "A=b=c",
        "--warm",
        2,
        "--model",
        "--offload",
        "auto",
        "--offload-math",
        "relaxed",
    )
    done = cli("deploy", module, *options, "--output", "json", "--idempotency-key", "once")
    assert (done.code, json.loads(done.out)) == (0, {"id": ID})
    wanted = {"grants": ["cuda"], "memory_mib": 64, "timeout_s": 2.5, "env": {"A": "b=c"}, "warm": 2, "model": True}
    wanted |= {"offload": "auto", "offload_math": "relaxed"}
    body = {"name": "added", "wasm_b64": base64.b64encode(WASM).decode(), "options": wanted}
    assert server.bodies == [body | {"if_exists": "new_version"}]
    assert server.requests[0].headers["Idempotency-Key"] == "once"


def test_loops_run_in_no_other_place_than_there_is(server, cli, module):
    done = cli("deploy", module, "--offload", "tpu")
    assert (done.code, server.requests) == (2, [])
    assert "--offload is one of off, auto, cpu, gpu" in done.err


def test_floats_are_added_up_in_no_other_way_than_there_is(server, cli, module):
    done = cli("deploy", module, "--offload-math", "fast")
    assert (done.code, server.requests) == (2, [])
    assert "--offload-math is one of exact, relaxed" in done.err


def test_another_function_of_a_name_is_made_only_with_new(server, cli, module):
    server["POST /functions"] = {"id": ID}
    assert cli("deploy", module, "--new").code == 0
    assert cli("deploy", module, "--new", "--no-model").code == 0
    assert server.asked[0] == "POST /functions?name=adder&if_exists=new_function"
    body = json.loads(server.requests[1].content)
    assert (body["if_exists"], body["options"]) == ("new_function", {"model": False})


def test_a_module_from_standard_input_needs_a_name(server, cli, monkeypatch):
    server["POST /functions"] = {"id": ID}
    assert cli("deploy", "-").code == 2
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(WASM)))
    assert cli("deploy", "-", "--name", "adder").code == 0
    assert [request.content for request in server.requests] == [WASM]


def test_a_module_over_64_mib_is_not_sent(server, cli, module, monkeypatch):
    monkeypatch.setattr(functions, "MAX_MODULE_BYTES", len(WASM) - 1)
    done = cli("deploy", module)
    assert (done.code, done.err.split(":")[1], server.requests) == (2, " module_too_large", [])


@pytest.mark.parametrize(
    "arguments",
    [
        ("missing.wasm",),
        (".",),
        ("{module}", "--memory", "0"),
        ("{module}", "--timeout", "-1"),
        ("{module}", "--env", "A"),
        ("{module}", "--idempotency-key", "a\nb"),
        ("{module}", "--idempotency-key", ""),
    ],
)
def test_invalid_arguments_are_refused_before_a_request(server, cli, module, arguments):
    assert cli("deploy", *(argument.format(module=module) for argument in arguments)).code == 2
    assert not server.requests


def test_a_refusal_is_printed(server, cli, module):
    server["POST /functions"] = refuse(400, "invalid_wasm", "no module")
    done = cli("deploy", module)
    assert (done.code, done.err) == (1, "error: invalid_wasm: no module\n")


@pytest.mark.parametrize("answer", [[], {}, "x", 7])
def test_an_answer_without_an_id_is_malformed(server, cli, module, answer):
    server["POST /functions"] = (200, answer)
    done = cli("deploy", module)
    assert (done.code, done.err.split(":")[1]) == (1, " malformed_answer")


ROW = {"id": ID, "name": "add\x1b[2Jer", "current": 2, "created_unix_ms": 0, "updated_unix_ms": 1700000000000}


def test_functions_are_listed_page_by_page(server, cli):
    server["GET /functions"] = [{"functions": [ROW], "next": "1.a"}, {"functions": [ROW, ROW], "next": None}]
    done = cli("functions", "list")
    assert server.asked == ["GET /functions?limit=100", "GET /functions?limit=100&after=1.a"]
    head, *rows = done.out.splitlines()
    assert head.split() == ["ID", "CURRENT", "UPDATED", "NAME"]
    assert rows == [f"{ID}  2        2023-11-14 22:13:20  add[2Jer"] * 3


def test_the_limit_is_sent_with_the_request(server, cli):
    server["GET /functions"] = {"functions": [ROW, ROW], "next": "1.a"}
    done = cli("functions", "list", "--limit", "2", "--output", "json")
    assert (len(json.loads(done.out)), server.asked) == (2, ["GET /functions?limit=2"])
    assert cli("functions", "list", "--limit", "0").code == 2


def test_an_empty_list_is_reported(server, cli):
    server["GET /functions"] = {"functions": [], "next": None}
    assert cli("functions", "list").out == "(no functions)\n"


def test_a_function_is_shown_with_its_versions_and_aliases(server, cli):
    version = {"version": 1, "module_bytes": 8, "created_unix_ms": 0, "module_hash": "blake3:00", "options": {}}
    server[f"GET /functions/{ID}"] = {**ROW, "tenant_id": 2**64 - 1, "aliases": [{"alias": "live", "version": 2}]}
    server[f"GET /functions/{ID}/versions"] = {"versions": [version], "next": None}
    done = cli("functions", "show", ID)
    assert done.code == 0
    assert str(2**64 - 1) in done.out
    assert "blake3:00" in done.out
    assert done.out.endswith("live -> 2\n")
    assert json.loads(cli("functions", "show", ID, "--output", "json").out)["versions"] == [version]


def test_update_sends_a_version_a_name_or_the_current_version(server, cli, module):
    server[f"PUT /functions/{ID}"] = server[f"PATCH /functions/{ID}"] = ROW
    assert cli("functions", "update", ID, module, "--memory", "1").out == f"{ID} is at version 2\n"
    assert cli("functions", "update", ID, "--name", "new").code == 0
    assert cli("functions", "update", ID, "--current", "1").code == 0
    wasm = base64.b64encode(WASM).decode()
    assert server.bodies == [{"wasm_b64": wasm, "options": {"memory_mib": 1}}, {"name": "new"}, {"current": 1}]
    assert [request.method for request in server.requests] == ["PUT", "PUT", "PATCH"]


def test_update_without_or_with_contradictory_changes_is_refused(server, cli):
    assert cli("functions", "update", ID).code == 2
    assert cli("functions", "update", ID, "--current", "1", "--name", "new").code == 2
    assert not server.requests


def test_an_alias_is_set_and_deleted(server, cli):
    server[f"PUT /functions/{ID}/aliases/live"] = {"alias": "live", "version": 3}
    server[f"DELETE /functions/{ID}/aliases/live"] = (204, None)
    assert cli("functions", "alias", ID, "live", "3").out == "live -> 3\n"
    assert cli("functions", "alias", ID, "live", "--delete").code == 0
    assert cli("functions", "alias", ID, "live").code == 2
    assert cli("functions", "alias", ID, "live", "3", "--delete").code == 2
    assert server.bodies == [{"version": 3}, None]


def test_a_function_is_deleted(server, cli):
    server[f"DELETE /functions/{ID}"] = (204, None)
    assert cli("functions", "delete", ID).code == 0


@pytest.mark.parametrize("reference", ["..", ".", "a/b", "a\nb", "", "a" * 257])
def test_a_reference_that_is_no_path_segment_is_refused(server, cli, reference):
    assert cli("functions", "delete", reference).code == 2
    assert cli("invoke", reference).code == 2
    assert not server.requests


@pytest.mark.parametrize("name", ["adder", "a b", "a?b", "a%2fb", "é", "a@live", "a#b@3", "..."])
def test_names_are_quoted_in_paths(server, cli, name):
    server[f"DELETE /functions/{name}"] = (204, None)
    assert cli("functions", "delete", name).code == 0
    assert server.requests[0].url.raw_path.decode() == f"/functions/{urllib.parse.quote(name, safe='@')}"
