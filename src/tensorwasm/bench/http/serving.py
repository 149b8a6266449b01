"""The service under test: the command that users run, in a data folder of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwasm.bench.peers.web import free_port
from tensorwasm.errors import InternalError

_START_S: Final = 60.0
_STOP_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """A service that runs.

    Attributes:
        url: without a slash at the end.
        token: of an administrator.
        process: of the command.
    """

    url: str
    token: str
    process: int


@contextlib.contextmanager
def serving(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Run ``tensor-wasm serve`` until the end of the block.

    Args:
        folder: its data folder; the caller's to remove.
        settings: environment variables besides this process's.

    Raises:
        InternalError: it does not start, or has ended otherwise than by SIGTERM.
    """
    port = free_port()
    command = [sys.executable, "-m", "tensorwasm.cli", "serve", "--addr", f"127.0.0.1:{port}", "--data", str(folder)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENSOR_WASM_API_")}
    with subprocess.Popen(  # noqa: S603 - this package's own command
        command,
        env=environment | dict(settings or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        output = _Output(process)
        try:
            yield Served(f"http://127.0.0.1:{port}", output.wait_for_token(), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                code = -signal.SIGKILL
        if code not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            raise InternalError(f"the service ended with {code}: {output.tail()}")


class _Output:
    """What the service prints, read all the time so that it never waits for a reader."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: deque[str] = deque(maxlen=50)
        self._ready = threading.Event()
        self._token = ""
        self._process = process
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        listening = False
        for line in self._process.stdout or ():
            found = re.search(r"\btw_[\w-]+", line)
            self._token = found[0] if found else self._token
            self._lines.append(re.sub(r"\btw_[\w-]+", "tw_...", line.rstrip()))
            listening |= "listening on" in line
            if listening and self._token:
                self._ready.set()
        self._ready.set()

    def wait_for_token(self) -> str:
        if not self._ready.wait(_START_S) or not self._token or self._process.poll() is not None:
            self._process.kill()
            raise InternalError(f"the service does not start: {self.tail()}")
        return self._token

    def tail(self) -> str:
        return " | ".join(list(self._lines)[-5:])
