"""The functions of ``wasi:cuda/host``: those of 0.2.0, which are also those of 0.1.0, and what 0.3.0 adds.

In 0.3.0's own functions handles, numbers and device offsets are whole i64s.
"""

from __future__ import annotations

from typing import Final

from tensorwasm.guest.imports.abi import DESTINATION, Code, ImportParam, ImportSignature, handles, source, u32
from tensorwasm.guest.imports.host_function import ValType

_C_TYPES: Final[dict[ValType, str]] = {"i32": "int32_t", "i64": "int64_t"}
_DONE: Final = "result<_, abi-error>"
_HALVES: Final = u32("handle_lo", "handle_hi")
_OFFSET: Final = ImportParam("offset", "i64", "uint64_t")
_STREAM: Final = handles("stream")
_LAUNCH: Final = (
    *handles("kernel"),
    *u32("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_mem"),
    source("args"),
    *u32("args_len"),
)
_LAUNCH_WIT: Final = (
    "kernel: kernel-id, grid: tuple<u32, u32, u32>, block: tuple<u32, u32, u32>, shared-mem: u32, args: list<u8>"
)
_LAUNCH_CODES: Final = tuple(code for code in Code if code is not Code.MALFORMED_PTX)
_HANDLE_CODES: Final = (Code.INVALID_ARGS, Code.INVALID_HANDLE)
_WORK_CODES: Final = (Code.LAUNCH_FAILED, *_HANDLE_CODES)
_COPY_CODES: Final = (Code.INVALID_POINTER, Code.QUOTA_EXCEEDED, *_WORK_CODES)


def _function(
    name: str,
    params: tuple[ImportParam, ...],
    wit: str,
    doc: str,
    *errors: Code,
    result: ValType = "i32",
    waits: bool = True,
) -> ImportSignature:
    """Return a function whose names in Wasm, C and WIT follow from one, after ``wasi_cuda_``.

    ``wit`` is its type after ``func``; ``errors`` are codes besides those of every function.
    """
    codes = tuple(sorted({Code.NOT_AVAILABLE, Code.INTERNAL, *errors}, reverse=True))
    names = (name.replace("_", "-"), f"func{wit}")
    head = f"{_C_TYPES[result]} wasi_cuda_{name}"
    return ImportSignature(f"wasi_cuda_{name}", params, result, head, names, doc, codes, waits)


FUNCTIONS_0_2: Final = (
    _function(
        "load_ptx",
        (source("ptx"), *u32("ptx_len"), source("entry", "const char *"), *u32("entry_len")),
        "(ptx: list<u8>, entry: string) -> result<kernel-id, abi-error>",
        "Load a kernel of a PTX text. Returns its id, which is positive.",
        Code.INVALID_POINTER,
        Code.INVALID_KERNEL,
        Code.MALFORMED_PTX,
        Code.QUOTA_EXCEEDED,
        Code.INVALID_ARGS,
        result="i64",
    ),
    _function("launch", _LAUNCH, f"({_LAUNCH_WIT}) -> {_DONE}", "Run a kernel and wait for it.", *_LAUNCH_CODES),
    _function("sync", (), f"() -> {_DONE}", "Wait for all work of this instance.", Code.LAUNCH_FAILED),
    ImportSignature(
        "wasi_cuda_last_error_len",
        (),
        "i32",
        "int32_t wasi_cuda_last_error_len",
        None,
        "Answer the length of the last failure's text, 0 if nothing has failed.",
        (Code.NOT_AVAILABLE,),
    ),
    ImportSignature(
        "wasi_cuda_last_error_copy",
        (DESTINATION, *u32("dst_len")),
        "i32",
        "int32_t wasi_cuda_last_error_copy",
        ("last-error", "func() -> string"),
        "Copy the last failure's text, UTF-8 without a NUL. Returns how many bytes were copied.",
        (Code.NOT_AVAILABLE, Code.INVALID_POINTER),
    ),
    _function(
        "alloc",
        u32("size_lo", "size_hi"),
        "(size: u64) -> result<device-handle, abi-error>",
        "Allocate zeroed device memory. Returns its handle, which is positive.",
        Code.QUOTA_EXCEEDED,
        Code.INVALID_ARGS,
        result="i64",
    ),
    _function(
        "free",
        _HALVES,
        f"(handle: device-handle) -> {_DONE}",
        "Release device memory, once the work that could reach it has ended.",
        Code.INVALID_HANDLE,
    ),
    _function(
        "memcpy_h2d",
        (*_HALVES, source("src"), *u32("len")),
        f"(handle: device-handle, src: list<u8>) -> {_DONE}",
        "Copy guest memory to the start of device memory.",
        Code.INVALID_POINTER,
        *_HANDLE_CODES,
    ),
    _function(
        "memcpy_d2h",
        (DESTINATION, *_HALVES, *u32("len")),
        "(handle: device-handle, len: u32) -> result<list<u8>, abi-error>",
        "Copy the start of device memory to guest memory.",
        Code.INVALID_POINTER,
        *_HANDLE_CODES,
    ),
)
"""In the order of the documents."""

