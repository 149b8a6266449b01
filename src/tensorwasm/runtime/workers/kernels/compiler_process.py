"""`CompilerProcess`: the parent's side of one process that compiles kernels. What it answers is decoded with limits."""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from tensorwasm.errors import DeviceUnavailable, InternalError, InvokeTimeout, KernelTooLarge
from tensorwasm.gpu.resources.guarded_compiler import KernelJob
from tensorwasm.runtime.workers.frames import BrokenFrame
from tensorwasm.runtime.workers.kernels.child import LENGTH, MAX_ANSWER_BYTES, Answer, CompileJob
from tensorwasm.runtime.workers.outcomes import rebuild_error
from tensorwasm.runtime.workers.template import make_environment

PROGRAM: Final = ("-m", "tensorwasm.runtime.workers.kernels.child")

_START_S: Final = 20.0
"""What a process gets to start, on top of its first kernel."""
_MARGIN_S: Final = 2.0
"""What a process gets beyond a kernel's limit, within which it ends ptxas itself and answers."""

_answers: Final = msgspec.msgpack.Decoder(Answer)
_log: Final = logging.getLogger(__name__)


class Late(Exception):
    """A kernel was not compiled in time."""


class CompilerProcess:
    """A compiler process; for one thread, with which it ends.

    Raises:
        DeviceUnavailable: it cannot be started.
    """

    def __init__(self, program: Sequence[str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="tensorwasm-kernels-")
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - our own interpreter and module, without a shell
                [sys.executable, "-P", *program, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=make_environment(os.environ, None) | {"TMPDIR": self._folder},
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise DeviceUnavailable(f"no process for kernels can be started: {error.strerror}") from None
        assert self._popen.stdin is not None  # noqa: S101 - they were asked for
        assert self._popen.stdout is not None  # noqa: S101
        self._to, self._from = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        for each in (self._to, self._from):
            os.set_blocking(each, False)
        self._grace_s = _START_S
        self._answered = True

    @property
    def fit(self) -> bool:
        """Whether it may compile another kernel: it is there, and has answered all that it was given."""
        # Reaped in `end` alone: until then no other process group can have the number that is killed.
        ended = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return self._answered and ended is None

    def compile(self, job: KernelJob, limit_s: float) -> bytes:
        """Return a compiled kernel, or raise why there is none.

        Raises:
            Late: it did not end in time.
        """
        ends_s, self._answered = time.monotonic() + limit_s + _MARGIN_S + self._grace_s, False
        data = msgspec.msgpack.encode(CompileJob(job, limit_s))
        try:
            self._write(LENGTH.pack(len(data)) + data, ends_s)
            (length,) = LENGTH.unpack(self._read(LENGTH.size, ends_s))
            answer = _answers.decode(self._read(length, ends_s))
        except (OSError, msgspec.MsgspecError, BrokenFrame) as error:
            _log.warning("the process that compiles kernels has gone, or does not keep to the protocol: %s", error)
            raise KernelTooLarge("the process that guards and compiles kernels ended on this one") from None
        self._grace_s, self._answered = 0.0, True
        if answer.kernel is not None:
            return answer.kernel
        if answer.failure is None:
            raise InternalError("the kernel compiler has no answer")
        if answer.failure.kind == InvokeTimeout.kind:
            raise Late
        raise rebuild_error(answer.failure)

    def kill(self) -> None:
        """Kill the process and its ptxas; it is not reaped. From any thread, before `end`."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and its ptxas, and remove what they have left."""
        self.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, data: bytes, ends_s: float) -> None:
        left = memoryview(data)
        while left:
            _wait_ready(ends_s, writing=self._to)
            left = left[os.write(self._to, left) :]

    def _read(self, size_bytes: int, ends_s: float) -> bytes:
        data = bytearray()
        if size_bytes > MAX_ANSWER_BYTES:
            raise BrokenFrame("a long answer")
        while len(data) < size_bytes:
            _wait_ready(ends_s, reading=self._from)
            part = os.read(self._from, size_bytes - len(data))
            if not part:
                raise BrokenFrame("it has gone")
            data += part
        return bytes(data)


def _wait_ready(ends_s: float, reading: int | None = None, writing: int | None = None) -> None:
    """Wait until a descriptor is ready, or raise `Late`."""
    poll = select.poll()  # select() takes no descriptor over 1,023
    if reading is not None:
        poll.register(reading, select.POLLIN)
    if writing is not None:
        poll.register(writing, select.POLLOUT)
    if not poll.poll(max(0.0, ends_s - time.monotonic()) * 1000):
        raise Late
