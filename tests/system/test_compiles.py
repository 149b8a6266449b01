"""Compilations that nobody waits for any more: of a client that has left, and of a command that was interrupted."""

import base64
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from servers import running_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the process table of Linux")

SOON_S = 60.0
PROCESSORS = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
TINY = b"\0asm\x01\0\0\0"


def endless():
    """Return a module that takes longer to compile than a test may: one function, each step needs the one before."""
    step = b"\x20\x00\x41\x07\x6c\x21\x00"  # local.get 0, i32.const 7, i32.mul, local.set 0
    body = b"\0" + step * 1_000_000 + b"\x20\x00\x0b"
    code = b"\x01" + length(len(body)) + body
    types, export = b"\x01\x06\x01\x60\x01\x7f\x01\x7f\x03\x02\x01\x00", b"\x07\x08\x01\x04main\x00\x00"
    return b"\0asm\x01\0\0\0" + types + export + b"\x0a" + length(len(code)) + code


def length(number):
    return bytes((number >> 7 * index & 0x7F) | (0x80 if index < 4 else 0) for index in range(5))


def compilers(pid):
    """Return the compiler's processes below a process, as descriptors by number."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread or a process that has gone
            for child in (task / "children").read_text().split():
                if b"compiler_process.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found[int(child)] = os.pidfd_open(int(child))
    return found


def first_compiler(pid):
    """Wait until there is one."""
    until = time.monotonic() + SOON_S
    while time.monotonic() < until:
        found = compilers(pid)
        if found:
            return next(iter(found.values()))
    raise AssertionError("nothing is compiled")


def until_idle(pid):
    """Wait until a process itself does nothing: all that it was asked for waits for others.

    A thread that waits for a processor or for a disk takes no time either, but does not sleep.
    """
    spent = None
    while spent != (spent := activity(pid)) or set(spent.values()) & {"R", "D"}:
        select.select([], [], [], 0.1)


def activity(pid):
    """Return the state of each thread of a process, by its number and the time that it has taken."""
    found = {}
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # it has just ended
            fields = path.read_text().rsplit(")")[1].split()
            found[path.parent.name, *fields[11:13]] = fields[0]
    return found


def has_ended(handle):
    ready, _, _ = select.select([handle], [], [], SOON_S)
    os.close(handle)
    return bool(ready)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    environment = {"TENSOR_WASM_COMPILE_TIMEOUT": "600", "TENSOR_WASM_COMPILE_MEMORY": "65536"}
    environment |= {"TENSOR_WASM_COMPILE_ROOM": "65536"}
    with running_server(tmp_path_factory.mktemp("server") / "data", environment=environment) as running:
        yield running


def begin_deploy(server, module, tenant=1):
    """Send a deploy on a connection of its own, and return that."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /functions?name=endless HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {server.token}\r\n"
    head += f"x-tensorwasm-tenant: {tenant}\r\ncontent-type: application/wasm\r\ncontent-length: {len(module)}\r\n\r\n"
    connection.sendall(head.encode() + module)
    return connection


def test_a_deploy_ends_with_its_client(server):
    connection = begin_deploy(server, endless())
    compiler = first_compiler(server.child())
    connection.close()
    assert has_ended(compiler)
    with server.client() as client:
        assert client.get("/functions").json()["functions"] == []


def test_a_deploy_goes_on_while_another_client_waits_for_the_same(server):
    first, second = (begin_deploy(server, endless()) for _ in range(2))
    with first, second:
        compiler = first_compiler(server.child())
        with server.client() as client:
            while 'in_flight{method="POST",route="/functions"} 2.0' not in client.get("/metrics").text:
                pass
        until_idle(server.child())
        first.close()
        ready, _, _ = select.select([compiler], [], [], 0.3)  # the module is compiled for two seconds, no longer
        assert not ready
    assert has_ended(compiler)


@pytest.mark.skipif(PROCESSORS > 16, reason="so many modules are too much for the memory of request bodies")
def test_a_tenants_queue_of_modules_does_not_delay_the_module_of_another(server):
    # A custom section makes each another module.
    flood = [begin_deploy(server, endless() + b"\x00\x03\x01n" + bytes([number])) for number in range(PROCESSORS + 2)]
    with ExitStack() as stack:
        for connection in flood:
            stack.enter_context(connection)
        with server.client() as client:
            while f'in_flight{{method="POST",route="/functions"}} {len(flood)}.0' not in client.get("/metrics").text:
                pass
        running = compilers_of_all_processors(server.child())
        for handle in running:
            stack.callback(os.close, handle)
        with begin_deploy(server, TINY, tenant=2) as other:
            assert other.recv(100).startswith(b"HTTP/1.1 200")
        ended, _, _ = select.select(running, [], [], 0)
        assert ended == []
    until_no_compiler(server.child())


def compilers_of_all_processors(pid):
    """Wait until one tenant's modules are compiled on as many processors as there are, and return the processes."""
    until = time.monotonic() + SOON_S
    while len(found := compilers(pid)) < PROCESSORS:
        for handle in found.values():
            os.close(handle)
        assert time.monotonic() < until
    return [*found.values()]


def until_no_compiler(pid):
    """Wait until nothing is compiled any more, which its clients have left."""
    until = time.monotonic() + SOON_S
    while found := compilers(pid):
        assert time.monotonic() < until
        for handle in found.values():
            assert has_ended(handle)


def test_a_module_that_cannot_be_linked_is_not_compiled(server):
    module = endless().replace(
        b"\x01\x06\x01\x60\x01\x7f\x01\x7f\x03", b"\x01\x06\x01\x60\x01\x7f\x01\x7f\x02\x09\x01\x03env\x01f\x00\x00\x03"
    )
    with server.client() as client:
        answer = client.post("/functions", json={"name": "x", "wasm_b64": base64.b64encode(module).decode()})
    assert (answer.status_code, answer.json()["error"]["kind"]) == (400, "unknown_import")


def test_an_interrupted_command_ends_its_compilation(tmp_path):
    (tmp_path / "endless.wasm").write_bytes(endless())
    command = subprocess.Popen(
        [sys.executable, "-m", "tensorwasm.cli", "run", str(tmp_path / "endless.wasm"), "--args", "[1]"],
        env={**os.environ, "TENSOR_WASM_CODE_CACHE": "0", "TENSOR_WASM_DEVICE": "emulator"},
        stderr=subprocess.PIPE,
    )
    compiler = first_compiler(command.pid)
    command.send_signal(signal.SIGINT)
    assert has_ended(compiler)
    said = command.communicate(timeout=SOON_S)[1]
    assert command.returncode == 130
    assert not re.search(rb"Traceback", said)


def test_the_time_of_a_guest_begins_when_it_is_compiled(tmp_path):
    (tmp_path / "endless.wasm").write_bytes(endless())
    done = subprocess.run(
        [sys.executable, "-m", "tensorwasm.cli", "run", str(tmp_path / "endless.wasm"), "--timeout", "0.1"],
        env={
            **os.environ,
            "TENSOR_WASM_CODE_CACHE": "0",
            "TENSOR_WASM_COMPILE_TIMEOUT": "0.5",
            "TENSOR_WASM_DEVICE": "emulator",
        },
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"compile_timeout" in done.stderr
