"""Functions whose loops run on all cores or on a device, over HTTP: what they give, what they cost, how they end."""

from __future__ import annotations

import base64
import itertools
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loops import compile_c
from servers import running_server
from tensorwasm.runtime.executor.local import PLACES
from victims import by_role, kill

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = """
#define EXPORT(name) __attribute__((export_name(#name))) name
__attribute__((import_module("wasi:tensor/host@0.1.0"), import_name("emit-chunk"))) int emit(const void *, int);
static double x[4096], y[4096];
int EXPORT(last)(int n) { int at = 0; for (int i = 0; i < n; i++) { x[i] += 3 * i; at = 5 * i; } return at + x[7]; }
void EXPORT(steps)(int t, int n) {
  for (int s = 0; s < t; s++) {
    for (int i = 1; i < n - 1; i++) y[i] = x[i - 1] + x[i + 1];
    for (int i = 1; i < n - 1; i++) x[i] = y[i - 1] * 0.25;
  }
}
void EXPORT(fail)(int n) { for (int i = 0; i < n; i++) x[i] += 2 * i; __builtin_trap(); }
double EXPORT(total)(int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) y[i] = 1.0 / (i + 3);
  for (int i = 0; i < n; i++) sum += y[i];
  return sum;
}
void EXPORT(chain)(int n) { for (int i = 1; i < n; i++) y[i] += y[i - 1]; }
void EXPORT(say)(int n) { for (int i = 0; i < n; i++) x[i] += 2 * i; emit(x, 8 * n); }
"""
COUNT = 3000  # so many that they may be worth it on all cores
LAST = 5 * (COUNT - 1) + 21
MODES = ("cpu", "gpu", "auto")
LONG = 2_000_000_000  # steps that nobody waits for
SOON_S = 20.0
READY_S = 60.0
HOGS = PLACES  # as many as one tenant may have of the service's turns
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    data = tmp_path_factory.mktemp("offload") / "data"
    with running_server(data, environment={"TENSOR_WASM_OFFLOAD_SHADOW": "5"}) as server:
        yield server


@pytest.fixture(scope="module")
def client(served):
    with served.client(timeout=60.0, headers={"X-TensorWasm-Tenant": "1"}) as client:
        quotas = {"qps": 10_000, "burst": 1_000, "instances": 100}
        client.patch("/tenants/1", json={"quotas": quotas}).raise_for_status()
        yield client


@pytest.fixture(scope="module")
def wasm():
    return compile_c(PROGRAM, "-O2", "-Wno-everything")


