"""What callers of a sandbox or a device ask for in vain."""

from __future__ import annotations

from tensorwasm.errors.base import CallerError


class InvalidWasm(CallerError):
    """Not a valid module under the enabled proposals."""

    kind = "invalid_wasm"


class UnsupportedProposal(InvalidWasm):
    """The module uses a proposal of WebAssembly that is off; the message names it and says what to do instead."""

    kind = "unsupported_proposal"


class ModuleTooLarge(CallerError):
    """The module has more bytes, or more of something that it declares, than the limit."""

    kind = "module_too_large"
    http_status = 413


class ModuleMemoryTooLarge(CallerError):
    """The module declares more memory, or more that every sandbox must keep, than the limit."""

    kind = "module_memory_too_large"
    http_status = 413


class StdinTooLarge(CallerError):
    """Standard input has more bytes than the limit."""

    kind = "stdin_too_large"
    http_status = 413


class CompileFailed(CallerError):
    """The compiler crashed on the module, or took more than it may; the message names the module by its hash."""

    kind = "compile_failed"
    http_status = 422


class CompileTimeout(CompileFailed):
    """Compiling the module took longer than it may: apart from the guest's own time, which begins after that."""

    kind = "compile_timeout"


class CompileMemory(CompileFailed):
    """Compiling the module takes more memory than it may; the message says how much that is."""

    kind = "compile_memory"


class UnknownImport(CallerError):
    """The module imports a host function that does not exist."""

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
