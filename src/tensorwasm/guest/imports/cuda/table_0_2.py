"""The functions of ``wasi:cuda/host@0.2.0``; those of 0.1.0 are the same."""

from __future__ import annotations

from typing import Final

from tensorwasm.guest.imports.abi import Code
from tensorwasm.guest.imports.signatures import DESTINATION, Function, Param, source, u32

_HANDLE: Final = u32("handle_lo", "handle_hi")

FUNCTIONS: Final = (
    Function(
        "wasi_cuda_load_ptx",
        (source("ptx"), *u32("ptx_len"), source("entry", "const char *"), *u32("entry_len")),
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
        waits=True,
    ),
    Function(
        "wasi_cuda_launch",
        (
            Param("kernel", "i64", "int64_t"),
            *u32("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_mem"),
            source("args"),
            *u32("args_len"),
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
        waits=True,
    ),
    Function(
        "wasi_cuda_sync",
        (),
        "i32",
        "int32_t wasi_cuda_sync",
        ("sync", "func() -> result<_, abi-error>"),
        "Wait for all work of this instance.",
        (Code.NOT_AVAILABLE, Code.LAUNCH_FAILED, Code.INTERNAL),
        waits=True,
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
        (DESTINATION, *u32("dst_len")),
        "i32",
        "int32_t wasi_cuda_last_error_copy",
        ("last-error", "func() -> string"),
        "Copy the last failure's text, UTF-8 without a NUL. Answers how many bytes were copied.",
        (Code.NOT_AVAILABLE, Code.INVALID_POINTER),
    ),
    Function(
        "wasi_cuda_alloc",
        u32("size_lo", "size_hi"),
        "i64",
        "int64_t wasi_cuda_alloc",
        ("alloc", "func(size: u64) -> result<device-handle, abi-error>"),
        "Allocate zeroed device memory. Answers its handle, which is positive.",
        (Code.NOT_AVAILABLE, Code.QUOTA_EXCEEDED, Code.INTERNAL, Code.INVALID_ARGS),
        waits=True,
    ),
    Function(
        "wasi_cuda_free",
        _HANDLE,
        "i32",
        "int32_t wasi_cuda_free",
        ("free", "func(handle: device-handle) -> result<_, abi-error>"),
        "Release device memory, once the work that could reach it has ended.",
        (Code.NOT_AVAILABLE, Code.INTERNAL, Code.INVALID_HANDLE),
        waits=True,
    ),
    Function(
        "wasi_cuda_memcpy_h2d",
        (*_HANDLE, source("src"), *u32("len")),
        "i32",
        "int32_t wasi_cuda_memcpy_h2d",
        ("memcpy-h2d", "func(handle: device-handle, src: list<u8>) -> result<_, abi-error>"),
        "Copy guest memory to the start of device memory.",
        (Code.NOT_AVAILABLE, Code.INVALID_POINTER, Code.INTERNAL, Code.INVALID_ARGS, Code.INVALID_HANDLE),
        waits=True,
    ),
    Function(
        "wasi_cuda_memcpy_d2h",
        (DESTINATION, *_HANDLE, *u32("len")),
        "i32",
        "int32_t wasi_cuda_memcpy_d2h",
        ("memcpy-d2h", "func(handle: device-handle, len: u32) -> result<list<u8>, abi-error>"),
        "Copy the start of device memory to guest memory.",
        (Code.NOT_AVAILABLE, Code.INVALID_POINTER, Code.INTERNAL, Code.INVALID_ARGS, Code.INVALID_HANDLE),
        waits=True,
    ),
)
"""In the order of the documents."""
