"""A disk that is full and a database that is locked: errors of their kinds, nothing lost, reads and calls go on."""

import base64
import resource
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

from fakes.services import ADD, COUNTER, SUM
from neighbours import deploy, polite_neighbour, until
from servers import running_server
from storm import named

ENVIRONMENT = {"TENSOR_WASM_API_TENANT_CAPS": "qps=100000,burst=100000"}
MINE = {"X-TensorWasm-Tenant": "7"}


@contextmanager
def served(folder):
    with running_server(folder / "data", environment=ENVIRONMENT) as server, server.client(headers=MINE) as client:
        yield server, client


def told(answer):
    return answer.status_code, answer.json()["error"]["kind"] if answer.is_error else ""


def write_all(client, function, session):
    """Ask for everything that is written, all at once; return what each was told."""
    module = base64.b64encode(named(ADD, "new")).decode()
    asked = {
        "deploy": ("/functions", {"name": "new", "wasm_b64": module}),
        "job": (f"/functions/{function}/invoke-async", {"export": "sum", "args": [3]}),
        "token": ("/tokens", {"name": "new", "tenants": [7]}),
        "snapshot": (f"/sessions/{session}/snapshot", None),
        "call": (f"/sessions/{session}/invoke", {"export": "main", "durable": True}),
    }
    with ThreadPoolExecutor(len(asked)) as threads:
        return dict(
            zip(asked, threads.map(lambda each: told(client.post(each[0], json=each[1])), asked.values()), strict=True)
        )


def begin(client):
    function = deploy(client, SUM, "sum")
    counter = deploy(client, COUNTER, "counter")
    session = client.post("/sessions", json={"function": counter}).json()["id"]
    assert client.post(f"/sessions/{session}/invoke", json={"durable": True}).json()["result"] == [1]
    return function, session


def names(client):
    return sorted(each["name"] for each in client.get("/functions").json()["functions"])


def test_a_database_that_is_locked_is_said_to_be_and_used_again_when_it_is_not(tmp_path):
    with served(tmp_path) as (server, client):
        function, session = begin(client)
        with polite_neighbour(server), closing(sqlite3.connect(server.data / "service.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            found = write_all(client, function, session)
            assert set(found.values()) == {(503, "database_unavailable")}, found
            called = client.post(f"/functions/{function}/invoke", json={"export": "sum", "args": [4]})
            assert called.json()["result"] == [10]
            assert names(client) == ["counter", "sum"]
            assert client.get("/readyz").status_code in {200, 503}
            assert client.get("/livez").status_code == 200
            other.rollback()
            found = write_all(client, function, session)
            assert {status for status, _ in found.values()} <= {200, 201, 202}, found
        assert names(client) == ["counter", "new", "sum"]


def test_a_disk_that_is_full_takes_nothing_of_what_was_there(tmp_path):
    """The server's files may grow no more: SQLite and the store are told that as by a disk without room."""
    with served(tmp_path) as (server, client):
        function, session = begin(client)
        with polite_neighbour(server):
            limit_files(server, 1024)
            found = write_all(client, function, session)
            for what, (status, kind) in found.items():
                assert (status, kind) in {(503, "database_unavailable"), (503, "store_unavailable")}, (what, found)
            called = client.post(f"/functions/{function}/invoke", json={"export": "sum", "args": [4]})
            assert called.json()["result"] == [10]
            assert names(client) == ["counter", "sum"]
            limit_files(server, None)
            until(lambda: client.post("/tokens", json={"name": "x", "tenants": [7]}).status_code == 201)
            found = write_all(client, function, session)
            assert {status for status, _ in found.values()} <= {200, 201, 202}, found
        assert names(client) == ["counter", "new", "sum"]
        assert client.post(f"/sessions/{session}/invoke").json()["result"][0] >= 3
        assert server.stop() == 0
    with closing(sqlite3.connect(server.data / "service.db")) as after:
        assert after.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def limit_files(server, size_bytes):
    """Let no file of the server grow longer; None lets them again. Whoever owns a process may do so."""
    hard = resource.prlimit(server.child(), resource.RLIMIT_FSIZE)[1]
    soft = hard if size_bytes is None else size_bytes
    resource.prlimit(server.child(), resource.RLIMIT_FSIZE, (soft, hard))
