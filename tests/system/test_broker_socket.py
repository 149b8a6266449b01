"""The socket of a broker: whose it is, and callers who say nothing, too much or something else."""

import json
import os
import resource
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from fakes.services import ADD
from oracles.leftovers import Before
from tensorwasm.errors import DeviceUnavailable, InvalidArgs
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.workers import broker
from tensorwasm.runtime.workers.broker import WorkerBroker
from tensorwasm.runtime.workers.broker_client import MAX_LINE_BYTES, BrokerClient
from tensorwasm.runtime.workers.frames import PROTOCOL
from tensorwasm.runtime.workers.pool import WorkerExecutor

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="workers are looked at through /proc")

SOON_S = 60


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = Before()
    yield
    assert before.new(SOON_S) == {}


@pytest.fixture
def owner():
    """The executor whose workers are shared; none is started before it is asked for."""
    with WorkerExecutor("emulator", isolation="guarded") as executor:
        yield executor


@pytest.fixture
def path(owner, tmp_path):
    """The socket of its broker."""
    with WorkerBroker(owner, tmp_path / "run" / "broker.sock"):
        yield tmp_path / "run" / "broker.sock"


def dial(path):
    link = socket.socket(socket.AF_UNIX)
    link.connect(str(path))  # which waits for a place
    link.settimeout(SOON_S)
    return link


def take_descriptors():
    """Take all that are left, and return them."""
    taken = []
    with suppress(OSError):
        while True:
            taken.append(os.dup(0))
    return taken


def test_the_socket_is_its_users_alone_and_one_brokers(owner, path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with pytest.raises(InvalidArgs, match="another broker"):
        WorkerBroker(owner, path)
    assert BrokerClient(path).describe().devices == ("emulator",)


def test_what_a_broker_left_that_was_killed_is_replaced(owner, tmp_path):
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with WorkerBroker(owner, path):
        assert BrokerClient(path).describe().devices == ("emulator",)
    assert not path.exists()


@pytest.mark.parametrize("at", ["file", "file/b", "folder", "x" * 200, "x" * 300])
def test_a_broker_that_cannot_listen_says_so_and_removes_nothing(owner, tmp_path, at):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidArgs, match=str(tmp_path)):
        WorkerBroker(owner, tmp_path / at)
    assert (tmp_path / "file").read_text() == "kept"
    assert (tmp_path / "folder").is_dir()


def test_of_brokers_that_begin_at_one_path_one_listens(owner, tmp_path):
    path, together = tmp_path / "broker.sock", threading.Barrier(8)

    def begin(_):
        together.wait()
        try:
            return WorkerBroker(owner, path)
        except InvalidArgs:
            return None

    with ThreadPoolExecutor(8) as threads:
        (made,) = filter(None, threads.map(begin, range(8)))
    with made:
        assert BrokerClient(path).describe().devices == ("emulator",)
    assert not path.exists()


def test_the_socket_of_another_program_is_left_to_it_although_it_accepts_nobody(owner, tmp_path):
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as first:
        other.bind(str(path))
        other.listen(0)
        first.connect(str(path))
        with pytest.raises(InvalidArgs, match="no broker can listen"):
            WorkerBroker(owner, path)
        assert path.is_socket()


def test_fronts_start_their_own_workers_where_tenants_share_none(tmp_path):
    path = tmp_path / "broker.sock"
    with WorkerExecutor("emulator", isolation="process") as executor, WorkerBroker(executor, path):
        with WorkerExecutor(broker=path) as front:
            assert front.isolation == "process"
            assert front.submit(Request(module=ADD, export="add", args=(2, 3), tenant="a")).result(60).values == (5,)
        assert executor.workers() == ()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"GET / HTTP/1.1", "invalid_args"),
        (b"[" * 10_000, "invalid_args"),
        (json.dumps({"protocol": PROTOCOL, "device": 7}).encode(), "invalid_args"),
        (json.dumps({"protocol": PROTOCOL, "device": -1}).encode(), "invalid_args"),
        (json.dumps({"protocol": PROTOCOL, "more": 1}).encode(), "invalid_args"),
        (json.dumps({"protocol": PROTOCOL - 1}).encode(), "invalid_args"),
    ],
)
def test_a_request_that_is_none_is_refused(path, line, kind):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(path))
        link.sendall(line + b"\n")
        assert json.loads(link.makefile().readline())["failure"][1] == kind


def test_a_line_without_end_is_not_kept(path):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(path))
        link.sendall(b"x" * (MAX_LINE_BYTES + 1))
        with suppress(ConnectionResetError):
            assert link.recv(1) == b""
    assert BrokerClient(path).describe().isolation == "guarded"


@pytest.mark.parametrize("answer", [b"", b"{}\n", b"no\n", b"x" * (MAX_LINE_BYTES + 1)])
def test_what_is_no_broker_is_an_error(tmp_path, answer):
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as threads:
        listener.bind(str(path))
        listener.listen()
        asked = threads.submit(BrokerClient(path).connect, 0, long=False)
        link, _ = listener.accept()
        with link:
            link.recv(4096)
            link.sendall(answer)
        with pytest.raises(DeviceUnavailable, match=str(path)):
            asked.result(SOON_S)


def test_a_caller_who_says_no_more_is_sent_away(monkeypatch, path):
    monkeypatch.setattr(broker, "ANSWER_S", 0.05)
    with dial(path) as link:
        link.sendall(b"{")
        assert link.recv(1) == b""


def test_a_broker_goes_on_once_there_are_descriptors_again(path):
    with dial(path) as link:
        link.sendall(b"\n")
        assert link.recv(1)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket(socket.AF_UNIX) as late:
            resource.setrlimit(resource.RLIMIT_NOFILE, (late.fileno() + 1, before[1]))
            try:
                filling = take_descriptors()
                late.connect(str(path))
                late.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    late.recv(1)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
                for each in filling:
                    os.close(each)
        assert BrokerClient(path).describe().devices == ("emulator",)


def test_no_other_program_inherits_the_connection_to_a_worker(path):
    worker = BrokerClient(path).connect(0, long=False)
    with worker.link, worker.broker:
        assert not worker.link.get_inheritable()
