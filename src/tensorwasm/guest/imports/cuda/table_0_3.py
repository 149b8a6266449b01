"""The functions that ``wasi:cuda/host@0.3.0`` has beyond those of 0.2.0.

Handles, numbers and device offsets are whole i64s here.
"""

from __future__ import annotations

from typing import Final

from tensorwasm.guest.imports.abi import Code
from tensorwasm.guest.imports.host_function import ValType
from tensorwasm.guest.imports.signatures import DESTINATION, Function, Param, handles, source, u32

_C_TYPES: Final[dict[ValType, str]] = {"i32": "int32_t", "i64": "int64_t"}
_DONE: Final = "result<_, abi-error>"
_OFFSET: Final = Param("offset", "i64", "uint64_t")
_STREAM: Final = handles("stream")
_GEOMETRY: Final = u32("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_mem")


def _function(
    name: str,
    params: tuple[Param, ...],
    wit: str,
    doc: str,
    *errors: Code,
    result: ValType = "i32",
    waits: bool = False,
) -> Function:
    """Return a function whose names in Wasm, C and WIT follow from one.

    Args:
        name: after ``wasi_cuda_``.
        params: of the import.
        wit: its type in WIT after ``func``.
        doc: what it does and answers.
        errors: codes it may answer besides those that every function may.
        result: Wasm type of the result.
        waits: it may wait for the device.
    """
    codes = sorted({Code.NOT_AVAILABLE, Code.INTERNAL, *errors}, reverse=True)
    head = f"{_C_TYPES[result]} wasi_cuda_{name}"
    return Function(
        f"wasi_cuda_{name}", params, result, head, (name.replace("_", "-"), f"func{wit}"), doc, tuple(codes), waits
    )


KERNELS: Final = (
    _function(
        "launch_async",
        (*handles("kernel"), *_GEOMETRY, source("args"), *u32("args_len"), *_STREAM),
        "(kernel: kernel-id, grid: tuple<u32, u32, u32>, block: tuple<u32, u32, u32>, shared-mem: u32, "
        f"args: list<u8>, stream: stream-id) -> {_DONE}",
        "Start a kernel behind what the stream was given so far.",
        *(code for code in Code if code is not Code.MALFORMED_PTX),
        waits=True,
    ),
    _function(
        "unload",
        handles("kernel"),
        f"(kernel: kernel-id) -> {_DONE}",
        "Release a kernel, once the work that could use it has ended.",
        Code.INVALID_KERNEL,
        Code.LAUNCH_FAILED,
        Code.INVALID_ARGS,
        waits=True,
    ),
)

_COPY_CODES: Final = (
    Code.INVALID_POINTER,
    Code.LAUNCH_FAILED,
    Code.QUOTA_EXCEEDED,
    Code.INVALID_ARGS,
    Code.INVALID_HANDLE,
)
COPIES: Final = (
    _function(
        "memcpy_h2d_async",
        (*handles("handle"), _OFFSET, source("src"), *u32("len"), *_STREAM),
        f"(handle: device-handle, offset: u64, src: address, len: u32, stream: stream-id) -> {_DONE}",
        "Start copying guest memory to a place in device memory.",
        *_COPY_CODES,
        waits=True,
    ),
    _function(
        "memcpy_d2h_async",
        (DESTINATION, *handles("handle"), _OFFSET, *u32("len"), *_STREAM),
        f"(dst: address, handle: device-handle, offset: u64, len: u32, stream: stream-id) -> {_DONE}",
        "Start copying from a place in device memory to guest memory.",
        *_COPY_CODES,
        waits=True,
    ),
)

