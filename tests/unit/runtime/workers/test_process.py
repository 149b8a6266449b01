import os
import resource
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tensorwasm.runtime.workers.process import Process, describe_exit
from tensorwasm.runtime.workers.template import INHERITED, make_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes are watched through Linux's means")


TEMPLATE = """
import os, sys, threading
from tensorwasm.runtime.workers.child.fork_server import run

def work(link, handover):
    WORK
    return 0

run(work, [int(sys.argv[1])], lambda: None)
"""


def spawn(code):
    """Start a process that does what a code says, in place of a worker."""
    program = ("-c", TEMPLATE.replace("WORK", code.replace("\n", "\n    ")))
    return Process.spawn(program, make_environment(os.environ, None))


def readable(file):
    return bool(select.select([file], [], [], 60)[0])


@pytest.mark.rule("11-secrets")
def test_a_worker_gets_the_variables_of_the_list_and_no_other():
    kept = make_environment({"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x", "CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}, None)
    keyless = {"TENSOR_WASM_CODE_CACHE": "0", "TENSOR_WASM_KERNEL_CACHE": "0"}
    assert kept == {"PATH": "/bin", "CUDA_MPS_PIPE_DIRECTORY": "/dev/null"} | keyless
    given = {"TENSOR_WASM_CODE_CACHE": "9", "TENSOR_WASM_STATE_DIR": "/keys"}
    assert make_environment(given, "/run/mps") == {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"} | keyless
    assert not [name for name in INHERITED if "KEY" in name or "TOKEN" in name or "SECRET" in name]


def test_ending_a_process_ends_what_it_started():
    process = spawn(
        "import subprocess, threading\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        "sys.stderr.write(f'{child.pid}\\n'); sys.stderr.flush(); threading.Event().wait()"
    )
    assert readable(process.errors)
    grandchild = os.pidfd_open(int(process.errors.read(100)))
    assert process.end() == -signal.SIGKILL
    gone, _, _ = select.select([grandchild], [], [], 60)
    os.close(grandchild)
    assert gone


def test_the_exit_status_of_a_process_that_ends_by_itself_is_reported():
    process = spawn("return 5")
    assert readable(process.link)
    process.wait(60)
    assert process.end() == 5


def test_the_worker_has_a_group_of_its_own():
    process = spawn("import os; sys.stderr.write(f'{os.getpgid(0)} {os.getsid(0)}\\n')")
    assert readable(process.errors)
    assert process.errors.read(100).split() == [str(process.pid).encode()] * 2
    process.end()


@pytest.mark.rule("11-socket")
def test_a_template_refuses_a_parent_that_did_not_make_its_socket():
    code = (
        "import socket, subprocess, sys\n"
        "ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "theirs.set_inheritable(True)\n"
        "code = 'import subprocess, sys; sys.exit(subprocess.run([sys.executable, \"-m\", '\\\n"
        "'\"tensorwasm.runtime.workers.child\", sys.argv[1]], close_fds=False).returncode)'\n"
        "sys.exit(subprocess.run([sys.executable, '-c', code, str(theirs.fileno())], close_fds=False).returncode)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert b"did not start this one" in done.stderr


def said(process):
    assert readable(process.errors)
    return process.errors.read(4096).decode()


def is_gone(watch):
    """Return whether a process ends, given its descriptor, which is closed."""
    gone, _, _ = select.select([watch], [], [], 60)
    os.close(watch)
    return bool(gone)


HANGS = "sys.stderr.write(f'{os.getppid()}\\n'); sys.stderr.flush(); threading.Event().wait()"


@pytest.mark.rule("11-secrets")
def test_no_key_is_in_the_environment_of_a_template_or_of_what_it_forks(monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_API_SNAPSHOT_HMAC_KEY", "a-secret-of-the-service")
    process = spawn(HANGS)
    numbers = int(said(process)), process.pid
    kept = [Path(f"/proc/{each}/environ").read_bytes() for each in numbers]
    process.end()
    assert all(b"PATH=" in each and b"a-secret-of-the-service" not in each for each in kept)


def test_a_worker_joins_the_daemon_of_its_own_executor_and_no_other():
    code = "sys.stderr.write(os.environ['CUDA_MPS_PIPE_DIRECTORY'] + f' {os.getppid()}')"
    program = ("-c", TEMPLATE.replace("WORK", code))
    processes = [Process.spawn(program, make_environment(os.environ, each)) for each in ("/run/mps", None)]
    (joined, template), (alone, same) = [said(each).split() for each in processes]
    for each in processes:
        each.end()
    assert (joined, alone) == ("/run/mps", "/dev/null")
    assert template == same


@pytest.mark.rule("11-socket")
def test_workers_of_one_template_have_no_descriptor_in_common():
    processes = [spawn(HANGS) for _ in range(3)]
    assert len({said(each) for each in processes}) == 1, "it is one template"
    found = []
    for each in processes:
        folder = Path(f"/proc/{each.pid}/fd")
        links = {int(number.name): str(number.readlink()) for number in folder.iterdir()}
        assert {links.pop(0), links.pop(1)} == {os.devnull}
        kinds = sorted(link.partition(":")[0] for link in links.values())
        assert kinds == ["pipe", "socket", "socket"], "standard error, and its two connections"
        found.append(set(links.values()))
    for each in processes:
        each.end()
    assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]


def test_what_a_template_forks_ends_with_it_and_the_next_is_forked_from_another():
    process = spawn(HANGS)
    template, watch = int(said(process)), os.pidfd_open(process.pid)
    os.kill(template, signal.SIGKILL)
    assert is_gone(watch)
    process.wait(60)
    assert process.orphan, "no request of its is the cause"
    assert process.end() is None
    process = spawn(HANGS)
    assert int(said(process)) != template
    assert process.end() == -signal.SIGKILL
    assert not process.orphan


def test_a_process_that_is_not_wanted_before_it_is_forked_is_not_waited_for(tmp_path):
    path = tmp_path / "loads"
    os.mkfifo(path)
    program = ("-c", TEMPLATE.replace("WORK", "pass").replace("lambda: None", f"lambda: open({str(path)!r}).close()"))
    process = Process.spawn(program, make_environment(os.environ, None))
    assert (process.pid, process.end()) == (None, None)
    other = Process.spawn(program, make_environment(os.environ, None))
    with path.open("w"):  # it loads, and then forks what is wanted
        other.wait(60)
    assert other.end() == 0


def test_a_process_that_is_not_wanted_before_it_has_a_group_ends(tmp_path):
    """A case of 2026-11-28: its owner ended before it had got so far, and it stayed."""
    path = tmp_path / "forked"
    os.mkfifo(path)
    wait = f"os.setsid = lambda: (open({str(path)!r}, 'w').close(), threading.Event().wait())\nrun("
    process = Process.spawn(("-c", TEMPLATE.replace("run(", wait, 1)), make_environment(os.environ, None))
    path.read_bytes()  # it is forked, and waits
    process._child._reports.shutdown(socket.SHUT_WR)
    process.wait(60)
    assert process.end() == -signal.SIGKILL


def test_a_template_that_can_fork_nothing_says_so():
    fail = "def fail(): raise BlockingIOError(11, 'no room')\nos.fork = fail\nrun("
    process = Process.spawn(("-c", TEMPLATE.replace("run(", fail, 1)), make_environment(os.environ, None))
    process.wait(60)
    assert said(process) == "no process can be forked: no room"
    assert process.end() == 1


OWNER = """
import os, sys, threading
from tensorwasm.runtime.workers.process import Process
from tensorwasm.runtime.workers.template import make_environment
process = Process.spawn(("-c", sys.argv[1]), make_environment(os.environ, None))
os.set_blocking(process.errors.fileno(), True)
template = process.errors.readline().decode().strip()
if os.fork():
    print(process.pid, template, flush=True)
threading.Event().wait()
"""


def test_a_worker_that_hangs_ends_with_its_owner_though_another_process_has_copies_of_its_sockets():
    program = TEMPLATE.replace("WORK", HANGS)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with owner:
        worker, template = (os.pidfd_open(int(each)) for each in owner.stdout.readline().split())
        owner.kill()
        assert is_gone(worker)
        os.killpg(owner.pid, signal.SIGKILL)
        assert is_gone(template), "nobody can ask it any more"


def test_a_template_has_one_thread_and_no_device_when_it_has_loaded_everything():
    """A fork of several threads has the locks that the others held, and CUDA does not survive one."""
    code = """
import os
from tensorwasm.runtime.workers.child import __main__
from tensorwasm.runtime.workers.child.fork_server import load_all
load_all()
maps = open("/proc/self/maps").read()
print(len(os.listdir("/proc/self/task")), "libcuda.so" in maps, "nvidia" in maps.replace("site-packages/nvidia", ""))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "1 False False\n"


def test_forked_processes_draw_numbers_and_secrets_of_their_own():
    code = """
import os, sys
from tensorwasm.gpu.memory import buffer
from tensorwasm.gpu.state import resource_table
for _ in range(2):
    if not os.fork():
        print(resource_table._first_id(), buffer._secret().hex(), flush=True)
        os._exit(0)
    os.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    (first, one), (second, other) = map(str.split, done.stdout.splitlines())
    assert first != second
    assert one != other


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-11, "was killed by SIGSEGV"),
        (-99, "was killed by signal 99"),
    ],
)
def test_how_a_process_ended_is_said_by_name(status, said):
    assert describe_exit(status) == said


def test_a_process_is_awaited_where_descriptors_have_numbers_over_a_thousand():
    process = spawn("return 5")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        process.wait(60)
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert process.end() == 5
