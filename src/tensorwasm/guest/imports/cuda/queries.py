"""Properties of the device, and the text of the last failure, which these functions never change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tensorwasm.errors import InvalidArgs, InvalidPointer
from tensorwasm.gpu.device.limits import MAX_BLOCK_THREADS
from tensorwasm.guest.imports.abi import Code, DeviceAttribute
from tensorwasm.guest.imports.cuda.grant import CudaService, answering, granted, u32
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.values import DeviceInfo

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
