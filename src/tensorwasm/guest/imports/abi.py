"""The guest ABI in one table: interfaces, functions, error codes, limits and argument records.

The linker's host functions, the WIT packages (``wit/``), the C header for guests (``guest-sdk/``) and the tables of
``docs/abi.md`` are all made from it; ``tools/generate_abi.py`` writes the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from tensorwasm.gpu import limits as gpu
from tensorwasm.guest.hostfunc import ValType
from tensorwasm.values import MIB

Unit = Literal["bytes", "count", "ms"]


class Code(IntEnum):
    """What a function of ``wasi:cuda`` answers instead of a result."""

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
    Code.INVALID_ARGS: "A size of 0, a copy longer than its buffer, a name that is not UTF-8, or kernel arguments that "
    "are damaged or do not fit the kernel's parameters.",
    Code.KERNEL_ARGS_UNSUPPORTED: "More argument records than a launch may carry, or a parameter no record can fill.",
    Code.INVALID_HANDLE: "No such device buffer.",
}
"""What each code means."""


class StreamCode(IntEnum):
    """What a function of ``wasi:tensor`` answers instead of a result."""

    STREAMING_OFF = -1
    REFUSED = -2
    CLIENT_GONE = -3


STREAM_CODE_DOCS: Final[dict[StreamCode, str]] = {
    StreamCode.STREAMING_OFF: "Nobody listens to this invocation's stream.",
    StreamCode.REFUSED: "The region is not inside the guest's memory, or the chunk is over a limit.",
    StreamCode.CLIENT_GONE: "Whoever listened has gone.",
}
"""What each code means."""


class YieldVerdict(IntEnum):
    """What ``yield`` advises."""

    CONTINUE = 0
    DEADLINE_NEAR = 1
    STOP = 2


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
        name: as the C header spells it, after ``TW_``.
        value: the largest that is allowed.
        unit: of the value.
        doc: what it limits.
        answer: what exceeding it answers.
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
    Limit("MAX_TOTAL_DEVICE_BYTES", _SESSION.device_bytes, "bytes", "device memory of an instance", _QUOTA),
    Limit("MAX_PROCESS_DEVICE_BYTES", gpu.MAX_PROCESS_DEVICE_BYTES, "bytes", "device memory of a process", _QUOTA),
    Limit("MAX_PROCESS_DEVICE_ALLOCS", gpu.MAX_PROCESS_ALLOCATIONS, "count", "device buffers of a process", _QUOTA),
    Limit("MAX_CONCURRENT_GPU_OPS", gpu.MAX_CONCURRENT_OPERATIONS, "count", "launches in flight in a process", _QUOTA),
    Limit("MAX_CHUNK_BYTES", MAX_CHUNK_BYTES, "bytes", "one chunk of the stream", StreamCode.REFUSED),
    Limit("MAX_TOTAL_STREAM_BYTES", MAX_TOTAL_STREAM_BYTES, "bytes", "the stream of a call", StreamCode.REFUSED),
)
"""Every limit, in the order of the documents."""


# ---------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True, slots=True)
class ArgTag:
    """A kind of argument record: the tag byte, then the value, little-endian, without padding.

    Attributes:
        tag: the byte.
        name: as documents and the C header spell it.
        value_bytes: bytes after the tag.
        param_bytes: bytes of the kernel parameter it fills.
        doc: the value.
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


