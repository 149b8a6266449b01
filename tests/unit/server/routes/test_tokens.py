"""The routes of tokens."""

import msgspec
import pytest

from fakes.administration import ROUTES
from tensorwasm.errors import Conflict, InvalidRequest, NotFound, ScopeDenied, TenantScopeDenied
from tensorwasm.tenancy.principal import MAX_TENANT, SCOPES, USER_SCOPES

ANN = {"name": "ann", "tenants": [7, MAX_TENANT]}
MISSING = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def seven(office):
    """A token that administers tenant 7 and nothing else."""
    return office.ask("POST", "/tokens", {"name": "seven", "tenants": [7], "scopes": ["admin", "invoke"]}).body["token"]


def test_every_route_is_for_administrators_with_their_own_limit():
    assert {(each.scope, each.kind, each.tenant) for each in ROUTES} == {("admin", "admin", False)}
    assert {each.action for each in ROUTES if each.method == "GET"} == {None}
    assert {each.action for each in ROUTES if each.method != "GET"} == {
        "create_token", "rotate_token", "revoke_token", "create_tenant", "update_tenant",
    }  # fmt: skip


def test_a_new_token_is_shown_once_and_never_cached(office):
    answer = office.ask("POST", "/tokens", ANN)
    token = answer.body.pop("token")
    principal = office.knows(token)
    assert (principal.tenants, principal.scopes) == (frozenset({7, MAX_TENANT}), USER_SCOPES)
    assert answer.body == {
        "id": principal.id,
        "name": "ann",
        "tenants": [7, MAX_TENANT],
        "scopes": sorted(USER_SCOPES),
        "created_unix_ms": answer.body["created_unix_ms"],
        "expires_unix_ms": None,
        "revoked_unix_ms": None,
        "replaces": None,
    }
    assert (answer.status, answer.headers["cache-control"]) == (201, "no-store")
    assert (answer.action, answer.audit) == ("create_token", {"token_id": principal.id})
    assert office.ask("GET", f"/tokens/{principal.id}").body == answer.body
    for each in (answer, office.ask("GET", "/tokens"), office.ask("GET", f"/tokens/{principal.id}")):
        assert token.split("_", 2)[2] not in each.shown  # a secret may have a _ itself


def test_a_token_for_all_tenants_has_an_asterisk(office):
    answer = office.ask("POST", "/tokens", {"name": "all", "tenants": "*", "scopes": ["invoke"]})
    assert answer.body["tenants"] == "*"
    assert office.knows(answer.body["token"]).tenants is None


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x"},
        {"name": "x", "tenants": "7"},
        {"name": "x", "tenants": 7},
        {"name": "x", "tenants": ["7"]},
        {"name": "x", "tenants": [7.5]},
        {"name": "x", "tenants": None},
        {"name": "x", "tenants": [7], "scopes": "admin"},
        {"name": "x", "tenants": [7], "expires_unix_ms": -1},
        {"name": 7, "tenants": [7]},
        [],
    ],
    ids=str,
)
def test_a_body_of_other_types_is_refused(office, body):
    with pytest.raises(msgspec.ValidationError):
        office.ask("POST", "/tokens", body)


@pytest.mark.parametrize(
    "more", [{"tenants": []}, {"tenants": [-1]}, {"tenants": [1 << 64]}, {"scopes": []}, {"scopes": ["root"]}], ids=str
)
def test_invalid_values_are_refused(office, more):
    with pytest.raises(InvalidRequest):
        office.ask("POST", "/tokens", ANN | more)


