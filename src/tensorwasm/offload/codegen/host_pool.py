"""Threads that run programs' machine code on linear memory, and put the memory back if the result may not be used."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
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
    """Threads for runs, one run after the other; a context manager. Thread-safe.

    Args:
        threads: how many.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._saved = mmap.mmap(-1, mmap.PAGESIZE)
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]
        for worker in self._workers:
            worker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads, once their run has ended."""
        with self._lock:
            for _ in self._workers:
                self._queue.put(None)
            for worker in self._workers:
                worker.join()
            self._saved.close()

    def run(
        self,
        plan: ReadyPlan[LoadedProgram],
        memory_address: int,
        inputs: Mapping[int, int],
        deadline: Deadline,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> HostRun:
        """Run a program to its end, and wait for it.

        Args:
            plan: the program, with its code.
            memory_address: of the linear memory for which the program was made.
            inputs: bits of its inputs, by local.
            deadline: when it has to stop.
            should_stop: whether it has to stop before that; asked every few milliseconds.
        """
        with self._lock:
            self._save(plan, memory_address)
            words = (ctypes.c_uint64 * (WORDS_BYTES // 8))()
            words[YIELD // 8] = _yield_address()
            storage = [ctypes.create_string_buffer(storage_bytes(cell)) for cell in plan.program.arguments.cells]
            slots = _slots(plan, memory_address, storage, inputs)
            completed = self._call(plan, slots, words, deadline, should_stop)
            if words[NAN // 8] or not completed:
                self._put_back(plan, memory_address)
                return HostRun(HostOutcome.NOT_A_NUMBER if words[NAN // 8] else HostOutcome.STOPPED)
            first = len(slots) - len(plan.program.arguments.results)
            locals_ = [local for local, _ in plan.program.arguments.results]
            results = {local: slots[first + at] for at, local in enumerate(locals_)}
            return HostRun(HostOutcome.COMPLETED, {**results, **plan.program.known})

    def _call(
        self,
        plan: ReadyPlan[LoadedProgram],
        slots: Any,
        words: Any,
        deadline: Deadline,
        should_stop: Callable[[], bool],
    ) -> bool:
        """Have all threads call the function; return whether it has done all of its work."""
        ended: SimpleQueue[bool] = SimpleQueue()

        def call(thread: int) -> None:
            ended.put(bool(plan.code.call(ctypes.addressof(slots), thread, self.threads, ctypes.addressof(words))))

        for thread in range(self.threads):
            self._queue.put(partial(call, thread))
        completed, missing = True, self.threads
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

    # ------------------------------------------------------------------------------------------- memory

    def _save(self, plan: ReadyPlan[LoadedProgram], memory_address: int) -> None:
        """Copy what the function may write."""
        written = [array for array in plan.program.arguments.arrays if array.written]
        size_bytes = sum(array.size_bytes for array in written)
        if size_bytes > len(self._saved):
            self._saved.close()
            self._saved = mmap.mmap(-1, size_bytes)
        self._copy(plan, memory_address, back=False)

    def _put_back(self, plan: ReadyPlan[LoadedProgram], memory_address: int) -> None:
        self._copy(plan, memory_address, back=True)

    def _copy(self, plan: ReadyPlan[LoadedProgram], memory_address: int, *, back: bool) -> None:
        anchor = ctypes.c_char.from_buffer(self._saved)
        at = ctypes.addressof(anchor)
        for array in plan.program.arguments.arrays:
            if array.written:
                ends = memory_address + array.first, at
                ctypes.memmove(*(ends if back else ends[::-1]), array.size_bytes)
                at += array.size_bytes
        del anchor


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
