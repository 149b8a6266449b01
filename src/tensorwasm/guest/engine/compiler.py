"""Compilation in one process per module: Cranelift never reads untrusted bytes in this process.

A module that crashes the compiler, or makes it take endless time or memory, costs that process and is refused. The
process is a bare interpreter (`tensorwasm.guest.engine.compiler_process`) with nothing of this one but three
descriptors and a few variables, and is killed with its group however it ends. It has a low priority, and uses memory
that all compilations share: first what modules of its size usually take, then once more with the most that is allowed.

What this cannot prevent: a module that makes Cranelift run foreign code, or emit chosen code, controls what the
process returns, and that code runs here. A sandbox's isolation rests on a correct compiler, wherever it runs.
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
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Final, Protocol

from tensorwasm import machine_memory
from tensorwasm.errors import CapacityExhausted, CompileFailed, CompileMemory, CompileTimeout, InvalidWasm
from tensorwasm.guest.engine import capi, compiler_process, traps
from tensorwasm.values import MIB

MAX_THREADS: Final = 8
"""Threads of one compilation."""

USUAL_BYTES: Final = 256 * MIB
"""Address space that any compilation takes."""

USUAL_RATIO: Final = 48
"""What it takes on top for each byte of the module, which nearly all modules are compiled with."""

MACHINE_SHARE: Final = 4
"""Compilations may use one part of so many of the process's memory, unless the operator sets a size."""

LEAST_BYTES: Final = 512 * MIB
"""Memory for compilations on the smallest machine: with less only tiny modules compile."""

_opening: Final = threading.Lock()
_capacities: Final[dict[tuple[int | None, int], CompileCapacity]] = {}
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
    """What compiling one module may use: seconds, and as many of processor time per thread, and address space.

    wasmtime itself takes 0.25 GB of that. ``room_bytes`` is the memory of all compilations of this process together;
    None takes a part of the machine's.
    """

    wall_s: float = 60.0
    memory_bytes: int = 4096 * MIB
    room_bytes: int | None = None


@dataclass(slots=True)
class _Response:
    """What a compiler's process wrote before it ended, late or not; ``killed`` means by another process than this."""

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


