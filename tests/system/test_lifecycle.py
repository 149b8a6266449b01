"""How a server starts, stops, dies and comes again."""

import base64
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from victims import by_role

ADD = base64.b64encode((Path(__file__).parents[2] / "bench/guests/add.wasm").read_bytes()).decode()
CRASH_AS_IT_SERVES = """
import os, sys
from tensorwasm.server.process.address import ListenAddress, listen
from tensorwasm.server.process.starting import run
from tensorwasm.server.process.supervisor import ServeOptions

address, listening = listen(ListenAddress(path=sys.argv[1]))
run(ServeOptions(address, listening.fileno()), lambda: os._exit(9))
"""
COUNT_WHEN_READY = """
import gc, os, sys
from tensorwasm.server.process.address import ListenAddress, listen
from tensorwasm.server.process.starting import run
from tensorwasm.server.process.supervisor import ServeOptions

reports = []

def report():
    reports.append(1)
    if len(reports) == 2:
        os.write(1, b"%d" % len(gc.get_objects()))
        os._exit(0)

address, listening = listen(ListenAddress(path=sys.argv[1]))
run(ServeOptions(address, listening.fileno(), announce=False), report)
"""
SPIN = "AGFzbQEAAAABBAFgAAADAgEABwgBBHNwaW4AAAoJAQcAA0AMAAsL"


def deploy(client, module=ADD):
    return client.post("/functions", json={"name": "f", "wasm_b64": module}).json()["id"]


def until(holds, seconds=30.0):
    ends_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def answers(url):
    try:
        return httpx.get(f"{url}/healthz", timeout=1.0).status_code == 200
    except httpx.HTTPError:
        return False


def is_gone(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it goes while it is read
        return True


def test_running_calls_end_before_a_stopping_server(start_server):
    with start_server() as server, server.client() as client:
        spin = deploy(client, SPIN)
        found = []

        def invoke():
            with server.client() as other:
                found.append(other.post(f"/functions/{spin}/invoke", json={"export": "spin", "deadline_ms": 2000}))

        running = threading.Thread(target=invoke)
        running.start()
        until(lambda: 'in_flight{method="POST",route="/functions/:id/invoke"} 1.0' in client.get("/metrics").text)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "draining" in client.get("/readyz").text)
        refused = client.get("/functions")
        assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "draining")
        assert refused.headers["retry-after"] == "1"
        assert client.get("/livez").status_code == 200
        running.join(30)
        assert [each.status_code for each in found] == [504]
        assert server.process.wait(30) == 0


def test_a_second_signal_ends_it_at_once(start_server):
    with start_server() as server, server.client() as client:
        spin = deploy(client, SPIN)
        running = threading.Thread(target=lambda: _ignore(server, spin))
        running.start()
        until(lambda: 'in_flight{method="POST",route="/functions/:id/invoke"} 1.0' in client.get("/metrics").text)
        server.process.send_signal(signal.SIGINT)
        until(lambda: "draining" in client.get("/readyz").text)
        began_s = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        server.process.wait(10)
        assert time.monotonic() - began_s < 5
        running.join(30)


def _ignore(server, spin):
    try:
        with server.client() as other:
            other.post(f"/functions/{spin}/invoke", json={"export": "spin", "deadline_ms": 15000})
    except httpx.HTTPError:
        return


def test_a_server_that_is_killed_comes_again_with_all_it_had(start_server):
    with start_server() as server:
        with server.client() as client:
            function = deploy(client)
        for _ in range(2):
            killed = server.child()
            os.kill(killed, signal.SIGKILL)
            until(lambda killed=killed: is_gone(killed))
            until(lambda: answers(server.url))
            with server.client() as client:
                called = client.post(f"/functions/{function}/invoke", json={"export": "add", "args": [2, 3]})
                assert called.json()["result"] == [5]


def test_nobody_is_refused_while_a_server_is_replaced(start_server):
    with start_server() as server, server.client() as client:
        function = deploy(client)
        for _ in range(3):
            os.kill(server.child(), signal.SIGKILL)
            waiting = [server.client(timeout=30) for _ in range(10)]  # each with a connection of its own
            for each in waiting:
                with each:
                    called = each.post(f"/functions/{function}/invoke", json={"export": "add", "args": [2, 3]})
                    assert called.json()["result"] == [5]


def test_after_a_signal_the_audit_log_goes_on_in_a_new_file(start_server):
    with start_server() as server, server.client() as client:
        deploy(client)
        serving = server.child()
        log = server.data / "audit.log"
        until(lambda: "create_function" in log.read_text())
        log.rename(server.data / "audit.log.1")
        for each in _children(server.process.pid):
            os.kill(each, signal.SIGHUP)
        server.process.send_signal(signal.SIGHUP)
        until(log.exists)
        deploy(client)
        until(lambda: "create_function" in log.read_text())
        assert server.child() == serving
        assert [is_gone(each) for each in _children(server.process.pid)] == [False, False], (
            "the server and its template"
        )


