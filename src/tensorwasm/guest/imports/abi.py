"""The guest ABI: codes, limits, argument records and the rows of functions, which `guest.imports.interfaces` fills in.

``tools/generate_abi.py`` makes the WIT packages (``wit/``), the C header for guests (``guest-sdk/``) and the tables of
``docs/abi.md`` from the two modules, as the linker its host functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from tensorwasm.gpu.device import limits as gpu
from tensorwasm.guest.imports.host_function import ValType
from tensorwasm.values import MIB

Unit = Literal["bytes", "count", "ms"]

CUDA_MODULE_0_3: Final = "wasi:cuda/host@0.3.0"
CUDA_MODULE_0_2: Final = "wasi:cuda/host@0.2.0"
CUDA_MODULE_0_1: Final = "wasi:cuda/host@0.1.0"


class Code(IntEnum):
    """What a function of ``wasi:cuda`` returns instead of a result."""

    NOT_AVAILABLE = -1
    INVALID_POINTER = -2
    INVALID_KERNEL = -3
    MALFORMED_PTX = -4
    LAUNCH_FAILED = -5
    QUOTA_EXCEEDED = -6
    INTERNAL = -7
    INVALID_DIMENSIONS = -8
    INVALID_ARGS = -9
    KERNEL_ARGS_UNSUPPORTED = -10
    INVALID_HANDLE = -11


CODE_DOCS: Final[dict[Code, str]] = {
    Code.NOT_AVAILABLE: "The guest was not granted CUDA, or this host has no device.",
    Code.INVALID_POINTER: "A region is not inside the guest's memory.",
    Code.INVALID_KERNEL: "No such kernel, or the PTX has no such entry.",
    Code.MALFORMED_PTX: "The PTX does not parse, or asks for what the device lacks.",
    Code.LAUNCH_FAILED: "A pointer argument is not the guest's or is misaligned, or the kernel broke a rule.",
    Code.QUOTA_EXCEEDED: "Over a limit, or the GPU is too busy before the deadline.",
    Code.INTERNAL: "An earlier failure has ended the guest's use of the GPU.",
    Code.INVALID_DIMENSIONS: "The geometry is outside the limits of the ABI, the kernel or the device.",
    Code.INVALID_ARGS: "A size of 0, a copy past the end of its buffer, a name that is not UTF-8, an unknown "
    "attribute, kernel arguments that are damaged or do not fit the kernel's parameters, or what is not allowed while "
    "a stream records.",
    Code.KERNEL_ARGS_UNSUPPORTED: "More argument records than a launch may carry, or a parameter no record can fill.",
    Code.INVALID_HANDLE: "No such device buffer, stream, event or graph.",
}
"""What each code means."""


class StreamCode(IntEnum):
    """What a function of ``wasi:tensor`` returns instead of a result."""

    STREAMING_OFF = -1
    REFUSED = -2
    CLIENT_GONE = -3


STREAM_CODE_DOCS: Final[dict[StreamCode, str]] = {
    StreamCode.STREAMING_OFF: "No client listens to this invocation's stream.",
    StreamCode.REFUSED: "The region is not inside the guest's memory, or the chunk is over a limit.",
    StreamCode.CLIENT_GONE: "The client that listened has gone.",
}
"""What each code means."""


class YieldVerdict(IntEnum):
    """What ``yield`` advises."""

    CONTINUE = 0
    DEADLINE_NEAR = 1
    STOP = 2


class DeviceAttribute(IntEnum):
    """What ``device_attribute`` can be asked."""

    KIND = 1
    COMPUTE_CAPABILITY_MAJOR = 2
    COMPUTE_CAPABILITY_MINOR = 3
    PTX_ISA_MAJOR = 4
    PTX_ISA_MINOR = 5
    MULTIPROCESSORS = 6
    MEMORY_BYTES = 7
    MAX_SHARED_BYTES_PER_BLOCK = 8
    MAX_THREADS_PER_BLOCK = 9
    WARP_SIZE = 10
    CONCURRENT_MANAGED_ACCESS = 11


DEVICE_ATTRIBUTE_DOCS: Final[dict[DeviceAttribute, str]] = {
    DeviceAttribute.KIND: "0 for the emulator, 1 for CUDA.",
    DeviceAttribute.COMPUTE_CAPABILITY_MAJOR: "The 9 of sm_90.",
    DeviceAttribute.COMPUTE_CAPABILITY_MINOR: "The 0 of sm_90.",
    DeviceAttribute.PTX_ISA_MAJOR: "Of the newest PTX that the device takes, the 8 of 8.4.",
    DeviceAttribute.PTX_ISA_MINOR: "Likewise, the 4 of 8.4.",
    DeviceAttribute.MULTIPROCESSORS: "How many there are.",
    DeviceAttribute.MEMORY_BYTES: "Bytes of device memory, other guests' included.",
    DeviceAttribute.MAX_SHARED_BYTES_PER_BLOCK: "Bytes of shared memory that a block can have, static and dynamic.",
    DeviceAttribute.MAX_THREADS_PER_BLOCK: "Threads that a block can have.",
    DeviceAttribute.WARP_SIZE: "Threads of a warp.",
    DeviceAttribute.CONCURRENT_MANAGED_ACCESS: "1 if CPU and GPU may touch managed memory at once, else 0.",
}
"""What each returns."""


# ------------------------------------------------------------------------------------------------------ limits

_SESSION: Final = gpu.SessionLimits()
MAX_PTX_BYTES: Final = _SESSION.ptx_bytes
MAX_ENTRY_NAME_BYTES: Final = 256
MAX_RECORDED_ERROR_BYTES: Final = 512
MAX_KERNEL_ARGS: Final = 128
MAX_KERNEL_ARGS_BYTES: Final = 4096
MAX_CHUNK_BYTES: Final = 64 << 10
MAX_TOTAL_STREAM_BYTES: Final = 64 * MIB
YIELD_NEAR_MS: Final = 10
UNBOUNDED_MS: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that guests can run into.

    Attributes:
        name: as in the C header, after ``TW_``.
        value: the largest allowed.
        doc: what it limits.
        answer: the code for exceeding it.
    """

    name: str
    value: int
    unit: Unit
    doc: str
    answer: Code | StreamCode | None


