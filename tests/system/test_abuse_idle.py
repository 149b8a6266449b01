"""Ten thousand connections that say nothing: they cost little, go after a while, and nobody beside them notices."""

import resource
import statistics
import time
import warnings
from contextlib import ExitStack
from pathlib import Path

import pytest

from neighbours import connect, memory_bytes, polite_neighbour, until
from servers import running_server
from tensorwasm.server.serving import SPARE_FILES

WANTED = 10_000
EACH_BYTES = 16 << 10
USUAL_S = 0.5
NEW_S = 2.0
BEGUN = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def connections():
    """How many there may be: both sides need a descriptor for each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(WANTED, hard - 2 * SPARE_FILES)
    if count < WANTED:
        warnings.warn(f"this machine allows {count} connections, not {WANTED}", stacklevel=1)
    try:
        yield count
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.filterwarnings("default:this machine allows")
def test_idle_connections_delay_no_client_and_use_little_memory(tmp_path, connections):
    environment = {"TENSOR_WASM_API_TENANT_CAPS": "qps=100000,burst=100000"}
    with (
        running_server(tmp_path / "data", environment=environment) as server,
        polite_neighbour(server) as neighbour,
        ExitStack() as stack,
    ):
        until(lambda: len(neighbour.times_s) > 20)
        memory, descriptors = memory_bytes(server), count_descriptors(server)
        idle = [stack.enter_context(connect(server)) for _ in range(connections)]
        for each in idle[::3]:
            each.sendall(BEGUN)  # a head that does not end
        until(lambda: count_descriptors(server) >= descriptors + connections * 0.95)
        calls = len(neighbour.times_s)
        until(lambda: len(neighbour.times_s) > calls + 50)
        assert statistics.median(neighbour.times_s[calls:]) < USUAL_S
        begun_s = time.monotonic()
        with server.client() as client:  # a new connection beside them
            assert client.get("/functions").status_code == 200
        assert time.monotonic() - begun_s < NEW_S
        each_bytes = (memory_bytes(server) - memory) / connections
        assert each_bytes < EACH_BYTES, f"{each_bytes:.0f} bytes for each connection"
        stack.close()
        until(lambda: count_descriptors(server) <= descriptors + 50)


def count_descriptors(server):
    """Return how many descriptors the server has."""
    return sum(1 for _ in Path(f"/proc/{server.child()}/fd").iterdir())
