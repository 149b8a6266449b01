"""Threads that run programs' machine code on linear memory, and put the memory back if the result may not be used."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Self

from tensorwasm.offload.codegen.arguments import storage_bytes
from tensorwasm.offload.codegen.host import LoadedProgram
from tensorwasm.offload.codegen.host_threads import NAN, STOP, WORDS_BYTES, YIELD
from tensorwasm.offload.codegen.sizes import ReadyPlan
from tensorwasm.values import Deadline

_WORD: Final = (1 << 64) - 1
_LOOK_S: Final = 0.005
"""Between two looks at whether to stop."""


class HostOutcome(Enum):
    """How a run on the host ended; but for the first, memory is as it was before."""

    COMPLETED = "completed"
    NOT_A_NUMBER = "a NaN of arithmetic would show, whose bits depend on the machine"
    STOPPED = "it was to stop"


@dataclass(frozen=True, slots=True)
class HostRun:
    """What a run came to.

    Attributes:
        results: bits of the nest's results, by local; none unless it has completed.
    """

    outcome: HostOutcome
    results: Mapping[int, int] = field(default_factory=dict)


class HostPool:
    """Threads for runs of several tenants at once; a context manager. Thread-safe.

    A run begins at once. It gets what its tenant's share of the threads leaves, as far as others do not use them, and
    one at least: the share is that of all tenants who have runs at the time.

    Args:
        threads: for all runs together, but for one that each may have.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._used: Counter[str] = Counter()  # threads of each tenant's runs
        self._workers: list[threading.Thread] = []
        self._saved: list[mmap.mmap] = []  # memory that no run uses

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads, once their runs have ended."""
        with self._lock:
            for _ in self._workers:
                self._queue.put(None)
            for worker in self._workers:
                worker.join()
            for saved in self._saved:
                saved.close()

    def run(
        self,
        plan: ReadyPlan[LoadedProgram],
        memory_address: int,
        inputs: Mapping[int, int],
        deadline: Deadline,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        tenant: str = "",
        kept: list[tuple[int, bytes]] | None = None,
    ) -> HostRun:
        """Run a program to its end, and wait for it.

        Args:
            plan: the program, with its code.
            memory_address: of the linear memory for which the program was made.
            inputs: bits of its inputs, by local.
            deadline: when it has to stop.
            should_stop: whether it has to stop before that; asked every few milliseconds.
            tenant: whose share of the threads it uses.
            kept: takes what it has written, by its first byte; memory is as before then.
        """
        with self._lent(tenant) as threads, self._memory(plan) as saved:
            _copy(plan, memory_address, saved, back=False)
            words = (ctypes.c_uint64 * (WORDS_BYTES // 8))()
            words[YIELD // 8] = _yield_address()
            storage = [ctypes.create_string_buffer(storage_bytes(cell)) for cell in plan.program.arguments.cells]
            slots = _slots(plan, memory_address, storage, inputs)
            completed = self._call(plan, threads, slots, words, deadline, should_stop)
            if words[NAN // 8] or not completed:
                _copy(plan, memory_address, saved, back=True)
                return HostRun(HostOutcome.NOT_A_NUMBER if words[NAN // 8] else HostOutcome.STOPPED)
            if kept is not None:
                kept += _written(plan, memory_address)
                _copy(plan, memory_address, saved, back=True)
            first = len(slots) - len(plan.program.arguments.results)
            locals_ = [local for local, _ in plan.program.arguments.results]
            results = {local: slots[first + at] for at, local in enumerate(locals_)}
            return HostRun(HostOutcome.COMPLETED, {**results, **plan.program.known})

    @contextmanager
    def _lent(self, tenant: str) -> Iterator[int]:
        """Have threads for a run, as many as yielded."""
        with self._lock:
            share = self.threads // len(self._used.keys() | {tenant}) - self._used[tenant]
            count = max(1, min(share, self.threads - self._used.total()))
            self._used[tenant] += count
            while len(self._workers) < self._used.total():  # threads of one run wait for each other
                worker = threading.Thread(target=self._work, name="tensorwasm-offload", daemon=True)
                self._workers.append(worker)
                worker.start()
        try:
            yield count
        finally:
            with self._lock:
                self._used[tenant] -= count
                if not self._used[tenant]:
                    del self._used[tenant]

    def _call(
        self,
        plan: ReadyPlan[LoadedProgram],
        threads: int,
        slots: Any,
        words: Any,
        deadline: Deadline,
        should_stop: Callable[[], bool],
    ) -> bool:
        """Have threads call the function; return whether it has done all of its work."""
        ended: SimpleQueue[bool] = SimpleQueue()

        def call(thread: int) -> None:
            ended.put(bool(plan.code.call(ctypes.addressof(slots), thread, threads, ctypes.addressof(words))))

        for thread in range(threads):
            self._queue.put(partial(call, thread))
        completed, missing = True, threads
        try:
            while missing:
                with suppress(Empty):
                    completed &= ended.get(timeout=_LOOK_S)
                    missing -= 1
                if deadline.expired() or should_stop():
                    words[STOP // 8] = 1
        finally:
            words[STOP // 8] = 1
            for _ in range(missing):  # an interrupt does not end the threads, which use the memory
                ended.get()
        return completed

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            task()

    @contextmanager
    def _memory(self, plan: ReadyPlan[LoadedProgram]) -> Iterator[mmap.mmap]:
        """Have memory for what a function may write."""
        size_bytes = sum(array.size_bytes for array in plan.program.arguments.arrays if array.written)
        with self._lock:
            saved = self._saved.pop() if self._saved else None
        if saved is None or size_bytes > len(saved):
            if saved is not None:
                saved.close()
            saved = mmap.mmap(-1, max(size_bytes, mmap.PAGESIZE))
        try:
            yield saved
        finally:
            with self._lock:
                self._saved.append(saved)


def _copy(plan: ReadyPlan[LoadedProgram], memory_address: int, saved: mmap.mmap, *, back: bool) -> None:
    """Copy what a function may write to other memory, or back."""
    anchor = ctypes.c_char.from_buffer(saved)
    at = ctypes.addressof(anchor)
    for array in plan.program.arguments.arrays:
        if array.written:
            ends = memory_address + array.first, at
            ctypes.memmove(*(ends if back else ends[::-1]), array.size_bytes)
            at += array.size_bytes


def _written(plan: ReadyPlan[LoadedProgram], memory_address: int) -> Iterator[tuple[int, bytes]]:
    """Yield where a function may have written, and what is there."""
    for array in plan.program.arguments.arrays:
        if array.written:
            yield array.first, ctypes.string_at(memory_address + array.first, array.size_bytes)


def _slots(plan: ReadyPlan[LoadedProgram], memory_address: int, storage: list[Any], inputs: Mapping[int, int]) -> Any:
    """Return the arguments, and room for the results."""
    given = [memory_address + array.first + array.origin for array in plan.program.arguments.arrays]
    given += [ctypes.addressof(cells) for cells in storage]
    given += [inputs[local] for local, _ in plan.program.arguments.inputs]
    given += [size & _WORD for size in plan.program.sizes.values()]
    return (ctypes.c_uint64 * (len(given) + len(plan.program.arguments.results)))(*given)


def _yield_address() -> int:
    """Return the address of the system's function that lets other threads run."""
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
