"""Sessions, snapshots and kernels over HTTP: of several tenants, and over a server that is killed."""

import base64
import os
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from fakes.services import COUNTER
from servers import running_server
from strategies.kernels import FILL
from tensorwasm.artifacts.keys import HmacKey
from tensorwasm.service.kernels.manifests import Manifest, digest_of, sign_manifest

MODULE = base64.b64encode(COUNTER).decode()
KEY = "6b" * 32
TEXT = FILL if isinstance(FILL, str) else FILL.decode()
MINE, THEIRS = {"X-TensorWasm-Tenant": "1"}, {"X-TensorWasm-Tenant": "2"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("sessions") / "data"
    with running_server(data, environment={"TENSOR_WASM_API_KERNEL_HMAC_KEY": KEY}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with server.client(headers=MINE) as client:
        yield client


@pytest.fixture(scope="module")
def function(client):
    return client.post("/functions", json={"name": "counter", "wasm_b64": MODULE}).json()["id"]


def begin(client, function):
    answer = client.post("/sessions", json={"function": function})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def count(client, session, **body):
    answer = client.post(f"/sessions/{session}/invoke", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"][0]


def kind(answer):
    return answer.status_code, answer.json()["error"]["kind"]


def test_a_session_from_beginning_to_end(client, function):
    session = begin(client, function)
    assert [count(client, session) for _ in range(3)] == [1, 2, 3]
    seen = client.get(f"/sessions/{session}").json()
    assert (seen["status"], seen["calls"], seen["saved_calls"], seen["in_memory"]) == ("live", 3, 0, True)
    assert count(client, session, durable=True) == 4
    seen = client.get(f"/sessions/{session}").json()
    assert (seen["status"], seen["calls"], seen["saved_calls"], seen["rewinds"]) == ("saved", 4, 4, 0)
    assert session in [each["id"] for each in client.get("/sessions").json()["sessions"]]
    assert client.delete(f"/sessions/{session}").status_code == 204
    for answer in (
        client.get(f"/sessions/{session}"),
        client.post(f"/sessions/{session}/invoke"),
        client.delete(f"/sessions/{session}"),
        client.post(f"/sessions/{session}/snapshot"),
    ):
        assert kind(answer) == (404, "not_found")


def test_the_error_of_a_guest_reaches_its_caller(client, function):
    session = begin(client, function)
    assert kind(client.post(f"/sessions/{session}/invoke", json={"export": "trap"})) == (500, "wasmtime")
    spin = client.post(f"/sessions/{session}/invoke", json={"export": "spin", "deadline_ms": 50})
    assert kind(spin) == (504, "invoke_timeout")
    assert kind(client.post(f"/sessions/{session}/invoke", json={"export": "none"})) == (400, "missing_export")
    assert kind(client.post(f"/sessions/{session}/invoke", json={"args": [None]})) == (400, "invalid_args")
    assert kind(client.post(f"/sessions/{session}/invoke", json={"args": [1] * 257})) == (400, "too_many_args")
    assert kind(client.post("/sessions", json={})) == (400, "invalid_json")
    assert kind(client.post("/sessions", json={"function": str(uuid.uuid4())})) == (404, "not_found")
    assert kind(client.get("/sessions?after=x")) == (400, "invalid_request")
    assert count(client, session) == 2


def test_a_client_that_leaves_ends_its_guest(client, function):
    session = begin(client, function)
    with pytest.raises(httpx.ReadTimeout):
        client.post(f"/sessions/{session}/invoke", json={"export": "spin"}, timeout=0.3)
    start = time.monotonic()
    assert count(client, session) == 1
    assert time.monotonic() - start < 10


def test_calls_from_many_connections_are_made_one_at_a_time(client, function):
    session = begin(client, function)
    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(lambda _: count(client, session), range(40))) == list(range(1, 41))


def test_pages_of_sessions_and_snapshots(client, function):
    mine = {begin(client, function) for _ in range(3)}
    saved = {client.post(f"/sessions/{session}/snapshot").json()["id"] for session in mine}
    for path, name, wanted in (("/sessions", "sessions", mine), ("/snapshots", "snapshots", saved)):
        seen, after = [], ""
        while after is not None:
            page = client.get(path, params={"limit": 2, "after": after}).json()
            seen += [each["id"] for each in page[name]]
            after = page["next"]
        assert len(seen) == len(set(seen))
        assert wanted <= set(seen)


def test_a_snapshot_is_kept_fetched_restored_and_deleted(client, function):
    session = begin(client, function)
    assert count(client, session) == 1
    kept = client.post(f"/sessions/{session}/snapshot").json()
    content = client.get(f"/snapshots/{kept['id']}/content")
    assert content.headers["content-type"] == "application/octet-stream"
    assert len(content.content) == kept["size_bytes"]
    restored = client.post(f"/snapshots/{kept['id']}/restore")
    assert restored.status_code == 201
    body = restored.json()
    assert body["tenant_id"] == 1
    assert body["version"] == 1
    assert body["instance_number"] == uuid.UUID(body["instance_id"]).int & (1 << 53) - 1
    assert count(client, body["instance_id"]) == 2
    assert client.delete(f"/snapshots/{kept['id']}").status_code == 204
    assert kind(client.get(f"/snapshots/{kept['id']}")) == (404, "not_found")


def test_the_original_s_routes(client, function):
    session = begin(client, function)
    assert count(client, session) == 1
    for body in ({"function_id": function}, {"session_id": session}):
        saved = client.post("/snapshot/save", json=body).json()
        assert (saved["function_id"], saved["signed"]) == (function, True)
        restored = client.post("/snapshot/restore", json={"snapshot_b64": saved["snapshot_b64"]})
        assert restored.status_code == 200, restored.text
        assert restored.json()["total_uncompressed_bytes"] > 0
        assert count(client, restored.json()["instance_id"]) == (2 if "session_id" in body else 1)
    assert kind(client.post("/snapshot/save", json={})) == (400, "invalid_request")
    assert kind(client.post("/snapshot/restore", json={"snapshot_b64": "?"})) == (400, "invalid_base64")
    bad = base64.b64encode(b"x" * 500).decode()
    assert kind(client.post("/snapshot/restore", json={"snapshot_b64": bad})) == (403, "snapshot_signature_invalid")
    foreign = client.post("/snapshot/restore", json={"snapshot_b64": saved["snapshot_b64"]}, headers=THEIRS)
    assert kind(foreign) == (403, "snapshot_signature_invalid")


def test_the_command_line_s_routes(client, function):
    session, wanted = begin(client, function), str(uuid.uuid4())
    assert count(client, session) == 1
    key = {"X-TensorWasm-Snapshot-HMAC-Key": "ab" * 32}
    saved = client.post(f"/instances/{session}/snapshot", headers=key)
    assert saved.headers["content-type"] == "application/octet-stream"
    more = {"X-TensorWasm-Snapshot-Require-Signature": "true", "X-TensorWasm-As-Instance": wanted}
    refused = client.post("/instances/restore", content=saved.content, headers=more)
    assert kind(refused) == (403, "snapshot_signature_invalid")
    restored = client.post("/instances/restore", content=saved.content, headers=key | more)
    assert restored.json()["instance_id"] == wanted
    assert count(client, wanted) == 2
    again = client.post("/instances/restore", content=saved.content, headers=key | more)
    assert kind(again) == (409, "conflict")
    assert kind(client.post(f"/instances/{uuid.uuid4()}/snapshot")) == (404, "instance_not_found")
    assert kind(client.post("/instances/restore", content=b"")) == (403, "snapshot_signature_invalid")
    for header, value, expected in (
        ("X-TensorWasm-Snapshot-HMAC-Key", "ab", "invalid_key"),
        ("X-TensorWasm-Snapshot-Require-Signature", "maybe", "invalid_request"),
        ("X-TensorWasm-As-Instance", "7", "invalid_request"),
    ):
        refused = client.post("/instances/restore", content=saved.content, headers=key | {header: value})
        assert kind(refused)[1] == expected


def test_other_tenants_see_and_change_nothing(client, function):
    session = begin(client, function)
    kept = client.post(f"/sessions/{session}/snapshot").json()["id"]
    for method, path, body in (
        ("POST", "/sessions", {"function": function}),
        ("GET", f"/sessions/{session}", None),
        ("DELETE", f"/sessions/{session}", None),
        ("POST", f"/sessions/{session}/invoke", {}),
        ("POST", f"/sessions/{session}/snapshot", None),
        ("GET", f"/snapshots/{kept}", None),
        ("GET", f"/snapshots/{kept}/content", None),
        ("POST", f"/snapshots/{kept}/restore", None),
        ("DELETE", f"/snapshots/{kept}", None),
        ("POST", "/snapshot/save", {"function_id": function}),
        ("POST", "/snapshot/save", {"session_id": session}),
        ("POST", f"/instances/{session}/snapshot", None),
    ):
        found = client.request(method, path, json=body, headers=THEIRS)
        assert kind(found) in {(404, "not_found"), (404, "instance_not_found")}, path
    assert client.get("/sessions", headers=THEIRS).json() == {"sessions": [], "next": None}
    assert client.get("/snapshots", headers=THEIRS).json() == {"snapshots": [], "next": None}
    assert count(client, session) == 1


def test_kernels_are_published_listed_and_fetched(client):
    manifest = Manifest(name="fill 1 é", version="1.0", sm_version=90, digest=digest_of(TEXT.encode()), publisher="us")
    signed = sign_manifest(manifest, HmacKey(bytes.fromhex(KEY)))
    body = {
        "manifest": {
            "name": signed.name,
            "version": signed.version,
            "sm_version": 90,
            "digest": signed.digest.hex(),
            "signature": signed.signature.hex(),
            "publisher": "us",
            "published_unix_ms": 0,
        },
        "ptx_text": TEXT,
    }
    made = client.post("/kernels", json=body)
    assert made.status_code == 201, made.text
    assert made.json() == {"name": "fill 1 é", "version": "1.0"}
    assert kind(client.post("/kernels", json=body)) == (409, "already_registered")
    listed = client.get("/kernels", params={"limit": 5000}).json()
    assert (listed["offset"], listed["limit"]) == (0, 1000)
    assert listed["manifests"] == [body["manifest"]]
    assert client.get("/kernels/fill%201%20%C3%A9/1.0").json() == body
    assert kind(client.get("/kernels/none/1")) == (404, "not_found")
    body["manifest"]["signature"] = "00" * 32
    assert kind(client.post("/kernels", json=body)) == (403, "bad_signature")


def test_saved_sessions_survive_a_killed_server(start_server):
    with start_server() as server, server.client(headers=MINE) as client:
        function = client.post("/functions", json={"name": "counter", "wasm_b64": MODULE}).json()["id"]
        durable, forgetful, fresh = (begin(client, function) for _ in range(3))
        kept = ""
        for turn in range(1, 4):
            assert count(client, durable, durable=True) == turn
            assert count(client, forgetful) == 1
            if not kept:
                kept = client.post(f"/sessions/{durable}/snapshot").json()["id"]
            os.kill(server.child(), signal.SIGKILL)
            wait_until_ready(client)
            seen = {each["id"]: each for each in client.get("/sessions").json()["sessions"]}
            assert {each: seen[each]["rewinds"] for each in seen} == {durable: 0, forgetful: turn, fresh: 0}
            assert (seen[durable]["calls"], seen[durable]["status"]) == (turn, "saved")
            assert (seen[forgetful]["calls"], seen[forgetful]["status"]) == (0, "fresh")
        restored = client.post(f"/snapshots/{kept}/restore").json()["instance_id"]
        assert count(client, restored) == 2
        assert count(client, fresh) == 1
        assert count(client, durable) == 4


def wait_until_ready(client):
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            if client.get("/sessions").status_code == 200:
                return
        except httpx.HTTPError:
            pass  # it is being started
        time.sleep(0.02)
    raise AssertionError("the server did not come back")
