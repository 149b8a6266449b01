"""Mistakes of callers of a sandbox or a device, and refused keys and sealed files."""

from __future__ import annotations

from tensorwasm.errors.base import CallerError


class InvalidWasm(CallerError, kind="invalid_wasm"):
    """The module is not valid under the enabled proposals."""


class UnsupportedProposal(InvalidWasm, kind="unsupported_proposal"):
    """The module uses a disabled WebAssembly proposal; the message names it and an alternative."""


class ModuleTooLarge(CallerError, kind="module_too_large", http_status=413):
    """The module has more bytes, or declares more of something, than the limit."""


class ModuleMemoryTooLarge(CallerError, kind="module_memory_too_large", http_status=413):
    """The module declares more memory, or more state of every sandbox, than the limit."""


class StdinTooLarge(CallerError, kind="stdin_too_large", http_status=413):
    """Standard input has more bytes than the limit."""


class CompileFailed(CallerError, kind="compile_failed", http_status=422):
    """The compiler crashed on the module or exceeded a limit; the message has the module's hash."""


class CompileTimeout(CompileFailed, kind="compile_timeout"):
    """Compiling the module took too long; this time is not part of the guest's own."""


class CompileMemory(CompileFailed, kind="compile_memory"):
    """Compiling the module needs more memory than the limit in the message."""


class UnknownImport(CallerError, kind="unknown_import"):
    """The module imports a host function that does not exist."""


class MissingExport(CallerError, kind="missing_export"):
    """The module has no exported function of that name."""


class InvalidArgs(CallerError, kind="invalid_args"):
    """Arguments do not match the export's signature."""


class MalformedPtx(CallerError, kind="malformed_ptx"):
    """PTX text has a syntax error or is inconsistent.

    Attributes:
        line: of the fault, from 1; 0 if unknown.
        column: of the fault, from 1; 0 if unknown.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(f"{line}:{column}: {message}" if line else message)
        self.line = line
        self.column = column


class UnsupportedPtx(MalformedPtx, kind="unsupported_ptx"):
    """Valid PTX uses a feature that the device lacks; the message names it."""


class KernelTooLarge(UnsupportedPtx, kind="kernel_too_large"):
    """A kernel takes more of a device that tenants share than a guarded kernel may; the message names the limit."""


class InvalidKernel(CallerError, kind="invalid_kernel"):
    """There is no such kernel or entry."""


class InvalidDimensions(CallerError, kind="invalid_dimensions"):
    """The geometry of a launch is outside the limits."""


class InvalidKernelArgs(CallerError, kind="invalid_kernel_args"):
    """Arguments do not match the kernel's parameters."""


class KernelArgsUnsupported(CallerError, kind="kernel_args_unsupported"):
    """A launch has too many arguments, or a parameter that argv cannot express."""


class InvalidPointer(CallerError, kind="invalid_pointer"):
    """A region is outside linear memory."""


class InvalidHandle(CallerError, kind="invalid_handle"):
    """There is no such device buffer, stream, event or graph."""


class LaunchRefused(CallerError, kind="launch_failed"):
    """A pointer argument of a kernel is not the caller's, or misaligned; the kernel was not launched."""


class NotSupported(CallerError, kind="not_supported"):
    """A kind of memory or a device does not support the operation; the message names both."""


class NotCapturable(CallerError, kind="not_capturable", http_status=409):
    """Live state cannot be saved; the message says what and why. It continues unchanged."""


class InvalidSnapshot(CallerError, kind="invalid_snapshot"):
    """A saved state is inconsistent, or does not match its target. Nothing was restored."""


class ArtifactNotFound(CallerError, kind="artifact_not_found", http_status=404):
    """The tenant has no such artifact or name; other tenants' do not count."""


class ArtifactInUse(CallerError, kind="artifact_in_use", http_status=409):
    """A name or another artifact still refers to the artifact."""


class TooLarge(CallerError, kind="too_large", http_status=413):
    """A request for memory exceeds what is possible: ``requested_bytes`` and ``limit_bytes``."""

    def __init__(self, requested_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{requested_bytes} bytes at once: at most {limit_bytes}")
        self.requested_bytes = requested_bytes
        self.limit_bytes = limit_bytes


class InvalidKey(CallerError, kind="invalid_key"):
    """A key has the wrong length, kind or format. The message does not contain it."""


class SealRefused(CallerError, kind="snapshot_refused"):
    """A sealed file is refused, without decompressing or parsing its content."""


class NotSealed(SealRefused, kind="snapshot_malformed"):
    """The file is not a sealed file, or its header is inconsistent."""


class UnknownVersion(SealRefused, kind="snapshot_version_unknown"):
    """This release does not read the file's version."""


class Unsigned(SealRefused, kind="snapshot_unsigned", http_status=403):
    """The file has no signature, and unsigned files are not allowed."""


class UnknownKey(SealRefused, kind="snapshot_key_unknown", http_status=403):
    """The file is signed or encrypted with a key that is not on the ring; the message has its id."""


class WrongKeyKind(SealRefused, kind="snapshot_key_kind", http_status=403):
    """The file names a key of the ring, and a signature method of another kind of key."""


class SignatureInvalid(SealRefused, kind="snapshot_signature_invalid", http_status=403):
    """The signature is not valid under the key that the file names."""


class Damaged(SealRefused, kind="snapshot_damaged"):
    """The file was cut, extended or changed after it was signed."""


class WrongContent(SealRefused, kind="snapshot_content_kind"):
    """The file has another kind of content."""


class WrongModule(SealRefused, kind="snapshot_module_mismatch", http_status=409):
    """The file belongs to another module."""


class WrongParent(SealRefused, kind="snapshot_parent_mismatch", http_status=409):
    """The parent of an incremental snapshot is missing, another one, or too far up the chain."""
