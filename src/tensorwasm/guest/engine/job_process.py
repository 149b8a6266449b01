"""Child processes that stay and answer one job after the other: a length of four bytes (big-endian), and bytes.

What such a process may use it limits itself (`tensorwasm.guest.engine.compiler_process.confine`).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from tensorwasm.errors import CapacityExhausted

LENGTH: Final = struct.Struct(">I")
_COMPLAINT_BYTES: Final = 4 << 10


class Late(Exception):
    """A job was not answered in time."""


class BrokenProcess(Exception):
    """A process has gone, or does not keep to the protocol."""


class JobProcess:
    """A process that answers jobs; for one thread, with which it ends.

    It leads a group, and has an empty folder for files in TMPDIR, which is removed in the end.

    Args:
        arguments: what Python runs, but for the last argument, which is this process's number.
        environment: all of the process's variables but that.
        most_bytes: longest answer.
        complains: whether its standard error is kept for `complaint`, and is not this process's own.

    Raises:
        CapacityExhausted: it cannot be started.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], most_bytes: int, *, complains: bool = False
    ) -> None:
        self._most_bytes = most_bytes
        self._folder = tempfile.mkdtemp(prefix="tensorwasm-jobs-")
        self._said = os.open(Path(self._folder, "said"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - our own interpreter and module, without a shell
                [sys.executable, "-P", *arguments, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said if complains else None,
                env={**environment, "TMPDIR": self._folder},
                start_new_session=True,
            )
        except OSError as error:
            self._remove_files()
            raise CapacityExhausted(f"no process can be started: {error.strerror}") from None
        assert self._popen.stdin is not None  # noqa: S101 - they were asked for
        assert self._popen.stdout is not None  # noqa: S101
        self._to, self._from = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        for each in (self._to, self._from):
            os.set_blocking(each, False)
        self._answered = True

    @property
    def fit(self) -> bool:
        """Whether it may get another job: it is there, and has answered all that it was given."""
        # Reaped in `end` alone: until then no other process group can have the number that is killed.
        ended = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return self._answered and ended is None

    @property
    def complaint(self) -> bytes:
        """The first of what it said on standard error, if that is kept."""
        return os.pread(self._said, _COMPLAINT_BYTES, 0)

    def ask(self, job: bytes, limit_s: float) -> bytes:
        """Return the answer to a job.

        Raises:
            Late: it did not come in time.
            BrokenProcess: none will come.
        """
        ends_s, self._answered = time.monotonic() + limit_s, False
        try:
            self._write(LENGTH.pack(len(job)) + job, ends_s)
            (length,) = LENGTH.unpack(self._read(LENGTH.size, ends_s))
            answer = self._read(length, ends_s)
        except OSError as error:
            raise BrokenProcess(error.strerror) from error
        self._answered = True
        return answer

    def kill(self) -> None:
        """Kill the process and all that it has started; it is not reaped. From any thread, before `end`."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and all that it has started, and remove what they have left."""
        self.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._remove_files()

    def _remove_files(self) -> None:
        os.close(self._said)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, data: bytes, ends_s: float) -> None:
        left = memoryview(data)
        while left:
            _wait_ready(ends_s, writing=self._to)
            left = left[os.write(self._to, left) :]

    def _read(self, size_bytes: int, ends_s: float) -> bytes:
        data = bytearray()
        if size_bytes > self._most_bytes:
            raise BrokenProcess("a long answer")
        while len(data) < size_bytes:
            _wait_ready(ends_s, reading=self._from)
            part = os.read(self._from, size_bytes - len(data))
            if not part:
                raise BrokenProcess("it has gone")
            data += part
        return bytes(data)


def answer_jobs(source: IO[bytes], sink: IO[bytes], most_bytes: int, answer: Callable[[bytes], bytes]) -> int:
    """Answer jobs in such a process until its input ends; return the exit code."""
    while header := source.read(LENGTH.size):
        (length,) = LENGTH.unpack(header)
        if length > most_bytes:
            return 2
        answered = answer(source.read(length))
        sink.write(LENGTH.pack(len(answered)) + answered)
        sink.flush()
    return 0


def _wait_ready(ends_s: float, reading: int | None = None, writing: int | None = None) -> None:
    """Wait until a descriptor is ready, or raise `Late`."""
    poll = select.poll()  # select() takes no descriptor over 1,023
    if reading is not None:
        poll.register(reading, select.POLLIN)
    if writing is not None:
        poll.register(writing, select.POLLOUT)
    if not poll.poll(max(0.0, ends_s - time.monotonic()) * 1000):
        raise Late
