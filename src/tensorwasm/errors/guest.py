"""What guests and their kernels do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tensorwasm.errors.base import GuestError


class Frame(NamedTuple):
    """One function on a guest's stack when it trapped.

    Attributes:
        function: its index in the module.
        name: what the module's name section calls it; empty without one.
        offset: byte of the module where its instruction is.
        file: source file of the instruction, as the module's debug information has it; empty without any.
        line: its line there, from 1; 0 without one.
    """

    function: int
    name: str
    offset: int
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = f", {self.file}:{self.line}" if self.line else ""
        return f"{self.name or f'function {self.function}'} (function {self.function}, byte {self.offset:#x}{where})"


class GuestTrap(GuestError):
    """A Wasm trap.

    Attributes:
        trap: stable name of the trap, such as ``unreachable`` or ``memory_out_of_bounds``.
        find_lines: adds source lines to a backtrace; None where there are none, or once it was done.
    """

    kind = "wasmtime"
    exit_code = 134
    find_lines: Callable[[tuple[Frame, ...]], tuple[Frame, ...]] | None = None
    _stack: tuple[Frame, ...] = ()

    def __init__(self, message: str, trap: str = "") -> None:
        """Remember the trap's stable name."""
        super().__init__(message)
        self.trap = trap

    @property
    def backtrace(self) -> tuple[Frame, ...]:
        """The guest's stack, innermost first, as far as it is known: at most 20 functions.

        Source lines are looked up when it is first read, which can take a second where the module has many.
        """
        find_lines = self.find_lines
        if find_lines is not None:
            self.find_lines = None
            self._stack = find_lines(self._stack)
        return self._stack

    @backtrace.setter
    def backtrace(self, stack: tuple[Frame, ...]) -> None:
        self._stack = stack


class GuestExit(GuestError):
    """The guest called ``proc_exit`` with a code other than 0.

    Attributes:
        code: the guest's exit code, 1 to 255.
    """

    kind = "guest_exit"

    def __init__(self, code: int, stdout: bytes = b"", stderr: bytes = b"") -> None:
        """Remember the code, and what the guest had written."""
        super().__init__(f"the guest exited with code {code}")
        self.code = code
        if stdout or stderr:
            self.stdout, self.stderr = stdout, stderr


class ModelOutputInvalid(GuestError):
    """A function that serves as a model answered with what is not of the protocol; the message says what."""

    kind = "model_output_invalid"


class KernelFault(GuestError):
    """A kernel broke a rule while it ran: the message has thread, instruction and address."""

    kind = "kernel_fault"


class InvokeTimeout(GuestError):
    """The deadline passed before the guest or its kernel finished."""

    kind = "invoke_timeout"
    http_status = 504
    exit_code = 124
