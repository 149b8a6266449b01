"""The root of the tree, its four branches by cause, and the errors of guests, limits, and this machine or program."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple

MAX_MESSAGE: Final = 2000
"""Longest message of an error, in characters."""

MAX_NAME: Final = 80
"""Longest quoted name in a message, in characters: a guest, a module or a client may have chosen it."""


def plain(text: str, most: int = MAX_MESSAGE) -> str:
    """Return a text from outside, such as a name or path, as one line of at most ``most`` characters for messages.

    Characters that do not print are escaped, so that the line is safe on a terminal and in a log.
    """
    if len(text) > most:
        text = text[: most - 1] + "…"
    if text.isprintable():
        return text
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def quote(name: str) -> str:
    """Return a name from outside in quotation marks, for messages."""
    return repr(plain(name, MAX_NAME))


def quote_all(names: tuple[str, ...] | list[str], most: int = 10) -> str:
    """Return the first names of a list, for messages."""
    shown = ", ".join(plain(name, MAX_NAME) for name in names[:most])
    return f"{shown}, ..." if len(names) > most else shown


class TensorWasmError(Exception):
    """Base of the tree.

    Attributes:
        kind: stable identifier, part of the contract; messages are not.
        http_status: of the HTTP response.
        exit_code: of the command line.
        retryable: whether the same request may succeed later. It may have had effects already, and only the caller
            knows whether these may happen twice; so nothing here retries on its own.
        offload: what became of the loops of the guest that it ended, a `tensorwasm.values.OffloadUse`; None if they
            were not to run elsewhere.
    """

    kind: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    offload: object = None

    def __init_subclass__(
        cls,
        *,
        kind: str | None = None,
        http_status: int | None = None,
        exit_code: int | None = None,
        retryable: bool | None = None,
    ) -> None:
        """Set the attributes that are given in the head of a subclass; it inherits the others."""
        super().__init_subclass__()
        given = {"kind": kind, "http_status": http_status, "exit_code": exit_code, "retryable": retryable}
        for name, value in given.items():
            if value is not None:
                setattr(cls, name, value)

    def __init__(self, *args: object) -> None:
        super().__init__(*(plain(each) if isinstance(each, str) else each for each in args))

    @property
    def message(self) -> str:
        """The text for people, without the kind."""
        return str(self.args[0]) if self.args else self.kind


class CallerError(TensorWasmError, kind="invalid_request", http_status=400, exit_code=2):
    """The caller's mistake: an unchanged retry cannot succeed."""


class GuestError(TensorWasmError, kind="wasm_error", http_status=500):
    """Caused by the guest program; ``stdout`` and ``stderr`` are what it had written, if that was captured."""

    stdout: bytes = b""
    stderr: bytes = b""


class LimitError(TensorWasmError, kind="capacity_exhausted", http_status=429, retryable=True):
    """Refused for now; the same request may succeed later."""


class HostError(TensorWasmError, kind="internal"):
    """Caused by this machine or this program."""


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


class QuotaExceeded(LimitError, kind="quota_exceeded"):
    """A quota is exceeded."""


class CapacityExhausted(LimitError, kind="capacity_exhausted", http_status=503):
    """There is no free capacity."""


class DeviceUnavailable(HostError, kind="device_unavailable", http_status=503, exit_code=4):
    """There is no such device; the message says why and what to do."""


class DeviceLost(HostError, kind="device_lost", http_status=503, exit_code=4, retryable=True):
    """The device stopped answering; its state is lost. ``stdout`` and ``stderr`` are the guest's, as far as known."""

    stdout: bytes = b""
    stderr: bytes = b""


class DeviceFault(DeviceLost):
    """A worker process died with its device during the request; another worker replaces it."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; the worker is replaced: the request may be tried again")


class TickerNotRunning(HostError, kind="epoch_ticker_not_running"):
    """Deadlines cannot be enforced, so no guest is started."""


class OutputClosed(HostError, kind="output_closed"):
    """Output cannot be written: the reader is gone, or the disk is full."""


class ArtifactCorrupt(HostError, kind="artifact_corrupt"):
    """A stored artifact is damaged or gone. It is not returned; storing it again repairs it."""


class StoreUnavailable(HostError, kind="store_unavailable", http_status=503, retryable=True):
    """The artifact store does not answer, refuses or is full; the message says which."""


class StorageFull(HostError, kind="storage_full", http_status=503, retryable=True):
    """The data folder cannot be written, or has less free space than its reserve."""


class SigningNotConfigured(HostError, kind="snapshot_signing_not_configured", http_status=503):
    """Signing or encryption was requested, and there is no key for it."""


class SnapshotKeyMissing(HostError, kind="snapshot_key_missing", http_status=503):
    """The key of saved state is missing; the state is readable again once the key is restored."""


class UnsafeFile(HostError, kind="unsafe_file"):
    """A file or folder that must be private is not; the message says why and what to do."""


class EngineMismatch(HostError, kind="engine_mismatch"):
    """The installed wasmtime is not the version that this release requires."""


class InternalError(HostError):
    """A bug in this program."""


class RateLimited(LimitError, kind="rate_limited"):
    """Too many requests; ``retry_after_s`` is the time until the next one may succeed, at least 1."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DatabaseUnavailable(HostError, kind="database_unavailable", http_status=503, retryable=True):
    """The database does not answer, is locked by another process, or is full."""


class DatabaseOwned(DatabaseUnavailable, exit_code=4):
    """Another server has the file of the database."""


class SchemaTooNew(HostError, kind="schema_too_new"):
    """A later release has changed the database's schema; the message has both versions."""


class KernelRegistryNotConfigured(HostError, kind="kernel_registry_not_configured", http_status=503):
    """There is no key for verifying kernels."""


class NotReady(HostError, kind="not_ready", http_status=503, retryable=True):
    """The server has just started, and is still loading compiled functions."""


class Draining(HostError, kind="draining", http_status=503, retryable=True):
    """The server is shutting down and accepts no new requests."""
