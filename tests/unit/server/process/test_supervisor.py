"""The parent of the server, with real processes that only pretend to serve."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tensorwasm.errors import InvalidArgs
from tensorwasm.server.process import server_process
from tensorwasm.server.process.address import ListenAddress
from tensorwasm.server.process.options import ServeOptions
from tensorwasm.server.process.place import Place
from tensorwasm.server.process.record import request_reload
from tensorwasm.server.process.server_process import ServerProcess, Template, adopting_orphans, bury_orphans
from tensorwasm.server.process.supervisor import Supervisor

ANYWHERE = ListenAddress("127.0.0.1", 0)
OPTIONS = ServeOptions(ListenAddress("127.0.0.1", 8080), sys.stderr.fileno())

TEMPLATE = """
import os, signal, sys, types

def run(options, report):
    place, role = options.place, options.role
    SCRIPT

def load_kept():
    os.write(1, b"loaded compiled code\\n")

def pretend(name, **members):
    sys.modules[name] = made = types.ModuleType(name)
    vars(made).update(members)
    return made

from tensorwasm.server import process
process.starting = pretend("tensorwasm.server.process.starting", run=run)
pretend("tensorwasm.guest.native.loading", load_kept=load_kept)
from tensorwasm.server.process import template
code = template.main(sys.argv[1:])
sys.stdout.flush()
os._exit(code)
"""
"""A template whose processes only pretend to serve: they do what a script says."""

SERVES = """
def leave(number, _):
    os.write(1, f"{'left' if number == signal.SIGUSR1 else 'stopped'} {role}\\n".encode())
    os._exit(0)
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, leave)
os.write(1, f"began {role} {-1 if place is None else place.row}\\n".encode())
report(); report()
while True:
    signal.pause()
"""
RUN = """
import os, sys
from pathlib import Path
from tensorwasm.server.process import server_process
from tensorwasm.server.process.address import ListenAddress
from tensorwasm.server.process.supervisor import Supervisor

folder = Path(sys.argv[2])
server_process.PROGRAM = ("-c", sys.argv[3])
address = ListenAddress(path=str(folder / "s"))
sys.exit(Supervisor(address, os.environ, workers=int(sys.argv[1]), drain_s=5.0, folder=folder / "data").run())
"""


def pretending(script):
    """Return the arguments of Python for a template whose processes do what a script says."""
    return ("-c", TEMPLATE.replace("SCRIPT", textwrap.indent(script.strip(), "    ").lstrip()))


def until(holds, seconds=20.0):
    ends_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def read(path):
    """Return the content of a file, which may not be there any more."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


class Running:
    """A supervisor of pretended servers in a process of its own, which says what they do."""

    def __init__(self, folder, workers, script=SERVES):
        self.folder = folder
        self.output = folder / "output"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, str(workers), str(folder), pretending(script)[1]],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(folder)},
            )

    def said(self, text):
        return self.output.read_text().splitlines().count(text)

    def named(self, name):
        """Return its children of a name."""
        return [each for each in self.children() if read(f"/proc/{each}/comm").strip() == name]

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


@pytest.fixture
def template(monkeypatch):
    """Return a function that starts a template whose processes do what a script says."""
    with contextlib.ExitStack() as stack:

        def start(script):
            monkeypatch.setattr(server_process, "PROGRAM", pretending(script))
            made = Template(os.environ, (OPTIONS.listening,))
            stack.callback(made.close)
            return made

        stack.enter_context(adopting_orphans())
        yield start


def ended(process):
    process.look()
    return process.code is not None


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("report(); os._exit(7)", (True, False, 7)),
        ("report(); report(); os._exit(7)", (True, True, 7)),
        ("os._exit(7)", (False, False, 7)),
        ("report(); os.kill(os.getpid(), 9)", (True, False, -9)),
        ("os._exit(0 if options.address.port == 8080 else 7)", (False, False, 0)),
    ],
)
def test_a_process_is_a_child_of_the_supervisor_and_reports_what_it_has_done(template, script, expected):
    made = template(script)
    process = made.fork(OPTIONS)
    until(lambda: ended(process))
    assert process.pid != made.pid
    assert (process.serves, process.ready, process.code) == expected
    made.look()
    assert made.loaded
    process.close()


