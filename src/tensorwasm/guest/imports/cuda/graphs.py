"""Graphs: launches and copies that are recorded once and replayed in one call."""

from __future__ import annotations

from tensorwasm.guest.imports.cuda.grant import CudaService, answering, u64
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.values import Region


@answering
def graph_begin(_call: HostCall, service: CudaService, stream: int) -> int:
    """Begin to record what a stream is given."""
    service.session.graphs.begin(u64(stream))
    return 0


@answering
def graph_end(_call: HostCall, service: CudaService, stream: int) -> int:
    """End recording; return the graph's number."""
    return service.session.graphs.end(u64(stream))


@answering
def graph_launch(call: HostCall, service: CudaService, graph: int, stream: int) -> int:
    """Start everything that a graph holds."""
    memory = Region(call.memory.address, call.memory.size_bytes, host=True)
    service.session.graphs.replay(u64(graph), memory, call.deadline, stream=u64(stream))
    return 0


@answering
def graph_destroy(call: HostCall, service: CudaService, graph: int) -> int:
    """Wait for replays of a graph and release it."""
    service.session.graphs.close(u64(graph), call.deadline)
    return 0
