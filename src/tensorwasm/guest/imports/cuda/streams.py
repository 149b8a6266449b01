"""Streams and events. Stream 0 is the instance's own: it is always there, and what names no stream uses it."""

from __future__ import annotations

from tensorwasm.guest.imports.cuda.grant import CudaService, answering, u64
from tensorwasm.guest.imports.host_function import HostCall


@answering
def sync(call: HostCall, service: CudaService) -> int:
    """Wait for all work of the instance."""
    service.session.streams.synchronize(call.deadline)
    return 0


@answering
def stream_create(_call: HostCall, service: CudaService) -> int:
    """Open a stream; return its number."""
    return service.session.streams.open()


@answering
def stream_destroy(call: HostCall, service: CudaService, stream: int) -> int:
    """Wait for a stream's work and close it."""
    service.session.streams.close(u64(stream), call.deadline)
    return 0


@answering
def stream_sync(call: HostCall, service: CudaService, stream: int) -> int:
    """Wait for a stream's work."""
    service.session.streams.synchronize(call.deadline, stream=u64(stream))
    return 0


@answering
def stream_query(_call: HostCall, service: CudaService, stream: int) -> int:
    """Return 0 if a stream's work has ended, 1 if not."""
    return int(not service.session.streams.ended(u64(stream)))


@answering
def event_create(_call: HostCall, service: CudaService) -> int:
    """Open an event; return its number."""
    return service.session.events.open()


@answering
def event_destroy(_call: HostCall, service: CudaService, event: int) -> int:
    """Close an event."""
    service.session.events.close(u64(event))
    return 0


@answering
def event_record(_call: HostCall, service: CudaService, event: int, stream: int) -> int:
    """Set an event behind what a stream was given so far."""
    service.session.events.record(u64(event), u64(stream))
    return 0


@answering
def stream_wait_event(_call: HostCall, service: CudaService, stream: int, event: int) -> int:
    """Put what a stream is given next behind an event."""
    service.session.events.wait(u64(stream), u64(event))
    return 0


@answering
def event_sync(call: HostCall, service: CudaService, event: int) -> int:
    """Wait for what is before an event."""
    service.session.events.synchronize(u64(event), call.deadline)
    return 0


@answering
def event_query(_call: HostCall, service: CudaService, event: int) -> int:
    """Return 0 if what is before an event has ended, 1 if not."""
    return int(not service.session.events.reached(u64(event)))
