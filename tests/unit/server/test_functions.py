"""The routes of functions, over a real service."""

import asyncio
import base64
import hashlib
import io
import json
import tarfile

import pytest
from wasmtime import wat2wasm

from fakes.applications import ALPHA, BETA, bearer
from fakes.rsgi import ask
from fakes.services import ADD, GUEST, SUB

JSON = {"Content-Type": "application/json"}
FLOATS = bytes(
    wat2wasm("""(module
  (func (export "half") (param f32) (result f32) (f32.mul (local.get 0) (f32.const 0.5)))
  (func (export "same") (param i64) (result i64) local.get 0)
  (func (export "f64") (param f64) (result f64) local.get 0)
  (func (export "both") (result i32 f64) (i32.const 1) (f64.const nan))
  (func (export "_start")))""")
)


def b64(module):
    return base64.b64encode(module).decode()


class Client:
    """What a client of tenant 7 asks for."""

    def __init__(self, pipeline, token=ALPHA):
        self.pipeline = pipeline
        self.token = token

    async def send(self, method, path, body=None, *, headers=None, raw=None, query=""):
        given = bearer(self.token) | JSON | (headers or {})
        sent = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        return await ask(self.pipeline, method, path, headers=given, body=sent, query=query)

    async def deploy(self, module, name="f", **more):
        found = await self.send("POST", "/functions", {"name": name, "wasm_b64": b64(module), **more})
        assert found.status == 200, found.body
        return found.json()["id"]

    async def call(self, reference, export=None, *args, **more):
        body = {"args": list(args), **more} | ({"export": export} if export else {})
        return await self.send("POST", f"/functions/{reference}/invoke", body)


def story(served, told, **environment):
    async def run():
        async with served(**environment) as (service, pipeline):
            await told(Client(pipeline), service)

    asyncio.run(run())


def test_a_function_lives(served):
    async def told(client, service):
        function = await client.deploy(ADD, "adds")
        found = await client.call(function, "add", 2, 3)
        assert (found.status, found.json()) == (200, {"function_id": function, "result": [5]})
        again = await client.call(function, "add", 2**31 - 1, 1)
        assert again.json()["result"] == [-(2**31)]
        seen = (await client.send("GET", f"/functions/{function}")).json()
        assert (seen["name"], seen["current"], seen["tenant_id"], seen["aliases"]) == ("adds", 1, 7, [])
        updated = await client.send("PUT", f"/functions/{function}", {"wasm_b64": b64(SUB), "name": "subtracts"})
        assert (updated.json()["current"], updated.json()["name"]) == (2, "subtracts")
        assert (await client.call(function, "add", 2, 3)).json()["result"] == [-1]
        assert (await client.call(f"{function}@1", "add", 2, 3)).json()["result"] == [5]
        set_ = await client.send("PUT", f"/functions/{function}/aliases/prod", {"version": 1})
        assert (set_.json()["alias"], set_.json()["version"]) == ("prod", 1)
        assert (await client.call(f"{function}@prod", "add", 2, 3)).json() == {"function_id": function, "result": [5]}
        back = await client.send("PATCH", f"/functions/{function}", {"current": 1})
        assert back.json()["current"] == 1
        assert (await client.call(function, "add", 2, 3)).json()["result"] == [5]
        versions = (await client.send("GET", f"/functions/{function}/versions")).json()
        assert [each["version"] for each in versions["versions"]] == [1, 2]
        assert versions["versions"][0]["module_hash"].startswith("blake3:")
        assert (await client.send("DELETE", f"/functions/{function}/aliases/prod")).status == 204
        assert (await client.call(f"{function}@prod", "add", 2, 3)).status == 404
        gone = await client.send("DELETE", f"/functions/{function}")
        assert (gone.status, gone.body) == (204, b"")
        for method, path in (("DELETE", ""), ("GET", ""), ("POST", "/invoke"), ("GET", "/versions")):
            found = await client.send(method, f"/functions/{function}{path}", {})
            assert (found.status, found.kind) == (404, "not_found")

    story(served, told)


