"""The light parent of the server: starts it, passes signals on, and starts it again when it dies of itself.

It imports nothing of the service, so that nothing of the service can take it down. The server has a session of its own,
so that what a terminal sends comes once, from here; and the kernel tells it when its parent is gone, however that went.

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
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from tensorwasm.server.address import Address, reserve

PROGRAM: Final = ("-m", "tensorwasm.server.child")

REFUSED: Final = frozenset({2, 4})
"""Exit codes of a server that will not start, however often it is tried: what it was told makes no sense."""

MAX_VAIN: Final = 5
"""So many in a row that never served are enough: they die of what will kill the next one too."""

FIRST_WAIT_S: Final = 0.05
MAX_WAIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Order:
    """What the server is told, besides its environment. No secrets: others may see it.

    Attributes:
        address: where to listen.
        max_body_bytes: longest body; None takes the setting.
        announce: whether to say when it listens.
    """

    address: Address
    max_body_bytes: int | None = None
    announce: bool = True

    def to_json(self) -> str:
        """Return it as the server reads it."""
        where = {"host": self.address.host, "port": self.address.port, "path": self.address.path}
        return json.dumps({"address": where, "max_body_bytes": self.max_body_bytes, "announce": self.announce})

    @classmethod
    def from_json(cls, text: str) -> Order:
        """Read what `to_json` returned."""
        found: dict[str, Any] = json.loads(text)
        return cls(Address(**found["address"]), found["max_body_bytes"], found["announce"])


class _Server:
    """A process that has all of the server loaded, and serves once it is told where.

    Args:
        environment: its variables.

    Attributes:
        process: the process.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._told, tell = os.pipe()
        # It inherits that SIGHUP waits, until it can say what that means to it: else one that just begins dies of it.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, without a shell
                [sys.executable, *PROGRAM, str(os.getpid()), str(tell)],
                env=dict(environment),
                stdin=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(tell,),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            os.close(tell)

    def send(self, order: Order) -> None:
        """Tell it to serve; one that has died meanwhile is told nothing."""
        assert self.process.stdin is not None  # noqa: S101 - a pipe, as was asked for
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(order.to_json().encode())

    def serves(self) -> bool:
        """Wait until it serves; return False if it died before. Blocks."""
        return bool(os.read(self._told, 1))

    def is_ready(self) -> bool:
        """Wait until it has loaded what it needs, once it serves; return False if it died before. Blocks."""
        return bool(os.read(self._told, 1))

    def close(self) -> None:
        """End it, unless it has ended."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        os.close(self._told)


class Supervisor:
    """Keeps one server running, and another process ready to take its place: to load the server takes most of a second.

    Args:
        order: what it is told.
        environment: its variables.
    """

    def __init__(self, order: Order, environment: Mapping[str, str]) -> None:
        """Start nothing yet."""
        self._order = order
        self._environment = dict(environment)
        self._child: subprocess.Popen[bytes] | None = None
        self._spare: _Server | None = None
        self._stopping = False

    def run(self) -> int:
        """Run the server until it is told to stop, and return its exit code. Blocks.

        Raises:
            InvalidArgs: the address cannot be listened on.
        """
        address, holder = reserve(self._order.address)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._pass_on)
        try:
            return self._keep(Order(address, self._order.max_body_bytes, self._order.announce))
        finally:
            if self._spare is not None:
                self._spare.close()
            if holder is not None:
                holder.close()

    def _keep(self, order: Order) -> int:
        """Start servers one after the other until one ends as it should, or too many die before they serve.

        One that has served is started again at once, however often it is killed.
        """
        vain, wait_s = 0, FIRST_WAIT_S
        while True:
            code, served = self._run_one(order)
            if self._stopping or code == 0 or code in REFUSED:
                return code if code >= 0 else 128 - code
            if served:
                vain, wait_s = 0, FIRST_WAIT_S
                order = Order(order.address, order.max_body_bytes, announce=False)
            else:
                vain += 1
                if vain >= MAX_VAIN:
                    _say(f"error: the server died {vain} times in a row before it served; given up")
                    return 1
            _say(f"the server ended with {_how(code)}; starting it again")
            self._pause(wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)
            if self._stopping:
                return 0

    def _run_one(self, order: Order) -> tuple[int, bool]:
        """Run a server to its end, and return its exit code and whether it has served."""
        server = self._take_spare() or _Server(self._environment)
        try:
            self._child = server.process
            if self._stopping:
                self._child.terminate()
            server.send(order)
            served = server.serves()
            if served and server.is_ready():  # another that is loading would make it late
                self._spare = _Server(self._environment)
            return server.process.wait(), served
        finally:
            server.close()

    def _take_spare(self) -> _Server | None:
        """Return the process that stands by, None if there is none that lives."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.process.poll() is not None:
            spare.close()
            return None
        return spare

    def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until a signal says to stop."""
        ends_s = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < ends_s:
            time.sleep(0.01)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGHUP:
            self._stopping = True
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _say(text: str) -> None:
    """Write a line to standard error; where that is on a full disk, the server is more important."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