STREAMS: Final = (
    _function(
        "stream_create",
        (),
        "() -> result<stream-id, abi-error>",
        "Open a stream. Answers its number, which is positive.",
        Code.QUOTA_EXCEEDED,
        Code.INVALID_ARGS,
        result="i64",
        waits=True,
    ),
    _function(
        "stream_destroy",
        _STREAM,
        f"(stream: stream-id) -> {_DONE}",
        "Wait for a stream's work and close it.",
        Code.LAUNCH_FAILED,
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
        waits=True,
    ),
    _function(
        "stream_sync",
        _STREAM,
        f"(stream: stream-id) -> {_DONE}",
        "Wait for a stream's work.",
        Code.LAUNCH_FAILED,
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
        waits=True,
    ),
    _function(
        "stream_query",
        _STREAM,
        "(stream: stream-id) -> result<bool, abi-error>",
        "Answer 0 if a stream's work has ended, 1 if it still runs.",
        Code.LAUNCH_FAILED,
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
    ),
)

EVENTS: Final = (
    _function(
        "event_create",
        (),
        "() -> result<event-id, abi-error>",
        "Open an event. Answers its number, which is positive.",
        Code.QUOTA_EXCEEDED,
        Code.INVALID_ARGS,
        result="i64",
    ),
    _function(
        "event_destroy",
        handles("event"),
        f"(event: event-id) -> {_DONE}",
        "Close an event. Streams that wait for it go on waiting for what it marked.",
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
    ),
    _function(
        "event_record",
        (*handles("event"), *_STREAM),
        f"(event: event-id, stream: stream-id) -> {_DONE}",
        "Set an event behind what the stream was given so far.",
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
        waits=True,
    ),
    _function(
        "stream_wait_event",
        (*_STREAM, *handles("event")),
        f"(stream: stream-id, event: event-id) -> {_DONE}",
        "Put what the stream is given next behind an event. Does not wait itself.",
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
        waits=True,
    ),
    _function(
        "event_sync",
        handles("event"),
        f"(event: event-id) -> {_DONE}",
        "Wait for the work before an event.",
        Code.LAUNCH_FAILED,
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
        waits=True,
    ),
    _function(
        "event_query",
        handles("event"),
        "(event: event-id) -> result<bool, abi-error>",
        "Answer 0 if the work before an event has ended, 1 if it still runs.",
        Code.LAUNCH_FAILED,
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
    ),
)

GRAPHS: Final = (
    _function(
        "graph_begin",
        _STREAM,
        f"(stream: stream-id) -> {_DONE}",
        "Record what the stream is given from now on instead of running it.",
        Code.QUOTA_EXCEEDED,
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
    ),
    _function(
        "graph_end",
        _STREAM,
        "(stream: stream-id) -> result<graph-id, abi-error>",
        "End recording. Answers the graph's number, which is positive.",
        Code.LAUNCH_FAILED,
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
        result="i64",
    ),
    _function(
        "graph_launch",
        (*handles("graph"), *_STREAM),
        f"(graph: graph-id, stream: stream-id) -> {_DONE}",
        "Start all that a graph holds behind what the stream was given so far.",
        Code.INVALID_POINTER,
        Code.LAUNCH_FAILED,
        Code.QUOTA_EXCEEDED,
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
        waits=True,
    ),
    _function(
        "graph_destroy",
        handles("graph"),
        f"(graph: graph-id) -> {_DONE}",
        "Release a graph, once its replays have ended.",
        Code.LAUNCH_FAILED,
        Code.INVALID_ARGS,
        Code.INVALID_HANDLE,
        waits=True,
    ),
)

PROPERTIES: Final = (
    _function(
        "device_attribute",
        (Param("attribute", "i32", "int32_t"),),
        "(attribute: attribute) -> result<u64, abi-error>",
        "Answer a property of the device.",
        Code.INVALID_ARGS,
        result="i64",
    ),
    _function(
        "device_name",
        (DESTINATION, *u32("dst_len")),
        "() -> result<string, abi-error>",
        "Copy the device's name, UTF-8 without a NUL. Answers how many bytes were copied.",
        Code.INVALID_POINTER,
    ),
)
