"""Other people's ids on every route of a real server: a stranger learns nothing and changes nothing."""

import re

import pytest

from fakes.services import COUNTER
from neighbours import deploy
from servers import running_server
from tensorwasm.server.routes import ALL

ENVIRONMENT = {"TENSOR_WASM_API_TENANT_CAPS": "qps=100000,burst=100000"}
OWNER, STRANGER = {"X-TensorWasm-Tenant": "1"}, {"X-TensorWasm-Tenant": "2"}
BODIES = {
    "PUT /functions/{id}": {"name": "mine"},
    "PATCH /functions/{id}": {"current": 1},
    "PUT /functions/{id}/aliases/{alias}": {"version": 1},
    "PATCH /tenants/{tenant}": {"name": "mine"},
    "PUT /tenants/{tenant}": {"name": "mine"},
}
REFUSALS = {(403, "tenant_scope_denied"), (403, "scope_denied"), (404, "not_found"), (404, "instance_not_found")}
"""What strangers are told: the first two before anything is looked up."""
UNKNOWN = "99999999-9999-4999-8999-999999999999"
GUARDED = [
    route for route in ALL if "{" in route.path and route.method != "WS" and not route.path.startswith("/kernels")
]
IN_BODIES = ("/sessions", "/snapshot/save", "/v1/chat/completions", "/v1/completions", "/v1/embeddings")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("strangers") / "data"
    with running_server(data, environment=ENVIRONMENT) as running:
        yield running


@pytest.fixture(scope="module")
def theirs(server):
    """One of everything, of tenant 1."""
    with server.client(headers=OWNER) as client:
        function = deploy(client, COUNTER, "theirs", model=True)
        call = f"/functions/{function}"
        session = client.post("/sessions", json={"function": function}).json()["id"]
        return {
            "functions": function,
            "alias": client.put(f"{call}/aliases/prod", json={"version": 1}).json()["alias"],
            "jobs": client.post(f"{call}/invoke-async", json={"delay_s": 3600}).json()["job_id"],
            "sessions": session,
            "instances": session,
            "snapshots": client.post(f"/sessions/{session}/snapshot").json()["id"],
            "streams": client.post(f"{call}/invoke-stream").headers["x-request-id"],
            "tokens": client.post("/tokens", json={"name": "theirs", "tenants": [1]}).json()["id"],
            "tenants": "1",
            "v1": "theirs",
        }


@pytest.fixture(
    scope="module",
    params=["a token for another tenant", "all tenants, acting for another", "an administrator of another"],
)
def stranger(request, server):
    if request.param.startswith("all"):
        with server.client(headers=STRANGER) as client:
            yield client
        return
    scopes = ["admin"] if "admin" in request.param else None
    with server.client() as client:
        body = {"name": "stranger", "tenants": [2]} | ({"scopes": scopes} if scopes else {})
        made = client.post("/tokens", json=body)
        assert made.status_code == 201, made.text
    with server.client(headers={"Authorization": f"Bearer {made.json()['token']}"}) as client:
        yield client


def seen(client, theirs):
    """Return all that the owner sees of what is his."""
    paths = ("functions/{functions}", "functions/{functions}/versions", "jobs/{jobs}", "sessions/{sessions}")
    more = ("snapshots/{snapshots}", "streams/{streams}", "tokens/{tokens}")
    return [client.get("/" + path.format(**theirs)).json() for path in paths + more]


def reaches_all(route, stranger):
    """Whoever administers all tenants may see and change tokens and tenants, for whomever he acts."""
    return route.scope == "admin" and stranger.headers.get("x-tensorwasm-tenant") is not None


def test_no_route_takes_another_s_id(server, theirs, stranger):
    with server.client(headers=OWNER) as owner:
        before = seen(owner, theirs)
        for route in GUARDED:
            if reaches_all(route, stranger):
                continue
            noun = route.path.split("/")[1]
            first = iter([theirs[noun]])
            path = re.sub(r"\{\w+\}", lambda _, first=first: next(first, theirs["alias"]), route.path)
            body = BODIES.get(f"{route.method} {route.path}")
            for headers in ({}, OWNER) if "x-tensorwasm-tenant" not in stranger.headers else ({},):
                answer = stranger.request(route.method, path, json=body, headers=headers)
                assert answer.is_error, f"{route.method} {path}: {answer.text}"
                error = answer.json()["error"]
                found = (answer.status_code, error.get("kind", error.get("code")))
                assert found in REFUSALS | {(404, "model_not_found")}, f"{route.method} {path}: {found}"
                assert "theirs" not in answer.text or route.openai
                unknown = stranger.request(
                    route.method,
                    path.replace(theirs[noun], UNKNOWN if noun != "tenants" else "99"),
                    json=body,
                    headers=headers,
                )
                same = unknown.status_code, unknown.text.replace(UNKNOWN, theirs[noun])
                assert (answer.status_code, answer.text) == same, f"{route.method} {path}"
        assert seen(owner, theirs) == before


def test_no_list_shows_what_is_another_s(server, theirs, stranger):
    for route in ALL:
        if (
            route.method == "GET"
            and "{" not in route.path
            and route.scope is not None
            and not reaches_all(route, stranger)
        ):
            answer = stranger.get(route.path)
            for name, identity in theirs.items():
                if name not in {"tenants", "alias"}:
                    assert identity not in answer.text, f"{route.path} shows {name}"


def test_no_body_takes_another_s_id(server, theirs, stranger):
    bodies = [
        ("/sessions", {"function": theirs["functions"]}),
        ("/sessions", {"function": theirs["functions"] + "@prod"}),
        ("/snapshot/save", {"function_id": theirs["functions"]}),
        ("/snapshot/save", {"session_id": theirs["sessions"]}),
        ("/v1/completions", {"model": "theirs", "prompt": "x"}),
        ("/v1/completions", {"model": theirs["functions"], "prompt": "x"}),
        ("/v1/chat/completions", {"model": theirs["functions"], "messages": [{"role": "user", "content": "x"}]}),
        ("/v1/embeddings", {"model": theirs["functions"], "input": "x"}),
    ]
    for path, body in bodies:
        answer = stranger.post(path, json=body)
        assert answer.status_code in {403, 404}, f"{path}: {answer.text}"


def test_another_s_module_is_not_to_be_had_by_its_hash(server, theirs, stranger):
    with server.client(headers=OWNER) as owner:
        versions = owner.get(f"/functions/{theirs['functions']}/versions").json()["versions"]
    body = {"name": "mine", "module_hash": versions[0]["module_hash"]}
    answer = stranger.post("/functions", json=body)
    assert answer.status_code in {403, 404}, answer.text
