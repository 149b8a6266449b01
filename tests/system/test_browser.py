"""A page from another origin in a real browser: all that a client may once its origin is allowed, else nothing."""

import base64
import json

import pytest
from wasmtime import wat2wasm

from browser import CHROMIUM, browsing, serving_page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: chromium is not installed; CORS is not tried")

GUEST = wat2wasm(
    """(module
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (import "wasi:tensor/host@0.1.0" "input-len" (func $length (result i32)))
  (import "wasi:tensor/host@0.1.0" "read-input" (func $read (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "main") (result i32)
    (drop (call $read (i32.const 0) (call $length)))
    (drop (call $emit (i32.const 0) (call $length)))
    (drop (call $emit (i32.const 0) (call $length)))
    (i32.const 7)))"""
)
"""Sends its input twice, and returns 7."""

SCRIPT = """
const {server, token, guest, known} = GIVEN;
const headers = {authorization: `Bearer ${token}`, "content-type": "application/json"};
const call = JSON.stringify({export: "main", input: "é!"});
const seen = {};
const attempt = async (name, act) => {
  try { seen[name] = await act(); } catch (error) { seen[name] = `blocked: ${error}`; }
};
const post = (path, body, more = {}) =>
  fetch(server + path, {method: "POST", headers: {...headers, ...more}, body});
let id = known;
await attempt("deploy", async () => {
  const answer = await post("/functions", JSON.stringify({name: "page", wasm_b64: guest}));
  id = (await answer.json()).id;
  return answer.status;
});
await attempt("upload", async () => {
  const module = Uint8Array.from(atob(guest), (each) => each.charCodeAt(0));
  return (await post("/functions?name=raw", module, {"content-type": "application/wasm"})).status;
});
await attempt("invoke", async () => {
  const own = {"x-tensorwasm-deadline-ms": "20000", "idempotency-key": "k"};
  const answer = await post(`/functions/${id}/invoke`, call, own);
  const {result, output} = await answer.json();
  return [answer.status, result, output.text, answer.headers.get("x-request-id") !== null];
});
await attempt("refusal", async () => {
  const answer = await post("/functions/none/invoke", call);
  return [answer.status, (await answer.json()).error.kind];
});
await attempt("see", async () => {
  const answer = await fetch(`${server}/functions/${id}`, {headers: {authorization: headers.authorization}});
  return [answer.status, (await answer.json()).id === id];
});
await attempt("stream", async () => {
  const answer = await post(`/functions/${id}/invoke-stream`, call, {accept: "text/event-stream"});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let step = await reader.read(); !step.done; step = await reader.read()) text += step.value;
  return [answer.status, text.split("\\n\\n").map((event) => event.split("\\n")[0]).join(" ").trim()];
});
await attempt("delete", async () => (await fetch(`${server}/functions/${id}`, {method: "DELETE", headers})).status);
await attempt("socket", () => new Promise((resolve, reject) => {
  const url = `${server.replace("http", "ws")}/functions/${known}/invoke-ws`;
  const socket = new WebSocket(url, ["tensorwasm.v1", `bearer.${token}`]);
  const came = [];
  socket.binaryType = "arraybuffer";
  socket.onopen = () => socket.send(call);
  socket.onerror = () => reject(new Error("no socket"));
  socket.onmessage = ({data}) => {
    came.push(typeof data === "string" ? JSON.parse(data).done.status : new TextDecoder().decode(data));
    if (typeof data === "string") { socket.close(); resolve([socket.protocol, ...came]); }
  };
}));
await tell(seen);
"""

ALL = {
    "deploy": 200,
    "upload": 200,
    "invoke": [200, [7], "é!é!", True],
    "refusal": [404, "not_found"],
    "see": [200, True],
    "stream": [200, "event: chunk event: chunk event: done"],
    "delete": 204,
    "socket": ["tensorwasm.v1", "é!", "é!", "ok"],
}


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "not allowed"])
def test_a_page_from_another_origin_may_do_all_or_nothing(start_server, tmp_path, allowed):
    given = {"guest": base64.b64encode(GUEST).decode()}
    script = SCRIPT.replace("GIVEN", "await (await fetch('/given')).json()")
    with serving_page(script) as page:
        origins = page.origin if allowed else "https://elsewhere.example"
        with start_server(environment={"TENSOR_WASM_API_CORS_ALLOWED_ORIGINS": origins}) as server:
            with server.client() as client:
                known = client.post("/functions", json={"name": "known", "wasm_b64": given["guest"]}).json()["id"]
            page.given = json.dumps(given | {"server": server.url, "token": server.token, "known": known})
            with browsing(page.origin, tmp_path / "browser"):
                seen = page.verdict()
            with server.client() as client:
                names = {each["name"] for each in client.get("/functions").json()["functions"]}
    if allowed:
        assert seen == ALL
        assert names == {"known", "raw"}
    else:
        assert set(seen) == set(ALL)
        assert all(str(each).startswith("blocked: ") for each in seen.values()), seen
        assert names == {"known"}