def deploy(client, wasm, **options):
    name = f"loops-{next(NUMBERS)}"  # functions of one name and module share their plans
    body = {"name": name, "wasm_b64": base64.b64encode(wasm).decode(), "options": options}
    answer = client.post("/functions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def invoke(client, function, export, *args, **more):
    return client.post(f"/functions/{function}/invoke", json={"export": export, "args": args, **more})


def figure(client, name, function, *labels):
    """Return what the metrics say of a function."""
    text = client.get("/metrics").text
    found = re.search(rf'^tensor_wasm_offload_{name}_total{{.*"{function}".*}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def await_code(client, function, export="last", *args):
    """Call a function until the code of its loops is ready."""
    ends_s = time.monotonic() + READY_S
    while not figure(client, "taken", function):
        assert time.monotonic() < ends_s, client.get("/metrics").text
        answer = invoke(client, function, export, *(args or (COUNT,)))
        assert answer.status_code == 200, answer.text


def count(client, name):
    return float(re.search(rf"^tensor_wasm_{name} (\S+)$", client.get("/metrics").text, re.MULTILINE)[1])


@pytest.mark.parametrize("mode", MODES)
def test_the_word_is_kept_and_shown(client, wasm, mode):
    function = deploy(client, wasm, offload=mode)
    (version,) = client.get(f"/functions/{function}/versions").json()["versions"]
    assert version["options"] == {"offload": mode}


def test_floats_are_added_up_in_another_order_where_a_deploy_says_so(client, wasm):
    exact, relaxed = (deploy(client, wasm, offload="gpu", offload_math=math) for math in ("exact", "relaxed"))
    (version,) = client.get(f"/functions/{relaxed}/versions").json()["versions"]
    assert version["options"] == {"offload": "gpu", "offload_math": "relaxed"}
    in_order = sum(1.0 / (i + 3) for i in range(COUNT))
    found = {}
    for function in (exact, relaxed):
        await_code(client, function, "total", COUNT)
        (found[function],) = invoke(client, function, "total", COUNT).json()["result"]
    assert found[exact] == in_order
    assert 0 < abs(found[relaxed] - in_order) < 1e-12


def test_a_deploy_that_does_not_know_the_word_is_as_before(client, wasm):
    function = deploy(client, wasm)
    assert client.get(f"/functions/{function}/versions").json()["versions"][0]["options"] == {}
    assert invoke(client, function, "last", COUNT).json()["result"] == [LAST]
    assert figure(client, "taken", function) == 0


def test_another_word_is_refused(client, wasm):
    for options in ({"offload": "tpu"}, {"offload_math": "fast"}):
        body = {"name": "loops", "wasm_b64": base64.b64encode(wasm).decode(), "options": options}
        answer = client.post("/functions", json=body)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (400, "invalid_json")


@pytest.mark.parametrize("mode", MODES)
def test_a_call_has_its_loops_elsewhere(client, wasm, mode):
    function = deploy(client, wasm, offload=mode)
    await_code(client, function)
    for _ in range(7):
        answer = invoke(client, function, "last", COUNT)
        assert answer.json()["result"] == [LAST], answer.text
    taken = figure(client, "taken", function)
    assert taken == 7 if mode == "gpu" else taken >= 1  # the fifth was compared; a processor may be as fast alone
    assert figure(client, "mismatches", function) == 0
    assert figure(client, "seconds", function) > 0
    assert (figure(client, "moved_bytes", function) > 0) == (mode == "gpu")


def test_a_job_has_its_loops_elsewhere(client, wasm):
    function = deploy(client, wasm, offload="gpu")
    await_code(client, function)
    made = client.post(f"/functions/{function}/invoke-async", json={"export": "last", "args": [COUNT]})
    ended = client.get(f"/jobs/{made.json()['job_id']}/wait", params={"timeout_s": "60"}).json()
    assert (ended["status"], ended["result"]["result"]) == ("completed", [LAST])
    assert figure(client, "taken", function) == 2


def test_a_stream_has_its_loops_elsewhere(client, wasm):
    function = deploy(client, wasm, offload="cpu")
    await_code(client, function, "say", COUNT)
    answer = client.post(f"/functions/{function}/invoke-stream", json={"export": "say", "args": [COUNT]})
    assert len(answer.content) == 8 * COUNT
    assert figure(client, "taken", function) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_guest_with_kernels_of_its_own_has_its_loops_elsewhere_too(client, mode):
    function = deploy(client, (EXAMPLES / "vector_add" / "vector_add.wasm").read_bytes(), grants=["cuda"], offload=mode)
    await_code(client, function, "run", 65536)
    assert invoke(client, function, "run", 65536).json()["result"] == [0]


def test_the_time_of_a_request_shows_its_loops(client, wasm):
    function = deploy(client, wasm, offload="cpu")
    await_code(client, function, "steps", 20_000, 256)
    body = {"export": "steps", "args": [20_000, 256]}
    answer = client.post(f"/functions/{function}/invoke", json=body, headers={"X-TensorWasm-Timing": "1"})
    spans = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers["server-timing"]))
    assert 0 < float(spans["offload"]) <= float(spans["total"])


def test_loops_on_a_device_are_charged_as_device_time(client, wasm):
    function = deploy(client, wasm, offload="gpu")
    await_code(client, function)
    before = client.get("/usage").json()["total"]
    invoke(client, function, "last", COUNT)
    after = client.get("/usage").json()["total"]
    assert after["launches"] > before["launches"]
    assert after["gpu_us"] > before["gpu_us"]


def test_loops_for_which_the_tenant_may_have_no_device_memory_run_in_the_guest(served, wasm):
    with served.client(timeout=60.0, headers={"X-TensorWasm-Tenant": "3"}) as poor:
        poor.patch("/tenants/3", json={"quotas": {"gpu_bytes": 1000}}).raise_for_status()
        function = deploy(poor, wasm, offload="gpu")
        assert invoke(poor, function, "last", COUNT).json()["result"] == [LAST]
        ends_s = time.monotonic() + READY_S
        while 'offload_declined_total{reason="device",tenant_id="T#3"}' not in poor.get("/metrics").text:
            assert time.monotonic() < ends_s
            assert invoke(poor, function, "last", COUNT).json()["result"] == [LAST]
        assert figure(poor, "taken", function) == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit_ms", [1, 500])
def test_a_deadline_ends_a_loop_in_time(client, wasm, mode, limit_ms):
    function = deploy(client, wasm, offload=mode)
    await_code(client, function, "steps", 3, 256)
    for _ in range(5):  # as WebAssembly first, until there is code for so many steps
        began_s = time.monotonic()
        answer = invoke(client, function, "steps", LONG, 256, deadline_ms=limit_ms)
        assert answer.json()["error"]["kind"] == "invoke_timeout", answer.text
        assert time.monotonic() - began_s < SOON_S
    assert invoke(client, function, "last", COUNT).json()["result"] == [LAST]


