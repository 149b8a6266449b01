"""Compilation in a process of its own, one for each module: Cranelift never meets untrusted bytes inside ours.

A module that crashes the compiler, or makes it work for ever or without end of memory, costs that process and is
refused. The process is a bare interpreter (`tensorwasm.guest.engine.compiler_process`), spawned, with nothing of ours
but three descriptors and a handful of variables, killed with its group however it ends. It runs after everything else
that wants the processor, and within the memory that all compilations share
(`tensorwasm.guest.engine.compile_capacity`): with what modules of its size usually take first, and if that was too
little, once more with the most that there is.

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
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final

from tensorwasm.errors import CapacityExhausted, CompileFailed, CompileMemory, CompileTimeout, InvalidWasm
from tensorwasm.guest.engine import capi, compiler_process, traps
from tensorwasm.guest.engine.compile_capacity import Stop, shared_room
from tensorwasm.values import MIB

MAX_THREADS: Final = 8
"""Threads of one compilation."""

USUAL_BYTES: Final = 256 * MIB
"""Address space that any compilation takes."""

USUAL_RATIO: Final = 48
"""What it takes on top for each byte of the module, which nearly all modules are compiled with."""

_KEPT_VARIABLES: Final = ("LD_LIBRARY_PATH", "SYSTEMROOT")
_ANSWER_BYTES: Final = 1 << 30
_REFUSAL_BYTES: Final = 64 << 10
_COMPLAINT_BYTES: Final = 4 << 10
_CHUNK_BYTES: Final = MIB
_TRIES: Final = 3
_ENDING_S: Final = 1.0
"""What a process that has closed its output needs to end."""

# What Rust's allocator, wasmtime's mappings and Python say when a limit of memory was met.
_WANTS_MEMORY: Final = (
    b"memory allocation of",
    b"Cannot allocate memory",
    b"os error 12",
    b"MemoryError",
    b"WouldBlock",
)


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """What compiling one module may use.

    Attributes:
        wall_s: seconds; of processor as many for each thread.
        memory_bytes: address space, in which wasmtime itself takes 0.25 GB.
        room_bytes: memory of all compilations of this process together; None takes a part of the machine's.
    """

    wall_s: float = 60.0
    memory_bytes: int = 4096 * MIB
    room_bytes: int | None = None


@dataclass(slots=True)
class _Told:
    """What a compiler's process said before it ended.

    Attributes:
        answer: on its standard output.
        complaint: the beginning of what it said on standard error.
        status: its exit status, negative for a signal.
        late: it had not ended in time.
        killed: something else than this process has killed it, which says nothing about the module.
    """

    answer: bytearray = field(default_factory=bytearray)
    complaint: bytearray = field(default_factory=bytearray)
    status: int = 0
    late: bool = False
    killed: bool = False

    @property
    def whole(self) -> bool:
        """Whether this is an answer: code, or why there is none."""
        return not self.status and not self.late and len(self.answer) <= _ANSWER_BYTES

    @property
    def wants_memory(self) -> bool:
        """Whether it failed for want of memory."""
        said = bytes(self.complaint)
        if self.whole and self.answer.startswith(compiler_process.REFUSED):
            said = bytes(self.answer[:_COMPLAINT_BYTES])
        elif self.whole and self.answer.startswith(compiler_process.CODE):
            return False
        return any(words in said for words in _WANTS_MEMORY)


class Compiler:
    """Compiles modules, as many at a time as there are processors and memory; more wait. Any thread may use it."""

    def __init__(self, limits: CompileLimits) -> None:
        self._limits = limits

    def compile(self, wasm: bytes, settings: Mapping[str, int], name: str, stop: Stop | None = None) -> memoryview:
        """Return a module as precompiled code. Blocks, without the GIL.

        Args:
            wasm: a binary module; nobody has looked at it.
            settings: of the engine, see `tensorwasm.guest.engine.engine.settings_of`.
            name: how messages call the module: by its hash.
            stop: ends it at once.

        Raises:
            InvalidWasm: not a valid module.
            CompileTimeout: it took longer than it may.
            CompileMemory: it takes more memory than it may.
            CompileFailed: the compiler crashed on it.
            CapacityExhausted: the system starts no process, or kills it again and again.
            CancelledError: it was stopped.
        """
        room = shared_room(self._limits.room_bytes, _processors())
        most = min(self._limits.memory_bytes, room.whole_bytes)
        usual = min(most, USUAL_BYTES + USUAL_RATIO * len(wasm))
        with room.hold(usual, stop):
            told = self._insist(wasm, settings, usual, stop)
        if told.wants_memory and usual < most:
            with room.hold(most, stop):
                told = self._insist(wasm, settings, most, stop)
        return self._judge(told, name, most)

    def _judge(self, told: _Told, name: str, memory_bytes: int) -> memoryview:
        """Return the code that a process answered, or say why there is none."""
        if told.late or told.status == -getattr(signal, "SIGXCPU", 0):
            raise CompileTimeout(f"compiling module {name} took more than {self._limits.wall_s:g} s")
        if told.wants_memory:
            raise CompileMemory(
                f"compiling module {name} takes more than the {memory_bytes // MIB} MiB that it may use"
            )
        if told.whole and told.answer.startswith(compiler_process.CODE):
            return memoryview(told.answer)[len(compiler_process.CODE) :]
        if told.whole and told.answer.startswith(compiler_process.REFUSED):
            said = told.answer[len(compiler_process.REFUSED) :][:_REFUSAL_BYTES].decode("utf-8", "replace")
            raise InvalidWasm(f"not a valid WebAssembly module: {traps.tell(said)}")
        raise CompileFailed(f"the compiler failed on module {name}: it {_describe(told.status)}")

    def _insist(self, wasm: bytes, settings: Mapping[str, int], memory_bytes: int, stop: Stop | None) -> _Told:
        """Compile within so much memory, again if the process was killed by something else."""
        for _ in range(_TRIES):
            told = self._run(wasm, settings, memory_bytes, stop)
            if stop is not None and stop.stopped:
                raise CancelledError
            if not told.killed:
                return told
        raise CapacityExhausted("the compiler was killed from outside, for want of memory as it seems")

    def _run(self, wasm: bytes, settings: Mapping[str, int], memory_bytes: int, stop: Stop | None) -> _Told:
        """Return what a child says, and how it ended."""
        child, told, ending = self._start(settings, memory_bytes), _Told(), threading.Lock()

        def kill() -> None:
            with ending:  # once it is reaped, its number may be another's
                if child.returncode is None:
                    _kill(child)

        try:
            if stop is not None:
                stop.stop_with(kill)
            _converse(child, wasm, told, time.monotonic() + self._limits.wall_s)
            told.killed = not told.late and len(told.answer) <= _ANSWER_BYTES and _was_killed(child)
        finally:
            if stop is not None:
                stop.forget()
            with ending:
                told.status = _end(child)
        return told

    def _start(self, settings: Mapping[str, int], memory_bytes: int) -> subprocess.Popen[bytes]:
        cpu_s = int(self._limits.wall_s * _threads()) + 1
        arguments = [capi.LIBRARY, os.getpid(), memory_bytes, cpu_s, *_spell(settings)]
        try:
            return subprocess.Popen(  # noqa: S603 - our own interpreter and file, without a shell
                [sys.executable, "-I", "-S", compiler_process.__file__, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
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


def _converse(child: subprocess.Popen[bytes], question: bytes, told: _Told, ends_at_s: float) -> None:
    """Ask the child, and note all that it says until it closes its output, or the time has passed."""
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None  # noqa: S101, PT018 - they were asked for
    left = memoryview(question)
    with selectors.DefaultSelector() as selector:
        for pipe in (child.stdin, child.stdout, child.stderr):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_WRITE if pipe is child.stdin else selectors.EVENT_READ)
        while True:
            ready = selector.select(max(0.0, ends_at_s - time.monotonic()))
            if not ready:
                told.late = True
                return
            # The answer's end is the end, so what was said with it is read first.
            for key, _ in sorted(ready, key=lambda each: each[0].fileobj is child.stdout):
                if key.fileobj is child.stdin:
                    left = _say(child.stdin, left)
                    if not left:
                        selector.unregister(child.stdin)
                        child.stdin.close()
                    continue
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if key.fileobj is child.stderr:
                    told.complaint += chunk[: _COMPLAINT_BYTES - len(told.complaint)]
                    if not chunk:
                        selector.unregister(child.stderr)
                elif not chunk or len(told.answer) > _ANSWER_BYTES:
                    return
                else:
                    told.answer += chunk


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
    _kill(child)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    return child.wait()


def _kill(child: subprocess.Popen[bytes]) -> None:
    # It is not reaped yet, so its number, which is the group's, is still its own.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _describe(status: int) -> str:
    if status >= 0:
        return f"exited with code {status}"
    with suppress(ValueError):  # those for anybody's own use have no names
        return f"ended by {signal.Signals(-status).name}, for a fault, or for want of memory"
    return f"ended by signal {-status}"
