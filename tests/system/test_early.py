"""A server whose compiled functions were never made: it answers without them meanwhile, and says what it waits for."""

import base64
import time
from pathlib import Path

import pytest

ADD = base64.b64encode((Path(__file__).parents[2] / "bench/guests/add.wasm").read_bytes()).decode()


def test_an_empty_cache_holds_up_no_call(start_server, tmp_path):
    pytest.importorskip("numba", reason="there is no compiled code without Numba")
    cache = tmp_path / "empty"
    with start_server(environment={"TENSOR_WASM_CACHE": str(cache)}) as server, server.client() as client:
        made = client.post("/functions", json={"name": "f", "wasm_b64": ADD})
        assert made.status_code == 200, made.text
        path = f"/functions/{made.json()['id']}/invoke"

        def add(left, right):
            answer = client.post(path, json={"export": "add", "args": [left, right]})
            assert answer.status_code == 200, answer.text
            return answer.json()["result"]

        assert [add(number, 1) for number in range(20)] == [[number + 1] for number in range(20)]
        waiting = client.get("/readyz")
        assert (waiting.status_code, waiting.json()["error"]["kind"]) == (503, "not_ready")
        assert "compiled" in waiting.json()["error"]["message"]
        assert not list(cache.glob("native/*/full"))
        called = 0
        while client.get("/readyz").status_code != 200:  # it goes over in the midst of calls
            assert add(called, 2) == [called + 2]
            called += 1
        began_s = time.monotonic()
        assert add(40, 2) == [42]
        assert time.monotonic() - began_s < 5.0
        assert list(cache.glob("native/*/full"))
