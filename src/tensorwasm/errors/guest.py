"""What guests and their kernels do."""

from __future__ import annotations

from tensorwasm.errors.base import GuestError


class GuestTrap(GuestError):
    """A Wasm trap.

    Attributes:
        trap: stable name of the trap, such as ``unreachable`` or ``memory_out_of_bounds``.
    """

    kind = "wasmtime"

    def __init__(self, message: str, trap: str = "") -> None:
        """Remember the trap's stable name."""
        super().__init__(message)
        self.trap = trap


class GuestExit(GuestError):
    """The guest called ``proc_exit`` with a code other than 0.

    Attributes:
        code: the guest's exit code, 1 to 255.
    """

    kind = "guest_exit"

    def __init__(self, code: int) -> None:
        """Remember the code."""
        super().__init__(f"the guest exited with code {code}")
        self.code = code


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
