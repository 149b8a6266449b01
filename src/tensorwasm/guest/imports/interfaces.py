"""The functions that guests import, interface by interface.

One of the two tables of the guest ABI; `tensorwasm.guest.imports.abi` has the numbers.
"""

from __future__ import annotations

from typing import Final

from tensorwasm.guest.imports.abi import YIELD_NEAR_MS, StreamCode
from tensorwasm.guest.imports.cuda.interface import CUDA, CUDA_0_2
from tensorwasm.guest.imports.signatures import DESTINATION, Function, Interface, Param, enumeration, source, u32

__all__ = ["CUDA", "CUDA_0_2", "INTERFACES", "SCHEDULER", "TENSOR", "Function", "Interface", "Param"]

TENSOR: Final = Interface(
    package="wasi:tensor",
    version="0.1.0",
    world="tensor-streaming",
    modules=("wasi:tensor/host", "wasi:tensor/host@0.1.0"),
    types=(enumeration("stream-error", StreamCode),),
    doc="The input of a call, and a stream of output while it runs. Always there.",
    functions=(
        Function(
            "emit-chunk",
            (source("chunk"), *u32("len")),
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
            (DESTINATION, *u32("len")),
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

INTERFACES: Final = (CUDA, CUDA_0_2, TENSOR, SCHEDULER)
"""Every interface, in the order of the documents; of several versions of one, the newest first."""