ADDED_IN_0_3: Final = (
    _function(
        "launch_async",
        (*_LAUNCH, *_STREAM),
        f"({_LAUNCH_WIT}, stream: stream-id) -> {_DONE}",
        "Start a kernel behind what the stream was given so far.",
        *_LAUNCH_CODES,
    ),
    _function(
        "unload",
        handles("kernel"),
        f"(kernel: kernel-id) -> {_DONE}",
        "Release a kernel, once the work that could use it has ended.",
        Code.INVALID_KERNEL,
        Code.LAUNCH_FAILED,
        Code.INVALID_ARGS,
    ),
    _function(
        "memcpy_h2d_async",
        (*handles("handle"), _OFFSET, source("src"), *u32("len"), *_STREAM),
        f"(handle: device-handle, offset: u64, src: address, len: u32, stream: stream-id) -> {_DONE}",
        "Start copying guest memory to a place in device memory.",
        *_COPY_CODES,
    ),
    _function(
        "memcpy_d2h_async",
        (DESTINATION, *handles("handle"), _OFFSET, *u32("len"), *_STREAM),
        f"(dst: address, handle: device-handle, offset: u64, len: u32, stream: stream-id) -> {_DONE}",
        "Start copying from a place in device memory to guest memory.",
        *_COPY_CODES,
    ),
    _function(
        "stream_create",
        (),
        "() -> result<stream-id, abi-error>",
        "Open a stream. Returns its number, which is positive.",
        Code.QUOTA_EXCEEDED,
        Code.INVALID_ARGS,
        result="i64",
    ),
    _function(
        "stream_destroy",
        _STREAM,
        f"(stream: stream-id) -> {_DONE}",
        "Wait for a stream's work and close it.",
        *_WORK_CODES,
    ),
    _function("stream_sync", _STREAM, f"(stream: stream-id) -> {_DONE}", "Wait for a stream's work.", *_WORK_CODES),
    _function(
        "stream_query",
        _STREAM,
        "(stream: stream-id) -> result<bool, abi-error>",
        "Answer 0 if a stream's work has ended, 1 if it still runs.",
        *_WORK_CODES,
        waits=False,
    ),
    _function(
        "event_create",
        (),
        "() -> result<event-id, abi-error>",
        "Open an event. Returns its number, which is positive.",
        Code.QUOTA_EXCEEDED,
        Code.INVALID_ARGS,
        result="i64",
        waits=False,
    ),
    _function(
        "event_destroy",
        handles("event"),
        f"(event: event-id) -> {_DONE}",
        "Close an event. Streams that wait for it go on waiting for what it marked.",
        *_HANDLE_CODES,
        waits=False,
    ),
    _function(
        "event_record",
        (*handles("event"), *_STREAM),
        f"(event: event-id, stream: stream-id) -> {_DONE}",
        "Set an event behind what the stream was given so far.",
        *_HANDLE_CODES,
    ),
    _function(
        "stream_wait_event",
        (*_STREAM, *handles("event")),
        f"(stream: stream-id, event: event-id) -> {_DONE}",
        "Put what the stream is given next behind an event. Does not wait itself.",
        *_HANDLE_CODES,
    ),
    _function(
        "event_sync",
        handles("event"),
        f"(event: event-id) -> {_DONE}",
        "Wait for the work before an event.",
        *_WORK_CODES,
    ),
    _function(
        "event_query",
        handles("event"),
        "(event: event-id) -> result<bool, abi-error>",
        "Answer 0 if the work before an event has ended, 1 if it still runs.",
        *_WORK_CODES,
        waits=False,
    ),
    _function(
        "graph_begin",
        _STREAM,
        f"(stream: stream-id) -> {_DONE}",
        "Record what the stream is given from now on instead of running it.",
        Code.QUOTA_EXCEEDED,
        *_HANDLE_CODES,
        waits=False,
    ),
    _function(
        "graph_end",
        _STREAM,
        "(stream: stream-id) -> result<graph-id, abi-error>",
        "End recording. Returns the graph's number, which is positive.",
        *_WORK_CODES,
        result="i64",
        waits=False,
    ),
    _function(
        "graph_launch",
        (*handles("graph"), *_STREAM),
        f"(graph: graph-id, stream: stream-id) -> {_DONE}",
        "Start all that a graph holds behind what the stream was given so far.",
        *_COPY_CODES,
    ),
    _function(
        "graph_destroy",
        handles("graph"),
        f"(graph: graph-id) -> {_DONE}",
        "Release a graph, once its replays have ended.",
        *_WORK_CODES,
    ),
    _function(
        "device_attribute",
        (ImportParam("attribute", "i32", "int32_t"),),
        "(attribute: attribute) -> result<u64, abi-error>",
        "Answer a property of the device.",
        Code.INVALID_ARGS,
        result="i64",
        waits=False,
    ),
    _function(
        "device_name",
        (DESTINATION, *u32("dst_len")),
        "() -> result<string, abi-error>",
        "Copy the device's name, UTF-8 without a NUL. Returns how many bytes were copied.",
        Code.INVALID_POINTER,
        waits=False,
    ),
)
