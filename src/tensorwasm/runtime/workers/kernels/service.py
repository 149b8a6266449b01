"""`KernelService`: compiles the kernels of guarded workers, in processes of its own, and keeps them on the disk.

A worker has neither a key nor the time: what is kept is signed, and guarding holds its interpreter while others' guests
wait. Two compiler processes, kept warm: one for kernels that are compiled quickly, which ends those that are not, and
one for these and for whatever their tenants bring in the next minute. Tenants take turns in both.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tensorwasm.errors import (
    CapacityExhausted,
    DeviceUnavailable,
    InternalError,
    InvokeTimeout,
    KernelTooLarge,
    TensorWasmError,
)
from tensorwasm.gpu.resources.guarded_compiler import KernelJob
from tensorwasm.gpu.resources.kernel_store import KernelStore, decode
from tensorwasm.runtime.workers.frames import BrokenFrame
from tensorwasm.runtime.workers.kernels.child import LENGTH, MAX_ANSWER_BYTES, Answer, CompileJob
from tensorwasm.runtime.workers.outcomes import rebuild_error
from tensorwasm.runtime.workers.process import make_environment

PROGRAM: Final = ("-m", "tensorwasm.runtime.workers.kernels.child")
QUICK_S: Final = 3.0
"""What a kernel gets beside those of all tenants; a hundred times what most take."""
SLOW_S: Final = 60.0
"""What it gets beside others that took too long."""
SLOW_FOR_S: Final = 60.0
"""For how long a tenant of one brings its kernels there."""
MAX_WAITING: Final = 1024
MAX_WAITING_EACH: Final = 64
_START_S: Final = 20.0
"""What a process gets to start, on top of its first kernel."""

Outcome = bytes | TensorWasmError
"""A compiled kernel as `tensorwasm.gpu.resources.kernel_store.encode` has it, or why there is none."""
Done = Callable[[Outcome], object]

_answers: Final = msgspec.msgpack.Decoder(Answer)
_log: Final = logging.getLogger(__name__)


class _Late(Exception):
    """A kernel was not compiled in time."""


@dataclass(slots=True)
class _Lane:
    """One compiler process and what waits for it, by tenant in the order of their turns."""

    limit_s: float
    waiting: OrderedDict[str, deque[KernelJob]] = field(default_factory=OrderedDict)
    thread: threading.Thread | None = None
    compiler: _Compiler | None = None

    def put(self, job: KernelJob) -> None:
        self.waiting.setdefault(job.tenant, deque()).append(job)

    def take(self) -> KernelJob | None:
        """Return the next job: the first one of the tenant whose turn it is."""
        if not self.waiting:
            return None
        tenant, jobs = self.waiting.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self.waiting[tenant] = jobs
        return job


class KernelService:
    """Compiles kernels, each once at a time. Thread-safe; nothing but `close` waits.

    Args:
        store: keeps compiled kernels between processes; None keeps none.
        program: what Python runs as a compiler.
    """

    def __init__(self, store: KernelStore | None, program: Sequence[str] = PROGRAM) -> None:
        self._store = store
        self._program = program
        self._changed = threading.Condition()
        self._lanes = (_Lane(QUICK_S), _Lane(SLOW_S))
        self._wanted: dict[bytes, list[Done]] = {}
        self._counts: dict[str, int] = {}
        self._slow_until_s: dict[str, float] = {}
        self._closed = False

    def submit(self, job: KernelJob, done: Done) -> None:
        """Have a kernel compiled, or taken from the store; `done` is called once, perhaps now, from any thread.

        It gets errors of `tensorwasm.gpu.resources.guarded_compiler.KernelCompiler.compile`; it may not wait or raise.
        """
        name = job.name
        with self._changed:
            refusal = self._refuse(job.tenant)
            if refusal is None and name in self._wanted:
                self._wanted[name].append(done)
                return
            if refusal is None:
                self._wanted[name] = [done]
                self._counts[job.tenant] = self._counts.get(job.tenant, 0) + 1
                self._enter(self._lanes[self._is_slow(job.tenant)], job)
        if refusal is not None:
            done(refusal)

    def close(self) -> None:
        """End what runs and refuse what waits. Idempotent; waits for the processes to be gone."""
        with self._changed:
            self._closed = True
            wanted, self._wanted = self._wanted, {}
            for lane in self._lanes:
                if lane.compiler is not None:
                    lane.compiler.kill()  # so that its thread, which owns it, waits for it no longer
            self._changed.notify_all()
        for lane in self._lanes:
            if lane.thread is not None:
                lane.thread.join()
        for done in [each for waiting in wanted.values() for each in waiting]:
            done(CapacityExhausted("the service stops"))

    def _refuse(self, tenant: str) -> TensorWasmError | None:
        if self._closed:
            return CapacityExhausted("the service stops")
        if len(self._wanted) >= MAX_WAITING or self._counts.get(tenant, 0) >= MAX_WAITING_EACH:
            return CapacityExhausted("too many kernels wait to be compiled; try again when some are")
        return None

    def _is_slow(self, tenant: str) -> bool:
        until_s = self._slow_until_s.get(tenant, 0.0)
        if time.monotonic() >= until_s:
            self._slow_until_s.pop(tenant, None)
            return False
        return True

    def _enter(self, lane: _Lane, job: KernelJob) -> None:
        lane.put(job)
        if lane.thread is None:
            lane.thread = threading.Thread(
                target=self._serve, args=(lane,), name="tensorwasm-kernel-compiler", daemon=True
            )
            lane.thread.start()
        self._changed.notify_all()

    # ------------------------------------------------------------------------------ on the threads of the lanes

    def _serve(self, lane: _Lane) -> None:
        """Compile until closed; the process ends with this thread."""
        while (job := self._next(lane)) is not None:
            outcome: Outcome | None = None
            try:
                outcome = self._find(job) or self._keep(job, self._compiler(lane).compile(job, lane.limit_s))
            except _Late:
                if not self._put_off(lane, job):
                    outcome = KernelTooLarge(f"the kernel was not guarded and compiled within {lane.limit_s:g} s")
            except TensorWasmError as error:
                outcome = error
            except Exception:  # noqa: BLE001 - a bug: those who wait for the kernel get an answer
                _log.exception("a kernel was not compiled")
                outcome = InternalError("a kernel was not compiled")
            if lane.compiler is not None and not lane.compiler.fit:
                self._drop(lane)
            if outcome is not None:
                self._settle(job, outcome)
        self._drop(lane)

    def _compiler(self, lane: _Lane) -> _Compiler:
        with self._changed:
            if self._closed:
                raise CapacityExhausted("the service stops")
            if lane.compiler is None:
                lane.compiler = _Compiler(self._program)
            return lane.compiler

    def _drop(self, lane: _Lane) -> None:
        with self._changed:
            compiler, lane.compiler = lane.compiler, None
        if compiler is not None:
            compiler.end()

    def _next(self, lane: _Lane) -> KernelJob | None:
        with self._changed:
            while not self._closed:
                if (job := lane.take()) is not None:
                    return job
                self._changed.wait()
        return None

    def _find(self, job: KernelJob) -> bytes | None:
        data = None if self._store is None else self._store.get(job.name)
        return data if data is not None and decode(data) is not None else None

    def _keep(self, job: KernelJob, data: bytes) -> bytes:
        if decode(data) is None:
            raise InternalError("the kernel compiler answered what is no kernel")
        if self._store is not None:
            self._store.put(job.name, data)
        return data

    def _put_off(self, lane: _Lane, job: KernelJob) -> bool:
        """Have a kernel that was not compiled in time compiled beside the slow ones; return False if it was there."""
        with self._changed:
            self._slow_until_s[job.tenant] = time.monotonic() + SLOW_FOR_S
            if lane is self._lanes[0]:
                self._enter(self._lanes[1], job)
            return lane is self._lanes[0]

    def _settle(self, job: KernelJob, outcome: Outcome) -> None:
        with self._changed:
            waiting = self._wanted.pop(job.name, [])
            left = self._counts.pop(job.tenant) - 1
            if left:
                self._counts[job.tenant] = left
        for done in waiting:
            done(outcome)


class _Compiler:
    """A compiler process; for one thread, with which it ends.

    Raises:
        DeviceUnavailable: it cannot be started.
    """

    def __init__(self, program: Sequence[str]) -> None:
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - our own interpreter and module, without a shell
                [sys.executable, "-P", *program, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=make_environment(os.environ, None),
                start_new_session=True,
            )
        except OSError as error:
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
        return self._answered and self._popen.poll() is None

    def compile(self, job: KernelJob, limit_s: float) -> bytes:
        """Return a compiled kernel, or raise why there is none.

        Raises:
            _Late: it did not end in time.
        """
        ends_s, self._answered = time.monotonic() + limit_s + self._grace_s, False
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
            raise _Late
        raise rebuild_error(answer.failure)

    def kill(self) -> None:
        """Kill the process and all that it has started; it is not reaped. From any thread, before `end`."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and all that it has started, and release everything."""
        self.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _write(self, data: bytes, ends_s: float) -> None:
        left = memoryview(data)
        while left:
            _await(ends_s, writing=self._to)
            left = left[os.write(self._to, left) :]

    def _read(self, size_bytes: int, ends_s: float) -> bytes:
        data = bytearray()
        if size_bytes > MAX_ANSWER_BYTES:
            raise BrokenFrame("a long answer")
        while len(data) < size_bytes:
            _await(ends_s, reading=self._from)
            part = os.read(self._from, size_bytes - len(data))
            if not part:
                raise BrokenFrame("it has gone")
            data += part
        return bytes(data)


def _await(ends_s: float, reading: int | None = None, writing: int | None = None) -> None:
    """Wait until a descriptor is ready, or raise `_Late`."""
    poll = select.poll()  # select() takes no descriptor over 1,023
    if reading is not None:
        poll.register(reading, select.POLLIN)
    if writing is not None:
        poll.register(writing, select.POLLOUT)
    if not poll.poll(max(0.0, ends_s - time.monotonic()) * 1000):
        raise _Late
