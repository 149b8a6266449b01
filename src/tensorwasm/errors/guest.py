"""Errors caused by guests and their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tensorwasm.errors.base import GuestError


class Frame(NamedTuple):
    """One function on a guest's stack when it trapped.

    Attributes:
        function: index in the module.
        name: from the module's name section; empty without one.
        offset: byte of the module at which the instruction is.
        file: source file of the instruction from the module's debug information; empty without any.
        line: in that file, from 1; 0 if unknown.
    """

    function: int
    name: str
    offset: int
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = f", {self.file}:{self.line}" if self.line else ""
        return f"{self.name or f'function {self.function}'} (function {self.function}, byte {self.offset:#x}{where})"


class GuestTrap(GuestError, kind="wasmtime", exit_code=134):
    """A Wasm trap.

    Attributes:
        trap: stable name of the trap, such as ``unreachable`` or ``memory_out_of_bounds``.
        find_lines: adds source lines to a backtrace; None without lines, or once it was called.
    """

    find_lines: Callable[[tuple[Frame, ...]], tuple[Frame, ...]] | None = None
    _stack: tuple[Frame, ...] = ()

    def __init__(self, message: str, trap: str = "") -> None:
        super().__init__(message)
        self.trap = trap

    @property
    def backtrace(self) -> tuple[Frame, ...]:
        """The guest's stack, innermost first, at most 20 functions.

        The first access looks the source lines up, which can take a second for a module with many.
        """
        find_lines = self.find_lines
        if find_lines is not None:
            self.find_lines = None
            self._stack = find_lines(self._stack)
        return self._stack

    @backtrace.setter
    def backtrace(self, stack: tuple[Frame, ...]) -> None:
        self._stack = stack


class GuestExit(GuestError, kind="guest_exit"):
    """The guest called ``proc_exit`` with a code from 1 to 255."""

    def __init__(self, code: int, stdout: bytes = b"", stderr: bytes = b"") -> None:
        super().__init__(f"the guest exited with code {code}")
        self.code = code
        if stdout or stderr:
            self.stdout, self.stderr = stdout, stderr


class ModelOutputInvalid(GuestError, kind="model_output_invalid"):
    """The output of a function that serves as a model violates the protocol; the message says how."""


class KernelFault(GuestError, kind="kernel_fault"):
    """A running kernel violated a rule; the message has thread, instruction and address."""


class InvokeTimeout(GuestError, kind="invoke_timeout", http_status=504, exit_code=124):
    """The deadline passed before the guest or its kernel finished."""
