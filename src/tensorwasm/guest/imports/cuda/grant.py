"""The grant of CUDA to an instance, and what stands around every body: the grant, the session's health, the codes.

Refusals become the codes of `tensorwasm.guest.imports.abi.Code` and leave their text behind. What no code can answer
ends the guest's call as the error it is: the deadline, a device that was lost, a bug here.
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
from tensorwasm.gpu.device.output import MAX_KERNEL_OUTPUT_BYTES
from tensorwasm.guest.imports.abi import MAX_RECORDED_ERROR_BYTES, Code
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.guest.imports.suspension import Steps

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
    """A grant of CUDA to one instance.

    Args:
        session: what the instance owns on a device. Whoever made it closes it, before the guest's pages go.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.last_error = b""

    def record(self, message: str) -> None:
        """Remember the text of a failure, cut to 512 bytes at a character's end, with an ellipsis."""
        text = message.encode("utf-8", "replace")
        if len(text) > MAX_RECORDED_ERROR_BYTES:
            kept = text[: MAX_RECORDED_ERROR_BYTES - len(_ELLIPSIS.encode())]
            text = (kept.decode("utf-8", "ignore") + _ELLIPSIS).encode()
        self.last_error = text


_Body = Callable[Concatenate[HostCall, CudaService, _P], int]


def granted(call: HostCall) -> CudaService | None:
    """Return the grant of the instance that calls, None without one."""
    service = call.service(SERVICE)
    if service is not None and not isinstance(service, CudaService):
        raise InternalError("the service cuda is not a CudaService")
    return service


def answering(body: _Body[_P]) -> Callable[Concatenate[HostCall, _P], int]:
    """Put the grant, the health of the session and the table of codes around a body."""

    @functools.wraps(body)
    def answer(call: HostCall, /, *params: _P.args, **named: _P.kwargs) -> int:
        service = granted(call)
        if service is None:
            return Code.NOT_AVAILABLE
        if service.session.failure is not None:
            return _refuse_further(service)
        try:
            return body(call, service, *params, **named)
        except tuple(CODES) as error:
            return _refuse(service, error)
        finally:
            _show_output(call, service)

    return answer


def answering_in_steps(
    steps: Callable[Concatenate[HostCall, CudaService, _P], Steps],
) -> Callable[Concatenate[HostCall, _P], Steps]:
    """Put the same around the steps of a function that waits."""

    @functools.wraps(steps)
    def answer(call: HostCall, /, *params: _P.args, **named: _P.kwargs) -> Steps:
        service = granted(call)
        if service is None:
            return Code.NOT_AVAILABLE
        if service.session.failure is not None:
            return _refuse_further(service)
        try:
            return (yield from steps(call, service, *params, **named))
        except tuple(CODES) as error:
            return _refuse(service, error)
        finally:
            _show_output(call, service)

    return answer


def _show_output(call: HostCall, service: CudaService) -> None:
    """Write what kernels have printed to the guest's standard output, if it has one, and what was lost to the other."""
    text, cut = service.session.kernels.take_output()
    if text and call.wasi is not None:
        call.wasi.stdout.take(text)
        if cut:
            call.wasi.stdout.truncated = True
            call.wasi.stderr.take(_CUT)


def _refuse_further(service: CudaService) -> Code:
    service.record(f"an earlier failure ended this guest's use of the GPU: {service.session.failure}")
    return Code.INTERNAL


def _refuse(service: CudaService, error: TensorWasmError) -> Code:
    service.record(error.message)
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def u32(value: int) -> int:
    """Read a Wasm i32 as the unsigned number that offsets and lengths are."""
    return value & 0xFFFF_FFFF


def u64(value: int) -> int:
    """Read a Wasm i64 as the unsigned number that handles and device offsets are."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


def whole(low: int, high: int) -> int:
    """Join the halves of an unsigned 64-bit number."""
    return u32(high) << 32 | u32(low)
