"""The service under test, the command that users run, and HTTP clients of it that do as little work as possible."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from tensorwasm.bench.harness import free_port, read_guest
from tensorwasm.errors import InternalError

UNLIMITED: Final = {"qps": 1_000_000, "burst": 100_000}
"""Quotas of a tenant that no benchmark reaches."""

_TIMEOUT_S: Final = 60.0
_TOKEN: Final = re.compile(r"\btw_[\w-]+")


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service that runs: its URL without a final slash, an administrator's token, and the command's process."""

    url: str
    token: str
    process: int

    def client(self, tenant: int = 1, token: str = "") -> closing[ServiceClient]:
        """Return a client for a tenant, with the administrator's token if no other is given."""
        return closing(ServiceClient(self.url, token or self.token, tenant))


@contextmanager
def serving(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[RunningService]:
    """Run ``tensor-wasm serve`` over a data folder, with further environment variables, until the end of the block."""
    port, lines = free_port(), deque[str](maxlen=50)
    command = [sys.executable, "-m", "tensorwasm.cli", "serve", "--addr", f"127.0.0.1:{port}", "--data", str(folder)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TENSOR_WASM_API_")}
    variables |= {"TENSOR_WASM_WORKERS": "1", **(settings or {})}
    with subprocess.Popen(  # noqa: S603 - this package's own command
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            token = _read_token(process, lines)
            rest = (_redacted(line) for line in process.stdout or ())
            threading.Thread(target=lines.extend, args=(rest,), daemon=True).start()  # never lets it wait
            yield RunningService(f"http://127.0.0.1:{port}", token, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                code = -signal.SIGKILL
        if code not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            raise InternalError(f"the service ended with {code}: {_tail(lines)}")


def _read_token(process: subprocess.Popen[str], lines: deque[str]) -> str:
    """Read the service's output until it listens, and return the administrator's token."""
    timer = threading.Timer(_TIMEOUT_S, process.kill)
    timer.start()
    token, listening = "", False
    for line in process.stdout or ():
        found = _TOKEN.search(line)
        token, listening = found[0] if found else token, listening or "listening on" in line
        lines.append(_redacted(line))
        if token and listening:
            break
    timer.cancel()
    if not token or not listening or process.poll() is not None:
        process.kill()
        raise InternalError(f"the service does not start: {_tail(lines)}")
    return token


def _redacted(line: str) -> str:
    return _TOKEN.sub("tw_...", line.rstrip())


def _tail(lines: deque[str]) -> str:
    return " | ".join(list(lines)[-5:])


def tenant_headers(token: str, tenant: int) -> dict[str, str]:
    """Return what identifies a tenant's request to the service."""
    return {"authorization": f"Bearer {token}", "x-tensorwasm-tenant": str(tenant)}


class ServiceClient:
    """Makes a tenant's requests one after the other, over one connection. Close it."""

    def __init__(self, url: str, token: str, tenant: int) -> None:
        self._host = urllib.parse.urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self._host, timeout=_TIMEOUT_S)
        self.headers = tenant_headers(token, tenant)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON of a success, None if it is empty; any other status is an `InternalError`."""
        status, data = self.send(method, path, None if body is None else json.dumps(body).encode())
        if status >= 300:
            raise InternalError(f"{method} {path} was answered with {status}: {data[:200].decode(errors='replace')}")
        return json.loads(data) if data else None

    def wait_until_ready(self) -> None:
        """Wait until the compiled host functions are loaded: calls are slower before."""
        ends_s = time.perf_counter() + _TIMEOUT_S
        while self.send("GET", "/readyz")[0] != 200:
            if time.perf_counter() > ends_s:
                raise InternalError("the service does not become ready")
            time.sleep(0.05)

    def deploy(self, name: str, module: bytes | None = None, **options: object) -> str:
        """Deploy a module, by default the benchmarks' guest of that name, and return its id."""
        wasm = base64.b64encode(read_guest(name) if module is None else module).decode()
        return str(self.ask("POST", "/functions", {"name": name, "wasm_b64": wasm, "options": options})["id"])

    def send(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        headers = {"content-type": content_type, **self.headers}
        try:
            return self._exchange(method, path, body, headers)
        except ConnectionError:  # the service closed the connection while it was idle
            self.close()
            return self._exchange(method, path, body, headers)

    def _exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def open_stream(self, path: str, body: object, accept: str) -> http.client.HTTPResponse:
        """Return an answer whose body is still to come, on a connection of its own, which ends with it."""
        connection = http.client.HTTPConnection(self._host, timeout=_TIMEOUT_S)
        headers = {"content-type": "application/json", "accept": accept, **self.headers}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise InternalError(f"a stream was answered with {answer.status}: {answer.read(200)!r}")
        return answer

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()


def ask_steadily(client: ServiceClient, function: str, seconds: float, period_s: float) -> Iterator[float]:
    """Yield latencies in ms of calls of ``add`` at a steady rate; one that is late does not move those after it.

    Requests that were still to be made when the time was over have waited until then at least.
    """
    start_s = time.perf_counter() + 0.2
    for index in range(int(seconds / period_s)):
        due_s = start_s + index * period_s
        if (left_s := due_s - time.perf_counter()) > 0:
            time.sleep(left_s)
            due_s = time.perf_counter()  # the latency does not count that sleeping took too long
        client.ask("POST", f"/functions/{function}/invoke", {"export": "add", "args": [2, 3]})
        yield (time.perf_counter() - due_s) * 1e3
        if time.perf_counter() - start_s > seconds:
            for late in range(index + 1, int(seconds / period_s)):
                yield (seconds - late * period_s) * 1e3
            return


class AsyncConnection(asyncio.Protocol):
    """One connection with one request at a time, made by `connect`. An answer without a length has no body."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._data = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.closed = False

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the service."""
        host, port = self._transport.get_extra_info("peername")[:2]
        return host, port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that waits."""
        self.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(str(exc or "closed")))

    def data_received(self, data: bytes) -> None:
        """Complete the request once its answer is whole."""
        self._data += data
        head_end = self._data.find(b"\r\n\r\n")
        if head_end < 0 or self._answer is None:
            return
        head = bytes(self._data[:head_end]).lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 : (head.find(b"\r\n", at) + 1 or len(head) + 1) - 1]) if at >= 0 else 0
        end = head_end + 4 + length
        if len(self._data) < end:
            return
        body = bytes(self._data[head_end + 4 : end])
        del self._data[:end]
        if not self._answer.done():
            self._answer.set_result((int(head[9:12]), body))

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: object = None) -> tuple[int, bytes]:
        """Make a request, and return status and body; OSError if the connection ended before the answer had."""
        if self.closed:
            raise ConnectionError("closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(render(method, path, headers, body))
        return await self._answer


async def connect(host: str, port: int) -> AsyncConnection:
    """Return a new connection; OSError if there is none."""
    return (await asyncio.get_running_loop().create_connection(AsyncConnection, host, port))[1]


def render(method: str, path: str, headers: Mapping[str, str], body: object = None) -> bytes:
    """Return a request's bytes; a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    fields = {"host": "127.0.0.1", "content-type": "application/json", **headers, "content-length": str(len(data))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + data
