import os
import resource
import select
import signal
import subprocess
import sys

import pytest

from tensorwasm.runtime.workers.process import INHERITED, Process, describe_exit, make_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes are watched through Linux's means")


def spawn(code):
    return Process.spawn(("-c", code), make_environment(os.environ, None))


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
        "import subprocess, sys, threading\n"
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
    process = spawn("import sys; sys.exit(5)")
    assert readable(process.link)
    process.wait(60)
    assert process.end() == 5


def test_the_worker_has_a_group_of_its_own():
    process = spawn("import os, sys; sys.stderr.write(f'{os.getpgid(0)} {os.getsid(0)}\\n')")
    assert readable(process.errors)
    assert process.errors.read(100).split() == [str(process.pid).encode()] * 2
    process.end()


@pytest.mark.rule("11-socket")
def test_a_worker_refuses_a_parent_that_did_not_start_it():
    code = (
        "import socket, subprocess, sys\n"
        "numbers = []\n"
        "for pair in (socket.socketpair(), socket.socketpair()):\n"
        "    pair[1].set_inheritable(True)\n"
        "    numbers.append(str(pair[1].detach()))\n"
        'code = \'import subprocess, sys; sys.exit(subprocess.run([sys.executable, "-m", '
        '"tensorwasm.runtime.workers.child", sys.argv[1], sys.argv[2]], close_fds=False).returncode)\'\n'
        "sys.exit(subprocess.run([sys.executable, '-c', code, *numbers], close_fds=False).returncode)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert b"did not start this one" in done.stderr


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
    process = spawn("import sys; sys.exit(5)")
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