@pytest.mark.parametrize("mode", MODES)
def test_loops_of_a_call_that_traps_are_counted(client, wasm, mode):
    function = deploy(client, wasm, offload=mode)
    ends_s = time.monotonic() + READY_S
    while not figure(client, "taken", function):
        assert time.monotonic() < ends_s, client.get("/metrics").text
        assert invoke(client, function, "fail", COUNT).json()["error"]["kind"] == "wasmtime"
    assert figure(client, "seconds", function) > 0


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_leaves_ends_its_loop(client, wasm, mode):
    function = deploy(client, wasm, offload=mode, timeout_s=30)
    await_code(client, function, "steps", 3, 256)
    invoke(client, function, "steps", LONG, 256, deadline_ms=1000)  # has its code made
    with pytest.raises(Exception, match="timed out"):
        client.post(f"/functions/{function}/invoke", json={"export": "steps", "args": [LONG, 256]}, timeout=1.0)
    ends_s = time.monotonic() + SOON_S
    while count(client, "active_instances"):
        assert time.monotonic() < ends_s
    assert invoke(client, function, "last", COUNT).json()["result"] == [LAST]


def test_a_worker_that_is_killed_in_a_loop_ends_the_call_and_not_the_next(served, client, wasm):
    function = deploy(client, wasm, offload="cpu")
    await_code(client, function, "steps", 3, 256)
    invoke(client, function, "steps", LONG, 256, deadline_ms=1000)
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(invoke, client, function, "steps", LONG, 256)
        ends_s = time.monotonic() + SOON_S
        while not count(client, "active_instances"):
            assert time.monotonic() < ends_s
        for worker in by_role(served.process.pid)["worker"]:
            kill(worker)
        assert lost.result().json()["error"]["kind"] == "device_lost"
    assert invoke(client, function, "last", COUNT).json()["result"] == [LAST]


def test_loops_of_tenants_run_side_by_side(served, client, wasm):
    slow = deploy(client, wasm, offload="cpu", timeout_s=8, memory_mib=1)
    with served.client(timeout=60.0, headers={"X-TensorWasm-Tenant": "2"}) as other, ThreadPoolExecutor(HOGS) as pool:
        quick = deploy(other, wasm, offload="cpu")
        await_code(other, quick)
        await_code(client, slow, "steps", 3, 256)
        hogs = [pool.submit(invoke, client, slow, "steps", LONG, 256) for _ in range(HOGS)]
        ends_s = time.monotonic() + SOON_S
        while count(client, "active_instances") < len(hogs):
            assert time.monotonic() < ends_s
        assert invoke(other, quick, "last", COUNT).json()["result"] == [LAST]
        assert figure(other, "taken", quick) == 2
        assert not any(hog.done() for hog in hogs)
        assert {hog.result().json()["error"]["kind"] for hog in hogs} == {"invoke_timeout"}


def test_a_module_with_more_loops_than_there_are_guards(client):
    text = "\n".join(
        f'static int a{n}[2048]; int __attribute__((export_name("f{n}"))) f{n}(int n) '
        f"{{ for (int i = 0; i < n; i++) a{n}[i] = i * {n}; return a{n}[9]; }}"
        for n in range(280)
    )
    function = deploy(client, compile_c(text, "-O1"), offload="cpu")
    for number in (0, 100, 255, 256, 279):
        assert invoke(client, function, f"f{number}", 2048).json()["result"] == [9 * number]
    await_code(client, function, "f255", 2048)


def test_a_session_and_its_snapshot_run_as_webassembly(client, wasm):
    function = deploy(client, wasm, offload="cpu")
    session = client.post("/sessions", json={"function": function}).json()["id"]
    answers = [client.post(f"/sessions/{session}/invoke", json={"export": "last", "args": [COUNT]}) for _ in range(2)]
    assert [each.json()["result"] for each in answers] == [[LAST], [LAST + 21]]
    assert figure(client, "taken", function) == 0


def test_several_processes_serve_such_functions(tmp_path, wasm):
    with running_server(tmp_path / "data", "--workers", "2") as server, server.client(timeout=60.0) as client:
        function = deploy(client, wasm, offload="gpu")
        await_code(client, function)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: invoke(client, function, "last", COUNT).json(), range(16)))
        assert [each.get("result") for each in answers] == [[LAST]] * 16, json.dumps(answers)
        assert figure(client, "taken", function) > 0
