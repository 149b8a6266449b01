"""The routes of tenants."""

import msgspec
import pytest

from tensorwasm.errors import Conflict, InvalidName, InvalidRequest, TenantScopeDenied
from tensorwasm.tenancy.principal import MAX_TENANT

SEVEN = {"tenant": 7, "name": "seven", "weight": 3, "quotas": {"requests": 5, "qps": None}}


@pytest.fixture
def admin(office):
    """Makes a token that administers some tenants."""

    def make(*tenants):
        body = {"name": "n", "tenants": list(tenants), "scopes": ["admin"]}
        return office.ask("POST", "/tokens", body).body["token"]

    return make


def test_a_tenant_is_created_shown_changed_and_disabled(office):
    made = office.ask("POST", "/tenants", SEVEN)
    expected = {"tenant": 7, "name": "seven", "weight": 3, "quotas": {"requests": 5}, "disabled": False}
    assert made.body.pop("created_unix_ms") > 0
    assert (made.status, made.body, made.action, made.audit) == (201, expected, "create_tenant", {"tenant_id": "7"})
    changed = office.ask("PATCH", "/tenants/7", {"weight": 4, "quotas": {"requests": None, "burst": 1}})
    assert (changed.body["weight"], changed.body["quotas"], changed.body["name"]) == (4, {"burst": 1}, "seven")
    assert (changed.action, changed.audit) == ("update_tenant", {"tenant_id": "7"})
    gone = office.ask("DELETE", "/tenants/7")
    assert (gone.status, gone.body) == (204, None)
    assert office.ask("GET", "/tenants/7").body["disabled"]
    assert office.identity.identities.policy(7).disabled
    assert not office.ask("PATCH", "/tenants/7", {"disabled": False}).body["disabled"]
    with pytest.raises(Conflict):
        office.ask("POST", "/tenants", SEVEN)


def test_exactly_the_numbers_are_tenants(office):
    body = office.ask("GET", f"/tenants/{MAX_TENANT}").body
    assert body == {
        "tenant": MAX_TENANT, "name": "", "weight": 1, "quotas": {}, "disabled": False, "created_unix_ms": None,
    }  # fmt: skip
    for strange in (str(MAX_TENANT + 1), "-1", "x", "", "1.0", "0x7", "\u0667", "9" * 5000):
        with pytest.raises(InvalidRequest):
            office.ask("GET", f"/tenants/{strange}")
        with pytest.raises(InvalidRequest):
            office.ask("PATCH", f"/tenants/{strange}", {})


def test_an_administrator_of_some_tenants_sees_and_changes_no_others(office, admin):
    token = admin(7, 9)
    for tenant in (7, 8):
        office.ask("POST", "/tenants", {"tenant": tenant})
    assert [each["tenant"] for each in office.ask("GET", "/tenants", token=token).body["tenants"]] == [7]
    office.ask("PATCH", "/tenants/9", {"name": "nine"}, token=token)
    for method, path, body in (
        ("GET", "/tenants/8", None),
        ("GET", "/tenants/10", None),
        ("PATCH", "/tenants/8", {"weight": 9}),
        ("DELETE", "/tenants/8", None),
        ("POST", "/tenants", {"tenant": 10}),
        ("PATCH", "/tenants/7", {"weight": 1000}),
        ("PATCH", "/tenants/7", {"quotas": {"instances": 1 << 40}}),
        ("PATCH", "/tenants/7", {"quotas": {"instances": None}}),
        ("POST", "/tenants", {"tenant": 9, "quotas": {"qps": 0}}),
    ):
        with pytest.raises(TenantScopeDenied):
            office.ask(method, path, body, token=token)
    assert office.ask("DELETE", "/tenants/9", token=token).status == 204
    assert not office.ask("GET", "/tenants/8").body["disabled"]


def test_a_disabled_tenants_own_administrator_cannot_enable_it(office, admin):
    own = admin(7)
    office.ask("DELETE", "/tenants/7")
    for method, path, body in (("PATCH", "/tenants/7", {"disabled": False}), ("GET", "/tokens", None)):
        with pytest.raises(TenantScopeDenied):
            office.ask(method, path, body, token=own)
    assert office.identity.identities.policy(7).disabled


def test_invalid_tenants_are_refused(office):
    for more in ({"weight": 0}, {"weight": 1001}, {"quotas": {"x": 1}}, {"quotas": {"qps": -1}}):
        with pytest.raises(InvalidRequest):
            office.ask("POST", "/tenants", SEVEN | more)
    with pytest.raises(InvalidName):
        office.ask("POST", "/tenants", SEVEN | {"name": "\n"})
    for tenant in (-1, MAX_TENANT + 1):
        with pytest.raises(InvalidRequest):
            office.ask("POST", "/tenants", {"tenant": tenant})
    for more in ({"weight": "1"}, {"quotas": {"qps": 1.5}}, {"tenant": "7"}, {"disabled": 1}):
        with pytest.raises(msgspec.ValidationError):
            office.ask("POST", "/tenants", SEVEN | more)
    assert office.ask("GET", "/tenants").body == {"tenants": [], "next": None}


def test_each_page_leads_to_the_next(office):
    for tenant in (MAX_TENANT, 3, 20):
        office.ask("PATCH", f"/tenants/{tenant}", {})
    first = office.ask("GET", "/tenants?limit=2").body
    second = office.ask("GET", f"/tenants?limit=2&after={first['next']}").body
    assert [each["tenant"] for each in first["tenants"] + second["tenants"]] == [3, 20, MAX_TENANT]
    assert second["next"] is None
    with pytest.raises(InvalidRequest):
        office.ask("GET", "/tenants?after=x")
