"""Kernels: loading, launching, unloading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tensorwasm.errors import InvalidArgs, InvalidKernel, InvalidPointer, KernelArgsUnsupported, QuotaExceeded
from tensorwasm.gpu.device.arguments import Argument
from tensorwasm.guest.imports.abi import MAX_ENTRY_NAME_BYTES, MAX_KERNEL_ARGS_BYTES, MAX_PTX_BYTES
from tensorwasm.guest.imports.argv import Arg, parse_argv, resolve_args
from tensorwasm.guest.imports.cuda.grant import CudaService, answering, memory_of, u32, u64
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.values import LaunchConfig, Region

Parse = Callable[[bytes], tuple[Arg, ...]]

_OWN_STREAM: Final = 0


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
    if session.layout is not None and session.layout.staged:
        session.kernels.finish_staged(memory_of(call), call.deadline)
    else:
        session.streams.synchronize(call.deadline, stream=_OWN_STREAM)


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