def test_processes_of_one_template_share_nothing_that_must_differ(template, tmp_path):
    code = """
import random, uuid
with open(f"{os.environ['FOLDER']}/{os.getpid()}", "w") as file:
    print(random.random(), uuid.uuid4(), os.getsid(0) == os.getpid(), os.getppid(), file=file)
"""
    made = template(code.replace("os.environ['FOLDER']", repr(str(tmp_path))))
    processes = [made.fork(OPTIONS) for _ in range(3)]
    for each in processes:
        until(lambda each=each: ended(each))
        each.close()
    said = [(tmp_path / str(each.pid)).read_text().split() for each in processes]
    assert len({number for number, *_ in said}) == len({each[1] for each in said}) == 3
    assert all(own == "True" and int(parent) == os.getpid() for _, _, own, parent in said)


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_a_process_that_does_not_exist_yet_is_signalled_or_killed_once_it_does(template, tmp_path, number):
    made = template(f"open({str(tmp_path / 'ran')!r}, 'w'); signal.pause()")
    process, other = made.fork(OPTIONS), made.fork(OPTIONS)
    assert process.pid is None, "the template has not loaded anything"
    if number is None:
        process.close()
        until(lambda: other.pid is not None or other.look())
        assert not (tmp_path / "ran").exists() or other.pid is not None
    else:
        process.signal(number)
        until(lambda: ended(process))
        assert process.code == -signal.SIGTERM
        process.close()
    other.close()
    bury_orphans(())


def test_one_whose_template_dies_before_it_forks_has_ended(monkeypatch):
    monkeypatch.setattr(server_process, "PROGRAM", ("-c", "import os; os._exit(7)"))
    made = Template(os.environ, (OPTIONS.listening,))
    process = made.fork(OPTIONS)
    until(lambda: ended(process))
    assert (process.code, process.serves) == (1, False)
    process.close()
    until(lambda: made.ended)
    made.close()


def test_where_nothing_is_adopted_the_template_becomes_the_process(monkeypatch):
    own = "from tensorwasm.server.process import server_process; server_process.FORKS = False\n"
    script = pretending("report(); report(); os._exit(7)")[1]
    monkeypatch.setattr(server_process, "FORKS", False)
    monkeypatch.setattr(server_process, "PROGRAM", ("-c", own + script))
    made = Template(os.environ, (OPTIONS.listening,))
    process = made.fork(OPTIONS)
    assert made.ended, "the next one is forked from another"
    until(lambda: ended(process))
    assert (process.pid, process.ready, process.code) == (made.pid, True, 7)
    process.close()
    made.close()


def run(script, tmp_path, workers=1):
    running = Running(tmp_path, workers, script)
    return running.process.wait(60)


def test_one_that_dies_is_followed_by_another_until_one_ends_normally(tmp_path):
    starts = tmp_path / "starts"
    script = f"""
with open({str(starts)!r}, "a+b", 0) as file:
    file.write(b"x")
    number = file.tell()
report()
os._exit(0 if number == 3 else 9)
"""
    assert run(script, tmp_path) == 0
    assert starts.read_bytes() == b"xxx"


def test_a_process_that_ended_before_its_number_was_read_has_ended():
    read, write = os.pipe()
    os.set_blocking(read, False)
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(9)"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    os.write(write, b"%d\n" % child.pid)
    os.close(write)
    process = ServerProcess(read)
    process.look()  # no signal will ask for another look
    child.returncode = process.code
    assert (process.pid, process.code, process.reports) == (child.pid, 9, None)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("code", [2, 4])
def test_a_server_that_refuses_its_options_ends_it(tmp_path, workers, code):
    assert run(f"os._exit({code})", tmp_path, workers) == code


def test_the_supervisor_gives_up_where_no_process_can_be_started(monkeypatch, capsys):
    def fail(*_arguments, **_options):
        raise BlockingIOError(11, "no process is free")

    monkeypatch.setattr(server_process.subprocess, "Popen", fail)
    assert Supervisor(ANYWHERE, {}).run() == 1
    assert "no process is free" in capsys.readouterr().err


