"""`OnDemandTemplate`: the template of GPU workers that the processes of one release ask, as the supervisor sees it."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from tensorwasm.runtime.workers.template import PROGRAM, make_environment, start_template
from tensorwasm.server.process.fleet import say

_MESSAGE_BYTES: Final = 4096
_DESCRIPTORS: Final = 16


class OnDemandTemplate:
    """A template of workers that is started when a process first asks for one, and again after it has died.

    So it outlives a broker, whose successor finds it as it was. What it was asked and had not done yet when it dies
    ends, as its workers do: who asked asks again.

    Args:
        environment: the processes', of which it gets what workers get.

    Attributes:
        asking: the socket where it is asked, which processes inherit.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.asking, self._asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asked.setblocking(False)
        self._environment = make_environment(environment, None)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process number; None while there is none."""
        return None if self._process is None else self._process.pid

    def fileno(self) -> int:
        """Return what there is to read from if a process asks while there is none."""
        return self._asked.fileno()

    def look(self) -> None:
        """Read whether it has died, and whether it is wanted."""
        if self._process is not None and self._process.poll() is not None:
            say("the template of GPU workers has ended, and they with it")
            self._process = None
            self._refuse()
        poll = select.poll()
        poll.register(self._asked, select.POLLIN)
        if self._process is None and poll.poll(0):
            self.start()

    def start(self) -> None:
        """Start it, before it is asked."""
        try:
            self._process = start_template(PROGRAM, self._environment, self._asked)
        except OSError as error:
            say(f"no process can be started: {error.strerror}")
            self._refuse()

    def _refuse(self) -> None:
        """Let all that was asked end: each worker has ended whose descriptors are closed."""
        with suppress(BlockingIOError):
            while True:
                _, descriptors, _, _ = socket.recv_fds(self._asked, _MESSAGE_BYTES, _DESCRIPTORS)
                for each in descriptors:
                    os.close(each)

    def leave(self) -> None:
        """Leave it to the processes that can still ask it: with the last of them it ends."""
        self.asking.close()
        self._asked.close()
        if self._process is not None:
            self._process.returncode = 0  # an orphan from now on

    def close(self) -> None:
        """End it, behind the last process that could ask it. Blocks for as long as the kernel takes."""
        self.asking.close()
        self._asked.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
