"""What a launch is checked for before any device sees it: geometry, and every argument against its parameter.

Source: PTX ISA 7.1 (kernel function parameters), 11.4 (performance-tuning directives); rule 5 of
`docs/safety-rules.md`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Final, NamedTuple

from tensorwasm.errors import InvalidDimensions, InvalidHandle, InvalidKernelArgs, KernelArgsUnsupported, LaunchRefused
from tensorwasm.gpu.device.limits import (
    MAX_BLOCK_THREADS,
    MAX_BLOCK_THREADS_PER_AXIS,
    MAX_DYNAMIC_SHARED_BYTES,
    MAX_GRID_BLOCKS_PER_AXIS,
)
from tensorwasm.values import DeviceInfo, KernelParam, KernelSignature, LaunchConfig, Region

_ADDRESS = attrgetter("address")


class RegionTable:
    """Disjoint regions, sorted by address. Replaced as a whole at each change, so that any thread may read it."""

    def __init__(self) -> None:
        self._regions: tuple[Region, ...] = ()

    def add(self, region: Region) -> None:
        """Add a region that overlaps none in the table."""
        at = bisect_right(self._regions, region.address, key=_ADDRESS)
        self._regions = (*self._regions[:at], region, *self._regions[at:])

    def remove(self, region: Region) -> None:
        """Remove a region that is in the table."""
        at = bisect_right(self._regions, region.address, key=_ADDRESS) - 1
        if at < 0 or self._regions[at] != region:
            raise ValueError(f"{region} is not in the table")
        self._regions = self._regions[:at] + self._regions[at + 1 :]

    def clear(self) -> None:
        """Remove all regions."""
        self._regions = ()

    def contains(self, address: int, length_bytes: int = 1) -> bool:
        """Return whether one region holds the whole range; an empty range counts as its first byte."""
        at = bisect_right(self._regions, address, key=_ADDRESS)
        return at > 0 and address + max(length_bytes, 1) <= self._regions[at - 1].end

    def snapshot(self) -> tuple[Region, ...]:
        """Return all regions, by address."""
        return self._regions


POINTER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value: 4 or 8 little-endian bytes."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the parameter it fits."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class HostWindow:
    """A range of the guest's linear memory, already checked against its size.

    Attributes:
        address: host address of the first byte.
        length_bytes: bytes the kernel is given; 0 gives it nothing.
    """

    size_bytes: ClassVar[int] = POINTER_BYTES
    address: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class BufferOffset:
    """An offset in a device buffer, whose handle is from `SessionBuffers.allocate`."""

    size_bytes: ClassVar[int] = POINTER_BYTES
    handle: int
    offset_bytes: int


Argument = Scalar | HostWindow | BufferOffset


class GeometryRule(NamedTuple):
    """A range that a measure of a geometry is in, and what is said of one that is not."""

    least: int
    most: int
    message: str


GEOMETRY_RULES: Final = (
    GeometryRule(1, MAX_BLOCK_THREADS_PER_AXIS, "block {0.block}: each axis takes 1 to {1} threads"),
    GeometryRule(1, MAX_GRID_BLOCKS_PER_AXIS, "grid {0.grid}: each axis takes 1 to {1} blocks"),
    GeometryRule(0, MAX_DYNAMIC_SHARED_BYTES, "{0.shared_bytes} bytes of dynamic shared memory: at most 228 KiB"),
    GeometryRule(1, MAX_BLOCK_THREADS, "block {0.block} has more than {1} threads"),
)
"""The limits of the ABI, for every device, in the order in which they are checked."""

_BLOCK, _GRID, _SHARED, _THREADS = GEOMETRY_RULES
_RULE_OF_MEASURE: Final = (*(_BLOCK,) * 3, *(_GRID,) * 3, _SHARED, _THREADS)


def check_geometry(config: LaunchConfig) -> None:
    """Check a geometry against `GEOMETRY_RULES`.

    Raises:
        InvalidDimensions: it breaks one.
    """
    measures = (*config.block, *config.grid, config.shared_bytes, math.prod(config.block))
    for (least, most, message), measure in zip(_RULE_OF_MEASURE, measures, strict=True):
        if not least <= measure <= most:
            raise InvalidDimensions(message.format(config, most))


def check_fit(config: LaunchConfig, signature: KernelSignature, info: DeviceInfo) -> None:
    """Check a geometry against what the kernel declares and the device has.

    Raises:
        InvalidDimensions: the kernel does not take this block, or the device lacks the shared memory.
    """
    if signature.required_block is not None and config.block != signature.required_block:
        raise InvalidDimensions(f"{signature.entry} requires a block of {signature.required_block}")
    if math.prod(config.block) > signature.max_threads:
        raise InvalidDimensions(f"{signature.entry} takes at most {signature.max_threads} threads in a block")
    shared_bytes = config.shared_bytes + signature.static_shared_bytes
    if shared_bytes > info.max_shared_bytes:
        raise InvalidDimensions(f"{shared_bytes} bytes of shared memory: {info.name} has {info.max_shared_bytes}")


def bind(
    signature: KernelSignature, arguments: Sequence[Argument], buffers: Mapping[int, Region], regions: RegionTable
) -> tuple[bytes, ...]:
    """Return the packed value of each parameter.

    Args:
        signature: of the kernel.
        arguments: in declaration order.
        buffers: the session's buffers by handle.
        regions: everything the session owns, the guest's registered memory included.

    Raises:
        InvalidKernelArgs: their number, or the size of one, is not the kernel's.
        KernelArgsUnsupported: the kernel has a parameter that no argument can fill.
        InvalidHandle: no such buffer.
        LaunchRefused: an address that is not the session's, or misaligned for its use.
    """
    if len(arguments) != len(signature.params):
        raise InvalidKernelArgs(
            f"{signature.entry} takes {len(signature.params)} arguments, {len(arguments)} were given"
        )
    return tuple(_pack(*pair, buffers, regions) for pair in zip(signature.params, arguments, strict=True))


def _pack(param: KernelParam, argument: Argument, buffers: Mapping[int, Region], regions: RegionTable) -> bytes:
    if not param.scalar or param.size_bytes not in (4, 8) or (param.pointer and param.size_bytes != POINTER_BYTES):
        raise KernelArgsUnsupported(f"parameter {param.name} of {param.size_bytes} bytes cannot be passed as a record")
    if argument.size_bytes != param.size_bytes:
        raise InvalidKernelArgs(
            f"parameter {param.name} has {param.size_bytes} bytes, its argument {argument.size_bytes}"
        )
    if isinstance(argument, Scalar) and not param.pointer:
        return argument.data
    address = _resolve(param, argument, buffers, regions)
    if param.pointer and address % param.access_align_bytes:
        raise LaunchRefused(f"parameter {param.name}: the kernel needs {param.access_align_bytes}-byte alignment")
    return address.to_bytes(POINTER_BYTES, "little")


def _resolve(param: KernelParam, argument: Argument, buffers: Mapping[int, Region], regions: RegionTable) -> int:
    match argument:
        case BufferOffset(handle, offset_bytes):
            if handle not in buffers:
                raise InvalidHandle(f"parameter {param.name}: no device buffer {handle}")
            # Checked against its own buffer: another one may begin where this one ends.
            if offset_bytes >= buffers[handle].size_bytes:
                raise LaunchRefused(f"parameter {param.name}: offset {offset_bytes} is past the end of buffer {handle}")
            return buffers[handle].address + offset_bytes
        case HostWindow(address, length_bytes):
            if not length_bytes and not regions.contains(address):
                return 0  # an empty window at the very end: no byte to reach, so a null pointer
        case Scalar(data):
            address, length_bytes = int.from_bytes(data, "little"), 1
    if not regions.contains(address, length_bytes):
        raise LaunchRefused(f"parameter {param.name} is used as a pointer, and its value is no memory of this guest")
    return address
