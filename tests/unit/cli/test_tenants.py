"""Tenants, tokens and usage of a server: the secret of a token is printed alone, and only once."""

import json

import pytest

from tensorwasm.cli.remote import tenants

TENANT = {
    "tenant": 7,
    "name": "blue\x1b[2J",
    "weight": 3,
    "quotas": {"qps": 5, "instances": 2},
    "disabled": False,
    "created_unix_ms": 0,
}
USED = dict.fromkeys(("requests", "errors", "cpu_us", "gpu_us", "launches", "bytes_in", "bytes_out"), 4)


def test_tenants_are_listed_and_shown_without_control_characters(server, cli):
    server["GET /tenants"] = {"tenants": [TENANT], "next": None}
    server["GET /tenants/7"] = TENANT
    head, row = cli("tenants", "list").out.splitlines()
    assert head.split() == ["TENANT", "WEIGHT", "DISABLED", "QUOTAS", "NAME"]
    assert row.split(maxsplit=3) == ["7", "3", "False", "qps=5, instances=2  blue[2J"]
    shown = cli("tenants", "show", "7").out
    assert "qps=5, instances=2" in shown
    assert "\x1b" not in shown
    assert json.loads(cli("tenants", "show", "7", "--output", "json").out) == TENANT


def test_a_tenant_is_created_changed_disabled_and_enabled(server, cli):
    server["POST /tenants"] = (201, TENANT)
    server["PATCH /tenants/7"] = TENANT
    server["DELETE /tenants/7"] = (204, None)
    assert cli("tenants", "create", "7", "--name", "blue", "--quota", "qps=5", "--quota", "burst=").code == 0
    assert cli("tenants", "update", "7", "--weight", "3").code == 0
    assert cli("tenants", "update", "7", "--enable").code == 0
    assert cli("tenants", "disable", "7").code == 0
    assert server.bodies == [
        {"tenant": 7, "name": "blue", "quotas": {"qps": 5, "burst": None}},
        {"weight": 3},
        {"disabled": False},
        None,
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("update", "7"),
        ("show", str(2**64)),
        ("create", "7", "--quota", "qps"),
        ("create", "7", "--quota", "=5"),
        ("create", "7", "--quota", "qps=x"),
        ("create", "7", "--quota", "qps=-1"),
    ],
)
def test_invalid_tenants_and_quotas_are_refused(server, cli, arguments):
    assert cli("tenants", *arguments).code == 2
    assert not server.requests


def test_usage_is_shown_with_quotas(server, cli):
    quotas = {"instances": {"used": 1, "limit": 8}, "requests": {"used": 0, "limit": None}}
    report = {"hours": [{"hour_unix_ms": 0, "used": USED}], "total": USED, "quotas": quotas}
    server["GET /usage"] = report
    lines = [line.split() for line in cli("usage", "--last", "60").out.splitlines()]
    assert ["1970-01-01", "00:00:00", *["4"] * 7] in lines
    assert ["all", *["4"] * 7] in lines
    assert ["instances", "1", "8"] in lines
    assert ["requests", "0", "-"] in lines
    assert json.loads(cli("usage", "--output", "json").out) == report
    assert cli("usage", "--last", "0").code == 2
    server["GET /usage"] = {"hours": []}
    assert cli("usage").code == 1


# ---------------------------------------------------------------- tokens

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
    monkeypatch.setattr(tenants.time, "time", lambda: 1000.0)


def test_a_new_token_is_alone_on_standard_output(server, cli, clock):
    server["POST /tokens"] = (201, MADE)
    done = cli("tokens", "create", "ci", "--tenants", f"1, {2**64 - 1}", "--scope", "invoke", "--expires", "60")
    assert (done.code, done.out) == (0, "tw_hunter2\n")
    assert f"1, {2**64 - 1}" in done.err
    assert "\x1b" not in done.err
    wanted = {"name": "ci", "tenants": [1, 2**64 - 1], "scopes": ["invoke"], "expires_unix_ms": 1_060_000}
    assert server.bodies == [wanted]


def test_a_token_for_all_tenants_has_the_default_scopes(server, cli):
    server["POST /tokens"] = (201, MADE)
    assert json.loads(cli("tokens", "create", "ci", "--tenants", "*", "--output", "json").out) == MADE
    assert server.bodies == [{"name": "ci", "tenants": "*"}]


@pytest.mark.parametrize("tenants_", ["", "1,", "-1", "x", "1;2", str(2**64), "٣"])
def test_invalid_tenants_of_a_token_are_refused(server, cli, tenants_):
    assert cli("tokens", "create", "ci", "--tenants", tenants_).code == 2
    assert not server.requests


def test_tokens_are_listed(server, cli):
    server["GET /tokens"] = {"tokens": [TOKEN], "next": None}
    head, row = cli("tokens", "list").out.splitlines()
    assert head.split() == ["ID", "TENANTS", "EXPIRES", "REVOKED", "SCOPES", "NAME"]
    assert row == f"{ID}  1, {2**64 - 1}  -        -        invoke, jobs  ci[31m"


def test_a_token_is_rotated(server, cli, clock):
    server[f"POST /tokens/{ID}/rotate"] = (201, MADE)
    assert cli("tokens", "rotate", ID, "--overlap", "30", "--expires", "1").out == "tw_hunter2\n"
    assert cli("tokens", "rotate", ID).code == 0
    assert server.bodies == [{"overlap_s": 30.0, "expires_unix_ms": 1_001_000}, {"overlap_s": 0.0}]
    for wrong in ("-1", "nan", "inf"):
        assert cli("tokens", "rotate", ID, "--overlap", wrong).code == 2


def test_a_token_is_revoked(server, cli):
    server[f"DELETE /tokens/{ID}"] = (204, None)
    assert cli("tokens", "revoke", ID).code == 0
