"""The functions of ``wasi:cuda/host``: kernels, device memory, streams, events, graphs, and questions.

A body decodes its parameters, copies what lies in guest memory, and calls the session, which checks everything that
could harm a device. `grant` turns refusals into codes. Stream 0 is the instance's own: it always exists, and calls
without a stream use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tensorwasm.errors import InvalidArgs, InvalidKernel, InvalidPointer, KernelArgsUnsupported, QuotaExceeded
from tensorwasm.gpu.device.arguments import Argument, HostWindow
from tensorwasm.gpu.device.limits import MAX_BLOCK_THREADS
from tensorwasm.guest.imports.abi import (
    CUDA_MODULE,
    CUDA_MODULE_0_1,
    CUDA_MODULE_0_3,
    MAX_ENTRY_NAME_BYTES,
    MAX_KERNEL_ARGS_BYTES,
    MAX_PTX_BYTES,
    Code,
    DeviceAttribute,
)
from tensorwasm.guest.imports.argv import Arg, WindowArg, locate, parse_argv, resolve_args
from tensorwasm.guest.imports.cuda.grant import CudaService, answering, granted, memory_of, u32, u64, whole
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.values import DeviceInfo, LaunchConfig, Region

Parse = Callable[[bytes], tuple[Arg, ...]]
_Bodies = dict[str, Callable[..., int]]
OWN_STREAM: Final = 0
_WARP_LANES: Final = 32

_ATTRIBUTES: Final[Mapping[int, Callable[[DeviceInfo], int]]] = {
    DeviceAttribute.KIND: lambda info: int(info.kind == "cuda"),
    DeviceAttribute.COMPUTE_CAPABILITY_MAJOR: lambda info: info.compute_capability[0],
    DeviceAttribute.COMPUTE_CAPABILITY_MINOR: lambda info: info.compute_capability[1],
    DeviceAttribute.PTX_ISA_MAJOR: lambda info: info.ptx_version[0],
    DeviceAttribute.PTX_ISA_MINOR: lambda info: info.ptx_version[1],
    DeviceAttribute.MULTIPROCESSORS: lambda info: info.multiprocessors,
    DeviceAttribute.MEMORY_BYTES: lambda info: info.memory_bytes,
    DeviceAttribute.MAX_SHARED_BYTES_PER_BLOCK: lambda info: info.max_shared_bytes,
    DeviceAttribute.MAX_THREADS_PER_BLOCK: lambda _info: MAX_BLOCK_THREADS,
    DeviceAttribute.WARP_SIZE: lambda _info: _WARP_LANES,
    DeviceAttribute.CONCURRENT_MANAGED_ACCESS: lambda info: int(info.concurrent_managed_access),
}


@answering
def load_ptx(call: HostCall, service: CudaService, ptx_ptr: int, ptx_len: int, entry_ptr: int, entry_len: int) -> int:
    """Load a kernel; return its id."""
    if ptx_len < 0:
        raise InvalidPointer(f"the PTX has {ptx_len} bytes")
    if ptx_len > MAX_PTX_BYTES:
        raise QuotaExceeded(f"{ptx_len} bytes of PTX: at most {MAX_PTX_BYTES}")
    if not 0 <= entry_len <= MAX_ENTRY_NAME_BYTES:
        raise QuotaExceeded(f"{entry_len} bytes of entry name: at most {MAX_ENTRY_NAME_BYTES}")
    text = call.memory.read(u32(ptx_ptr), ptx_len)
    try:
        entry = call.memory.read(u32(entry_ptr), entry_len).decode()
    except UnicodeDecodeError as error:
        raise InvalidArgs(f"the entry name is not UTF-8: {error.reason}") from None
    return service.session.kernels.load(text, entry, call.deadline)


@answering
def unload(call: HostCall, service: CudaService, kernel_id: int) -> None:
    """Release a kernel."""
    service.session.kernels.unload(_known(kernel_id), call.deadline)


@answering
def launch_async(call: HostCall, service: CudaService, *numbers: int) -> None:
    """Start a kernel, given the parameters of `decode` and a stream."""
    launch = decode(parse_argv, call, *numbers[:-1])
    service.session.kernels.submit(*launch, call.deadline, stream=u64(numbers[-1]))


def _waiting_launch(parse: Parse) -> Callable[..., int]:
    """Return the launch of an interface version whose argument records are parsed like this."""

    @answering
    def launch(call: HostCall, service: CudaService, *numbers: int) -> None:
        service.session.kernels.launch(*decode(parse, call, *numbers), call.deadline)

    return launch


@answering
def finish_started(call: HostCall, service: CudaService) -> None:
    """Wait for a launch or a copy that compiled code has started, and copy back the windows of a staged launch."""
    session = service.session
    if session.pad is not None and session.pad.staged:
        session.kernels.finish_staged(memory_of(call), call.deadline)
    else:
        session.streams.synchronize(call.deadline, stream=OWN_STREAM)


def decode(
    parse: Parse,
    call: HostCall,
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
) -> tuple[int, LaunchConfig, Callable[[], Sequence[Argument]], Region]:
    """Return a session's launch parameters, but the deadline. Argument records are copied now and parsed later."""
    memory = call.memory
    # One byte past the limit is enough to see that there are too many.
    argv = bytes(memory.view(u32(args_ptr), u32(args_len))[: MAX_KERNEL_ARGS_BYTES + 1])
    region = Region(memory.address, memory.size_bytes, host=True)
    config = LaunchConfig((grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared_bytes)
    return _known(kernel_id), config, lambda: resolve_args(parse(argv), region.address, region.size_bytes), region


def _known(kernel_id: int) -> int:
    if kernel_id < 0:
        raise InvalidKernel(f"no kernel {kernel_id}")
    return kernel_id


def refuse_argv(argv: bytes) -> tuple[Arg, ...]:
    """Return no argument records, as 0.1.0 has none; raise `KernelArgsUnsupported` if there are any."""
    if argv:
        raise KernelArgsUnsupported("wasi:cuda/host@0.1.0 has no kernel arguments: import @0.2.0")
    return ()


launch: Final = _waiting_launch(parse_argv)
launch_0_1: Final = _waiting_launch(refuse_argv)


# ------------------------------------------------------------------------------------------------- device memory


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


# --------------------------------------------------------------------------------------- streams, events, graphs


@answering
def sync(call: HostCall, service: CudaService) -> None:
    """Wait for all work of the instance."""
    service.session.streams.synchronize(call.deadline)


@answering
def stream_create(_call: HostCall, service: CudaService) -> int:
    """Open a stream; return its number."""
    return service.session.streams.open()


@answering
def stream_destroy(call: HostCall, service: CudaService, stream: int) -> None:
    """Wait for a stream's work and close it."""
    service.session.streams.close(u64(stream), call.deadline)


@answering
def stream_sync(call: HostCall, service: CudaService, stream: int) -> None:
    """Wait for a stream's work."""
    service.session.streams.synchronize(call.deadline, stream=u64(stream))


@answering
def stream_query(_call: HostCall, service: CudaService, stream: int) -> int:
    """Return 0 if a stream's work has ended, 1 if not."""
    return int(not service.session.streams.ended(u64(stream)))


@answering
def event_create(_call: HostCall, service: CudaService) -> int:
    """Open an event; return its number."""
    return service.session.events.open()


@answering
def event_destroy(_call: HostCall, service: CudaService, event: int) -> None:
    """Close an event."""
    service.session.events.close(u64(event))


@answering
def event_record(_call: HostCall, service: CudaService, event: int, stream: int) -> None:
    """Record an event behind a stream's work so far."""
    service.session.events.record(u64(event), u64(stream))


@answering
def stream_wait_event(_call: HostCall, service: CudaService, stream: int, event: int) -> None:
    """Put a stream's next work behind an event."""
    service.session.events.wait(u64(stream), u64(event))


@answering
def event_sync(call: HostCall, service: CudaService, event: int) -> None:
    """Wait for the work before an event."""
    service.session.events.synchronize(u64(event), call.deadline)


@answering
def event_query(_call: HostCall, service: CudaService, event: int) -> int:
    """Return 0 if the work before an event has ended, 1 if not."""
    return int(not service.session.events.reached(u64(event)))


@answering
def graph_begin(_call: HostCall, service: CudaService, stream: int) -> None:
    """Begin to record a stream."""
    service.session.graphs.begin(u64(stream))


@answering
def graph_end(_call: HostCall, service: CudaService, stream: int) -> int:
    """End recording; return the graph's number."""
    return service.session.graphs.end(u64(stream))


@answering
def graph_launch(call: HostCall, service: CudaService, graph: int, stream: int) -> None:
    """Start everything that a graph holds."""
    service.session.graphs.replay(u64(graph), memory_of(call), call.deadline, stream=u64(stream))


@answering
def graph_destroy(call: HostCall, service: CudaService, graph: int) -> None:
    """Wait for replays of a graph and release it."""
    service.session.graphs.close(u64(graph), call.deadline)


# ----------------------------------------------------------------------------------------------------- questions


@answering
def device_attribute(_call: HostCall, service: CudaService, attribute: int) -> int:
    """Return a property of the device."""
    read = _ATTRIBUTES.get(attribute)
    if read is None:
        raise InvalidArgs(f"no device attribute {attribute}")
    return read(service.session.info)


@answering
def device_name(call: HostCall, service: CudaService, dst_ptr: int, dst_len: int) -> int:
    """Copy the device's name."""
    return _copy_text(call, service.session.info.name.encode(), dst_ptr, dst_len)


def last_error_len(call: HostCall) -> int:
    """Return the length of the last failure's text."""
    service = granted(call)
    return Code.NOT_AVAILABLE if service is None else len(service.last_error)


def last_error_copy(call: HostCall, dst_ptr: int, dst_len: int) -> int:
    """Copy the last failure's text. A failure to do so is not recorded: it would replace that text."""
    service = granted(call)
    if service is None:
        return Code.NOT_AVAILABLE
    try:
        return _copy_text(call, service.last_error, dst_ptr, dst_len)
    except InvalidPointer:
        return Code.INVALID_POINTER


def _copy_text(call: HostCall, text: bytes, dst_ptr: int, dst_len: int) -> int:
    """Copy as much of a text as fits a region of guest memory; return how many bytes. The whole region is checked."""
    kept = text[: u32(dst_len)]
    if kept:
        call.memory.view(u32(dst_ptr), u32(dst_len))[: len(kept)] = kept
    return len(kept)


def _by_field(*bodies: Callable[..., int]) -> _Bodies:
    return {f"wasi_cuda_{body.__name__}": body for body in bodies}


_0_2: Final = _by_field(
    load_ptx, launch, sync, last_error_len, last_error_copy, alloc, free, memcpy_h2d, memcpy_d2h
)  # fmt: skip
_0_3: Final = _0_2 | _by_field(
    launch_async, unload, memcpy_h2d_async, memcpy_d2h_async,
    stream_create, stream_destroy, stream_sync, stream_query, stream_wait_event,
    event_create, event_destroy, event_record, event_sync, event_query,
    graph_begin, graph_end, graph_launch, graph_destroy,
    device_attribute, device_name,
)  # fmt: skip

BODIES: Final[Mapping[str, _Bodies]] = {
    CUDA_MODULE_0_3: _0_3,
    CUDA_MODULE: _0_2,
    CUDA_MODULE_0_1: _0_2 | _by_field(launch_0_1),
}
"""Bodies by import module and field, which is the body's name after ``wasi_cuda_``."""
