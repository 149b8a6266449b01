"""Compilation in a process of its own, one for each module: Cranelift never meets untrusted bytes inside ours.

A module that crashes the compiler, or makes it work for ever or without end of memory, costs that process and is
refused. The process is a bare interpreter (`tensorwasm.guest.compiling`), spawned, with nothing of ours but three
descriptors and a handful of variables, killed with its group however it ends.

What this does not do: if somebody makes Cranelift run code of theirs, or emit what they like, then what the process
answers is theirs, and is run here. A sandbox's isolation rests on the compiler being right, wherever it runs.
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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

from tensorwasm.errors import CapacityExhausted, CompileFailed, InvalidWasm
from tensorwasm.guest import capi, compiling, traps
from tensorwasm.values import MIB

MAX_THREADS: Final = 8
"""Threads of one compilation."""

_KEPT_VARIABLES: Final = ("LD_LIBRARY_PATH", "SYSTEMROOT")
_ANSWER_BYTES: Final = 1 << 30
_REFUSAL_BYTES: Final = 64 << 10
_CHUNK_BYTES: Final = MIB
_TRIES: Final = 3
_ENDING_S: Final = 1.0
"""What a process that has closed its output needs to end."""


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """What compiling one module may use.

    Attributes:
        wall_s: seconds; of processor as many for each thread.
        memory_bytes: address space, in which wasmtime itself takes 0.25 GB.
    """

    wall_s: float = 60.0
    memory_bytes: int = 4096 * MIB


class Compiler:
    """Compiles modules, as many at a time as there are processors; more wait. Any thread may use it."""

    def __init__(self, limits: CompileLimits) -> None:
        self._limits = limits
        self._places = threading.BoundedSemaphore(_processors())

    def compile(self, wasm: bytes, settings: Mapping[str, int], name: str) -> bytes:
        """Return a module as precompiled code. Blocks, without the GIL.

        Args:
            wasm: a binary module; nobody has looked at it.
            settings: of the engine, see `tensorwasm.guest.engine.settings_of`.
            name: how messages call the module: by its hash.

        Raises:
            InvalidWasm: not a valid module.
            CompileFailed: the compiler crashed on it, or went over its limits.
            CapacityExhausted: the system starts no process, or kills it again and again.
        """
        with self._places:
            for _ in range(_TRIES):
                answer, status, killed = self._run(wasm, settings)
                if not killed:
                    break
            else:
                raise CapacityExhausted("the compiler was killed from outside, for want of memory as it seems")
        if answer is None:
            raise CompileFailed(f"compiling module {name} took more than {self._limits.wall_s:g} s")
        whole = not status and len(answer) <= _ANSWER_BYTES
        if whole and answer.startswith(compiling.CODE):
            return bytes(memoryview(answer)[len(compiling.CODE) :])
        if whole and answer.startswith(compiling.REFUSED):
            said = answer[len(compiling.REFUSED) :][:_REFUSAL_BYTES].decode("utf-8", "replace")
            raise InvalidWasm(f"not a valid WebAssembly module: {traps.tell(said)}")
        raise CompileFailed(f"the compiler failed on module {name}: it {_describe(status)}")

    def _run(self, wasm: bytes, settings: Mapping[str, int]) -> tuple[bytearray | None, int, bool]:
        """Return what a child answers, its exit status, and whether somebody else has killed it, which says nothing."""
        child, killed = self._start(settings), False
        try:
            answer = _converse(child, wasm, time.monotonic() + self._limits.wall_s)
            killed = answer is not None and len(answer) <= _ANSWER_BYTES and _was_killed(child)
        finally:
            status = _end(child)
        return answer, status, killed

    def _start(self, settings: Mapping[str, int]) -> subprocess.Popen[bytes]:
        cpu_s = int(self._limits.wall_s * _threads()) + 1
        arguments = [capi.LIBRARY, os.getpid(), self._limits.memory_bytes, cpu_s, *_spell(settings)]
        try:
            return subprocess.Popen(  # noqa: S603 - our own interpreter and file, without a shell
                [sys.executable, "-I", "-S", compiling.__file__, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd=os.sep,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise CapacityExhausted(f"no process for the compiler: {error.strerror}") from None


def _spell(settings: Mapping[str, int]) -> Iterator[str]:
    for name, value in settings.items():
        _, kinds = capi.FUNCTIONS[f"wasmtime_config_{name}_set"]
        yield f"{name}:{kinds[1]}={int(value)}"


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    # An arena takes 64 MiB of address space, which is what is limited.
    return kept | {"RAYON_NUM_THREADS": str(_threads()), "MALLOC_ARENA_MAX": str(_threads())}


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _threads() -> int:
    return min(_processors(), MAX_THREADS)


def _converse(child: subprocess.Popen[bytes], question: bytes, ends_at_s: float) -> bytearray | None:
    """Return all that the child answers, None past the time."""
    assert child.stdin is not None and child.stdout is not None  # noqa: S101, PT018 - they were asked for
    left, answer = memoryview(question), bytearray()
    with selectors.DefaultSelector() as selector:
        for pipe, event in ((child.stdin, selectors.EVENT_WRITE), (child.stdout, selectors.EVENT_READ)):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, event)
        while True:
            ready = selector.select(max(0.0, ends_at_s - time.monotonic()))
            if not ready:
                return None
            for key, _ in ready:
                if key.fileobj is child.stdin:
                    left = _say(child.stdin, left)
                    if not left:
                        selector.unregister(child.stdin)
                        child.stdin.close()
                elif not (chunk := os.read(key.fd, _CHUNK_BYTES)) or len(answer) > _ANSWER_BYTES:
                    return answer
                else:
                    answer += chunk


def _say(pipe: IO[bytes], left: memoryview) -> memoryview:
    """Write what the pipe takes; return the rest, nothing if nobody reads any more."""
    try:
        return left[os.write(pipe.fileno(), left) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]


def _was_killed(child: subprocess.Popen[bytes]) -> bool:
    """Return whether a child that has closed its output was killed, by the system or an operator; it stays unreaped."""
    if sys.platform != "linux":  # nobody can say so there
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
    """Kill the child and what it started, if it still lives, release its pipes and return its exit status.

    It closes its standard output by ending, and a signal changes nothing about a process that is ending.
    """
    # It is not reaped yet, so its number, which is the group's, is still its own.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    return child.wait()


def _describe(status: int) -> str:
    if status >= 0:
        return f"exited with code {status}"
    with suppress(ValueError):  # those for anybody's own use have no names
        return f"ended by {signal.Signals(-status).name}, for a fault, or for want of memory"
    return f"ended by signal {-status}"