@pytest.mark.rule("14-ended")
def test_a_token_is_rotated_and_revoked(office):
    old = office.ask("POST", "/tokens", ANN).body
    new = office.ask("POST", f"/tokens/{old['id']}/rotate")
    assert (new.status, new.body["replaces"], new.headers["cache-control"]) == (201, old["id"], "no-store")
    assert new.audit == {"token_id": new.body["id"], "replaces": old["id"]}
    assert office.knows(old["token"]) is None
    assert office.knows(new.body["token"])
    newer = office.ask("POST", f"/tokens/{new.body['id']}/rotate", {"overlap_s": 60})
    assert office.knows(new.body["token"])
    for _ in range(2):
        gone = office.ask("DELETE", f"/tokens/{newer.body['id']}")
        assert (gone.status, gone.body, gone.audit) == (204, None, {"token_id": newer.body["id"]})
    assert office.knows(newer.body["token"]) is None
    assert office.ask("GET", f"/tokens/{newer.body['id']}").body["revoked_unix_ms"]
    with pytest.raises(Conflict):
        office.ask("POST", f"/tokens/{newer.body['id']}/rotate")


def test_a_token_may_revoke_itself(office):
    itself = office.knows(office.token).id
    new = office.ask("POST", f"/tokens/{itself}/rotate").body["token"]
    assert office.knows(office.token) is None
    assert office.knows(new).scopes == frozenset(SCOPES)


@pytest.mark.rule("14-minted")
@pytest.mark.parametrize(
    ("error", "body"),
    [
        (TenantScopeDenied, {"name": "x", "tenants": "*", "scopes": ["invoke"]}),
        (TenantScopeDenied, {"name": "x", "tenants": [8], "scopes": ["invoke"]}),
        (TenantScopeDenied, {"name": "x", "tenants": [7, 8], "scopes": ["invoke"]}),
        (ScopeDenied, {"name": "x", "tenants": [7], "scopes": ["kernels:publish"]}),
        (ScopeDenied, {"name": "x", "tenants": [7]}),
    ],
    ids=str,
)
def test_an_administrator_of_one_tenant_grants_no_more(office, seven, error, body):
    with pytest.raises(error):
        office.ask("POST", "/tokens", body, token=seven)


@pytest.mark.rule("14-minted")
def test_an_administrator_of_one_tenant_sees_and_revokes_only_its_tokens(office, seven):
    own = office.ask("POST", "/tokens", {"name": "own", "tenants": [7], "scopes": ["invoke"]}, token=seven).body
    more = office.ask("POST", "/tokens", {"name": "more", "tenants": [7], "scopes": ["jobs"]}).body
    others = [office.ask("POST", "/tokens", {"name": "x", "tenants": chosen}).body for chosen in ([8], [7, 8], "*")]
    listed = [each["name"] for each in office.ask("GET", "/tokens", token=seven).body["tokens"]]
    assert listed == ["seven", "own", "more"]
    for strange in (*(each["id"] for each in others), MISSING, "x"):
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
            with pytest.raises(NotFound):
                office.ask(method, f"/tokens/{strange}{path}", token=seven)
    with pytest.raises(ScopeDenied):
        office.ask("POST", f"/tokens/{more['id']}/rotate", token=seven)
    assert all(office.knows(each["token"]) for each in (own, more, *others))
    office.ask("DELETE", f"/tokens/{own['id']}", token=seven)
    assert office.knows(own["token"]) is None


def test_without_the_scope_no_token_is_administered(office):
    user = office.ask("POST", "/tokens", ANN).body["token"]
    for route in ROUTES:
        with pytest.raises(ScopeDenied):
            office.ask(route.method, route.path, token=user)


def test_each_page_leads_to_the_next(office):
    for n in range(4):
        office.ask("POST", "/tokens", ANN | {"name": str(n)})
    first = office.ask("GET", "/tokens?limit=3").body
    second = office.ask("GET", f"/tokens?limit=3&after={first['next']}").body
    assert {each["name"] for each in first["tokens"] + second["tokens"]} == {"first", "0", "1", "2", "3"}
    assert second["next"] is None
    for query in ("limit=0", "limit=1001", "limit=x", "limit=-1", "limit=1\u0663"):
        with pytest.raises(InvalidRequest):
            office.ask("GET", f"/tokens?{query}")