def test_signals_are_handled_as_before_once_it_has_ended(monkeypatch):
    monkeypatch.setattr(server_process, "PROGRAM", pretending("os._exit(2)"))
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]
    assert Supervisor(ANYWHERE, os.environ).run() == 2
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_several_processes_have_places_and_a_front_that_dies_is_replaced(start):
    running = start(2)
    places = ("primary 0", "front 1", "front 2")
    until(lambda: [running.said(f"began {place}") for place in places] == [1, 1, 1])
    until(lambda: len(running.children()) == 6)  # with the broker and two templates
    (folder,) = running.folder.glob("tensor-wasm-*")
    assert folder.stat().st_mode & 0o077 == 0
    assert {each.name for each in folder.iterdir() if each.is_socket()} == {"http", "control"}
    os.kill(running.named("tw-front")[0], signal.SIGKILL)
    until(lambda: running.said("began front 1") + running.said("began front 2") == 3)
    assert running.said("began primary 0") == 1
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(20) == 0
    said = running.output.read_text().splitlines()
    assert said[-2:] == ["stopped primary", "stopped broker"], "each outlives those that need it"
    assert said.count("stopped front") == 2
    assert not list(running.folder.glob("tensor-wasm-*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_template_that_dies_takes_nothing_with_it_and_is_followed_by_another(start, workers):
    running = start(workers)
    until(lambda: len(running.children()) == (2 if workers == 1 else 6))
    until(lambda: len(running.named("tw-template")) == 1)  # what it forks has its name at first
    before = set(running.children())
    (template,) = running.named("tw-template")
    os.kill(template, signal.SIGKILL)
    until(lambda: len(before | set(running.children())) == len(before) + 1)
    until(lambda: len(running.named("tw-template")) == 1)
    assert before - {template} <= set(running.children())
    role = "alone" if workers == 1 else "front"
    os.kill(running.named(f"tw-{role}")[0], signal.SIGKILL)
    until(lambda: set(running.named(f"tw-{role}")) - before)


def test_what_a_killed_process_has_started_is_not_left_behind_as_a_zombie(start, tmp_path):
    running = start(
        1,
        f"""
import subprocess
if not os.path.exists({str(tmp_path / "child")!r}):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    open({str(tmp_path / "new")!r}, "w").write(str(child.pid))
    os.rename({str(tmp_path / "new")!r}, {str(tmp_path / "child")!r})
"""
        + SERVES,
    )
    until((tmp_path / "child").exists)
    child = int((tmp_path / "child").read_text())
    until(lambda: running.said("began alone -1") == 1)
    os.kill(running.named("tw-alone")[0], signal.SIGKILL)
    until(lambda: running.said("began alone -1") == 2)
    until(lambda: not Path(f"/proc/{child}").exists())


def test_compiled_code_is_loaded_by_the_template_behind_the_first_front(start):
    running = start(2)
    until(lambda: len(running.children()) == 6)
    begun = "began primary", "began front", "loaded"
    said = [each for each in running.output.read_text().splitlines() if each.startswith(begun)]
    assert said[:3] == ["began primary 0", "began front 1", "loaded compiled code"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reload_replaces_all(start, workers):
    running, told = start(workers), []
    role, processes, begun = ("alone", 2, 1) if workers == 1 else ("primary", 6, 4)
    until(lambda: running.output.read_text().count("began") == begun)  # from then on they handle signals
    before = running.children()
    request_reload(running.folder / "data", told.append)
    assert told
    assert running.said(f"left {role}") == 1
    assert running.said("left front") == (0 if workers == 1 else 2)
    assert running.said("left broker") == (0 if workers == 1 else 1)
    until(lambda: len(running.children()) == processes and not set(before) & set(running.children()))
    request_reload(running.folder / "data", told.append)
    assert running.said(f"left {role}") == 2
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(20) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_left_of_a_supervisor_that_is_killed_and_its_servers_leave(start, workers):
    running = start(workers)
    until(lambda: len(running.children()) == (2 if workers == 1 else 6))
    places = ("alone -1",) if workers == 1 else ("front 1", "front 2")
    until(lambda: all(running.said(f"began {each}") for each in places))  # from then on they handle signals
    children = running.children()
    running.process.kill()
    until(lambda: not any(Path(f"/proc/{each}").exists() for each in children))
    assert running.said("left alone" if workers == 1 else "left front") == workers
    assert running.said("stopped alone") == 0
    again = start(workers)
    until(lambda: len(again.children()) == len(children))


def test_a_second_server_does_not_get_the_data_folder(start, tmp_path):
    running = start(1)
    until(lambda: running.said("began alone -1"))  # it has locked the folder before
    with pytest.raises(InvalidArgs, match="another server has the data folder"):
        Supervisor(ANYWHERE, {}, folder=tmp_path / "data").run()


def test_a_folder_that_cannot_be_written_only_keeps_reload_from_finding_it(start, tmp_path):
    (tmp_path / "data").touch()
    running = start(1, "report(); os._exit(0)")
    assert running.process.wait(20) == 0
    assert "will not find this server" in running.output.read_text()


def test_options_survive_json_and_contain_no_secrets():
    place = Place("primary", 0, 4, 6, "/tmp/private", 5, 6, (77, 78))
    order = ServeOptions(ListenAddress("::1", 80), 3, 1000, announce=False, place=place)
    assert ServeOptions.from_json(order.to_json()) == order
    assert ServeOptions.from_json(OPTIONS.to_json()) == OPTIONS
    assert "TENSOR_WASM" not in order.to_json()


def test_options_of_other_releases_are_read():
    later = '{"address": {"host": "::1", "port": 80, "quic": true}, "listening": 3, "colour": "red"}'
    assert ServeOptions.from_json(later) == ServeOptions(ListenAddress("::1", 80), 3)


def test_a_process_keeps_only_the_descriptors_that_its_options_name(monkeypatch, tmp_path):
    with contextlib.ExitStack() as stack:
        fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
        for each in fds:
            stack.callback(os.close, each)
        found = tmp_path / "found"
        script = f"""
kept = [os.path.exists(f"/proc/self/fd/{{each}}") for each in {fds}]
open({str(found)!r}, "w").write(f"{{kept}} {{any(map(os.get_inheritable, {fds[:2]}))}}")
"""
        monkeypatch.setattr(server_process, "PROGRAM", pretending(script))
        made = Template(os.environ, tuple(fds))
        stack.callback(made.close)
        stack.enter_context(adopting_orphans())
        place = Place("front", 1, fds[1], 6, "/private")
        process = made.fork(ServeOptions(ListenAddress("127.0.0.1", 80), fds[0], place=place))
        stack.callback(process.close)
        until(lambda: ended(process))
        assert found.read_text() == "[True, True, False, False] False"


def test_sighup_does_not_kill_what_starts(template):
    """A case of 2026-11-23: one that was about to stand by had not said yet what SIGHUP means to it."""
    made = template("report(); signal.pause()")
    os.kill(made.pid, signal.SIGHUP)
    process = made.fork(OPTIONS)
    process.signal(signal.SIGHUP)
    until(lambda: process.look() or process.serves)
    assert not made.ended
    process.close()
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_template_is_one_thread_when_it_has_loaded_everything():
    """A fork of several threads has the locks that the others held."""
    code = """
import os
from tensorwasm.server.process import starting
from tensorwasm.guest.native.loading import load_kept
load_kept()
print(len(os.listdir("/proc/self/task")), "OPENBLAS_NUM_THREADS" in os.environ)
"""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert done.stdout == "1 False\n"


def test_the_supervisor_loads_nothing_that_could_crash_it():
    code = "import sys, tensorwasm.server.process.supervisor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.split()
    ours = {each.split(".")[1] for each in loaded if each.startswith("tensorwasm.")}
    assert ours == {"errors", "gpu", "runtime", "server", "tenancy"}  # constants, and how a template is started
    assert not {"asyncio", "numpy", "msgspec", "uvloop", "sqlalchemy"} & set(loaded)
