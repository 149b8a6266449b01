"""Tokens from the command line: the secret alone on standard output, and only when it was made."""

import json

import pytest

from tensorwasm.cli import tokens

ID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
TOKEN = {
    "id": ID,
    "name": "ci\x1b[31m",
    "tenants": [1, 2**64 - 1],
    "scopes": ["invoke", "jobs"],
    "created_unix_ms": 0,
    "expires_unix_ms": None,
    "revoked_unix_ms": None,
    "replaces": None,
}
MADE = {**TOKEN, "token": "tw_hunter2"}


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(tokens.time, "time", lambda: 1000.0)


def test_a_token_is_made_and_alone_on_standard_output(server, cli, clock):
    server["POST /tokens"] = (201, MADE)
    done = cli("tokens", "create", "ci", "--tenants", f"1, {2**64 - 1}", "--scope", "invoke", "--expires", "60")
    assert (done.code, done.out) == (0, "tw_hunter2\n")
    assert f"1, {2**64 - 1}" in done.err
    assert "\x1b" not in done.err
    wanted = {"name": "ci", "tenants": [1, 2**64 - 1], "scopes": ["invoke"], "expires_unix_ms": 1_060_000}
    assert server.bodies == [wanted]


def test_a_token_for_all_tenants_has_what_users_have_unless_told_otherwise(server, cli):
    server["POST /tokens"] = (201, MADE)
    assert json.loads(cli("tokens", "create", "ci", "--tenants", "*", "--output", "json").out) == MADE
    assert server.bodies == [{"name": "ci", "tenants": "*"}]


@pytest.mark.parametrize("tenants_", ["", "1,", "-1", "x", "1;2", str(2**64), "٣"])
def test_tenants_that_cannot_be_are_a_mistake(server, cli, tenants_):
    assert cli("tokens", "create", "ci", "--tenants", tenants_).code == 2
    assert not server.requests


def test_tokens_are_listed(server, cli):
    server["GET /tokens"] = {"tokens": [TOKEN], "next": None}
    head, row = cli("tokens", "list").out.splitlines()
    assert head.split() == ["ID", "TENANTS", "EXPIRES", "REVOKED", "SCOPES", "NAME"]
    assert row == f"{ID}  1, {2**64 - 1}  -        -        invoke, jobs  ci[31m"


def test_a_token_is_replaced(server, cli, clock):
    server[f"POST /tokens/{ID}/rotate"] = (201, MADE)
    assert cli("tokens", "rotate", ID, "--overlap", "30", "--expires", "1").out == "tw_hunter2\n"
    assert cli("tokens", "rotate", ID).code == 0
    assert server.bodies == [{"overlap_s": 30.0, "expires_unix_ms": 1_001_000}, {"overlap_s": 0.0}]
    for wrong in ("-1", "nan", "inf"):
        assert cli("tokens", "rotate", ID, "--overlap", wrong).code == 2


def test_a_token_is_revoked(server, cli):
    server[f"DELETE /tokens/{ID}"] = (204, None)
    assert cli("tokens", "revoke", ID).code == 0
