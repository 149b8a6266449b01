"""The interfaces that guests import, one of the two tables of the guest ABI; the other is `guest.imports.abi`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tensorwasm.guest.imports.abi import (
    CUDA_MODULE_0_1,
    CUDA_MODULE_0_2,
    CUDA_MODULE_0_3,
    DESTINATION,
    YIELD_NEAR_MS,
    Code,
    DeviceAttribute,
    ImportParam,
    ImportSignature,
    Interface,
    StreamCode,
    enumeration,
    source,
    u32,
)
from tensorwasm.guest.imports.cuda.functions import ADDED_IN_0_3, FUNCTIONS_0_2

__all__ = ["CUDA", "CUDA_0_2", "INTERFACES", "SCHEDULER", "TENSOR", "ImportParam", "ImportSignature", "Interface"]

_PACKAGE: Final = "wasi:cuda"
_WORLD: Final = "tensor-wasm-wasi-cuda"
_DOC: Final = "CUDA kernels and device memory. Off unless the caller grants it."
_TYPES: Final = ("type kernel-id = u64;", "type device-handle = u64;", enumeration("abi-error", Code))
_ADDRESS: Final = """\
/// An offset in linear memory. What lies there belongs to the device until the stream has drained.
type address = u32;"""

_SINCE_0_3: Final[dict[str, tuple[Code, ...]]] = {
    "wasi_cuda_sync": (Code.INVALID_ARGS,),
    "wasi_cuda_free": (Code.LAUNCH_FAILED, Code.INVALID_ARGS),
    "wasi_cuda_memcpy_h2d": (Code.LAUNCH_FAILED,),
    "wasi_cuda_memcpy_d2h": (Code.LAUNCH_FAILED,),
}
"""Additional codes of 0.2.0's functions in 0.3.0, because work may be in flight or being recorded."""


def _inherited() -> Iterator[ImportSignature]:
    for function in FUNCTIONS_0_2:
        codes = {*function.errors, *_SINCE_0_3.get(function.core_name, ())}
        yield replace(function, errors=tuple(sorted(codes, reverse=True)))


CUDA: Final = Interface(
    package=_PACKAGE,
    version="0.3.0",
    world=_WORLD,
    modules=(CUDA_MODULE_0_3,),
    types=(
        *_TYPES[:2],
        "type stream-id = u64;",
        "type event-id = u64;",
        "type graph-id = u64;",
        _ADDRESS,
        _TYPES[-1],
        enumeration("attribute", DeviceAttribute),
    ),
    doc=f"{_DOC} 0.3.0 adds streams, events, graphs and questions about the device.",
    functions=(*_inherited(), *ADDED_IN_0_3),
)

CUDA_0_2: Final = Interface(
    package=_PACKAGE,
    version="0.2.0",
    world=_WORLD,
    modules=(CUDA_MODULE_0_2, CUDA_MODULE_0_1),
    types=_TYPES,
    doc=_DOC,
    functions=FUNCTIONS_0_2,
)

TENSOR: Final = Interface(
    package="wasi:tensor",
    version="0.1.0",
    world="tensor-streaming",
    modules=("wasi:tensor/host", "wasi:tensor/host@0.1.0"),
    types=(enumeration("stream-error", StreamCode),),
    doc="The input of a call, and a stream of output while it runs. Always there.",
    functions=(
        ImportSignature(
            "emit-chunk",
            (source("chunk"), *u32("len")),
            "i32",
            "int32_t tw_emit_chunk",
            ("emit-chunk", "func(chunk: list<u8>) -> result<_, stream-error>"),
            "Send a chunk, whole or not at all. Returns 0.",
            tuple(StreamCode),
        ),
        ImportSignature(
            "flush",
            (),
            "i32",
            "int32_t tw_flush",
            ("flush", "func() -> result<_, stream-error>"),
            "Push out what was sent. Returns 0.",
            (StreamCode.STREAMING_OFF,),
        ),
        ImportSignature(
            "input-len",
            (),
            "i32",
            "uint32_t tw_input_len",
            ("input-len", "func() -> u32"),
            "Answer the length of the input, 0 if there is none.",
        ),
        ImportSignature(
            "read-input",
            (DESTINATION, *u32("len")),
            "i32",
            "int32_t tw_read_input",
            ("read-input", "func(len: u32) -> result<list<u8>, stream-error>"),
            "Copy the start of the input, as much of it as fits. Returns how many bytes were copied. Reading consumes "
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
        ImportSignature(
            "yield",
            (),
            "i32",
            "uint32_t tw_yield",
            ("yield", "func() -> u32"),
            f"Answer 0 to go on, 1 with less than {YIELD_NEAR_MS} ms left, 2 once the deadline has passed.",
        ),
        ImportSignature(
            "deadline-remaining-ms",
            (),
            "i32",
            "uint32_t tw_deadline_remaining_ms",
            ("deadline-remaining-ms", "func() -> u32"),
            "Answer whole milliseconds left, 2^32 - 1 without a deadline.",
        ),
    ),
)

INTERFACES: Final = (CUDA, CUDA_0_2, TENSOR, SCHEDULER)
"""Every interface, in the order of the documents; of several versions of one, the newest first."""
