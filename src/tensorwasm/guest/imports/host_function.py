"""Host functions as data: what an import is, and what it sees of the guest that called it.

Import rooms (`tensorwasm.guest.imports`) make tables of `HostFunction`; the engine turns them into trampolines. A body
takes the call and the Wasm parameters and returns the Wasm result. It may raise: a `TensorWasmError` ends the guest's
call with that very error, anything else with `InternalError`; results and errors are never mixed up between threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from tensorwasm.guest.imports.suspension import Steps
from tensorwasm.values import Deadline

ValType = Literal["i32", "i64", "f32", "f64"]


class LinearMemory(Protocol):
    """The guest's exported ``memory`` during one host call. Never kept: growing may move its end."""

    @property
    def address(self) -> int:
        """Host address of byte 0, constant for the instance's life."""

    @property
    def size_bytes(self) -> int:
        """Current size."""

    def read(self, offset: int, length: int) -> bytes:
        """Return a copy of a region.

        Raises:
            InvalidPointer: part of it lies outside, or a number is negative.
        """

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Copy bytes into a region.

        Raises:
            InvalidPointer: part of it lies outside, or a number is negative.
        """

    def view(self, offset: int, length: int) -> memoryview:
        """Return a writable window on a region, valid until the host call returns.

        Raises:
            InvalidPointer: part of it lies outside, or a number is negative.
        """


class OutputTaker(Protocol):
    """An output stream of a guest.

    Attributes:
        truncated: the guest wrote more than was taken.
    """

    truncated: bool

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
    def memory(self) -> LinearMemory:
        """The guest's memory.

        Raises:
            InvalidPointer: the guest exports no memory named ``memory``.
        """

    @property
    def deadline(self) -> Deadline:
        """When the guest's current call must have ended."""

    @property
    def wasi(self) -> WasiStreams | None:
        """The guest's standard output and clock, None without WASI."""

    def service(self, name: str) -> object | None:
        """Return what the caller attached to the instance under that name (``cuda``, ``input``, ``stream``), or None.

        A service that is None was not granted.
        """


@dataclass(frozen=True, slots=True)
class HostFunction:
    """One import.

    Attributes:
        module: import module, such as ``wasi:cuda/host@0.2.0``.
        name: import field.
        params: Wasm parameter types. i32 and i64 arrive as signed Python integers, as Wasm has them.
        results: none or one.
        body: called as ``body(call, *params)``.
        waits: it may wait for a device, or for time to pass.
        steps: does the same in steps, called as ``steps(call, *params)``, for a guest that runs as a fiber; where there
            are none, the body is called on another thread.
        finish: steps that wait for what the compiled form of the function has started, called as ``finish(call)``.
    """

    module: str
    name: str
    params: tuple[ValType, ...]
    results: tuple[ValType, ...]
    body: Callable[..., int | float | None]
    waits: bool = False
    steps: Callable[..., Steps] | None = None
    finish: Callable[[HostCall], Steps] | None = None
