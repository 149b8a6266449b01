"""Other ways to run something apart from this process's own code: wasmtime-py as it comes, and a process."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import Final

from tensorwasm.bench.peers.missing import MissingPeer

WASMTIME: Final = "wasmtime-py"
PROCESS: Final = "a process"

Loop = Callable[[int], float]
"""Microseconds each of a count of starts takes."""


def stock_wasmtime(wasm: bytes, export: str, value: int) -> Loop:
    """Make stores, instances and calls with the classes that wasmtime-py offers, and its default engine.

    Args:
        wasm: a module without imports.
        export: takes a number, which it answers.
        value: that number.
    """
    import wasmtime  # noqa: PLC0415 - with what measures it

    engine = wasmtime.Engine()
    linker, module = wasmtime.Linker(engine), wasmtime.Module(engine, wasm)

    def loop(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            store = wasmtime.Store(engine)
            if linker.instantiate(store, module).exports(store)[export](store, value) != value:
                raise MissingPeer("wasmtime-py answers something else")
        return (time.perf_counter_ns() - start) / count / 1000

    return loop


def plain_process() -> Loop:
    """Start processes of a program that does nothing, and wait for their ends.

    Raises:
        MissingPeer: there is no such program.
    """
    program = shutil.which("true")
    if program is None:
        raise MissingPeer("no program called true")

    def loop(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            os.waitpid(os.posix_spawn(program, [program], {}), 0)
        return (time.perf_counter_ns() - start) / count / 1000

    return loop
