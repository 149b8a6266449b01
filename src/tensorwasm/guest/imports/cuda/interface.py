"""``wasi:cuda`` by version, the newest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tensorwasm.guest.imports.abi import CUDA_MODULE, CUDA_MODULE_0_1, CUDA_MODULE_0_3, Code, DeviceAttribute
from tensorwasm.guest.imports.cuda import table_0_2, table_0_3
from tensorwasm.guest.imports.signatures import Function, Interface, enumeration

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
"""What functions of 0.2.0 may answer besides, because work may be in flight, or being recorded."""


def _inherited() -> Iterator[Function]:
    for function in table_0_2.FUNCTIONS:
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
    functions=(
        *_inherited(),
        *table_0_3.KERNELS,
        *table_0_3.COPIES,
        *table_0_3.STREAMS,
        *table_0_3.EVENTS,
        *table_0_3.GRAPHS,
        *table_0_3.PROPERTIES,
    ),
)

CUDA_0_2: Final = Interface(
    package=_PACKAGE,
    version="0.2.0",
    world=_WORLD,
    modules=(CUDA_MODULE, CUDA_MODULE_0_1),
    types=_TYPES,
    doc=_DOC,
    functions=table_0_2.FUNCTIONS,
)
