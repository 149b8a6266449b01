"""`ModuleReader`: Python's decoding of modules, where it takes long in a process of its own.

What Python does in this process, other threads wait for: each step of an event loop may have to wait for the GIL, and a
module can be made so that decoding it takes seconds. So what takes more than milliseconds is done by
`tensorwasm.runtime.deploy.reader_process`, as one of the compilations of the module's tenant: in its turn, at low
priority, within limits of time and memory, and ended when nobody waits for it any more.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

from tensorwasm import errors
from tensorwasm.errors import CapacityExhausted, CompileFailed, CompileMemory, CompileTimeout, TensorWasmError
from tensorwasm.gc_pause import gc_paused
from tensorwasm.guest.engine import child_process
from tensorwasm.guest.engine.compile_capacity import Share
from tensorwasm.guest.engine.compiler import Compiler
from tensorwasm.runtime.deploy import reader_process
from tensorwasm.runtime.deploy.pieces import PieceReader
from tensorwasm.runtime.deploy.reader_process import Reading
from tensorwasm.tenancy.blocking_gate import Cancellation
from tensorwasm.values import MIB
from tensorwasm.wasm import preamble
from tensorwasm.wasm.preamble import Preamble

if TYPE_CHECKING:
    from tensorwasm.guest.saved.instrumented import InstrumentedModule
    from tensorwasm.offload.module import CutModule

HERE_BYTES: Final = 128 << 10
"""What is decoded in this process. Python reads some megabytes a second, of what is made to be slow one."""

CUT_HERE_BYTES: Final = 16 << 10
"""What loops are cut out of in this process: that takes ten times as long."""

SECONDS: Final = 30.0
"""What reading a module may take, of a processor and by the clock."""

MEMORY_BYTES: Final = 1024 * MIB
"""Address space for reading a module."""


class ModuleReader:
    """Decodes modules. Thread-safe; all methods block, and take whose module it is and what stops the work.

    Raises:
        CompileTimeout: it takes longer than `SECONDS`.
        CompileMemory: it takes more memory than `MEMORY_BYTES`.
        CompileFailed: the process failed otherwise.
        CapacityExhausted: the system starts no process, or ended it.
        RateLimited: too many of the tenant's modules wait for their turn.
        CancelledError: it was stopped.
        TensorWasmError: what the same function raises in this process.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def scan(self, wasm: bytes, share: Share, stop: Cancellation | None = None) -> Preamble:
        """Return what a module declares (`tensorwasm.wasm.preamble.scan`)."""
        if _is_short(preamble.declared_bytes(wasm)):
            return preamble.scan(wasm)
        found: Preamble = self._ask("scan", wasm, share, stop)
        return found

    def explain(self, wasm: bytes, share: Share, stop: Cancellation | None = None) -> TensorWasmError | None:
        """Return why the engine refuses a module, if it is for a proposal that is off; None for any other reason."""
        if _is_short(len(wasm)):
            from tensorwasm.wasm.module import find_proposal  # noqa: PLC0415 - tables that few need

            return find_proposal(wasm)
        try:
            self._ask("proposal", wasm, share, stop)
        except errors.UnsupportedProposal as found:
            return found
        except CompileFailed:
            return None  # it takes too much to say
        return None

    def instrument(self, wasm: bytes, share: Share, stop: Cancellation | None = None) -> InstrumentedModule:
        """Return the forms of a module whose instances are saved (`tensorwasm.guest.saved.instrumented.instrument`)."""
        if _is_short(len(wasm)):
            from tensorwasm.guest.saved.instrumented import instrument  # noqa: PLC0415 - the whole codec, rarely needed

            return instrument(wasm)
        made: InstrumentedModule = self._ask("instrument", wasm, share, stop)
        return made

    def cut(self, wasm: bytes, share: Share, stop: Cancellation | None = None) -> CutModule:
        """Return a module with guards in front of its loops (`tensorwasm.offload.module.cut_module`)."""
        if _is_short(len(wasm) * HERE_BYTES // CUT_HERE_BYTES):
            from tensorwasm.offload.module import cut_module  # noqa: PLC0415 - the whole codec, rarely needed

            return cut_module(wasm)
        made: CutModule = self._ask("cut", wasm, share, stop)
        return made

    def _ask(self, reading: Reading, wasm: bytes, share: Share, stop: Cancellation | None) -> Any:
        capacity = self._compiler.capacity
        memory_bytes = min(MEMORY_BYTES, capacity.whole_bytes)
        arguments = map(str, (os.getpid(), memory_bytes, int(SECONDS) + 1, reading))
        command = [sys.executable, "-I", reader_process.__file__, *arguments]
        with capacity.hold(memory_bytes, share, stop=stop):
            response = child_process.run(command, {}, wasm, SECONDS, stop)
        if response.killed:
            raise CapacityExhausted("the process that reads a module was killed, for want of memory as it seems")
        if response.out_of_time:
            raise CompileTimeout(f"reading the module took more than {SECONDS:g} s")
        if response.out_of_memory:
            raise CompileMemory(f"reading the module takes more than the {memory_bytes // MIB} MiB that it may use")
        outcome = bytes(response.answer[:1])
        if not response.whole or outcome not in {reader_process.VALUE, reader_process.REFUSED}:
            raise CompileFailed(f"reading the module failed: the process {child_process.describe(response.status)}")
        with gc_paused():  # a collection visits a hundred thousand declarations, and holds all threads meanwhile
            value = PieceReader(memoryview(response.answer)[1:]).read()
        if outcome == reader_process.REFUSED:
            kind, message = value
            raise getattr(errors, kind)(message)
        return value


def _is_short(size_bytes: int) -> bool:
    return size_bytes <= HERE_BYTES or sys.platform == "win32"  # without limits on a process
