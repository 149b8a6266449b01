"""Host function calls of suspended guests: looked up by number, run off the guest's fiber."""

from __future__ import annotations

import ctypes
import struct
from functools import partial
from typing import Any, Final

from tensorwasm.errors import InvalidPointer
from tensorwasm.gpu.native.layout import Wait
from tensorwasm.guest.engine import capi
from tensorwasm.guest.imports.host_function import HostCall, HostFunction
from tensorwasm.guest.imports.suspension import Steps, Suspension, SuspensionCode, SuspensionKind, elsewhere
from tensorwasm.guest.memory.linear_memory import GuestMemory
from tensorwasm.guest.native.structures import Entry, make_environment
from tensorwasm.guest.sandbox.state import GuestState
from tensorwasm.guest.sandbox.wasi_io import WasiState
from tensorwasm.values import Deadline

# A cell is 16 bytes, whatever its type.
READ: Final = {"i32": "i12x", "i64": "q8x", "f32": "f12x", "f64": "d8x"}
WRITE: Final[dict[str, Any]] = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}
_NO_RESULT: Final = 0
_NO_POLLING_NS: Final = 0  # the emulator's answer may be long in coming, and other guests wait for the thread
_memory_name: Final = ctypes.create_string_buffer(b"memory")


class SuspendedCall:
    """The `HostCall` of a suspended guest. Valid until the guest goes on; any one thread may use it."""

    __slots__ = ("_state", "_wait")

    def __init__(self, state: GuestState, wait: Wait) -> None:
        self._state = state
        self._wait = wait

    @property
    def memory(self) -> GuestMemory:
        """The guest's memory; raises as `GuestState.memory` does."""
        wait = self._wait
        if not wait.memory_at:
            raise InvalidPointer("the guest exports no memory named 'memory'")
        return GuestMemory(0, b"", (wait.memory_at, wait.memory_bytes))

    @property
    def deadline(self) -> Deadline:
        """When the guest's current call must have ended."""
        return self._state.deadline

    @property
    def wasi(self) -> WasiState | None:
        """Output streams and clock, None without WASI."""
        return self._state.wasi

    def check(self) -> None:
        """Raise what `GuestState.check` raises."""
        self._state.check()

    def service(self, name: str) -> object | None:
        """Return what the caller attached under that name, or None."""
        return self._state.service(name)


class WaitingFunction:
    """A host function that may wait, as an asynchronous function of wasmtime.

    ``address`` is of its `Suspension`, valid as long as this; ``label`` is for messages.
    """

    __slots__ = ("_environment", "_finish", "_result", "_size", "_steps", "_suspension", "_unpack", "address", "label")

    def __init__(self, function: HostFunction, number: int, code: SuspensionCode, entry: Entry | None) -> None:
        """Prepare the function with that number in its linker; ``entry`` is its compiled form."""
        self.label = f"host function {function.module}.{function.name}"
        self._steps = function.steps or partial(elsewhere, function.body)
        self._finish = function.finish or partial(elsewhere, entry.finish if entry and entry.finish else _nothing)
        self._unpack = struct.Struct("<" + "".join(READ[kind] for kind in function.params)).unpack_from
        self._size = capi.CELL_BYTES * len(function.params)
        self._result = WRITE[function.results[0]] if function.results else None
        self._environment = make_environment(code.note_call, code.note_finish, _NO_POLLING_NS)
        self._suspension = Suspension(
            function=number,
            result=capi.VALUE_KINDS[function.results[0]] if function.results else _NO_RESULT,
            environment=ctypes.addressof(self._environment),
            fast=entry.address if entry is not None else 0,
            ready=code.ready,
            caller_export_get=capi.address_of("wasmtime_caller_export_get"),
            memory_name=ctypes.addressof(_memory_name),
        )
        self.address = ctypes.addressof(self._suspension)

    def begin(self, state: GuestState, wait: Wait) -> Steps:
        """Return the steps of a guest's call, none of them taken yet."""
        call = SuspendedCall(state, wait)
        if wait.kind == SuspensionKind.FINISH:
            return self._finish(call)
        return self._steps(call, *self._unpack(wait.cells)) if self._size else self._steps(call)

    def answer(self, wait: Wait, value: float | None) -> None:
        """Write the result to where wasmtime expects it; the guest may go on."""
        if self._result is not None:
            self._result.from_address(wait.results_at + capi.VALUE_PAYLOAD_OFFSET).value = value
        wait.kind, wait.done = SuspensionKind.NOTHING, 1


def _nothing(_call: HostCall) -> int:
    return 0
