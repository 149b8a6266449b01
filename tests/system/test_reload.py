"""A server whose processes are replaced, and one whose supervisor is killed, while clients go on."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from fakes.services import ADD, COUNTER
from loads import Load, reload
from neighbours import deploy, until
from servers import running_server
from tensorwasm.database.engine.opening import own_database, sqlite_url
from victims import by_role

SPIN = bytes.fromhex("0061736d01000000010401600000030201000708010473 70696e00000a0901070003400c000b0b".replace(" ", ""))


def test_a_reload_loses_no_request_and_starts_what_is_installed_now(tmp_path):
    release = tmp_path / "release"
    release.mkdir()
    environment = {"PYTHONPATH": os.pathsep.join([str(release), os.environ.get("PYTHONPATH", "")])}
    with running_server(tmp_path / "data", environment=environment) as server, server.client() as client:
        function, session = deploy(client, ADD, "add"), None
        session = client.post("/sessions", json={"function": deploy(client, COUNTER, "counter")}).json()["id"]
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.post(f"/sessions/{session}/invoke", json={"export": "main"}).json()["result"] == [1]
        (release / "sitecustomize.py").write_text("import sys; sys.stderr.write('of the next release\\n')")
        with Load(server, function) as load:
            before = server.child()
            assert reload(server) == (0, "the server is replaced\n", "")
            calls = len(load.answers)
            until(lambda: len(load.answers) > calls + 10)
        assert load.wrong() == []
        assert server.child() != before
        assert "of the next release" in (tmp_path / "data.stderr").read_text()
        answer = client.post(f"/sessions/{session}/invoke", json={"export": "main"})
        assert answer.json()["result"] == [2], "it was saved and came again"
        assert server.stop() == 0


def test_a_broken_release_does_not_replace_one_that_works(tmp_path):
    release = tmp_path / "release"
    release.mkdir()
    environment = {"PYTHONPATH": os.pathsep.join([str(release), os.environ.get("PYTHONPATH", "")])}
    with running_server(tmp_path / "data", environment=environment) as server, server.client() as client:
        function = deploy(client, ADD, "add")
        until(lambda: client.get("/readyz").status_code == 200)
        (release / "httptools.py").write_text("raise ImportError('it is not of this Python')")
        with Load(server, function) as load:
            before = server.child()
            code, _, errors = reload(server)
            assert code == 1
            assert "reload_failed" in errors
            assert server.child() == before
        assert load.wrong() == []
        os.kill(before, signal.SIGKILL)
        until(lambda: by_role(server.process.pid).get("server", [before]) != [before])
        until(lambda: client.get("/readyz").status_code == 200)  # of the release that works, though it is gone
        before = server.child()
        (release / "httptools.py").unlink()
        assert reload(server)[0] == 0
        assert server.child() != before


def test_a_reload_without_a_server_says_what_to_do(tmp_path):
    command = [sys.executable, "-m", "tensorwasm.cli", "reload", "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: server_unreachable: no server runs with the data folder")


@contextlib.contextmanager
def next_supervisor(server):
    """Kill the supervisor of a server, and start another one at once, at the same address."""
    server.process.kill()
    started_s = time.monotonic()
    arguments = ("--addr", f"127.0.0.1:{server.port}")
    with running_server(server.data, *arguments, token=server.token) as following:
        yield following, started_s


def test_the_next_supervisor_answers_as_soon_as_a_first_one_and_nothing_is_lost(start_server):
    began_s = time.monotonic()
    with start_server() as server, server.client() as client:
        first_s = time.monotonic() - began_s
        function = deploy(client, ADD, "add")
        session = client.post("/sessions", json={"function": deploy(client, COUNTER, "counter")}).json()["id"]
        until(lambda: client.get("/readyz").status_code == 200)
        with Load(server, function) as load:
            counted = client.post(f"/sessions/{session}/invoke", json={"export": "main", "durable": True})
            assert counted.json()["result"] == [1]
            old = server.child()
            with next_supervisor(server) as (following, started_s), following.client() as other:
                assert time.monotonic() - started_s < 2 * first_s + 5, "it waits for the address and the database"
                calls = len(load.answers)
                until(lambda: len(load.answers) > calls + 10)
                until(lambda: not Path(f"/proc/{old}").exists())
                answer = other.post(f"/sessions/{session}/invoke", json={"export": "main", "durable": True})
                assert answer.json()["result"] == [2]


def test_a_long_call_does_not_keep_the_next_server_waiting(start_server):
    with start_server() as server, server.client() as client:
        spin = deploy(client, SPIN, "spin")
        found = []

        def invoke():
            with server.client() as other:
                found.append(other.post(f"/functions/{spin}/invoke", json={"export": "spin", "deadline_ms": 20000}))

        running = threading.Thread(target=invoke)
        running.start()
        until(lambda: 'in_flight{method="POST",route="/functions/:id/invoke"} 1.0' in client.get("/metrics").text)
        with next_supervisor(server) as (following, started_s), following.client() as other:
            until(lambda: other.get("/functions").status_code == 200)
            assert time.monotonic() - started_s < 8
        running.join(30)
        assert [each.json()["error"]["kind"] for each in found] == ["draining"]


def test_a_long_job_does_not_keep_the_next_server_waiting(start_server):
    with start_server() as server, server.client() as client:
        spin = deploy(client, SPIN, "spin")
        job = client.post(f"/functions/{spin}/invoke-async", json={"export": "spin"}).json()["job_id"]
        until(lambda: client.get(f"/jobs/{job}").json()["status"] == "running")
        with next_supervisor(server) as (following, started_s), following.client() as other:
            until(lambda: other.get("/functions").status_code == 200)
            assert time.monotonic() - started_s < 5, "the time that jobs have when a server is stopped"
            until(lambda: other.get(f"/jobs/{job}").json()["status"] == "running")  # again, and it may be cancelled
            other.delete(f"/jobs/{job}").raise_for_status()


def test_a_server_whose_database_is_not_free_yet_says_so_and_opens_when_it_is(tmp_path):
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(contextlib.ExitStack())
        lock.enter_context(own_database(sqlite_url(data / "service.db")))
        environment = {"TENSOR_WASM_API_ALLOW_DEV_MODE": "1"}
        server = stack.enter_context(running_server(data, environment=environment, token="none"))
        refused = httpx.get(f"{server.url}/functions")
        assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "database_unavailable")
        assert "another server has the file of the database" in data.with_suffix(".stderr").read_text()
        assert httpx.get(f"{server.url}/livez").status_code == 200
        lock.close()
        until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_can_be_stopped_during_a_reload(start_server, number):
    with start_server() as server, server.client() as client:
        until(lambda: client.get("/readyz").status_code == 200)
        server.process.send_signal(signal.SIGUSR2)
        server.process.send_signal(number)
        assert server.process.wait(30) == 0