def test_lists_come_in_pages(served):
    async def told(client, service):
        made = [await client.deploy(ADD, f"f{index}") for index in range(5)]
        seen, query = [], "limit=2"
        while True:
            page = (await client.send("GET", "/functions", query=query)).json()
            seen += [each["id"] for each in page["functions"]]
            if page["next"] is None:
                break
            query = f"limit=2&after={page['next']}"
        assert seen == made
        for _ in range(3):
            await client.send("PUT", f"/functions/{made[0]}", {"wasm_b64": b64(SUB)})
        page = (await client.send("GET", f"/functions/{made[0]}/versions", query="limit=2&after=1")).json()
        assert ([each["version"] for each in page["versions"]], page["next"]) == ([2, 3], 3)
        other = Client(client.pipeline, BETA)
        assert (await other.send("GET", "/functions")).json() == {"functions": [], "next": None}
        for query in ("limit=0", "limit=1001", "limit=x", "after=nonsense", "limit=-1"):
            found = await client.send("GET", "/functions", query=query)
            assert (found.status, found.kind) == (400, "invalid_request"), query

    story(served, told)


def oci(module):
    """An OCI image layout with one module, as a tar file."""

    def blob(data, kind):
        return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}, data

    config = blob(b"{}", "application/vnd.wasm.config.v0+json")
    layer = blob(module, "application/wasm")
    text = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config[0],
            "layers": [layer[0]],
        }
    ).encode()
    manifest = blob(text, "application/vnd.oci.image.manifest.v1+json")
    index = json.dumps({"schemaVersion": 2, "manifests": [manifest[0]]}).encode()
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index}
    files |= {f"blobs/sha256/{each['digest'][7:]}": data for each, data in (config, layer, manifest)}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return made.getvalue()


@pytest.mark.parametrize(
    ("kind", "packed"),
    [
        ("application/wasm", lambda module: module),
        ("application/octet-stream", lambda module: module),
        ("application/vnd.oci.image.layout.v1.tar", oci),
        ("application/x-tar", oci),
    ],
)
def test_a_module_may_be_the_body_itself(served, kind, packed):
    async def told(client, service):
        headers = {"Content-Type": kind}
        found = await client.send("POST", "/functions", headers=headers, raw=packed(ADD), query="name=raw")
        assert found.status == 200
        assert (await client.call(found.json()["id"], "add", 1, 1)).json()["result"] == [2]
        unnamed = await client.send("POST", "/functions", headers=headers, raw=packed(ADD))
        assert (unnamed.status, unnamed.kind) == (400, "invalid_name")

    story(served, told)


def test_a_module_may_be_named_by_its_hash_by_its_owner_alone(served):
    async def told(client, service):
        function = await client.deploy(ADD)
        page = (await client.send("GET", f"/functions/{function}/versions")).json()
        named = {"name": "again", "module_hash": page["versions"][0]["module_hash"]}
        again = await client.send("POST", "/functions", named)
        assert (await client.call(again.json()["id"], "add", 1, 2)).json()["result"] == [3]
        other = await Client(client.pipeline, BETA).send("POST", "/functions", named)
        assert (other.status, other.kind) == (404, "not_found")

    story(served, told)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"name": "", "wasm_b64": b64(ADD)}, "invalid_name"),
        ({"name": " ", "wasm_b64": b64(ADD)}, "invalid_name"),
        ({"name": "a\u0007", "wasm_b64": b64(ADD)}, "invalid_name"),
        ({"name": "x" * 257, "wasm_b64": b64(ADD)}, "invalid_name"),
        ({"name": "f", "wasm_b64": "!"}, "invalid_base64"),
        ({"name": "f", "wasm_b64": ""}, "invalid_wasm"),
        ({"name": "f", "wasm_b64": b64(b"\0asm\1\0\0")}, "invalid_wasm"),
        ({"name": "f", "wasm_b64": b64(ADD[:-1])}, "invalid_wasm"),
        ({"name": "f"}, "invalid_json"),
        ({"wasm_b64": b64(ADD)}, "invalid_json"),
        ({"name": "f", "wasm_b64": b64(ADD), "module_hash": "blake3:00"}, "invalid_json"),
        ({"name": "f", "wasm_b64": 5}, "invalid_json"),
        ([], "invalid_json"),
        ({"name": "f", "module_hash": "nonsense"}, "invalid_request"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"grants": ["read:/"]}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"memory_mib": 0}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"memory_mib": 10**9}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"timeout_s": -1}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"warm": -1}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"env": {"a=b": ""}}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"memory_kind": "odd"}}, "invalid_json"),
    ],
)
def test_what_cannot_be_deployed_is_refused_and_nothing_is_there(served, body, kind):
    async def told(client, service):
        found = await client.send("POST", "/functions", body)
        assert (found.status, found.kind) == (400, kind)
        assert (await client.send("GET", "/functions")).json()["functions"] == []

    story(served, told)


