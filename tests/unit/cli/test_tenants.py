"""Tenants, usage and snapshots of a server from the command line."""

import json
from pathlib import Path

import httpx
import pytest

from fakes.client import refuse

TENANT = {
    "tenant": 7,
    "name": "blue\x1b[2J",
    "weight": 3,
    "quotas": {"qps": 5, "instances": 2},
    "disabled": False,
    "created_unix_ms": 0,
}
ID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
SNAPSHOT = {"id": ID, "size_bytes": 5, "created_unix_ms": 0, "function_id": ID, "version": 1}
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
def test_what_no_tenant_can_be_is_a_mistake(server, cli, arguments):
    assert cli("tenants", *arguments).code == 2
    assert not server.requests


def test_usage_is_shown_with_the_quotas_that_hold(server, cli):
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
def test_a_file_that_cannot_be_replaced_is_told(server, cli):
    server[f"GET /snapshots/{ID}/content"] = httpx.Response(200, content=b"state")
    assert cli("snapshots", "fetch", ID, "/dev/full").code == 2
