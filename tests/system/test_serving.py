"""The server as its users run it."""

import base64
from pathlib import Path

ADD = base64.b64encode((Path(__file__).parents[2] / "bench/guests/add.wasm").read_bytes()).decode()


def test_a_function_is_deployed_called_and_deleted(client):
    made = client.post("/functions", json={"name": "add", "wasm_b64": ADD})
    assert made.status_code == 200
    function_id = made.json()["id"]
    called = client.post(f"/functions/{function_id}/invoke", json={"export": "add", "args": [2, 3]})
    assert called.status_code == 200
    assert called.json() == {"function_id": function_id, "result": [5]}
    assert client.delete(f"/functions/{function_id}").status_code == 204
    assert client.delete(f"/functions/{function_id}").status_code == 404


def test_constructors_of_a_reactor_run_in_calls_jobs_and_sessions(client):
    wasm = base64.b64encode((Path(__file__).parents[1] / "golden/wasm/guests/constructor.wasm").read_bytes()).decode()
    function = client.post("/functions", json={"name": "constructor", "wasm_b64": wasm}).json()["id"]
    for _ in range(2):
        called = client.post(f"/functions/{function}/invoke", json={"export": "get"})
        assert called.json()["result"] == [42]
    job = client.post(f"/functions/{function}/invoke-async", json={"export": "get"}).json()["job_id"]
    assert client.get(f"/jobs/{job}/wait?timeout_s=30").json()["result"]["result"] == [42]
    session = client.post("/sessions", json={"function": function}).json()["id"]
    for total in (50, 58):
        called = client.post(f"/sessions/{session}/invoke", json={"export": "add", "args": [8]})
        assert called.json()["result"] == [total]
    assert client.delete(f"/sessions/{session}").status_code == 204


def test_a_service_stops_on_a_signal_and_keeps_its_state_over_a_restart(start_server):
    with start_server() as server:
        token = server.token
        with server.client() as client:
            function_id = client.post("/functions", json={"name": "add", "wasm_b64": ADD}).json()["id"]
        assert server.stop() == 0
    with start_server(token=token) as server, server.client() as client:
        called = client.post(f"/functions/{function_id}/invoke", json={"export": "add", "args": [2, 3]})
        assert called.json()["result"] == [5]