def test_arguments_are_what_the_signature_says(served):
    cases = [
        ("half", [3], [1.5]),
        ("half", [0.1], [0.05]),
        ("half", ["NaN"], ["NaN"]),
        ("half", ["Infinity"], ["Infinity"]),
        ("same", [2**63 - 1], [2**63 - 1]),
        ("same", [2**53 + 1], [2**53 + 1]),
        ("same", [2**64 - 1], [-1]),
        ("same", ["9007199254740993"], [9007199254740993]),
        ("f64", [0.1], [0.1]),
        ("f64", [1e300], [1e300]),
        ("both", [], [1, "NaN"]),
    ]
    refused = [
        ("same", [1.5], "invalid_args"),
        ("same", [2**64], "invalid_args"),
        ("same", [], "invalid_args"),
        ("same", [1, 2], "invalid_args"),
        ("same", [None], "invalid_args"),
        ("same", [[1]], "invalid_args"),
        ("same", [{"a": 1}], "invalid_args"),
        ("same", [True], "invalid_args"),
        ("same", ["x"], "invalid_args"),
        ("same", [1] * 257, "too_many_args"),
        ("nothing", [], "missing_export"),
        ("f64", [10**400], "invalid_args"),
    ]

    async def told(client, service):
        function = await client.deploy(FLOATS)
        for export, args, result in cases:
            found = await client.call(function, export, *args)
            assert (found.status, found.json().get("result")) == (200, result), (export, args)
        for export, args, kind in refused:
            found = await client.call(function, export, *args)
            assert (found.status, found.kind) == (400, kind), (export, args)
        assert (await client.call(function)).json()["result"] == "ok"
        for raw, headers in ((b"", {}), (b"junk", {"Content-Type": "text/plain"}), (b"", {"Content-Type": ""})):
            found = await client.send("POST", f"/functions/{function}/invoke", raw=raw, headers=headers)
            assert found.json() == {"function_id": function, "result": "ok"}

    story(served, told)


def test_what_a_guest_is_given_and_what_it_says(served):
    async def told(client, service):
        function = await client.deploy(GUEST)
        for given in ({"input": "hé"}, {"input_b64": b64("hé".encode())}):
            found = (await client.call(function, "echo", **given)).json()
            assert (found["result"], found["output"]) == ([3], {"text": "hé"})
        binary = (await client.call(function, "echo", input_b64=b64(b"\xff\0"))).json()
        assert binary["output"] == {"base64": b64(b"\xff\0")}
        assert (await client.call(function, "say")).json()["stdout"] == {"text": "hi"}
        twice = await client.call(function, "echo", input="a", input_b64=b64(b"a"))
        assert (twice.status, twice.kind) == (400, "invalid_request")
        assert (await client.call(function, "echo", input_b64="!")).kind == "invalid_base64"
        trapped = await client.call(function, "trap")
        assert (trapped.status, trapped.json()["error"]) == (
            500,
            {"kind": "wasmtime", "message": "the guest trapped: unreachable"},
        )

    story(served, told)


@pytest.mark.parametrize("how", ["body", "header", "both"])
def test_a_deadline_ends_a_guest_for_any_reason_to_run_so_long(served, how):
    async def told(client, service):
        function = await client.deploy(GUEST)
        body = {"export": "spin"} | ({"deadline_ms": 50} if how != "header" else {})
        headers = {"X-TensorWasm-Deadline-Ms": "50" if how == "header" else "60000"} if how != "body" else {}
        found = await client.send("POST", f"/functions/{function}/invoke", body, headers=headers)
        assert (found.status, found.kind) == (504, "invoke_timeout")
        assert found.json()["error"]["message"] == "the deadline passed"

    story(served, told)


def test_only_a_tenants_own_functions_are_called(served):
    async def told(client, service):
        function = await client.deploy(ADD)
        assert (await client.call(function, "add", 1, 2)).status == 200
        other = Client(client.pipeline, BETA)
        found = await other.call(function, "add", 1, 2)
        assert (found.status, found.kind) == (403, "tenant_scope_denied")

    story(served, told)


@pytest.mark.parametrize(
    "reference", ["x", "..", "F" * 36, "{id}@0", "{id}@", "{id}@-1", "{id}@no such", "{id}@99", "@1"]
)
def test_what_refers_to_nothing_is_not_found(served, reference):
    async def told(client, service):
        function = await client.deploy(ADD)
        found = await client.call(reference.replace("{id}", function), "add", 1, 2)
        assert (found.status, found.kind) == (404, "not_found")

    story(served, told)
