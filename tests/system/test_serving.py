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


def test_it_stops_when_told_and_starts_with_what_it_had(start_server):
    with start_server() as server:
        token = server.token
        with server.client() as client:
            function_id = client.post("/functions", json={"name": "add", "wasm_b64": ADD}).json()["id"]
        assert server.stop() == 0
    with start_server(token=token) as server, server.client() as client:
        called = client.post(f"/functions/{function_id}/invoke", json={"export": "add", "args": [2, 3]})
        assert called.json()["result"] == [5]
