"""The routes of functions, over a real service."""

import asyncio
import base64
import hashlib
import io
import json
import tarfile
import threading
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from fakes.applications import ALPHA, BETA, bearer
from fakes.services import ADD, GUEST, SUB
from fakes.wire import ask
from tensorwasm import settings
from tensorwasm.guest.engine.traps import SourceLines

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


def test_the_life_of_a_function(served):
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


def test_lists_have_pages(served):
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


def test_only_the_owner_may_name_a_module_by_its_hash(served):
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
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"grants": ["dir:/"]}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"memory_mib": 0}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"memory_mib": 10**9}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"timeout_s": -1}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"warm": -1}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"env": {"a=b": ""}}}, "invalid_args"),
        ({"name": "f", "wasm_b64": b64(ADD), "options": {"memory_kind": "odd"}}, "invalid_json"),
    ],
)
def test_a_refused_deploy_leaves_nothing_behind(served, body, kind):
    async def told(client, service):
        found = await client.send("POST", "/functions", body)
        assert (found.status, found.kind) == (400, kind)
        assert (await client.send("GET", "/functions")).json()["functions"] == []

    story(served, told)


def test_arguments_are_converted_by_the_signature(served):
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
        for raw, headers in ((b"", {}), (b"", {"Content-Type": "text/plain"}), (b"", {"Content-Type": ""})):
            found = await client.send("POST", f"/functions/{function}/invoke", raw=raw, headers=headers)
            assert found.json() == {"function_id": function, "result": "ok"}
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            headers = {"Content-Type": kind}
            found = await client.send(
                "POST", f"/functions/{function}/invoke", raw=b'{"export":"both"}', headers=headers
            )
            assert (found.status, found.kind) == (415, "unsupported_media_type"), kind
        found = await client.send("POST", f"/functions/{function}/invoke", raw=b'{"exprot":"both"}')
        assert (found.status, found.kind) == (400, "unknown_field")

    story(served, told)


def test_a_guest_gets_its_input_and_its_output_is_returned(served):
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
        error = trapped.json()["error"]
        assert (trapped.status, error["kind"], error["message"]) == (500, "wasmtime", "the guest trapped: unreachable")
        assert len(error["backtrace"]) == 1

    story(served, told)


def test_truncated_output_is_marked(served, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_OUTPUT", "0")
    settings.current.cache_clear()

    async def told(client, service):
        function = await client.deploy(GUEST)
        found = await client.call(function, "say")
        assert found.json() == {"function_id": function, "result": "ok", "stdout_truncated": True}

    try:
        story(served, told)
    finally:
        monkeypatch.undo()
        settings.current.cache_clear()


def test_input_over_the_limit_is_refused(served, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_STDIN", "0")
    settings.current.cache_clear()

    async def told(client, service):
        function = await client.deploy(GUEST)
        found = await client.call(function, "say", stdin="x")
        assert (found.status, found.kind) == (413, "stdin_too_large")

    try:
        story(served, told)
    finally:
        monkeypatch.undo()
        settings.current.cache_clear()


@pytest.mark.parametrize("how", ["body", "header", "both"])
def test_a_deadline_ends_a_guest_whatever_it_does(served, how):
    async def told(client, service):
        function = await client.deploy(GUEST)
        assert (await client.call(function, "say")).status == 200  # loading it is not the guest's time
        body = {"export": "spin"} | ({"deadline_ms": 50} if how != "header" else {})
        headers = {"X-TensorWasm-Deadline-Ms": "50" if how == "header" else "60000"} if how != "body" else {}
        found = await client.send("POST", f"/functions/{function}/invoke", body, headers=headers)
        assert (found.status, found.kind) == (504, "invoke_timeout")
        assert found.json()["error"]["message"] == "the deadline passed"

    story(served, told)


def test_a_tenant_calls_only_its_own_functions(served):
    async def told(client, service):
        function = await client.deploy(ADD)
        assert (await client.call(function, "add", 1, 2)).status == 200
        other = Client(client.pipeline, BETA)
        found = await other.call(function, "add", 1, 2)
        assert (found.status, found.kind) == (404, "not_found")

    story(served, told)


@pytest.mark.parametrize(
    "reference", ["x", "..", "F" * 36, "{id}@0", "{id}@", "{id}@-1", "{id}@no such", "{id}@99", "@1"]
)
def test_a_reference_to_nothing_is_not_found(served, reference):
    async def told(client, service):
        function = await client.deploy(ADD)
        found = await client.call(reference.replace("{id}", function), "add", 1, 2)
        assert (found.status, found.kind) == (404, "not_found")

    story(served, told)


FAILING = """(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 4)
  (data (i32.const 64) "before\\n")
  (func $say (param $to i32) (param $at i32) (param $size i32)
    (i32.store (i32.const 0) (local.get $at)) (i32.store (i32.const 4) (local.get $size))
    (drop (call $write (local.get $to) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func (export "exits") (call $say (i32.const 1) (i32.const 64) (i32.const 7)) (call $exit (i32.const 3)))
  (func $fails unreachable)
  (func (export "traps") (call $say (i32.const 2) (i32.const 64) (i32.const 7)) (call $fails))
  (func (export "floods")
    (memory.fill (i32.const 1024) (i32.const 0xe2) (i32.const 66000))
    (call $say (i32.const 1) (i32.const 1024) (i32.const 66000))
    (call $say (i32.const 2) (i32.const 1024) (i32.const 3))
    (call $fails)))"""


def test_the_reply_of_a_failed_guest_has_its_output(served):
    async def told(client, service):
        function = await client.deploy(bytes(wat2wasm(FAILING)))
        left = await client.call(function, "exits")
        error = left.json()["error"]
        assert (left.status, error["kind"], error["exit_code"]) == (500, "guest_exit", 3)
        assert error["stdout"] == {"text": "before\n"}
        assert "stderr" not in error
        error = (await client.call(function, "traps")).json()["error"]
        assert (error["kind"], error["stderr"]) == ("wasmtime", {"text": "before\n"})
        assert [frame["name"] for frame in error["backtrace"]] == ["fails", ""]
        error = (await client.call(function, "floods")).json()["error"]
        assert error["stdout"]["truncated"] is True
        assert len(base64.b64decode(error["stdout"]["base64"])) == 64 << 10
        assert error["stderr"] == {"base64": base64.b64encode(b"\xe2" * 3).decode()}

    story(served, told)


def test_a_trap_reports_source_lines_without_blocking_the_event_loop(served, monkeypatch):
    module = Path("tests/golden/wasm/guests/traps.wasm").read_bytes()
    threads = []
    add_to = SourceLines.add_to

    def noted(lines, stack):
        threads.append(threading.current_thread())
        return add_to(lines, stack)

    monkeypatch.setattr(SourceLines, "add_to", noted)

    async def told(client, service):
        function = await client.deploy(module)
        error = (await client.call(function, "run", args=[0])).json()["error"]
        assert [(frame["file"], frame["line"]) for frame in error["backtrace"]] == [
            ("tests/golden/wasm/guests/traps.c", 6),
            ("tests/golden/wasm/guests/traps.c", 12),
        ]
        assert threads
        assert threading.current_thread() not in threads

    story(served, told)
