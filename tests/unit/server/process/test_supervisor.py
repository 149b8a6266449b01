"""The parent of the server, with real processes that only pretend to serve."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tensorwasm.errors import InvalidArgs
from tensorwasm.server.process import server_process
from tensorwasm.server.process.address import ListenAddress
from tensorwasm.server.process.options import ServeOptions
from tensorwasm.server.process.place import Place
from tensorwasm.server.process.record import NAME, request_reload
from tensorwasm.server.process.server_process import ServerProcess
from tensorwasm.server.process.supervisor import Supervisor

ANYWHERE = ListenAddress("127.0.0.1", 0)
OPTIONS = ServeOptions(ListenAddress("127.0.0.1", 8080), sys.stderr.fileno())

TOLD = """
import ctypes, json, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGUSR1, 0, 0, 0)
serve = lambda: os.write(int(sys.argv[2]), b"1")
"""
WAITS = """
os.write(int(sys.argv[2]), b"0")
order = sys.stdin.read()
"""
SERVES = """
import atexit
options = json.loads(order) if order else sys.exit(1)
place = options["place"] or {"role": "alone", "row": -1}
def leave(number, _):
    print("left" if number == signal.SIGUSR1 else "stopped", place["role"], flush=True)
    os._exit(0)
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, leave)
print("began", place["role"], place["row"], flush=True)
serve(); serve()
while True:
    signal.pause()
"""
RUN = """
import sys
from pathlib import Path
from tensorwasm.server.process import server_process
from tensorwasm.server.process.address import ListenAddress
from tensorwasm.server.process.supervisor import Supervisor

folder = Path(sys.argv[2])
server_process.PROGRAM = ("-c", sys.argv[3])
address = ListenAddress(path=str(folder / "s"))
sys.exit(Supervisor(address, {"PATH": ""}, workers=int(sys.argv[1]), drain_s=5.0, folder=folder / "data").run())
"""


def until(holds, seconds=20.0):
    ends_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


class Running:
    """A supervisor of pretended servers in a process of its own, which says what they do."""

    def __init__(self, folder, workers, script=SERVES):
        self.folder = folder
        self.output = folder / "output"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, str(workers), str(folder), TOLD + WAITS + script],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(folder)},
            )

    def said(self, text):
        return self.output.read_text().splitlines().count(text)

    def children(self):
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(each) for each in found]


@pytest.fixture
def start(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(workers, script=SERVES):
            running = Running(tmp_path, workers, script)
            stack.callback(running.process.wait, 20)
            stack.callback(running.process.kill)
            return running

        yield start


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (WAITS + "serve(); os._exit(7)", (True, True, False, 7)),
        (WAITS + "serve(); serve(); os._exit(7)", (True, True, True, 7)),
        (WAITS + "os._exit(7)", (True, False, False, 7)),
        (WAITS + "serve(); os.kill(os.getpid(), 9)", (True, True, False, -9)),
        (WAITS + "os.close(int(sys.argv[2])); os._exit(0 if '8080' in order else 7)", (True, False, False, 0)),
        ("os._exit(7)", (False, False, False, 7)),
    ],
)
def test_a_server_reports_through_its_pipe_what_it_has_done(monkeypatch, script, expected):
    monkeypatch.setattr(server_process, "PROGRAM", ("-c", TOLD + script))
    process = ServerProcess(os.environ, (OPTIONS.listening,))
    process.send(OPTIONS)

    def ended():
        process.look()
        return process.code is not None

    until(ended)
    assert (process.loaded, process.serves, process.ready, process.code) == expected
    process.close()


def run(monkeypatch, script, **more):
    monkeypatch.setattr(server_process, "PROGRAM", ("-c", TOLD + WAITS + script))
    return Supervisor(ANYWHERE, {}, **more).run()


def test_one_that_dies_is_followed_by_another_until_one_ends_normally(monkeypatch, tmp_path):
    starts = tmp_path / "starts"
    script = f"""
with open({str(starts)!r}, "a+b", 0) as file:
    file.write(b"x")
    number = file.tell()