# -------------------------------------------------------------------------------------------------- functions


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of an import: its name, its Wasm type and its type in C."""

    name: str
    type: ValType
    c_type: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function of an interface.

    Attributes:
        core_name: import field.
        params: of the import.
        result: Wasm type of the result.
        c_head: how the C header declares it, up to the parameters.
        wit: name and type in WIT, or None where another function's WIT speaks for it too.
        doc: what it does and answers.
        errors: codes it may answer.
    """

    core_name: str
    params: tuple[Param, ...]
    result: ValType
    c_head: str
    wit: tuple[str, str] | None
    doc: str
    errors: tuple[Code | StreamCode, ...] = ()


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface that guests import.

    Attributes:
        package: WIT package without its version.
        version: of the package.
        world: WIT world that imports the interface.
        modules: import modules under which the functions are found, the preferred one first.
        types: WIT declarations in front of the functions.
        functions: in the order of the documents.
        doc: what it is for.
    """

    package: str
    version: str
    world: str
    modules: tuple[str, ...]
    types: tuple[str, ...]
    functions: tuple[Function, ...]
    doc: str


def _u32(*names: str) -> tuple[Param, ...]:
    return tuple(Param(name, "i32", "uint32_t") for name in names)


def _in(name: str, c_type: str = "const void *") -> Param:
    return Param(name, "i32", c_type)


_HANDLE: Final = _u32("handle_lo", "handle_hi")
_OUT: Final = Param("dst", "i32", "void *")


def _enum(name: str, codes: type[IntEnum]) -> str:
    cases = "".join(f"    {code.name.lower().replace('_', '-')},\n" for code in codes)
    return f"enum {name} {{\n{cases}}}"


CUDA_MODULE: Final = "wasi:cuda/host@0.2.0"
CUDA_MODULE_0_1: Final = "wasi:cuda/host@0.1.0"

CUDA: Final = Interface(
    package="wasi:cuda",
    version="0.2.0",
    world="tensor-wasm-wasi-cuda",
    modules=(CUDA_MODULE, CUDA_MODULE_0_1),
    types=("type kernel-id = u64;", "type device-handle = u64;", _enum("abi-error", Code)),
    doc="CUDA kernels and device memory. Off unless the caller grants it.",
    functions=(
        Function(
            "wasi_cuda_load_ptx",
            (_in("ptx"), *_u32("ptx_len"), _in("entry", "const char *"), *_u32("entry_len")),
            "i64",
            "int64_t wasi_cuda_load_ptx",
            ("load-ptx", "func(ptx: list<u8>, entry: string) -> result<kernel-id, abi-error>"),
            "Load a kernel of a PTX text. Answers its id, which is positive.",
            (
                Code.NOT_AVAILABLE,
                Code.INVALID_POINTER,
                Code.INVALID_KERNEL,
                Code.MALFORMED_PTX,
                Code.QUOTA_EXCEEDED,
                Code.INTERNAL,
                Code.INVALID_ARGS,
            ),
        ),
        Function(
            "wasi_cuda_launch",
            (
                Param("kernel", "i64", "int64_t"),
                *_u32("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_mem"),
                _in("args"),
                *_u32("args_len"),
            ),
            "i32",
            "int32_t wasi_cuda_launch",
            (
                "launch",
                (
                    "func(kernel: kernel-id, grid: tuple<u32, u32, u32>, block: tuple<u32, u32, u32>, "
                    "shared-mem: u32, args: list<u8>) -> result<_, abi-error>"
                ),
            ),
            "Run a kernel and wait for it.",
            tuple(code for code in Code if code is not Code.MALFORMED_PTX),
        ),
        Function(
            "wasi_cuda_sync",
            (),
            "i32",
            "int32_t wasi_cuda_sync",
            ("sync", "func() -> result<_, abi-error>"),
            "Wait for all work of this instance.",
            (Code.NOT_AVAILABLE, Code.LAUNCH_FAILED, Code.INTERNAL),
        ),
        Function(
            "wasi_cuda_last_error_len",
            (),
            "i32",
            "int32_t wasi_cuda_last_error_len",
            None,
            "Answer the length of the last failure's text, 0 if nothing has failed.",
            (Code.NOT_AVAILABLE,),
        ),
        Function(
            "wasi_cuda_last_error_copy",
            (_OUT, *_u32("dst_len")),
            "i32",
            "int32_t wasi_cuda_last_error_copy",
            ("last-error", "func() -> string"),
            "Copy the last failure's text, UTF-8 without a NUL. Answers how many bytes were copied.",
            (Code.NOT_AVAILABLE, Code.INVALID_POINTER),
        ),
        Function(
            "wasi_cuda_alloc",
            _u32("size_lo", "size_hi"),
            "i64",
            "int64_t wasi_cuda_alloc",
            ("alloc", "func(size: u64) -> result<device-handle, abi-error>"),
            "Allocate zeroed device memory. Answers its handle, which is positive.",
            (Code.NOT_AVAILABLE, Code.QUOTA_EXCEEDED, Code.INTERNAL, Code.INVALID_ARGS),
        ),
        Function(
            "wasi_cuda_free",
            _HANDLE,
            "i32",
            "int32_t wasi_cuda_free",
            ("free", "func(handle: device-handle) -> result<_, abi-error>"),
            "Release device memory, once the work that could reach it has ended.",
            (Code.NOT_AVAILABLE, Code.INTERNAL, Code.INVALID_HANDLE),
        ),
        Function(
            "wasi_cuda_memcpy_h2d",
            (*_HANDLE, _in("src"), *_u32("len")),
            "i32",
            "int32_t wasi_cuda_memcpy_h2d",
            ("memcpy-h2d", "func(handle: device-handle, src: list<u8>) -> result<_, abi-error>"),
            "Copy guest memory to the start of device memory.",
            (Code.NOT_AVAILABLE, Code.INVALID_POINTER, Code.INTERNAL, Code.INVALID_ARGS, Code.INVALID_HANDLE),
        ),
        Function(
            "wasi_cuda_memcpy_d2h",
            (_OUT, *_HANDLE, *_u32("len")),
            "i32",
            "int32_t wasi_cuda_memcpy_d2h",
            ("memcpy-d2h", "func(handle: device-handle, len: u32) -> result<list<u8>, abi-error>"),
            "Copy the start of device memory to guest memory.",
            (Code.NOT_AVAILABLE, Code.INVALID_POINTER, Code.INTERNAL, Code.INVALID_ARGS, Code.INVALID_HANDLE),
        ),
    ),
)

TENSOR: Final = Interface(
    package="wasi:tensor",
    version="0.1.0",
    world="tensor-streaming",
    modules=("wasi:tensor/host", "wasi:tensor/host@0.1.0"),
    types=(_enum("stream-error", StreamCode),),
    doc="The input of a call, and a stream of output while it runs. Always there.",
    functions=(
        Function(
            "emit-chunk",
            (_in("chunk"), *_u32("len")),
            "i32",
            "int32_t tw_emit_chunk",
            ("emit-chunk", "func(chunk: list<u8>) -> result<_, stream-error>"),
            "Send a chunk, whole or not at all. Answers 0.",
            tuple(StreamCode),
        ),
        Function(
            "flush",
            (),
            "i32",
            "int32_t tw_flush",
            ("flush", "func() -> result<_, stream-error>"),
            "Push out what was sent. Answers 0.",
            (StreamCode.STREAMING_OFF,),
        ),
        Function(
            "input-len",
            (),
            "i32",
            "uint32_t tw_input_len",
            ("input-len", "func() -> u32"),
            "Answer the length of the input, 0 if there is none.",
        ),
        Function(
            "read-input",
            (_OUT, *_u32("len")),
            "i32",
            "int32_t tw_read_input",
            ("read-input", "func(len: u32) -> result<list<u8>, stream-error>"),
            "Copy the start of the input, as much of it as fits. Answers how many bytes were copied. Reading consumes "
            "nothing.",
            (StreamCode.REFUSED,),
        ),
    ),
)

SCHEDULER: Final = Interface(
    package="wasi:scheduler",
    version="0.1.0",
    world="tensor-cooperative",
    modules=("wasi:scheduler/host@0.1.0",),
    types=(),
    doc="How much time a call has left. Always there.",
    functions=(
        Function(
            "yield",
            (),
            "i32",
            "uint32_t tw_yield",
            ("yield", "func() -> u32"),
            f"Answer 0 to go on, 1 with less than {YIELD_NEAR_MS} ms left, 2 once the deadline has passed.",
        ),
        Function(
            "deadline-remaining-ms",
            (),
            "i32",
            "uint32_t tw_deadline_remaining_ms",
            ("deadline-remaining-ms", "func() -> u32"),
            "Answer whole milliseconds left, 2^32 - 1 without a deadline.",
        ),
    ),
)

INTERFACES: Final = (CUDA, TENSOR, SCHEDULER)
"""Every interface, in the order of the documents."""