class Cancellation(Protocol):
    """Says that a compilation is not wanted any more (`tensorwasm.runtime.deploy.deployer.StopHook`)."""

    stopped: bool

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Set the function to call when it is stopped; call it now if it was."""

    def forget(self) -> None:
        """Remove that function."""


class CompileCapacity:
    """The memory and the processors that compilations of this process share. Thread-safe.

    Cranelift takes about forty bytes for each byte of a module, and hundreds for a byte of one long function. So each
    compilation holds the most that it may use. They wait in order of arrival, so a large one is not delayed for ever.
    """

    def __init__(self, whole_bytes: int, slots: int) -> None:
        self.whole_bytes = whole_bytes
        self._free_bytes = whole_bytes
        self._slots = slots
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size_bytes: int, stop: Cancellation | None = None) -> Iterator[None]:
        """Hold memory, at most the whole, and a slot, in order of arrival; `CancelledError` if stopped meanwhile."""
        mine = object()
        if stop is not None:
            stop.stop_with(self._wake)
        with self._changed:
            self._waiting.append(mine)
            try:
                self._changed.wait_for(lambda: _is_stopped(stop) or self._may_start(mine, size_bytes))
                if _is_stopped(stop):
                    raise CancelledError
                self._free_bytes -= size_bytes
                self._slots -= 1
            finally:
                self._waiting.remove(mine)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free_bytes += size_bytes
                self._slots += 1
                self._changed.notify_all()

    def _may_start(self, mine: object, size_bytes: int) -> bool:
        return self._waiting[0] is mine and self._slots > 0 and size_bytes <= self._free_bytes

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def shared_capacity(whole_bytes: int | None, slots: int) -> CompileCapacity:
    """Return the capacity of this process, one object for equal arguments; None takes a quarter, 512 MiB at least."""
    with _opening:
        key = (whole_bytes, slots)
        if key not in _capacities:
            if whole_bytes is None:
                whole_bytes = max(LEAST_BYTES, machine_memory.limit_bytes() // MACHINE_SHARE)
            _capacities[key] = CompileCapacity(whole_bytes, slots)
        return _capacities[key]


def _is_stopped(stop: Cancellation | None) -> bool:
    return stop is not None and stop.stopped


class Compiler:
    """Compiles modules, as many at a time as there are processors and memory; others wait. Thread-safe."""

    def __init__(self, limits: CompileLimits) -> None:
        self._limits = limits

    def compile(
        self, wasm: bytes, settings: Mapping[str, int], name: str, stop: Cancellation | None = None
    ) -> memoryview:
        """Return an unchecked module as precompiled code. Blocks, without the GIL.

        Settings are from `tensorwasm.guest.engine.engine.settings_of`; the name, its hash, is for messages.

        Raises:
            InvalidWasm: not a valid module.
            CompileTimeout: it took longer than it may.
            CompileMemory: it takes more memory than it may.
            CompileFailed: the compiler crashed on it.
            CapacityExhausted: the system starts no process, or kills it repeatedly.
            CancelledError: it was stopped.
        """
        capacity = shared_capacity(self._limits.room_bytes, _processors())
        most = min(self._limits.memory_bytes, capacity.whole_bytes)
        usual = min(most, USUAL_BYTES + USUAL_RATIO * len(wasm))
        with capacity.hold(usual, stop):
            response = self._compile_within(wasm, settings, usual, stop)
        if response.wants_memory and usual < most:
            with capacity.hold(most, stop):
                response = self._compile_within(wasm, settings, most, stop)
        return self._read_code(response, name, most)

    def _read_code(self, response: _Response, name: str, memory_bytes: int) -> memoryview:
        if response.late or response.status == -getattr(signal, "SIGXCPU", 0):
            raise CompileTimeout(f"compiling module {name} took more than {self._limits.wall_s:g} s")
        if response.wants_memory:
            raise CompileMemory(
                f"compiling module {name} takes more than the {memory_bytes // MIB} MiB that it may use"
            )
        if response.whole and response.answer.startswith(compiler_process.CODE):
            return memoryview(response.answer)[len(compiler_process.CODE) :]
        if response.whole and response.answer.startswith(compiler_process.REFUSED):
            said = response.answer[len(compiler_process.REFUSED) :][:_REFUSAL_BYTES].decode("utf-8", "replace")
            raise InvalidWasm(f"not a valid WebAssembly module: {traps.explain_text(said)}")
        raise CompileFailed(f"the compiler failed on module {name}: it {_describe(response.status)}")

    def _compile_within(
        self, wasm: bytes, settings: Mapping[str, int], memory_bytes: int, stop: Cancellation | None
    ) -> _Response:
        """Compile within a limit of memory, again if the process was killed by something else."""
        for _ in range(_TRIES):
            response = self._run(wasm, settings, memory_bytes, stop)
            if _is_stopped(stop):
                raise CancelledError
            if not response.killed:
                return response
        raise CapacityExhausted("the compiler was killed from outside, for want of memory as it seems")

    def _run(self, wasm: bytes, settings: Mapping[str, int], memory_bytes: int, stop: Cancellation | None) -> _Response:
        child, response, ending = self._start(settings, memory_bytes), _Response(), threading.Lock()

        def kill() -> None:
            with ending:  # once it is reaped, its number may be another's
                if child.returncode is None:
                    _kill(child)

        try:
            if stop is not None:
                stop.stop_with(kill)
            _converse(child, wasm, response, time.monotonic() + self._limits.wall_s)
            response.killed = not response.late and len(response.answer) <= _ANSWER_BYTES and _was_killed(child)
        finally:
            if stop is not None:
                stop.forget()
            with ending:
                response.status = _end(child)
        return response

    def _start(self, settings: Mapping[str, int], memory_bytes: int) -> subprocess.Popen[bytes]:
        cpu_s = int(self._limits.wall_s * _threads()) + 1
        kinds = {name: capi.FUNCTIONS[f"wasmtime_config_{name}_set"][1][1] for name in settings}
        spelled = [f"{name}:{kinds[name]}={int(value)}" for name, value in settings.items()]
        arguments = map(str, (capi.LIBRARY, os.getpid(), memory_bytes, cpu_s, *spelled))
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        # An arena takes 64 MiB of address space, which is what is limited.
        environment |= {"RAYON_NUM_THREADS": str(_threads()), "MALLOC_ARENA_MAX": str(_threads())}
        try:
            return subprocess.Popen(  # noqa: S603 - our own interpreter and file, without a shell
                [sys.executable, "-I", "-S", compiler_process.__file__, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=os.sep,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise CapacityExhausted(f"no process for the compiler: {error.strerror}") from None


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _threads() -> int:
    return min(_processors(), MAX_THREADS)


def _converse(child: subprocess.Popen[bytes], question: bytes, response: _Response, ends_at_s: float) -> None:
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None  # noqa: S101, PT018 - they were asked for
    left = memoryview(question)
    with selectors.DefaultSelector() as selector:
        for pipe in (child.stdin, child.stdout, child.stderr):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_WRITE if pipe is child.stdin else selectors.EVENT_READ)
        while True:
            ready = selector.select(max(0.0, ends_at_s - time.monotonic()))
            if not ready:
                response.late = True
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


def _describe(status: int) -> str:
    if status >= 0:
        return f"exited with code {status}"
    with suppress(ValueError):  # some signals have no names
        return f"ended by {signal.Signals(-status).name}, for a fault, or for want of memory"
    return f"ended by signal {-status}"
