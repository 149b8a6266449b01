"""``wasi:cuda/host``: kernels and device memory for guests.

A body decodes its parameters, copies what lies in guest memory, and asks the session; everything that could harm a
device is checked there. Refusals become the codes of `tensorwasm.guest.imports.abi.Code` and leave their text behind.
What no code can answer ends the guest's call as the error it is: the deadline, a device that was lost, a bug here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec

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
    QuotaExceeded,
    TensorWasmError,
)
from tensorwasm.gpu.session import Session
from tensorwasm.guest.hostfunc import HostCall
from tensorwasm.guest.imports.abi import (
    MAX_ENTRY_NAME_BYTES,
    MAX_KERNEL_ARGS_BYTES,
    MAX_PTX_BYTES,
    MAX_RECORDED_ERROR_BYTES,
    Code,
)
from tensorwasm.guest.imports.argv import Arg, parse_argv, resolve_args
from tensorwasm.values import LaunchConfig, Region

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


def _granted(call: HostCall) -> CudaService | None:
    service = call.service(SERVICE)
    if service is not None and not isinstance(service, CudaService):
        raise InternalError("the service cuda is not a CudaService")
    return service


def _answering(body: _Body[_P]) -> Callable[Concatenate[HostCall, _P], int]:
    """Put the grant, the health of the session and the table of codes around a body."""

    @functools.wraps(body)
    def answer(call: HostCall, /, *params: _P.args, **named: _P.kwargs) -> int:
        service = _granted(call)
        if service is None:
            return Code.NOT_AVAILABLE
        if service.session.failure is not None:
            service.record(f"an earlier failure ended this guest's use of the GPU: {service.session.failure}")
            return Code.INTERNAL
        try:
            return body(call, service, *params, **named)
        except tuple(CODES) as error:
            service.record(error.message)
            return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)

    return answer


@_answering
def load_ptx(call: HostCall, service: CudaService, ptx_ptr: int, ptx_len: int, entry_ptr: int, entry_len: int) -> int:
    """Load a kernel; return its id."""
    if ptx_len < 0:
        raise InvalidPointer(f"the PTX has {ptx_len} bytes")
    if ptx_len > MAX_PTX_BYTES:
        raise QuotaExceeded(f"{ptx_len} bytes of PTX: at most {MAX_PTX_BYTES}")
    if not 0 <= entry_len <= MAX_ENTRY_NAME_BYTES:
        raise QuotaExceeded(f"{entry_len} bytes of entry name: at most {MAX_ENTRY_NAME_BYTES}")
    text = call.memory.read(_u32(ptx_ptr), ptx_len)
    try:
        entry = call.memory.read(_u32(entry_ptr), entry_len).decode()
    except UnicodeDecodeError as error:
        raise InvalidArgs(f"the entry name is not UTF-8: {error.reason}") from None
    return service.session.load(text, entry, call.deadline)


def _launch(
    parse: Callable[[bytes], tuple[Arg, ...]],
    call: HostCall,
    service: CudaService,
    kernel_id: int,
    grid_x: int,
    grid_y: int,
    grid_z: int,
    block_x: int,
    block_y: int,
    block_z: int,
    shared_bytes: int,
    args_ptr: int,
    args_len: int,
) -> int:
    memory = call.memory
    # One byte past the limit is enough to see that there are too many.
    argv = bytes(memory.view(_u32(args_ptr), _u32(args_len))[: MAX_KERNEL_ARGS_BYTES + 1])
    if kernel_id < 0:
        raise InvalidKernel(f"no kernel {kernel_id}")
    service.session.launch(
        kernel_id,
        LaunchConfig((grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared_bytes),
        lambda: resolve_args(parse(argv), memory.address, memory.size_bytes),
        Region(memory.address, memory.size_bytes, host=True),
        call.deadline,
    )
    return 0


def _refuse_argv(argv: bytes) -> tuple[Arg, ...]:
    if argv:
        raise KernelArgsUnsupported("wasi:cuda/host@0.1.0 has no kernel arguments: import @0.2.0")
    return ()


launch: Final = _answering(functools.partial(_launch, parse_argv))
launch_0_1: Final = _answering(functools.partial(_launch, _refuse_argv))


@_answering
def sync(call: HostCall, service: CudaService) -> int:
    """Wait for the instance's work."""
    service.session.synchronize(call.deadline)
    return 0


def last_error_len(call: HostCall) -> int:
    """Return the length of the last failure's text."""
    service = _granted(call)
    return Code.NOT_AVAILABLE if service is None else len(service.last_error)


def last_error_copy(call: HostCall, dst_ptr: int, dst_len: int) -> int:
    """Copy the last failure's text; a failure to do so is not recorded, or it would replace what was asked for."""
    service = _granted(call)
    if service is None:
        return Code.NOT_AVAILABLE
    text = service.last_error[: _u32(dst_len)]
    if not text:
        return 0
    try:
        call.memory.view(_u32(dst_ptr), _u32(dst_len))[: len(text)] = text
    except InvalidPointer:
        return Code.INVALID_POINTER
    return len(text)


@_answering
def alloc(_call: HostCall, service: CudaService, size_lo: int, size_hi: int) -> int:
    """Allocate device memory; return its handle."""
    return service.session.allocate(_u64(size_lo, size_hi))


@_answering
def free(call: HostCall, service: CudaService, handle_lo: int, handle_hi: int) -> int:
    """Release device memory."""
    service.session.free(_u64(handle_lo, handle_hi), call.deadline)
    return 0


@_answering
def memcpy_h2d(call: HostCall, service: CudaService, handle_lo: int, handle_hi: int, src_ptr: int, length: int) -> int:
    """Copy guest memory to device memory."""
    data = call.memory.view(_u32(src_ptr), _u32(length))
    service.session.write(_u64(handle_lo, handle_hi), data, call.deadline)
    return 0


@_answering
def memcpy_d2h(call: HostCall, service: CudaService, dst_ptr: int, handle_lo: int, handle_hi: int, length: int) -> int:
    """Copy device memory to guest memory."""
    into = call.memory.view(_u32(dst_ptr), _u32(length))
    service.session.read(_u64(handle_lo, handle_hi), into, call.deadline)
    return 0


BODIES: Final[dict[str, Callable[..., int]]] = {
    "wasi_cuda_load_ptx": load_ptx,
    "wasi_cuda_launch": launch,
    "wasi_cuda_sync": sync,
    "wasi_cuda_last_error_len": last_error_len,
    "wasi_cuda_last_error_copy": last_error_copy,
    "wasi_cuda_alloc": alloc,
    "wasi_cuda_free": free,
    "wasi_cuda_memcpy_h2d": memcpy_h2d,
    "wasi_cuda_memcpy_d2h": memcpy_d2h,
}
"""Bodies by import field, for 0.2.0."""

BODIES_0_1: Final[dict[str, Callable[..., int]]] = {**BODIES, "wasi_cuda_launch": launch_0_1}
"""The same for 0.1.0, whose launch takes no arguments."""


def _u32(value: int) -> int:
    """Read a Wasm i32 as the unsigned number that offsets and lengths are."""
    return value & 0xFFFF_FFFF


def _u64(low: int, high: int) -> int:
    return _u32(high) << 32 | _u32(low)
