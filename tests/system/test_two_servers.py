"""Two servers on one PostgreSQL: a session is one server's at a time, and nothing that was acknowledged is lost."""

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from fakes import postgres
from fakes.services import COUNTER
from neighbours import deploy
from servers import running_server

LEASE_S = 2.0
MINE = {"X-TensorWasm-Tenant": "7"}


@pytest.fixture(scope="module")
def database():
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.running() as server:
        yield server


@contextlib.contextmanager
def running_pair(database, folder):
    """Run two servers that share a new database, a store and a key, with a client each."""
    environment = {
        "TENSOR_WASM_DATABASE": database.create(),
        "TENSOR_WASM_ARTIFACTS": str(folder / "artifacts"),
        "TENSOR_WASM_API_SNAPSHOT_HMAC_KEY": "5e" * 32,
        "TENSOR_WASM_API_SESSION_LEASE": str(LEASE_S),
    }
    with ExitStack() as stack:
        first = stack.enter_context(running_server(folder / "first", environment=environment))
        more = environment | {"TENSOR_WASM_API_SERVER_NAME": "second"}
        second = stack.enter_context(running_server(folder / "second", environment=more, token=first.token))
        clients = [stack.enter_context(server.client(headers=MINE)) for server in (first, second)]
        yield (first, clients[0]), (second, clients[1])


@pytest.fixture(scope="module")
def pair(database, tmp_path_factory):
    """Two servers for all tests after which both serve again."""
    with running_pair(database, tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
def own_pair(database, tmp_path):
    """Two servers for a test that ends one of them."""
    with running_pair(database, tmp_path) as pair:
        yield pair


def count(client, session, *, durable=True):
    """Return what a call of the session counted, or the kind of the error that it met."""
    answer = client.post(f"/sessions/{session}/invoke", json={"export": "main", "durable": durable})
    return answer.json()["error"]["kind"] if answer.is_error else answer.json()["result"][0]


def count_again(client, session):
    """Do so as soon as the server, which was killed a moment ago, answers."""
    ends_s = time.monotonic() + 20
    while True:
        try:
            return count(client, session)
        except httpx.ConnectError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(0.05)


def begin(client):
    return client.post("/sessions", json={"function": deploy(client, COUNTER, "counter")}).json()["id"]


def until_counted(client, session, within_s=20.0):
    """Call until the session is this server's, and return what that call counted."""
    ends_s = time.monotonic() + within_s
    while time.monotonic() < ends_s:
        found = count(client, session)
        if isinstance(found, int):
            return found
        assert found == "session_elsewhere"
        time.sleep(0.1)
    raise AssertionError("the session was not taken over")


def test_durable_calls_of_one_session_through_both_servers_are_all_kept(pair):
    (_, mine), (_, other) = pair
    session = begin(mine)

    def calls(client):
        return [count(client, session) for _ in range(30)]

    with ThreadPoolExecutor(2) as threads:
        found = [each for part in threads.map(calls, (mine, other)) for each in part]
    acknowledged = [each for each in found if isinstance(each, int)]
    assert {each for each in found if not isinstance(each, int)} <= {"session_elsewhere"}
    assert sorted(acknowledged) == list(range(1, len(acknowledged) + 1)), "acknowledged calls were lost"


def test_another_server_names_who_has_a_session(pair):
    (first, mine), (_, other) = pair
    session = begin(other)
    assert count(other, session) == 1
    for method, path, body in (
        ("POST", f"/sessions/{session}/invoke", {"export": "main"}),
        ("POST", f"/sessions/{session}/snapshot", None),
        ("DELETE", f"/sessions/{session}", None),
    ):
        refused = mine.request(method, path, json=body)
        assert (refused.status_code, refused.json()["error"]["kind"]) == (409, "session_elsewhere")
        assert "second" in refused.json()["error"]["message"]
        assert refused.headers["x-tensorwasm-server"] == "second"
    assert mine.get(f"/sessions/{session}").json()["calls"] == 1
    assert count(other, session) == 2
    answer = other.post(f"/sessions/{begin(mine)}/invoke", json={})
    assert answer.headers["x-tensorwasm-server"].endswith(f":{first.port}")


def test_a_session_goes_on_elsewhere_when_its_server_is_gone(own_pair):
    (first, mine), (_, other) = own_pair
    session = begin(mine)
    assert [count(mine, session) for _ in range(3)] == [1, 2, 3]
    assert count(mine, session, durable=False) == 4
    child = first.child()
    first.process.kill()
    os.kill(child, signal.SIGKILL)
    assert until_counted(other, session) == 4
    assert other.get(f"/sessions/{session}").json()["rewinds"] == 1


def test_a_server_that_is_started_again_has_its_sessions_at_once(pair):
    (first, mine), (_, other) = pair
    session = begin(mine)
    assert count(mine, session) == 1
    os.kill(first.child(), signal.SIGKILL)
    ends_s = time.monotonic() + 20
    while time.monotonic() < ends_s:
        try:
            assert count(mine, session) == 2
            break
        except httpx.HTTPError:
            time.sleep(0.05)
    assert count(other, session) == "session_elsewhere"


def test_a_server_that_ends_gives_its_sessions_back(own_pair):
    (first, mine), (_, other) = own_pair
    session = begin(mine)
    assert count(mine, session, durable=False) == 1
    assert first.stop() == 0
    assert count(other, session) == 2


def test_a_server_that_was_stopped_too_long_acknowledges_nothing_more(pair):
    (first, mine), (_, other) = pair
    session = begin(mine)
    assert count(mine, session) == 1
    child = first.child()
    os.kill(child, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(2) as threads:
            late = [threads.submit(count, mine, session, durable=durable) for durable in (True, False)]
            assert until_counted(other, session) == 2
            os.kill(child, signal.SIGCONT)
            assert [each.result() for each in late] == ["session_elsewhere"] * 2
    finally:
        os.kill(child, signal.SIGCONT)
    assert count(mine, session) == "session_elsewhere"
    assert count(other, session) == 3


def test_nothing_acknowledged_is_lost_while_servers_and_the_database_are_killed(pair, database):
    """Clients that ask both servers, whichever answers; what is not answered may or may not have been done."""
    servers = [server for server, _ in pair]
    sessions = [begin(client) for _, client in pair]
    ending = threading.Event()

    def ask(server, session):
        found = []
        with server.client(headers=MINE) as client:
            while not ending.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    found.append(count(client, session))
                ending.wait(0.02)
        return session, found

    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask, server, session) for server in servers for session in sessions]
        try:
            for kill in (servers[0].child, servers[1].child, None, servers[0].child):
                ending.wait(LEASE_S)
                if kill is None:
                    database.stop()
                    database.start()
                else:
                    os.kill(kill(), signal.SIGKILL)
            ending.wait(2 * LEASE_S)
        finally:
            ending.set()
    answers = [each.result() for each in asking]
    for session in sessions:
        counts = [each for whose, found in answers if whose == session for each in found if isinstance(each, int)]
        assert len(set(counts)) == len(counts) > 0, "two calls were told the same: one of them was lost"
        found = [each for each in (count_again(client, session) for _, client in pair) if isinstance(each, int)]
        assert len(found) == 1, "a session is one server's"
        assert found[0] > max(counts)
