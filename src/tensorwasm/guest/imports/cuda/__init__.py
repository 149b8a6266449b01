"""``wasi:cuda/host``: kernels, device memory, streams and graphs for guests.

A body decodes its parameters, copies what lies in guest memory, and calls the session, which checks everything that
could harm a device. `grant` turns refusals into codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tensorwasm.guest.imports.abi import CUDA_MODULE_0_1, CUDA_MODULE_0_2, CUDA_MODULE_0_3
from tensorwasm.guest.imports.cuda import kernels, resources
from tensorwasm.guest.imports.cuda.grant import CODES, SERVICE, CudaService
from tensorwasm.guest.imports.cuda.waiting import FINISH, STEPS

__all__ = ["BODIES", "CODES", "FINISH", "SERVICE", "STEPS", "CudaService"]

_Bodies = Mapping[str, Callable[..., int]]

_0_2: Final[_Bodies] = {
    "wasi_cuda_load_ptx": kernels.load_ptx,
    "wasi_cuda_launch": kernels.launch,
    "wasi_cuda_sync": resources.sync,
    "wasi_cuda_last_error_len": resources.last_error_len,
    "wasi_cuda_last_error_copy": resources.last_error_copy,
    "wasi_cuda_alloc": resources.alloc,
    "wasi_cuda_free": resources.free,
    "wasi_cuda_memcpy_h2d": resources.memcpy_h2d,
    "wasi_cuda_memcpy_d2h": resources.memcpy_d2h,
}
_0_3: Final[_Bodies] = {
    **_0_2,
    "wasi_cuda_launch_async": kernels.launch_async,
    "wasi_cuda_unload": kernels.unload,
    "wasi_cuda_memcpy_h2d_async": resources.memcpy_h2d_async,
    "wasi_cuda_memcpy_d2h_async": resources.memcpy_d2h_async,
    "wasi_cuda_stream_create": resources.stream_create,
    "wasi_cuda_stream_destroy": resources.stream_destroy,
    "wasi_cuda_stream_sync": resources.stream_sync,
    "wasi_cuda_stream_query": resources.stream_query,
    "wasi_cuda_event_create": resources.event_create,
    "wasi_cuda_event_destroy": resources.event_destroy,
    "wasi_cuda_event_record": resources.event_record,
    "wasi_cuda_stream_wait_event": resources.stream_wait_event,
    "wasi_cuda_event_sync": resources.event_sync,
    "wasi_cuda_event_query": resources.event_query,
    "wasi_cuda_graph_begin": resources.graph_begin,
    "wasi_cuda_graph_end": resources.graph_end,
    "wasi_cuda_graph_launch": resources.graph_launch,
    "wasi_cuda_graph_destroy": resources.graph_destroy,
    "wasi_cuda_device_attribute": resources.device_attribute,
    "wasi_cuda_device_name": resources.device_name,
}

BODIES: Final[Mapping[str, _Bodies]] = {
    CUDA_MODULE_0_3: _0_3,
    CUDA_MODULE_0_2: _0_2,
    CUDA_MODULE_0_1: {**_0_2, "wasi_cuda_launch": kernels.launch_0_1},
}
"""Bodies by import module and field."""
