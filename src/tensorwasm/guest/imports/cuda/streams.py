"""Streams, events and graphs. Stream 0 is the instance's own: it always exists, and calls without a stream use it."""

from __future__ import annotations

from tensorwasm.guest.imports.cuda.grant import CudaService, answering, memory_of, u64
from tensorwasm.guest.imports.host_function import HostCall


@answering
def sync(call: HostCall, service: CudaService) -> None:
    """Wait for all work of the instance."""
    service.session.streams.synchronize(call.deadline)


@answering
def stream_create(_call: HostCall, service: CudaService) -> int:
    """Open a stream; return its number."""
    return service.session.streams.open()


@answering
def stream_destroy(call: HostCall, service: CudaService, stream: int) -> None:
    """Wait for a stream's work and close it."""
    service.session.streams.close(u64(stream), call.deadline)


@answering
def stream_sync(call: HostCall, service: CudaService, stream: int) -> None:
    """Wait for a stream's work."""
    service.session.streams.synchronize(call.deadline, stream=u64(stream))


@answering
def stream_query(_call: HostCall, service: CudaService, stream: int) -> int:
    """Return 0 if a stream's work has ended, 1 if not."""
    return int(not service.session.streams.ended(u64(stream)))


@answering
def event_create(_call: HostCall, service: CudaService) -> int:
    """Open an event; return its number."""
    return service.session.events.open()


@answering
def event_destroy(_call: HostCall, service: CudaService, event: int) -> None:
    """Close an event."""
    service.session.events.close(u64(event))


@answering
def event_record(_call: HostCall, service: CudaService, event: int, stream: int) -> None:
    """Record an event behind a stream's work so far."""
    service.session.events.record(u64(event), u64(stream))


@answering
def stream_wait_event(_call: HostCall, service: CudaService, stream: int, event: int) -> None:
    """Put a stream's next work behind an event."""
    service.session.events.wait(u64(stream), u64(event))


@answering
def event_sync(call: HostCall, service: CudaService, event: int) -> None:
    """Wait for the work before an event."""
    service.session.events.synchronize(u64(event), call.deadline)


@answering
def event_query(_call: HostCall, service: CudaService, event: int) -> int:
    """Return 0 if the work before an event has ended, 1 if not."""
    return int(not service.session.events.reached(u64(event)))


@answering
def graph_begin(_call: HostCall, service: CudaService, stream: int) -> None:
    """Begin to record a stream."""
    service.session.graphs.begin(u64(stream))


@answering
def graph_end(_call: HostCall, service: CudaService, stream: int) -> int:
    """End recording; return the graph's number."""
    return service.session.graphs.end(u64(stream))


@answering
def graph_launch(call: HostCall, service: CudaService, graph: int, stream: int) -> None:
    """Start everything that a graph holds."""
    service.session.graphs.replay(u64(graph), memory_of(call), call.deadline, stream=u64(stream))


@answering
def graph_destroy(call: HostCall, service: CudaService, graph: int) -> None:
    """Wait for replays of a graph and release it."""
    service.session.graphs.close(u64(graph), call.deadline)
