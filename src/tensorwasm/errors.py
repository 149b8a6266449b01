"""Every error this package raises, in one tree.

::

    TensorWasmError
    ├── CallerError              the caller's mistake: retrying unchanged cannot help
    │   ├── InvalidWasm          not a valid module under the enabled proposals
    │   ├── ModuleTooLarge       more bytes than the limit
    │   ├── ModuleMemoryTooLarge declares more memory than the limit
    │   ├── CompileFailed        the compiler crashed on the module, or took more than it may
    │   ├── UnknownImport        asks for a host function that does not exist or was not granted
    │   ├── MissingExport        no such exported function
    │   ├── InvalidArgs          arguments do not fit the export's signature
    │   ├── MalformedPtx         PTX text that does not parse or is inconsistent (line, column)
    │   │   └── UnsupportedPtx   valid PTX that asks for what the device lacks (named)
    │   ├── InvalidKernel        no such kernel or entry
    │   ├── InvalidDimensions    a launch geometry outside the limits
    │   ├── InvalidKernelArgs    arguments do not fit the kernel's parameters
    │   ├── KernelArgsUnsupported  more arguments than a launch may carry, or a shape argv cannot express
    │   ├── InvalidPointer       a region outside linear memory
    │   ├── InvalidHandle        no such device buffer, stream, event or graph
    │   ├── LaunchRefused        a pointer that is not the caller's, or misaligned: the device never saw it
    │   ├── NotSupported         this kind of memory, or this device, cannot do that
    │   ├── NotCapturable        what is live and cannot be saved, by name
    │   ├── InvalidSnapshot      a saved state that contradicts itself or what it is restored into
    │   ├── ArtifactNotFound     no such artifact of this tenant, or no such name
    │   ├── ArtifactInUse        a name or another artifact still leads to it
    │   ├── TooLarge             more memory at once than there can be (requested, limit)
    │   ├── InvalidKey           no such key: wrong length, kind or text
    │   └── SealRefused          a sealed file that is not taken: nothing in it was decompressed or parsed
    │       ├── NotSealed        no sealed file, or one whose header contradicts itself
    │       ├── UnknownVersion   of a version that this release does not read
    │       ├── Unsigned         has no signature, and nobody asked for that
    │       ├── UnknownKey       signed or encrypted under a key that is not on the ring
    │       ├── WrongKeyKind     names a key of the ring, which is of another kind
    │       ├── SignatureInvalid  the signature is not that key's
    │       ├── Damaged          signed, and then cut, lengthened or changed
    │       ├── WrongContent     holds something else
    │       ├── WrongModule      belongs to another module
    │       └── WrongParent      adds to a snapshot that is not there, is another one, or is too far down a chain
    ├── GuestError               the guest program's own doing
    │   ├── GuestTrap            a Wasm trap
    │   ├── GuestExit            proc_exit with a code other than 0
    │   ├── KernelFault          a kernel broke a rule while running (thread, instruction, address)
    │   └── InvokeTimeout        the deadline passed
    ├── LimitError               refused for now by a quota or a full pool
    │   ├── QuotaExceeded        over a quota
    │   └── CapacityExhausted    no free slot in the pool
    └── HostError                this machine or this program
        ├── DeviceUnavailable    no such device here, and why
        ├── DeviceLost           the device stopped answering; the worker must be replaced
        │   └── DeviceFault      a worker process went down with its device; another takes its place
        ├── TickerNotRunning     deadlines cannot be kept, so nothing is started
        ├── OutputClosed         nobody takes what is written any more
        ├── ArtifactCorrupt      what was stored is not what was put; it is never given out
        ├── StoreUnavailable     the place where artifacts are kept does not answer, or has no room
        ├── SigningNotConfigured  there is no key that signs, or none that encrypts
        ├── UnsafeFile           a file or folder that must be this user's alone is not
        ├── EngineMismatch       the installed wasmtime is not the one this release is written for
        └── InternalError        a bug here
"""

from __future__ import annotations

from typing import ClassVar


class TensorWasmError(Exception):
    """Base of the tree.

    Attributes:
        kind: stable identifier, part of the contract; messages are not.
        http_status: status the HTTP edge answers with.
        exit_code: code the command line exits with.
        retryable: whether the same request may succeed if it is made again. It may have had effects already: only its
            maker knows whether they may happen twice, so nothing here tries again unasked.
    """

    kind: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        """The text for people, without the kind."""
        return str(self.args[0]) if self.args else self.kind