_QUOTA: Final = Code.QUOTA_EXCEEDED
_DIMENSIONS: Final = Code.INVALID_DIMENSIONS
_ARGS: Final = Code.KERNEL_ARGS_UNSUPPORTED

LIMITS: Final = (
    Limit("MAX_PTX_BYTES", MAX_PTX_BYTES, "bytes", "one PTX text", _QUOTA),
    Limit("MAX_TOTAL_PTX_BYTES", _SESSION.total_ptx_bytes, "bytes", "all PTX texts of an instance", _QUOTA),
    Limit("MAX_KERNELS_PER_INSTANCE", _SESSION.kernels, "count", "kernels of an instance", _QUOTA),
    Limit("MAX_ENTRY_NAME_BYTES", MAX_ENTRY_NAME_BYTES, "bytes", "an entry's name", _QUOTA),
    Limit("MAX_RECORDED_ERROR_BYTES", MAX_RECORDED_ERROR_BYTES, "bytes", "the text of the last error", None),
    Limit("MAX_BLOCK_DIM", gpu.MAX_BLOCK_THREADS_PER_AXIS, "count", "threads of a block along an axis", _DIMENSIONS),
    Limit("MAX_THREADS_PER_BLOCK", gpu.MAX_BLOCK_THREADS, "count", "threads of a block", _DIMENSIONS),
    Limit("MAX_GRID_DIM", gpu.MAX_GRID_BLOCKS_PER_AXIS, "count", "blocks along an axis", _DIMENSIONS),
    Limit("MAX_DYNAMIC_SHARED_MEM_BYTES", gpu.MAX_DYNAMIC_SHARED_BYTES, "bytes", "dynamic shared memory", _DIMENSIONS),
    Limit("MAX_KERNEL_ARGS", MAX_KERNEL_ARGS, "count", "argument records of a launch", _ARGS),
    Limit("MAX_KERNEL_ARGS_BYTES", MAX_KERNEL_ARGS_BYTES, "bytes", "argument records of a launch", _ARGS),
    Limit("MAX_DEVICE_ALLOC_BYTES", _SESSION.allocation_bytes, "bytes", "one device buffer", _QUOTA),
    Limit("MAX_DEVICE_ALLOCS_PER_INSTANCE", _SESSION.allocations, "count", "device buffers of an instance", _QUOTA),
    Limit("MAX_TOTAL_DEVICE_BYTES", _SESSION.device_bytes, "bytes", "device memory of an instance by default", _QUOTA),
    Limit("MAX_PROCESS_DEVICE_BYTES", gpu.MAX_PROCESS_DEVICE_BYTES, "bytes", "device memory of a process", _QUOTA),
    Limit("MAX_PROCESS_DEVICE_ALLOCS", gpu.MAX_PROCESS_ALLOCATIONS, "count", "device buffers of a process", _QUOTA),
    Limit("MAX_CONCURRENT_GPU_OPS", gpu.MAX_CONCURRENT_OPERATIONS, "count", "launches in flight in a process", _QUOTA),
    Limit("MAX_STREAMS_PER_INSTANCE", _SESSION.streams, "count", "streams that an instance has created", _QUOTA),
    Limit("MAX_EVENTS_PER_INSTANCE", _SESSION.events, "count", "events of an instance", _QUOTA),
    Limit("MAX_GRAPHS_PER_INSTANCE", _SESSION.graphs, "count", "graphs of an instance", _QUOTA),
    Limit(
        "MAX_GRAPH_LAUNCHES",
        _SESSION.graph_launches,
        "count",
        "launches and copies of a graph; large ones of guarded sessions count more",
        _QUOTA,
    ),
    Limit("MAX_CHUNK_BYTES", MAX_CHUNK_BYTES, "bytes", "one chunk of the stream", StreamCode.REFUSED),
    Limit("MAX_TOTAL_STREAM_BYTES", MAX_TOTAL_STREAM_BYTES, "bytes", "the stream of a call", StreamCode.REFUSED),
)
"""Every limit, in the order of the documents."""


