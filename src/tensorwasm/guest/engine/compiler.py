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
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import CapacityExhausted, CompileFailed, CompileMemory, CompileTimeout, InvalidWasm
from tensorwasm.guest.engine import capi, child_process, compiler_process, traps
from tensorwasm.guest.engine.child_process import ChildResponse
from tensorwasm.guest.engine.compile_capacity import (
    ALONE,
    CompileCapacity,
    Share,
    processors,
    shared_capacity,
    slot_count,
)
from tensorwasm.tenancy.blocking_gate import Cancellation
from tensorwasm.values import MIB

MAX_THREADS: Final = 8
"""Threads of one compilation."""

USUAL_BYTES: Final = 256 * MIB
"""Address space that any compilation takes."""

USUAL_RATIO: Final = 48
"""What it takes on top for each byte of the module, which nearly all modules are compiled with."""

START_S: Final = 0.05
SECONDS_PER_MIB: Final = 1.0
"""What a compilation is expected to take: to start, and for the module."""

_HEAP: Final = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_TOP_PAD_": str(32 * MIB)}
"""What makes glibc's heap grow in long steps of huge pages: a sixth of the time is page faults otherwise."""

_REFUSAL_BYTES: Final = 64 << 10
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """What compiling one module may use: seconds of each thread's processor, and address space.

    Time in which it waits for a processor does not count (`tensorwasm.guest.engine.child_process`).

    wasmtime itself takes 0.25 GB of that. ``room_bytes`` is the memory of all compilations of this process together;
    None takes a part of the machine's.
    """

    wall_s: float = 60.0
    memory_bytes: int = 4096 * MIB
    room_bytes: int | None = None


class Compiler:
    """Compiles modules, as many at a time as there are slots and memory (`CompileCapacity`). Thread-safe."""

    def __init__(self, limits: CompileLimits) -> None:
        self._limits = limits

    @property
    def capacity(self) -> CompileCapacity:
        """What the compilations of this process share."""
        return shared_capacity(self._limits.room_bytes, slot_count(processors()))

    def compile(
        self,
        wasm: bytes,
        settings: Mapping[str, int],
        name: str,
        stop: Cancellation | None = None,
        share: Share = ALONE,
    ) -> memoryview:
        """Return an unchecked module as precompiled code, in its tenant's turn. Blocks, without the GIL.

        Settings are from `tensorwasm.guest.engine.engine.settings_of`; the name, its hash, is for messages.

        Raises:
            InvalidWasm: not a valid module.
            CompileTimeout: it took longer than it may.
            CompileMemory: it takes more memory than it may.
            CompileFailed: the compiler crashed on it.
            RateLimited: too many of the tenant's compilations wait already.
            CapacityExhausted: the system starts no process, or kills it repeatedly.
            CancelledError: it was stopped.
        """
        capacity, cost_s = self.capacity, START_S + SECONDS_PER_MIB * len(wasm) / MIB
        most = min(self._limits.memory_bytes, capacity.whole_bytes)
        usual = min(most, USUAL_BYTES + USUAL_RATIO * len(wasm))
        with capacity.hold(usual, share, cost_s, stop):
            response = self._compile_within(wasm, settings, usual, stop)
        if _wants_memory(response) and usual < most:
            with capacity.hold(most, share, cost_s, stop):
                response = self._compile_within(wasm, settings, most, stop)
        return self._read_code(response, name, most)

    def _read_code(self, response: ChildResponse, name: str, memory_bytes: int) -> memoryview:
        if response.out_of_time:
            raise CompileTimeout(f"compiling module {name} took more than {self._limits.wall_s:g} s")
        if _wants_memory(response):
            raise CompileMemory(
                f"compiling module {name} takes more than the {memory_bytes // MIB} MiB that it may use"
            )
        if response.whole and response.answer.startswith(compiler_process.CODE):
            return memoryview(response.answer)[len(compiler_process.CODE) :]
        if response.whole and response.answer.startswith(compiler_process.REFUSED):
            said = response.answer[len(compiler_process.REFUSED) :][:_REFUSAL_BYTES].decode("utf-8", "replace")
            raise InvalidWasm(f"not a valid WebAssembly module: {traps.explain_text(said)}")
        raise CompileFailed(f"the compiler failed on module {name}: it {child_process.describe(response.status)}")

    def _compile_within(
        self, wasm: bytes, settings: Mapping[str, int], memory_bytes: int, stop: Cancellation | None
    ) -> ChildResponse:
        """Compile within a limit of memory, again if the process was killed by something else."""
        for _ in range(_TRIES):
            response = self._run(wasm, settings, memory_bytes, stop)
            if not response.killed:
                return response
        raise CapacityExhausted("the compiler was killed from outside, for want of memory as it seems")

    def _run(
        self, wasm: bytes, settings: Mapping[str, int], memory_bytes: int, stop: Cancellation | None
    ) -> ChildResponse:
        cpu_s = int(self._limits.wall_s * _threads()) + 1
        kinds = {name: capi.FUNCTIONS[f"wasmtime_config_{name}_set"][1][1] for name in settings}
        spelled = [f"{name}:{kinds[name]}={int(value)}" for name, value in settings.items()]
        arguments = map(str, (capi.LIBRARY, os.getpid(), memory_bytes, cpu_s, *spelled))
        # An arena takes 64 MiB of address space, which is what is limited. The first one is the main thread's.
        variables = {"RAYON_NUM_THREADS": str(_threads()), "MALLOC_ARENA_MAX": str(_threads() + 1), **_HEAP}
        command = [sys.executable, "-I", "-S", compiler_process.__file__, *arguments]
        return child_process.run(command, variables, wasm, self._limits.wall_s, stop)


def _threads() -> int:
    return min(processors(), MAX_THREADS)


def _wants_memory(response: ChildResponse) -> bool:
    """Return whether a compilation failed for want of memory: wasmtime may say so in a refusal."""
    if response.whole and response.answer.startswith(compiler_process.CODE):
        return False
    refused = response.whole and response.answer.startswith(compiler_process.REFUSED)
    return child_process.mentions_memory(response.answer[:_REFUSAL_BYTES] if refused else response.complaint)


def _is_stopped(stop: Cancellation | None) -> bool:
    return stop is not None and stop.stopped