class CallerError(TensorWasmError):
    """The caller's mistake: retrying unchanged cannot help."""

    kind = "invalid_request"
    http_status = 400
    exit_code = 2


class InvalidWasm(CallerError):
    """Not a valid module under the enabled proposals."""

    kind = "invalid_wasm"


class ModuleTooLarge(CallerError):
    """The module has more bytes than the limit."""

    kind = "module_too_large"
    http_status = 413


class ModuleMemoryTooLarge(CallerError):
    """The module declares more memory than the limit."""

    kind = "module_memory_too_large"
    http_status = 413


class CompileFailed(CallerError):
    """The compiler crashed on the module, or took more than it may; the message names it by its hash."""

    kind = "compile_failed"
    http_status = 422


class UnknownImport(CallerError):
    """The module imports a host function that does not exist or was not granted."""

    kind = "unknown_import"


class MissingExport(CallerError):
    """No exported function of that name."""

    kind = "missing_export"


class InvalidArgs(CallerError):
    """Arguments do not fit the export's signature."""

    kind = "invalid_args"


class MalformedPtx(CallerError):
    """PTX text that does not parse or is inconsistent.

    Attributes:
        line: 1-based line of the fault, 0 if it has none.
        column: 1-based column, 0 if it has none.
    """

    kind = "malformed_ptx"

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        """Remember where the fault is; the text says it too."""
        super().__init__(f"{line}:{column}: {message}" if line else message)
        self.line = line
        self.column = column


class UnsupportedPtx(MalformedPtx):
    """Valid PTX that asks for something the device lacks; the message names it."""

    kind = "unsupported_ptx"


class InvalidKernel(CallerError):
    """No such kernel or entry."""

    kind = "invalid_kernel"


class InvalidDimensions(CallerError):
    """A launch geometry outside the limits."""

    kind = "invalid_dimensions"


class InvalidKernelArgs(CallerError):
    """Arguments do not fit the kernel's parameters."""

    kind = "invalid_kernel_args"


class KernelArgsUnsupported(CallerError):
    """More arguments than a launch may carry, or a parameter shape that argv cannot express."""

    kind = "kernel_args_unsupported"


class InvalidPointer(CallerError):
    """A region outside linear memory."""

    kind = "invalid_pointer"


class InvalidHandle(CallerError):
    """No such device buffer, stream, event or graph."""

    kind = "invalid_handle"


class LaunchRefused(CallerError):
    """A kernel argument is a pointer that is not the caller's, or misaligned. The device never saw it."""

    kind = "launch_failed"


class NotSupported(CallerError):
    """This kind of memory, or this device, cannot do that; the message names both."""

    kind = "not_supported"


class NotCapturable(CallerError):
    """Something that is live cannot be saved; the message names it and says why. It goes on as before."""

    kind = "not_capturable"
    http_status = 409


class InvalidSnapshot(CallerError):
    """A saved state contradicts itself, or does not fit what it is restored into. Nothing of it was restored."""

    kind = "invalid_snapshot"


class ArtifactNotFound(CallerError):
    """This tenant has no such artifact, or no such name; another's are the same as none."""

    kind = "artifact_not_found"
    http_status = 404


class ArtifactInUse(CallerError):
    """A name or another artifact still leads to it, so it stays."""

    kind = "artifact_in_use"
    http_status = 409


class TooLarge(CallerError):
    """More memory at once than there can be.

    Attributes:
        requested_bytes: asked for.
        limit_bytes: the most there can be.
    """

    kind = "too_large"
    http_status = 413

    def __init__(self, requested_bytes: int, limit_bytes: int) -> None:
        """Remember both; the text says them too."""
        super().__init__(f"{requested_bytes} bytes at once: at most {limit_bytes}")
        self.requested_bytes = requested_bytes
        self.limit_bytes = limit_bytes


class InvalidKey(CallerError):
    """No such key: it has the wrong length, is of another kind, or is not written as one. The message never has it."""

    kind = "invalid_key"


class SealRefused(CallerError):
    """A sealed file is not taken. Nothing in it was decompressed or parsed."""

    kind = "snapshot_refused"


class NotSealed(SealRefused):
    """This is no sealed file, or its header contradicts itself."""

    kind = "snapshot_malformed"


