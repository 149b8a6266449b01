"""The service on a device: guests with kernels over HTTP, in worker processes, on the emulator and on a GPU alike."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from servers import running_server

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def served(request, tmp_path_factory):
    """A server whose guests with kernels run on the device."""
    if request.param == "cuda":
        request.getfixturevalue("gpu")
    data = tmp_path_factory.mktemp(request.param) / "data"
    with running_server(data, environment={"TENSOR_WASM_DEVICE": request.param}) as running:
        yield running


@pytest.fixture(scope="module")
def client(served):
    with served.client(timeout=120.0, headers={"X-TensorWasm-Tenant": "1"}) as client:
        client.patch("/tenants/1", json={"quotas": {"qps": 10_000, "burst": 1_000}}).raise_for_status()
        yield client


def deploy(client, name, tenant=1):
    module = base64.b64encode((EXAMPLES / name / f"{name}.wasm").read_bytes()).decode()
    body = {"name": name, "wasm_b64": module, "options": {"grants": ["cuda"]}}
    answer = client.post("/functions", json=body, headers={"X-TensorWasm-Tenant": str(tenant)})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


@pytest.mark.parametrize("name", ["vector_add", "matmul", "reduction", "histogram", "graph", "streams"])
def test_an_example_computes_the_same_over_http(client, name):
    answer = client.post(f"/functions/{deploy(client, name)}/invoke", json={"export": "run", "args": [64]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["result"] == [0]


def test_a_program_prints_what_it_computed(client):
    answer = client.post(f"/functions/{deploy(client, 'vector_add')}/invoke", json={})
    assert answer.status_code == 200, answer.text
    assert "verified" in answer.json()["stdout"]["text"]


def test_many_at_once_are_all_right(client):
    function = deploy(client, "vector_add")

    def call(_):
        return client.post(f"/functions/{function}/invoke", json={"export": "run", "args": [128]})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(call, range(32)))
    assert [answer.json().get("result") for answer in answers] == [[0]] * 32


def test_a_job_on_the_device_completes(client):
    function = deploy(client, "vector_add")
    made = client.post(f"/functions/{function}/invoke-async", json={"export": "run", "args": [64]})
    assert made.status_code == 202, made.text
    ended = client.get(f"/jobs/{made.json()['job_id']}/wait", params={"timeout_s": "60"})
    assert ended.json()["status"] == "completed", ended.text
    assert ended.json()["result"]["result"] == [0]


def test_two_tenants_have_workers_or_memory_of_their_own(client):
    functions = {tenant: deploy(client, "vector_add", tenant) for tenant in (1, 2)}
    for tenant, function in functions.items():
        headers = {"X-TensorWasm-Tenant": str(tenant)}
        answer = client.post(f"/functions/{function}/invoke", json={"export": "run", "args": [64]}, headers=headers)
        assert answer.json()["result"] == [0], answer.text
    stolen = client.post(f"/functions/{functions[1]}/invoke", json={}, headers={"X-TensorWasm-Tenant": "2"})
    assert stolen.status_code == 404


def test_output_of_a_guest_with_kernels_is_streamed(client):
    function = deploy(client, "vector_add")
    headers = {"Accept": "text/event-stream"}
    with client.stream("POST", f"/functions/{function}/invoke-stream", json={}, headers=headers) as answer:
        text = "".join(answer.iter_text())
    assert answer.status_code == 200
    assert text.count("event: done") == 1
    last = text.rstrip().rsplit("data: ", 1)[1]
    assert json.loads(last)["status"] == "ok"


def test_a_guest_without_the_grant_gets_no_device(client):
    module = base64.b64encode((EXAMPLES / "vector_add" / "vector_add.wasm").read_bytes()).decode()
    function = client.post("/functions", json={"name": "none", "wasm_b64": module}).json()["id"]
    answer = client.post(f"/functions/{function}/invoke", json={"export": "run", "args": [64]})
    assert answer.json().get("result") != [0]
