"""Device buffers, and copies between them and guest memory."""

from __future__ import annotations

from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.guest.imports.argv import WindowArg, locate
from tensorwasm.guest.imports.cuda.grant import CudaService, answering, memory_of, u32, u64, whole
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.values import Region


@answering
def alloc(_call: HostCall, service: CudaService, size_lo: int, size_hi: int) -> int:
    """Allocate device memory; return its handle."""
    return service.session.buffers.allocate(whole(size_lo, size_hi))


@answering
def free(call: HostCall, service: CudaService, handle_lo: int, handle_hi: int) -> None:
    """Release device memory."""
    service.session.buffers.free(whole(handle_lo, handle_hi), call.deadline)


@answering
def memcpy_h2d(call: HostCall, service: CudaService, handle_lo: int, handle_hi: int, src_ptr: int, length: int) -> None:
    """Copy guest memory to device memory."""
    data = call.memory.view(u32(src_ptr), u32(length))
    service.session.buffers.write(whole(handle_lo, handle_hi), data, call.deadline, memory=memory_of(call))


@answering
def memcpy_d2h(call: HostCall, service: CudaService, dst_ptr: int, handle_lo: int, handle_hi: int, length: int) -> None:
    """Copy device memory to guest memory."""
    into = call.memory.view(u32(dst_ptr), u32(length))
    service.session.buffers.read(whole(handle_lo, handle_hi), into, call.deadline, memory=memory_of(call))


@answering
def memcpy_h2d_async(
    call: HostCall, service: CudaService, handle: int, offset_bytes: int, src_ptr: int, length: int, stream: int
) -> None:
    """Start copying guest memory to device memory."""
    window, memory = _window(call, src_ptr, length)
    service.session.buffers.copy_in(u64(handle), u64(offset_bytes), window, memory, call.deadline, stream=u64(stream))


@answering
def memcpy_d2h_async(
    call: HostCall, service: CudaService, dst_ptr: int, handle: int, offset_bytes: int, length: int, stream: int
) -> None:
    """Start copying device memory to guest memory."""
    window, memory = _window(call, dst_ptr, length)
    service.session.buffers.copy_out(window, memory, u64(handle), u64(offset_bytes), call.deadline, stream=u64(stream))


def _window(call: HostCall, offset: int, length: int) -> tuple[HostWindow, Region]:
    """Return a checked window of guest memory, and the memory."""
    memory = memory_of(call)
    return locate(WindowArg(u32(offset), u32(length)), memory.address, memory.size_bytes), memory