class UnknownVersion(SealRefused):
    """The file is of a version that this release does not read."""

    kind = "snapshot_version_unknown"


class Unsigned(SealRefused):
    """The file has no signature, and nobody asked for files without."""

    kind = "snapshot_unsigned"
    http_status = 403


class UnknownKey(SealRefused):
    """The file is signed or encrypted under a key that is not on the ring; the message has its id."""

    kind = "snapshot_key_unknown"
    http_status = 403


class WrongKeyKind(SealRefused):
    """The file names a key of the ring, and another way of signing than that key's."""

    kind = "snapshot_key_kind"
    http_status = 403


class SignatureInvalid(SealRefused):
    """The signature is not that of the key that the file names."""

    kind = "snapshot_signature_invalid"
    http_status = 403


class Damaged(SealRefused):
    """The file was cut, lengthened or changed after it had been signed."""

    kind = "snapshot_damaged"


class WrongContent(SealRefused):
    """The file holds another kind of content."""

    kind = "snapshot_content_kind"


class WrongModule(SealRefused):
    """The file belongs to another module."""

    kind = "snapshot_module_mismatch"
    http_status = 409


class WrongParent(SealRefused):
    """The snapshot adds to another one, which is not there, is not that one, or is too far down a chain."""

    kind = "snapshot_parent_mismatch"
    http_status = 409


class GuestError(TensorWasmError):
    """The guest program's own doing.

    Attributes:
        stdout: what the guest had written until then, where that was captured.
        stderr: likewise.
    """

    stdout: bytes = b""
    stderr: bytes = b""

    kind = "wasm_error"
    http_status = 500


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


class KernelFault(GuestError):
    """A kernel broke a rule while it ran: the message has thread, instruction and address."""

    kind = "kernel_fault"


class InvokeTimeout(GuestError):
    """The deadline passed before the guest or its kernel finished."""

    kind = "invoke_timeout"
    http_status = 504
    exit_code = 124


class LimitError(TensorWasmError):
    """Refused for now; the same request may succeed later."""

    kind = "capacity_exhausted"
    http_status = 429
    retryable = True


class QuotaExceeded(LimitError):
    """Over a quota."""

    kind = "quota_exceeded"


class CapacityExhausted(LimitError):
    """No free slot in the pool."""

    kind = "capacity_exhausted"
    http_status = 503


class HostError(TensorWasmError):
    """This machine or this program."""

    kind = "internal"


class DeviceUnavailable(HostError):
    """There is no such device here; the message says why and what to do."""

    kind = "device_unavailable"
    http_status = 503
    exit_code = 4


class DeviceLost(HostError):
    """The device stopped answering; nothing on it can be trusted any more.

    Attributes:
        stdout: what the guest had written until then, as far as that is known.
        stderr: likewise.
    """

    stdout: bytes = b""
    stderr: bytes = b""

    kind = "device_lost"
    http_status = 503
    exit_code = 4
    retryable = True


class DeviceFault(DeviceLost):
    """A worker process went down with its device while it had the request; another worker takes its place."""

    def __init__(self, message: str) -> None:
        """Say what happened, and that the request may be made again."""
        super().__init__(f"{message}; the worker is replaced: the request may be tried again")


class TickerNotRunning(HostError):
    """Deadlines cannot be kept, so nothing is started."""

    kind = "epoch_ticker_not_running"


class OutputClosed(HostError):
    """Nobody takes what is written any more: the reader has gone, or the disk is full."""

    kind = "output_closed"


class ArtifactCorrupt(HostError):
    """What was stored is not what was put, or is gone. It is never given out, and putting it again mends it."""

    kind = "artifact_corrupt"


class StoreUnavailable(HostError):
    """The place where artifacts are kept does not answer, refuses or has no room; the message says which."""

    kind = "store_unavailable"
    http_status = 503
    retryable = True


class SigningNotConfigured(HostError):
    """There is no key that signs, or none that encrypts, where one was asked for."""

    kind = "snapshot_signing_not_configured"
    http_status = 503


class UnsafeFile(HostError):
    """A file or folder that must be this user's alone is not; the message says why and what to do."""

    kind = "unsafe_file"


class EngineMismatch(HostError):
    """The installed wasmtime is not the one this release is written for."""

    kind = "engine_mismatch"


class InternalError(HostError):
    """A bug here."""
