"""The small parent of the server: starts it, forwards signals, and restarts it when it crashes.

It imports nothing of the service, so that nothing of the service can crash it. The server runs in a session of its own,
so that it gets a terminal's signals once, from here; and the kernel signals it when its parent dies.

Source: Linux man-pages, setsid(2), prctl(2) PR_SET_PDEATHSIG, waitpid(2).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tensorwasm.server.process.address import ListenAddress, listen

PROGRAM: Final = ("-m", "tensorwasm.server.process.child")

REFUSED: Final = frozenset({2, 4})
"""Exit codes of a server whose options or settings are invalid: it is not restarted."""

MAX_VAIN: Final = 5
"""Servers in a row that die before they serve, after which no other is started."""

FIRST_WAIT_S: Final = 0.05
MAX_WAIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The server's options besides its environment. No secrets: other processes may see them.

    Attributes:
        address: where it listens.
        listening: the descriptor of the socket that does, which it inherits.
        max_body_bytes: longest body; None takes the setting.
        announce: whether to print where it listens.
    """

    address: ListenAddress
    listening: int
    max_body_bytes: int | None = None
    announce: bool = True

    def to_json(self) -> str:
        """Return the options as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServeOptions:
        """Parse the JSON of `to_json`."""
        found: dict[str, Any] = json.loads(text)
        return cls(ListenAddress(**found.pop("address")), **found)


class _ServerProcess:
    """A process that has loaded the server, and serves once it gets its options."""

    def __init__(self, environment: Mapping[str, str], listening: int) -> None:
        self._reports, write = os.pipe()
        started = False
        # It inherits the blocked SIGHUP until it has a handler: without one the signal would kill it.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, without a shell
                [sys.executable, *PROGRAM, str(os.getpid()), str(write)],
                env=dict(environment),
                stdin=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(write, listening),
            )
            started = True
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            os.close(write)
            if not started:
                os.close(self._reports)

    def send(self, options: ServeOptions) -> None:
        """Let it serve; does nothing if it has died."""
        assert self.process.stdin is not None  # noqa: S101 - a pipe, as requested above
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(options.to_json().encode())

    def reports(self) -> bool:
        """Wait for its next report, first that it serves and then that it is ready; return False if it died. Blocks."""
        return bool(os.read(self._reports, 1))

    def close(self) -> None:
        """Kill it, unless it has ended."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        os.close(self._reports)


class Supervisor:
    """Keeps one server running, and a spare process ready to replace it: loading the server takes most of a second.

    Args:
        address: where servers listen.
        environment: theirs.
        max_body_bytes: as in `ServeOptions`.
    """

    def __init__(
        self, address: ListenAddress, environment: Mapping[str, str], max_body_bytes: int | None = None
    ) -> None:
        self._address, self._max_body_bytes = address, max_body_bytes
        self._environment = dict(environment)
        self._child: subprocess.Popen[bytes] | None = None
        self._spare: _ServerProcess | None = None
        self._stopping = False

    def run(self) -> int:
        """Run the server until a signal stops it, and return its exit code. Blocks; raises as `listen` does."""
        address, listening = listen(self._address)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._forward)
        try:
            with listening:
                return self._keep(ServeOptions(address, listening.fileno(), self._max_body_bytes))
        finally:
            if self._spare is not None:
                self._spare.close()
            if address.path:
                Path(address.path).unlink(missing_ok=True)

    def _keep(self, options: ServeOptions) -> int:
        """Start servers one after the other until one ends normally, or too many die before they serve.

        A server that has served is restarted at once, however often it is killed.
        """
        vain, wait_s = 0, FIRST_WAIT_S
        while True:
            code, served = self._run_one(options)
            if self._stopping or code == 0 or code in REFUSED:
                return code if code >= 0 else 128 - code
            if served:
                vain, wait_s = 0, FIRST_WAIT_S
                options = replace(options, announce=False)
            else:
                vain += 1
                if vain >= MAX_VAIN:
                    _say(f"error: the server died {vain} times in a row before it served; giving up")
                    return 1
            _say(f"the server ended with {_describe(code)}; starting it again")
            self._pause(wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)
            if self._stopping:
                return 0

    def _run_one(self, options: ServeOptions) -> tuple[int, bool]:
        """Run a server to its end, and return its exit code and whether it has served."""
        server = self._take_spare() or self._start(options)
        if server is None:
            return 1, False
        try:
            self._child = server.process
            if self._stopping:
                self._child.terminate()
            server.send(options)
            served = server.reports()
            if served and server.reports():  # a spare that loads earlier would slow it down
                self._spare = self._start(options)
            return server.process.wait(), served
        finally:
            server.close()

    def _start(self, options: ServeOptions) -> _ServerProcess | None:
        """Start a process; return None if the system lets none be started now."""
        try:
            return _ServerProcess(self._environment, options.listening)
        except OSError as error:
            _say(f"no process can be started: {error.strerror}")
            return None

    def _take_spare(self) -> _ServerProcess | None:
        """Return the spare process, None if there is none alive."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.process.poll() is not None:
            spare.close()
            return None
        return spare

    def _pause(self, seconds: float) -> None:
        """Wait, at most until a signal to stop."""
        ends_s = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < ends_s:
            time.sleep(0.01)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGHUP:
            self._stopping = True
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _say(text: str) -> None:
    """Write a line to standard error; ignore errors such as a full disk."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
