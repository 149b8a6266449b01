"""Host functions as data: what an import is, and what it sees of the guest that called it.

The linker turns each `HostFunction` into a trampoline. A body takes the call and the Wasm parameters and returns the
Wasm result. A `TensorWasmError` that it raises ends the guest's call as it is, anything else with `InternalError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tensorwasm.guest.imports.suspension import Steps
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.guest.memory.linear_memory import GuestMemory

ValType = Literal["i32", "i64", "f32", "f64"]


class OutputTaker(Protocol):
    """An output stream of a guest."""

    truncated: bool
    """Whether the guest wrote more than was taken."""

    def take(self, chunk: bytes) -> bool:
        """Take a chunk, or as much of it as the stream's limit allows; return whether all of it was taken."""


class WasiStreams(Protocol):
    """What host functions see of a guest's WASI state."""

    @property
    def stdout(self) -> OutputTaker:
        """Standard output."""

    @property
    def stderr(self) -> OutputTaker:
        """Standard error."""

    @property
    def clock_origin_ns(self) -> int:
        """``time.monotonic_ns()`` when the guest's monotonic clock was at 0."""


class HostCall(Protocol):
    """One call from a guest into the host; valid until the body returns."""

    @property
    def memory(self) -> GuestMemory:
        """The guest's memory. Raises `InvalidPointer` if the guest exports no memory named ``memory``."""

    @property
    def deadline(self) -> Deadline:
        """When the guest's current call must have ended."""

    @property
    def wasi(self) -> WasiStreams | None:
        """The guest's standard output and clock, None without WASI."""

    def check(self) -> None:
        """Raise if the guest must not go on, because its deadline has passed or it was cancelled."""

    def service(self, name: str) -> object | None:
        """Return what the caller attached to the instance (``cuda``, ``input``, ``stream``), None if not granted."""


@dataclass(frozen=True, slots=True)
class HostFunction:
    """One import.

    Attributes:
        module: import module, such as ``wasi:cuda/host@0.2.0``.
        name: import field.
        params: Wasm types; i32 and i64 arrive as signed Python integers.
        results: none or one; several only for sandboxes that are no fibers.
        body: called as ``body(call, *params)``; returns a tuple for several results.
        waits: whether it may wait for a device, or for time to pass.
        steps: the same in steps, for a guest on a fiber; without them the body is called on another thread.
        finish: steps that wait for work which the compiled form has started, called as ``finish(call)``.
    """

    module: str
    name: str
    params: tuple[ValType, ...]
    results: tuple[ValType, ...]
    body: Callable[..., Any]
    waits: bool = False
    steps: Callable[..., Steps] | None = None
    finish: Callable[[HostCall], Steps] | None = None
