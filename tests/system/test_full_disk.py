"""A real file system without room: not ready and said why, calls go on, nothing acknowledged lost, ready again."""

import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from fakes.services import ADD, COUNTER
from neighbours import deploy, until
from servers import running_server

MINE = {"X-TensorWasm-Tenant": "7"}
ENVIRONMENT = {"TENSOR_WASM_API_DISK_RESERVE": "1", "TENSOR_WASM_API_TENANT_CAPS": "requests=4096"}


@pytest.fixture
def disk(tmp_path):
    """A file system of 16 MiB of its own."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a file system needs root, on Linux")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk):
    """Leave no byte of a file system."""
    with (disk / "filling").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def readiness(client):
    """Return what ``/readyz`` says: ``ok``, the kind of the error, or nothing while nobody answers."""
    try:
        answer = client.get("/readyz")
    except httpx.HTTPError:
        return ""
    return answer.json()["error"]["kind"] if answer.is_error else answer.json()["status"]


def make_ready(disk, client):
    (disk / "filling").unlink()
    until(lambda: readiness(client) == "ok")


def count(client, session):
    answer = client.post(f"/sessions/{session}/invoke", json={"export": "main", "durable": True})
    return answer.json()["error"]["kind"] if answer.is_error else answer.json()["result"][0]


def test_a_server_on_a_full_disk_says_so_and_starts_there_too(disk):
    data = disk / "data"
    with running_server(data, environment=ENVIRONMENT) as server, server.client(headers=MINE) as client:
        token = server.token
        add, counter = deploy(client, ADD, "add"), deploy(client, COUNTER, "counter")
        session = client.post("/sessions", json={"function": counter}).json()["id"]
        assert count(client, session) == 1
        until(lambda: readiness(client) == "ok")
        fill(disk)
        until(lambda: readiness(client) == "storage_full")
        assert count(client, session) in {"database_unavailable", "store_unavailable"}
        called = client.post(f"/functions/{add}/invoke", json={"export": "add", "args": [2, 3]})
        assert called.json()["result"] == [5]
        assert client.get("/livez").status_code == 200

        os.kill(server.child(), signal.SIGKILL)
        until(lambda: readiness(client) == "storage_full")
        assert client.get("/livez").status_code == 200
        make_ready(disk, client)
        found = count(client, session)
        assert found == 2, "what was acknowledged is there, and what was not is not"
        assert client.post(f"/functions/{add}/invoke", json={"export": "add", "args": [2, 3]}).json()["result"] == [5]
        assert server.stop() == 0

    fill(disk)
    with running_server(data, environment=ENVIRONMENT, token=token) as server, server.client(headers=MINE) as client:
        assert readiness(client) == "storage_full"
        assert client.get("/livez").status_code == 200
        time.sleep(1.5)  # it has been tried again meanwhile
        assert readiness(client) == "storage_full"
        make_ready(disk, client)
        assert count(client, session) == 3
        assert server.stop() == 0


def test_a_server_that_waits_for_disk_space_can_be_stopped(disk):
    fill(disk)
    with running_server(disk / "data", environment=ENVIRONMENT, token="tw_none") as server, server.client() as client:
        assert readiness(client) == "storage_full"
        refused = client.get("/functions")
        assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "storage_full")
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(b"POST /functions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 503", "a body that does not come is not waited for"
        assert server.stop() == 0
