"""The functions that guests import, interface by interface.

One of the two tables of the guest ABI; `tensorwasm.guest.imports.abi` has the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tensorwasm.guest.hostfunc import ValType
from tensorwasm.guest.imports.abi import CUDA_MODULE, CUDA_MODULE_0_1, YIELD_NEAR_MS, Code, StreamCode


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
