"""Child processes that get untrusted bytes: started, asked one question, bounded, and ended with all that they started.

A child inherits three descriptors and a few variables, reads the question from standard input to its end, answers on
standard output and ends with 0. It leads a session of its own, and is killed with its process group however it ends.
What it may use it limits itself, before it reads (`tensorwasm.guest.engine.compiler_process.confine`).

A child has a low priority, so on a busy machine most of its life is a wait for a processor. On Linux that does not
count as the time that it takes.

Source: Linux, Documentation/scheduler/sched-stats.rst, on /proc/PID/schedstat.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from tensorwasm.errors import CapacityExhausted
from tensorwasm.tenancy.blocking_gate import Cancellation
from tensorwasm.values import MIB

_KEPT_VARIABLES: Final = ("LD_LIBRARY_PATH", "SYSTEMROOT")
_ANSWER_BYTES: Final = 1 << 30
_COMPLAINT_BYTES: Final = 4 << 10
_CHUNK_BYTES: Final = MIB
_WAIT_MARGIN: Final = 1.25
"""The system counts a wait for a processor when it ends; this makes up for the one that has not."""
_ENDING_S: Final = 1.0
"""What a process that has closed its output needs to end."""

# What Rust's allocator, wasmtime's mappings, Python, C++ and LLVM say when a limit of memory was met.
_WANTS_MEMORY: Final = (
    b"memory allocation of",
    b"Cannot allocate memory",
    b"os error 12",
    b"MemoryError",
    b"WouldBlock",
    b"bad_alloc",
    b"out of memory",
)


@dataclass(slots=True)
class ChildResponse:
    """What a child wrote before it ended, late or not; ``killed`` means by another process than this."""

    answer: bytearray = field(default_factory=bytearray)
    complaint: bytearray = field(default_factory=bytearray)
    status: int = 0
    late: bool = False
    killed: bool = False

    @property
    def whole(self) -> bool:
        """Whether this is an answer."""
        return not self.status and not self.late and len(self.answer) <= _ANSWER_BYTES

    @property
    def out_of_time(self) -> bool:
        """Whether it took too long, by the clock or of a processor."""
        return self.late or self.status == -getattr(signal, "SIGXCPU", 0)

    @property
    def out_of_memory(self) -> bool:
        """Whether it failed for want of memory; what it says in an answer that is whole does not count."""
        return not self.whole and mentions_memory(self.complaint)


def mentions_memory(said: bytes | bytearray) -> bool:
    """Return whether a message tells of a limit of memory that was met."""
    return any(words in said for words in _WANTS_MEMORY)


def run(
    command: Sequence[str],
    variables: Mapping[str, str],
    question: bytes,
    wall_s: float,
    stop: Cancellation | None = None,
) -> ChildResponse:
    """Run a program for at most so many seconds and return its response. Blocks, without the GIL; ``stop`` kills it.

    Raises:
        CapacityExhausted: the system starts no process.
        CancelledError: it was stopped.
    """
    child, response, ending = _start(command, variables), ChildResponse(), threading.Lock()

    def kill() -> None:
        with ending:  # once it is reaped, its number may be another's
            if child.returncode is None:
                _kill(child)

    try:
        if stop is not None:
            stop.stop_with(kill)
        _converse(child, question, response, wall_s)
        response.killed = not response.late and len(response.answer) <= _ANSWER_BYTES and _was_killed(child)
    finally:
        if stop is not None:
            stop.forget()
        with ending:
            response.status = _end(child)
    if stop is not None and stop.stopped:
        raise CancelledError
    return response


def describe(status: int) -> str:
    """Return how a process ended, in words."""
    if status >= 0:
        return f"exited with code {status}"
    with suppress(ValueError):  # some signals have no names
        return f"ended by {signal.Signals(-status).name}, for a fault, or for want of memory"
    return f"ended by signal {-status}"


def kept_variables(names: Sequence[str] = _KEPT_VARIABLES) -> dict[str, str]:
    """Return those of this process's variables that a child gets."""
    return {name: os.environ[name] for name in names if name in os.environ}


def _start(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and file, without a shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=os.sep,
            env={**kept_variables(), **variables},
            start_new_session=True,
        )
    except OSError as error:
        raise CapacityExhausted(f"no process for the compiler: {error.strerror}") from None


def _converse(child: subprocess.Popen[bytes], question: bytes, response: ChildResponse, wall_s: float) -> None:
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None  # noqa: S101, PT018 - they were asked for
    left, last_s = memoryview(question), time.monotonic() + wall_s
    ends_s = last_s
    with selectors.DefaultSelector() as selector:
        for pipe in (child.stdin, child.stdout, child.stderr):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_WRITE if pipe is child.stdin else selectors.EVENT_READ)
        while True:
            ready = selector.select(max(0.0, ends_s - time.monotonic()))
            if not ready:
                ends_s = last_s + _waited_s(child.pid) * _WAIT_MARGIN
                response.late = ends_s <= time.monotonic()
                if response.late:
                    return
            # The end of standard output ends the conversation, so standard error is read first.
            for key, _ in sorted(ready, key=lambda each: each[0].fileobj is child.stdout):
                if key.fileobj is child.stdin:
                    left = _say(child.stdin, left)
                    if not left:
                        selector.unregister(child.stdin)
                        child.stdin.close()
                    continue
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if key.fileobj is child.stderr:
                    response.complaint += chunk[: _COMPLAINT_BYTES - len(response.complaint)]
                    if not chunk:
                        selector.unregister(child.stderr)
                elif not chunk or len(response.answer) > _ANSWER_BYTES:
                    return
                else:
                    response.answer += chunk


def _waited_s(process: int) -> float:
    """Return the longest time for which one of its threads waited for a processor; 0 where that is not known."""
    longest_ns = 0
    with suppress(FileNotFoundError):  # not Linux, or a kernel without it
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                longest_ns = max(longest_ns, int((thread / "schedstat").read_text("ascii").split()[1]))
    return longest_ns / 1e9


def _say(pipe: IO[bytes], left: memoryview) -> memoryview:
    """Write what the pipe takes; return the rest, nothing if the reader has gone."""
    try:
        return left[os.write(pipe.fileno(), left) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]


def _was_killed(child: subprocess.Popen[bytes]) -> bool:
    """Return whether a child that closed its output was killed by the system or an operator; it stays unreaped."""
    if sys.platform != "linux":  # other systems do not report it
        return False
    handle = os.pidfd_open(child.pid)
    try:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        if not ended.poll(_ENDING_S * 1000):
            return False
    finally:
        os.close(handle)
    found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return found is not None and (found.si_code, found.si_status) == (os.CLD_KILLED, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes]) -> int:
    """Kill the child's group if it still lives; return the exit status. A process that is ending is not affected."""
    _kill(child)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    return child.wait()


def _kill(child: subprocess.Popen[bytes]) -> None:
    # It is not reaped yet, so its number, which is the group's, is still its own.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
