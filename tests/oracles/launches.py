"""What a launch has to come to, by the Python that every device's launches go through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fakes.pads import FUNCTION, Started
from tensorwasm.errors import CallerError, InvalidKernelArgs, InvalidPointer, KernelArgsUnsupported
from tensorwasm.gpu.device.arguments import HostWindow, RegionTable, Scalar, bind, check_fit, check_geometry
from tensorwasm.gpu.device.protocols import NativeKernel
from tensorwasm.guest.imports.argv import parse_argv, resolve_args
from tensorwasm.values import DeviceInfo, KernelSignature, LaunchConfig, Region


@dataclass(frozen=True)
class Asked:
    """A launch as a guest asks for it; offsets and lengths are unsigned."""

    config: LaunchConfig
    argv: bytes
    args_at: int
    args_len: int


def judge(
    asked: Asked,
    signature: KernelSignature,
    native: NativeKernel,
    info: DeviceInfo,
    memory: Region,
    reach: Region | None,
    buffers: Mapping[int, Region],
    stream: int,
) -> Started | None:
    """Return what the driver must be given by compiled code, None if that is Python's to decide.

    Python's own checks are run on what the guest wrote. What they refuse, compiled code must leave alone. Of what they
    take, it may leave alone what its documentation says: empty windows, and numbers that are used as addresses.
    """
    if asked.args_len > len(asked.argv) or asked.args_at + asked.args_len > memory.size_bytes:
        return None
    table = RegionTable()
    for region in (*([reach] if reach else []), *buffers.values()):
        table.add(region)
    try:
        check_geometry(asked.config)
        arguments = resolve_args(parse_argv(asked.argv[: asked.args_len]), memory.address, memory.size_bytes)
        check_fit(asked.config, signature, info)
        values = bind(signature, arguments, buffers, table)
    except (CallerError, InvalidKernelArgs, InvalidPointer, KernelArgsUnsupported):
        return None
    if not _fits(asked.config, native):
        return None
    for param, argument in zip(signature.params, arguments, strict=True):
        if isinstance(argument, HostWindow) and not argument.length_bytes:
            return None
        if isinstance(argument, Scalar) and param.pointer:
            return None
    config = asked.config
    return Started(FUNCTION, config.grid, config.block, config.shared_bytes, stream, values)


def _fits(config: LaunchConfig, native: NativeKernel) -> bool:
    axes = zip((*config.grid, *config.block), (*native.max_grid, *native.max_block), strict=True)
    return all(asked <= most for asked, most in axes) and config.shared_bytes <= native.max_dynamic_shared_bytes
