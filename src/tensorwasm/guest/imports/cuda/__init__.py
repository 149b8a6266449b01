"""``wasi:cuda/host``: kernels, device memory, streams and graphs for guests.

A body decodes its parameters, copies what lies in guest memory, and calls the session, which checks everything that
could harm a device. `grant` turns refusals into codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tensorwasm.guest.imports.abi import CUDA_MODULE, CUDA_MODULE_0_1, CUDA_MODULE_0_3
from tensorwasm.guest.imports.cuda import buffers, kernels, queries, streams
from tensorwasm.guest.imports.cuda.grant import CODES, SERVICE, CudaService
from tensorwasm.guest.imports.cuda.waiting import FINISH, STEPS

__all__ = ["BODIES", "CODES", "FINISH", "SERVICE", "STEPS", "CudaService"]

_Bodies = Mapping[str, Callable[..., int]]

_0_2: Final[_Bodies] = {
    "wasi_cuda_load_ptx": kernels.load_ptx,
    "wasi_cuda_launch": kernels.launch,
    "wasi_cuda_sync": streams.sync,
    "wasi_cuda_last_error_len": queries.last_error_len,
    "wasi_cuda_last_error_copy": queries.last_error_copy,
    "wasi_cuda_alloc": buffers.alloc,
    "wasi_cuda_free": buffers.free,
    "wasi_cuda_memcpy_h2d": buffers.memcpy_h2d,
    "wasi_cuda_memcpy_d2h": buffers.memcpy_d2h,
}
_0_3: Final[_Bodies] = {
    **_0_2,
    "wasi_cuda_launch_async": kernels.launch_async,
    "wasi_cuda_unload": kernels.unload,
    "wasi_cuda_memcpy_h2d_async": buffers.memcpy_h2d_async,
    "wasi_cuda_memcpy_d2h_async": buffers.memcpy_d2h_async,
    "wasi_cuda_stream_create": streams.stream_create,
    "wasi_cuda_stream_destroy": streams.stream_destroy,
    "wasi_cuda_stream_sync": streams.stream_sync,
    "wasi_cuda_stream_query": streams.stream_query,
    "wasi_cuda_event_create": streams.event_create,
    "wasi_cuda_event_destroy": streams.event_destroy,
    "wasi_cuda_event_record": streams.event_record,
    "wasi_cuda_stream_wait_event": streams.stream_wait_event,
    "wasi_cuda_event_sync": streams.event_sync,
    "wasi_cuda_event_query": streams.event_query,
    "wasi_cuda_graph_begin": streams.graph_begin,
    "wasi_cuda_graph_end": streams.graph_end,
    "wasi_cuda_graph_launch": streams.graph_launch,
    "wasi_cuda_graph_destroy": streams.graph_destroy,
    "wasi_cuda_device_attribute": queries.device_attribute,
    "wasi_cuda_device_name": queries.device_name,
}

BODIES: Final[Mapping[str, _Bodies]] = {
    CUDA_MODULE_0_3: _0_3,
    CUDA_MODULE: _0_2,
    CUDA_MODULE_0_1: {**_0_2, "wasi_cuda_launch": kernels.launch_0_1},
}
"""Bodies by import module and field."""