# ---------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True, slots=True)
class ArgTag:
    """A kind of argument record: the tag byte, then the value, little-endian, without padding.

    Attributes:
        name: as documents and the C header spell it.
        value_bytes: bytes after the tag.
        param_bytes: bytes of the kernel parameter it fills.
    """

    tag: int
    name: str
    value_bytes: int
    param_bytes: int
    doc: str


ARG_TAGS: Final = (
    ArgTag(0x01, "i32", 4, 4, "a signed integer"),
    ArgTag(0x02, "i64", 8, 8, "a signed integer"),
    ArgTag(0x03, "f32", 4, 4, "an IEEE 754 single"),
    ArgTag(0x04, "f64", 8, 8, "an IEEE 754 double"),
    ArgTag(0x05, "u32", 4, 4, "an unsigned integer"),
    ArgTag(0x06, "u64", 8, 8, "an unsigned integer"),
    ArgTag(0x07, "ptr", 8, 8, "a window of the guest's memory: u32 offset, u32 length in bytes"),
    ArgTag(0x08, "buffer", 16, 8, "a place in a device buffer: u64 handle, u64 offset in bytes"),
)
"""Every kind of record, by tag."""


# ------------------------------------------------------------------------------------------------------ functions


@dataclass(frozen=True, slots=True)
class ImportParam:
    """A parameter of an import: its name, its Wasm type and its type in C."""

    name: str
    type: ValType
    c_type: str


@dataclass(frozen=True, slots=True)
class ImportSignature:
    """A function of an interface.

    Attributes:
        core_name: import field.
        c_head: its C declaration up to the parameters.
        wit: name and type in WIT; None where another function's WIT covers it.
        errors: codes it may answer.
        waits: whether it may wait for a device, up to the call's deadline.
    """

    core_name: str
    params: tuple[ImportParam, ...]
    result: ValType
    c_head: str
    wit: tuple[str, str] | None
    doc: str
    errors: tuple[Code | StreamCode, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface that guests import.

    Attributes:
        package: WIT package without its version.
        world: WIT world that imports the interface.
        modules: import modules of the functions, the preferred one first.
        types: WIT declarations in front of the functions.
        functions: in the order of the documents.
    """

    package: str
    version: str
    world: str
    modules: tuple[str, ...]
    types: tuple[str, ...]
    functions: tuple[ImportSignature, ...]
    doc: str


def u32(*names: str) -> tuple[ImportParam, ...]:
    """Return unsigned 32-bit parameters."""
    return tuple(ImportParam(name, "i32", "uint32_t") for name in names)


def handles(*names: str) -> tuple[ImportParam, ...]:
    """Return 64-bit handle parameters."""
    return tuple(ImportParam(name, "i64", "int64_t") for name in names)


def source(name: str, c_type: str = "const void *") -> ImportParam:
    """Return a pointer parameter that is read."""
    return ImportParam(name, "i32", c_type)


DESTINATION: Final = ImportParam("dst", "i32", "void *")
"""A pointer parameter that is written."""


def enumeration(name: str, codes: type[IntEnum]) -> str:
    """Return an enumeration in WIT."""
    cases = "".join(f"    {code.name.lower().replace('_', '-')},\n" for code in codes)
    return f"enum {name} {{\n{cases}}}"