def _children(process):
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_nothing_is_left_of_a_server_whose_parent_is_killed(start_server):
    with start_server() as server:
        child = server.child()
        server.process.kill()
        server.process.wait(10)
        until(lambda: is_gone(child))
        assert not answers(server.url)


def run(*arguments, environment=None):
    return subprocess.run(
        [sys.executable, "-m", "tensorwasm.cli", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(environment or {})},
        check=False,
    )


def test_an_address_that_is_taken_is_refused(start_server, tmp_path):
    with start_server() as server:
        found = run("--addr", f"127.0.0.1:{server.port}", "--data", str(tmp_path / "other"))
        assert found.returncode == 2
        assert "cannot be listened on" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--addr", "nonsense"], {}),
        (["--tenant-header-policy", "perhaps"], {}),
        (["--token", "short"], {}),
        ([], {"TENSOR_WASM_API_MAX_BODY": "x"}),
        (["--addr", "0.0.0.0:0"], {"TENSOR_WASM_API_ALLOW_DEV_MODE": "1"}),
        ([], {"TENSOR_WASM_API_TRUSTED_XFCC_PROXIES": "everybody"}),
    ],
)
def test_invalid_options_are_refused_without_a_retry(tmp_path, arguments, environment):
    found = run(
        "--data",
        str(tmp_path / "data"),
        *(["--addr", "127.0.0.1:0"] if not arguments else []),
        *arguments,
        environment=environment,
    )
    assert found.returncode == 2
    assert "error:" in found.stderr
    assert "starting it again" not in found.stderr
    assert "listening" not in found.stdout


def test_a_token_is_shown_once_and_kept_nowhere(start_server, tmp_path):
    data = tmp_path / "data"
    with start_server(data=data) as server:
        token = server.token
        assert token
        server.stop()
    with start_server(data=data, token=token) as server, server.client() as client:
        assert client.get("/functions").status_code == 200
        shown = data.with_suffix(".stderr").read_text()
        assert shown.count("shown this once") == 1
        server.stop()
    for path in [*data.rglob("*"), *Path(f"{data}.state").rglob("*")]:
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path


def test_tokens_and_policies_of_the_command_line_count(start_server):
    listed = ("--token", "listed-token-0000000:tenant=7", "--tenant-header-policy", "required")
    with start_server(*listed, token="listed-token-0000000") as server, server.client() as client:
        assert client.get("/functions").json()["error"]["kind"] == "missing_tenant"
        assert client.get("/functions", headers={"X-TensorWasm-Tenant": "7"}).status_code == 200
        assert client.get("/functions", headers={"X-TensorWasm-Tenant": "8"}).status_code == 403


def test_without_authentication_pages_and_names_from_elsewhere_are_refused(start_server):
    with start_server(environment={"TENSOR_WASM_API_ALLOW_DEV_MODE": "1"}) as server:
        assert httpx.get(f"{server.url}/functions").status_code == 200
        rebound = httpx.get(f"{server.url}/functions", headers={"Host": "evil.example"})
        assert rebound.json()["error"]["kind"] == "host_denied"
        page = httpx.post(f"{server.url}/functions", content="{}", headers={"Origin": "https://evil.example"})
        assert page.json()["error"]["kind"] == "origin_denied"


def test_a_server_that_crashes_as_soon_as_it_serves_has_said_where(tmp_path):
    """The supervisor lets no later one announce it, so a client that waits for the line would wait forever."""
    path = tmp_path / "s"
    own = {"TENSOR_WASM_DATA": str(tmp_path / "data"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", CRASH_AS_IT_SERVES, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (9, f"listening on http+unix://{path}\n"), done.stderr


def test_a_server_that_is_ready_collects_nothing_that_it_has_loaded(tmp_path):
    """Each full collection would stop all calls while it visits that."""
    pytest.importorskip("numba")
    command = [sys.executable, "-c", COUNT_WHEN_READY, str(tmp_path / "s")]
    own = {"TENSOR_WASM_DATA": str(tmp_path / "data")}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20_000


def test_a_socket_in_the_file_system_serves(tmp_path):
    path = tmp_path / "s"
    with (tmp_path / "err").open("wb") as errors:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tensorwasm.cli",
                "serve",
                "--addr",
                f"unix:{path}",
                "--data",
                str(tmp_path / "data"),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout.readline() == f"listening on http+unix://{path}\n"
        assert path.stat().st_mode & 0o077 == 0
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
            assert client.get("/healthz").json() == {"status": "ok"}
        killed = by_role(process.pid)["server"][0]
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in _children(process.pid))

        def again():
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(str(path)) == 0

        until(again)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()
    assert process.returncode == 0
    assert not path.exists()
