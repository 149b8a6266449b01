"""The grant of CUDA to an instance, and what surrounds every body: the grant, the session's health, the codes.

A refusal answers a `tensorwasm.guest.imports.abi.Code` and records its text. Other errors (the deadline, a lost device,
a bug) end the guest's call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec

from tensorwasm.errors import (
    DeviceUnavailable,
    InternalError,
    InvalidArgs,
    InvalidDimensions,
    InvalidHandle,
    InvalidKernel,
    InvalidKernelArgs,
    InvalidPointer,
    KernelArgsUnsupported,
    KernelFault,
    LaunchRefused,
    LimitError,
    MalformedPtx,
    TensorWasmError,
)
from tensorwasm.gpu.device.port import MAX_KERNEL_OUTPUT_BYTES
from tensorwasm.guest.imports.abi import MAX_RECORDED_ERROR_BYTES, Code
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.guest.imports.suspension import Steps
from tensorwasm.values import Region

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session

SERVICE: Final = "cuda"
"""Name under which the caller attaches a `CudaService` to an instance."""

CODES: Final[dict[type[TensorWasmError], Code]] = {
    DeviceUnavailable: Code.NOT_AVAILABLE,
    InvalidPointer: Code.INVALID_POINTER,
    InvalidKernel: Code.INVALID_KERNEL,
    MalformedPtx: Code.MALFORMED_PTX,
    LaunchRefused: Code.LAUNCH_FAILED,
    KernelFault: Code.LAUNCH_FAILED,
    LimitError: Code.QUOTA_EXCEEDED,
    InvalidDimensions: Code.INVALID_DIMENSIONS,
    InvalidArgs: Code.INVALID_ARGS,
    InvalidKernelArgs: Code.INVALID_ARGS,
    KernelArgsUnsupported: Code.KERNEL_ARGS_UNSUPPORTED,
    InvalidHandle: Code.INVALID_HANDLE,
}
"""Errors, subclasses included, that answer a code. Every other error ends the guest's call."""

_ELLIPSIS: Final = "…"
_CUT: Final = f"tensor-wasm: kernels printed more than {MAX_KERNEL_OUTPUT_BYTES} bytes; the rest is lost\n".encode()
_P = ParamSpec("_P")


class CudaService:
    """A grant of CUDA to one instance, whose session its maker closes before the guest's pages go."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.last_error = b""

    def record(self, message: str) -> None:
        """Keep the text of a failure, cut to 512 bytes at a character's end, with an ellipsis."""
        text = message.encode("utf-8", "replace")
        if len(text) > MAX_RECORDED_ERROR_BYTES:
            kept = text[: MAX_RECORDED_ERROR_BYTES - len(_ELLIPSIS.encode())]
            text = (kept.decode("utf-8", "ignore") + _ELLIPSIS).encode()
        self.last_error = text


def granted(call: HostCall) -> CudaService | None:
    """Return the grant of the calling instance, None without one."""
    service = call.service(SERVICE)
    if service is not None and not isinstance(service, CudaService):
        raise InternalError("the service cuda is not a CudaService")
    return service


def answering(
    body: Callable[Concatenate[HostCall, CudaService, _P], int | None],
) -> Callable[Concatenate[HostCall, _P], int]:
    """Add the grant, the session's health and the table of codes to a body; one that returns nothing answers 0."""

    @functools.wraps(body)
    def answer(call: HostCall, /, *params: _P.args, **named: _P.kwargs) -> int:
        service = _usable(call)
        if isinstance(service, Code):
            return service
        try:
            return body(call, service, *params, **named) or 0
        except tuple(CODES) as error:
            return _refuse(service, error)
        finally:
            _show_output(call, service)

    return answer


def answering_in_steps(
    steps: Callable[Concatenate[HostCall, CudaService, _P], Steps],
) -> Callable[Concatenate[HostCall, _P], Steps]:
    """Add the same to the steps of a function that waits."""

    @functools.wraps(steps)
    def answer(call: HostCall, /, *params: _P.args, **named: _P.kwargs) -> Steps:
        service = _usable(call)
        if isinstance(service, Code):
            return service
        try:
            return (yield from steps(call, service, *params, **named))
        except tuple(CODES) as error:
            return _refuse(service, error)
        finally:
            _show_output(call, service)

    return answer


def _usable(call: HostCall) -> CudaService | Code:
    """Return the grant, or the code for none or for a session that has failed."""
    service = granted(call)
    if service is None:
        return Code.NOT_AVAILABLE
    if service.session.failure is not None:
        service.record(f"an earlier failure ended this guest's use of the GPU: {service.session.failure}")
        return Code.INTERNAL
    return service


def _refuse(service: CudaService, error: TensorWasmError) -> Code:
    service.record(error.message)
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def _show_output(call: HostCall, service: CudaService) -> None:
    """Write what kernels have printed to the guest's standard output, and a note to standard error if it was cut."""
    text, cut = service.session.kernels.take_output()
    if text and call.wasi is not None:
        call.wasi.stdout.take(text)
        if cut:
            call.wasi.stdout.truncated = True
            call.wasi.stderr.take(_CUT)


def memory_of(call: HostCall) -> Region:
    """Return the guest's memory as it is now."""
    memory = call.memory
    return Region(memory.address, memory.size_bytes, host=True)


def u32(value: int) -> int:
    """Read a Wasm i32 as unsigned."""
    return value & 0xFFFF_FFFF


def u64(value: int) -> int:
    """Read a Wasm i64 as unsigned."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


def whole(low: int, high: int) -> int:
    """Join the halves of an unsigned 64-bit number."""
    return u32(high) << 32 | u32(low)
