"""A real server in a process of its own, on a port that was free, with a data folder that goes when the test does."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from victims import by_role

READY_S = 60.0
STOP_S = 90.0  # more than a server gives calls to end in


@dataclass
class LiveServer:
    """A server that runs.

    Attributes:
        url: such as ``http://127.0.0.1:40001``.
        token: for everything, of an administrator of all tenants.
        data: its data folder.
        process: the parent of the server's own process.
        command, environment: of that.
    """

    url: str
    token: str = field(repr=False)
    data: Path
    process: subprocess.Popen
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.token}"}

    def client(self, **more):
        """Return a client that sends the token; the caller closes it."""
        headers = self.headers | more.pop("headers", {})
        return httpx.Client(base_url=self.url, headers=headers, timeout=more.pop("timeout", 30.0), **more)

    def child(self):
        """Return the process number of the server itself, which serves alone."""
        return by_role(self.process.pid)["server"][0]

    def restart(self):
        """Kill the parent, and start another at once at the same address, as what supervises it would."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process = _start([*self.command, "--addr", f"127.0.0.1:{self.port}"], self.data, self.environment)

    def stop(self):
        """Tell it to stop, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)


@contextlib.contextmanager
def running_server(data, *arguments, environment=None, token=None) -> Iterator[LiveServer]:
    """Start ``tensor-wasm serve`` with a data folder and further arguments; end it at the end.

    A folder that has been used has a token already, which `token` says.
    """
    own = {
        "TENSOR_WASM_API_TENANT_CAPS": "requests=4096",  # tests ask more often than tenants may unless it is said
        "TENSOR_WASM_DEVICE": "emulator",
        "TENSOR_WASM_CODE_CACHE": "0",
        "TENSOR_WASM_STATE_DIR": f"{data}.state",
    }
    command = (sys.executable, "-m", "tensorwasm.cli", "serve", "--data", str(data), *arguments)
    environment = {**os.environ, **own, **(environment or {})}
    errors_path, server = Path(data).with_suffix(".stderr"), None
    given = () if "--addr" in arguments else ("--addr", "127.0.0.1:0")
    process = _start([*command, *given], data, environment)
    try:
        url = _wait_for_address(process, errors_path)
        shown = re.search(r"^token, shown this once: (\S+)$", errors_path.read_text(), re.MULTILINE)
        server = LiveServer(url, token or (shown[1] if shown else ""), Path(data), process, command, environment)
        yield server
    except BaseException:
        sys.stderr.write(f"the server said:\n{errors_path.read_text()[-4000:]}")
        raise
    finally:
        _end(process if server is None else server.process)


def _start(command, data, environment):
    with Path(data).with_suffix(".stderr").open("ab") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True)


def _wait_for_address(process, errors_path):
    ends_s = time.monotonic() + READY_S
    while time.monotonic() < ends_s:
        if select.select([process.stdout], [], [], 0.1)[0]:
            line = process.stdout.readline()
            found = re.fullmatch(r"listening on (\S+)\n", line)
            if found:
                return found[1]
            if not line:
                break
    raise AssertionError(f"the server does not start: {errors_path.read_text()[-4000:]}")


def _end(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # the second ends it at once
            process.wait(STOP_S)
    process.stdout.close()