serve()
os._exit(0 if number == 3 else 9)
"""
    assert run(monkeypatch, script) == 0
    assert starts.read_bytes() == b"xxx"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("code", [2, 4])
def test_a_server_that_refuses_its_options_ends_it(monkeypatch, workers, code):
    assert run(monkeypatch, f"os._exit({code})", workers=workers) == code


def test_the_supervisor_gives_up_where_no_process_can_be_started(monkeypatch, capsys):
    def fail(*_arguments, **_options):
        raise BlockingIOError(11, "no process is free")

    monkeypatch.setattr(server_process.subprocess, "Popen", fail)
    assert Supervisor(ANYWHERE, {}).run() == 1
    assert "no process is free" in capsys.readouterr().err


def test_signals_are_handled_as_before_once_it_has_ended(monkeypatch):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]
    run(monkeypatch, "os._exit(2)")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_several_processes_have_places_and_a_front_that_dies_is_replaced(start):
    running = start(2)
    until(lambda: len(running.children()) == 5)  # with the broker and the spare
    assert [running.said(f"began {place}") for place in ("primary 0", "front 1", "front 2")] == [1, 1, 1]
    (folder,) = running.folder.glob("tensor-wasm-*")
    assert folder.stat().st_mode & 0o077 == 0
    assert {each.name for each in folder.iterdir() if each.is_socket()} == {"http", "control"}
    os.kill(running.children()[1], signal.SIGKILL)
    until(lambda: running.said("began front 1") + running.said("began front 2") == 3)
    assert running.said("began primary 0") == 1
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(20) == 0
    said = running.output.read_text().splitlines()
    assert said[-2:] == ["stopped primary", "stopped broker"], "each outlives those that need it"
    assert said.count("stopped front") == 2
    assert not list(running.folder.glob("tensor-wasm-*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reload_replaces_all(start, workers):
    running, told = start(workers), []
    role, processes = ("alone", 2) if workers == 1 else ("primary", 5)
    until(lambda: len(running.children()) == processes)
    before = running.children()
    request_reload(running.folder / "data", told.append)
    assert told
    assert running.said(f"left {role}") == 1
    assert running.said("left front") == (0 if workers == 1 else 2)
    stay = processes // 5  # the broker alone
    until(lambda: len(running.children()) == processes and len(set(before) & set(running.children())) == stay)
    request_reload(running.folder / "data", told.append)
    assert running.said(f"left {role}") == 2
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(20) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_left_of_a_supervisor_that_is_killed_and_its_servers_leave(start, workers):
    running = start(workers)
    until(lambda: len(running.children()) == (2 if workers == 1 else 5))
    children = running.children()
    running.process.kill()
    until(lambda: not any(Path(f"/proc/{each}").exists() for each in children))
    assert running.said("left alone" if workers == 1 else "left front") == workers
    assert running.said("stopped alone") == 0
    again = start(workers)
    until(lambda: len(again.children()) == len(children))


def test_a_second_server_does_not_get_the_data_folder(start, tmp_path):
    until((start(1).folder / "data" / NAME).exists)
    with pytest.raises(InvalidArgs, match="another server has the data folder"):
        Supervisor(ANYWHERE, {}, folder=tmp_path / "data").run()


def test_a_folder_that_cannot_be_written_only_keeps_reload_from_finding_it(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert run(monkeypatch, "serve(); os._exit(0)", folder=tmp_path / "file" / "data") == 0
    assert "will not find this server" in capsys.readouterr().err


def test_options_survive_json_and_contain_no_secrets():
    place = Place("primary", 0, 4, 6, "/tmp/private", 5, 6, (77, 78))
    order = ServeOptions(ListenAddress("::1", 80), 3, 1000, announce=False, place=place)
    assert ServeOptions.from_json(order.to_json()) == order
    assert ServeOptions.from_json(OPTIONS.to_json()) == OPTIONS
    assert "TENSOR_WASM" not in order.to_json()


def test_options_of_other_releases_are_read():
    later = '{"address": {"host": "::1", "port": 80, "quic": true}, "listening": 3, "colour": "red"}'
    assert ServeOptions.from_json(later) == ServeOptions(ListenAddress("::1", 80), 3)


def test_a_process_keeps_only_the_descriptors_that_its_options_name(tmp_path):
    script = """
import io, os, sys
from tensorwasm.server.process import child, starting
from tensorwasm.server.process.address import ListenAddress
from tensorwasm.server.process.options import ServeOptions
from tensorwasm.server.process.place import Place

fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
read, write = os.pipe()
place = Place("front", 1, fds[1], 6, "/private")
os.write(write, ServeOptions(ListenAddress("127.0.0.1", 80), fds[0], place=place).to_json().encode())
os.close(write)
os.dup2(read, 0)
def run(options, report):
    print([os.path.exists(f"/proc/self/fd/{each}") for each in fds], any(map(os.get_inheritable, fds[:2])))
starting.run = run
sys.exit(child.main([str(os.getppid()), str(fds[4]), *map(str, fds[:4])]))
"""
    script = script.replace("str(fds[4])", "str(os.open(os.devnull, os.O_WRONLY))")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "[True, True, False, False, True] False\n", done.stderr


def test_sighup_does_not_kill_a_starting_server():
    """A case of 2026-11-23: one that was about to stand by had not said yet what SIGHUP means to it."""
    server = ServerProcess(os.environ, (OPTIONS.listening,))
    try:
        server.signal(signal.SIGHUP)
        server._process.stdin.close()  # it is told nothing, so it ends
        assert server._process.wait(60) == 1
    finally:
        server.close()
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_the_supervisor_loads_nothing_that_could_crash_it():
    code = "import sys, tensorwasm.server.process.supervisor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.split()
    ours = {each.split(".")[1] for each in loaded if each.startswith("tensorwasm.")}
    assert ours == {"errors", "server", "tenancy"}
    assert not {"asyncio", "numpy", "msgspec", "uvloop", "sqlalchemy"} & set(loaded)
