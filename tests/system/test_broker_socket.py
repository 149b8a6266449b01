"""The socket of a broker: fronts that say nothing, paths that are none, and brokers that begin at one path."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from oracles.leftovers import Before
from tensorwasm.errors import InvalidArgs
from tensorwasm.runtime.workers import broker
from tensorwasm.runtime.workers.broker import WorkerBroker
from tensorwasm.runtime.workers.broker_client import ANSWER_S, BrokerClient
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
    with WorkerExecutor("emulator") as executor:
        yield executor


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


def in_time(function):
    """Return what a function returns, if it does before a front that says nothing is sent away."""
    threads = ThreadPoolExecutor(1)
    try:
        return threads.submit(function).result(ANSWER_S / 2)
    finally:
        threads.shutdown(wait=False)


@pytest.mark.parametrize("many", [8, 300])
def test_fronts_that_say_nothing_hold_nobody_up(owner, tmp_path, many):
    path = tmp_path / "broker.sock"
    with WorkerBroker(owner, path) as shared, ExitStack() as silent:
        for _ in range(many):
            silent.enter_context(dial(path))
        assert in_time(BrokerClient(path).describe).devices == ("emulator",)
        in_time(shared.close)


def test_a_front_that_says_nothing_is_sent_away(owner, tmp_path, monkeypatch):
    monkeypatch.setattr(broker, "ANSWER_S", 0.05)
    with WorkerBroker(owner, tmp_path / "broker.sock"), dial(tmp_path / "broker.sock") as link:
        link.sendall(b"{")
        assert link.recv(1) == b""


def test_a_broker_goes_on_once_there_are_descriptors_again(owner, tmp_path):
    path = tmp_path / "broker.sock"
    with WorkerBroker(owner, path), dial(path) as link:
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
        assert in_time(BrokerClient(path).describe).devices == ("emulator",)


def test_a_file_that_is_no_socket_stays_as_it_is(owner, tmp_path):
    path = tmp_path / "letters"
    path.write_text("precious")
    with pytest.raises(InvalidArgs, match="no socket"):
        WorkerBroker(owner, path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("name", ["file/broker.sock", "x" * 200, "proc/broker.sock"])
def test_a_place_where_no_socket_can_be_is_an_error_that_names_it(owner, tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "proc").symlink_to("/proc/self/task")
    with pytest.raises(InvalidArgs, match="no broker can listen at"):
        WorkerBroker(owner, tmp_path / name)


def test_of_brokers_that_begin_at_one_path_one_listens(owner, tmp_path):
    path, together = tmp_path / "broker.sock", threading.Barrier(8)

    def begin(_):
        together.wait()
        try:
            return WorkerBroker(owner, path)
        except InvalidArgs:
            return None

    with ThreadPoolExecutor(8) as threads:
        (shared,) = filter(None, threads.map(begin, range(8)))
    assert BrokerClient(path).describe().devices == ("emulator",)
    shared.close()
    assert not path.exists()


def test_a_broker_that_ends_leaves_the_socket_of_the_next_one(owner, tmp_path):
    path = tmp_path / "broker.sock"
    with WorkerBroker(owner, path) as first:
        path.unlink()
        with WorkerBroker(owner, path):
            first.close()
            assert BrokerClient(path).describe().devices == ("emulator",)


def test_a_broker_that_hangs_is_another_broker(owner, tmp_path):
    path = tmp_path / "broker.sock"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(0)
        stack.enter_context(dial(path))
        with pytest.raises(InvalidArgs, match="another broker"):
            in_time(lambda: WorkerBroker(owner, path))


def test_no_other_program_inherits_the_connection_to_a_worker(owner, tmp_path):
    with WorkerBroker(owner, tmp_path / "broker.sock"):
        link = BrokerClient(tmp_path / "broker.sock").connect(0, long=False).link
        with link:
            assert not link.get_inheritable()


def test_the_command_says_why_it_cannot_listen(tmp_path):
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "tensorwasm.cli", "broker", "--device", "emulator"]
    done = subprocess.run([*command, "--socket", str(tmp_path / "file" / "b")], capture_output=True, check=False)
    assert done.returncode not in {0, -signal.SIGABRT}
    assert b"no broker can listen at" in done.stderr
