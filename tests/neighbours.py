"""Raw connections for those who do not keep to the rules, and a polite neighbour who must not notice them."""

import base64
import mmap
import re
import socket
import statistics
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from fakes.services import ADD

PAUSE_S = 0.01
USUAL_S = 0.5
"""What half of a neighbour's calls may take, on a busy machine too: on a calm one they take 3 ms."""

WORST_S = 5.0
"""What none of them may take."""


class Neighbour(threading.Thread):
    """A tenant that calls one function again and again over one connection.

    Attributes:
        times_s: how long each call took.
        wrong: what was answered that is not right.
    """

    def __init__(self, server, function):
        super().__init__(name="neighbour", daemon=True)
        self._server = server
        self._function = function
        self._stopping = threading.Event()
        self.times_s = []
        self.wrong = []

    def run(self):
        call = {"export": "add", "args": [2, 3]}
        try:
            with self._server.client(headers={"X-TensorWasm-Tenant": "1"}) as client:
                while not self._stopping.wait(PAUSE_S):
                    begun_s = time.monotonic()
                    answer = client.post(f"/functions/{self._function}/invoke", json=call)
                    self.times_s.append(time.monotonic() - begun_s)
                    if answer.status_code != 200 or answer.json()["result"] != [5]:
                        self.wrong.append(answer.text)
        except Exception as error:  # noqa: BLE001 - a neighbour that ends early proves nothing
            self.wrong.append(repr(error))

    def stop(self):
        self._stopping.set()
        self.join(60)


@contextmanager
def polite_neighbour(server, usual_s=USUAL_S):
    """Have a neighbour call meanwhile; nothing that is done in the context slows its calls or lets them fail."""
    with server.client(headers={"X-TensorWasm-Tenant": "1"}) as client:
        before = measured(client)["tensor_wasm_active_instances"]
        neighbour = Neighbour(server, deploy(client, ADD))
        neighbour.start()
        try:
            yield neighbour
        finally:
            neighbour.stop()
        assert not neighbour.is_alive()
        assert neighbour.wrong == []
        if neighbour.times_s:
            assert statistics.median(neighbour.times_s) < usual_s
            assert max(neighbour.times_s) < WORST_S
        until(lambda: at_rest(client, before))


def deploy(client, module, name="neighbour", **options):
    """Deploy a module, and return the function's id."""
    body = {"name": name, "wasm_b64": base64.b64encode(module).decode(), "options": options}
    answer = client.post("/functions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def at_rest(client, instances=0.0):
    """Return whether so many instances are alive, and no request is under way but the one that asks."""
    values = measured(client)
    alive, asking = (values[f"tensor_wasm_{name}"] for name in ("active_instances", "http_requests_in_flight"))
    return alive == instances and asking <= 1


def is_idle(client):
    """Return whether no sandbox is in use; now and then it is the neighbour's that is."""
    return measured(client)["tensor_wasm_active_instances"] == 0


def memory_bytes(server):
    """Return the resident memory of the server's process."""
    return int(Path(f"/proc/{server.child()}/statm").read_text().split()[1]) * mmap.PAGESIZE


def measured(client):
    """Return the metrics that have no labels, and sums of those that have."""
    values = {}
    for line in client.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            values[name] = values.get(name, 0.0) + float(value)
    return values


def until(holds, limit_s=30.0):
    """Wait for what another thread or process does."""
    ends_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < ends_s, "it does not come"
        threading.Event().wait(PAUSE_S)


def connect(server):
    """Return a connection to a server, which waits at most half a minute."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def head(server, method, path, *fields, token=True):
    """Return the head of a request, in bytes, as it is said: nothing in it is checked."""
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: localhost", *fields]
    if token:
        lines.insert(2, b"Authorization: Bearer " + server.token.encode())
    return b"\r\n".join([*lines, b"", b""])


def talk(server, *said, half=False):
    """Say something over a new connection, and return all that is answered until the server closes it.

    A server that stops to listen is no error: it has answered before.
    """
    with connect(server) as connection:
        try:
            for each in said:
                connection.sendall(each)
            if half:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return hear(connection)


def hear(connection):
    """Return all that comes until the other side closes."""
    heard = b""
    try:
        while chunk := connection.recv(1 << 16):
            heard += chunk
    except ConnectionResetError:
        pass
    return heard


def statuses(heard):
    """Return the statuses of all answers of a connection, in order."""
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) ", heard)]


def kind_of(heard):
    """Return the kind of the last error of a connection."""
    return heard.rpartition(b'"kind":"')[2].partition(b'"')[0].decode()
