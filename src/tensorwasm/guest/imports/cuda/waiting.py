"""The functions of ``wasi:cuda`` that wait, in steps, for guests that run as fibers.

They answer what the bodies answer that they stand beside. While work on the device goes on, its notification is
awaited, and at a full gate the guest's turn, and no thread is held; what may wait for the driver is done on another
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from tensorwasm.errors import DeviceLost, InvalidArgs
from tensorwasm.gpu.place import NoPlace
from tensorwasm.gpu.quota import patience
from tensorwasm.gpu.session import Session
from tensorwasm.guest.hostfunc import HostCall
from tensorwasm.guest.imports.argv import parse_argv
from tensorwasm.guest.imports.cuda import buffers, graphs, kernels, streams
from tensorwasm.guest.imports.cuda.grant import CudaService, answering_in_steps, u64
from tensorwasm.guest.native.finish import finish as finish_started
from tensorwasm.guest.suspension import Signal, Steps, Turn, Work

_OWN_STREAM: Final = 0
_R = TypeVar("_R")
_Waiting = Generator[
    Signal, bool, None
]  # once told, the driver may still be at the call: the body waits for its return


def _look(session: Session) -> None:
    """Find out whether the device has failed, which notifies nobody."""
    if session.failure is not None:
        raise DeviceLost(f"this GPU session ended with an earlier failure: {session.failure}")
    session.streams.ended(_OWN_STREAM)


def _drained(session: Session, *streams: int) -> _Waiting:
    """Wait until streams have no work."""
    for stream in streams:
        yield Signal(partial(session.streams.notify, stream), partial(_look, session))


def _placed(call: HostCall, session: Session, work: Callable[[], _R]) -> Generator[Turn | Work, Any, _R]:
    """Do what may take the session's place at the gate, once that can be had, and refuse first what will be refused."""
    while True:
        with suppress(NoPlace):
            done: _R = yield Work(partial(session.attempt, work))
            return done
        yield Turn(session.place, patience(call.deadline))


@answering_in_steps
def sync(call: HostCall, service: CudaService) -> Steps:
    """Wait for all work of the instance."""
    yield from _drained(service.session, *service.session.streams.numbers)
    return streams.sync(call)


@answering_in_steps
def stream_sync(call: HostCall, service: CudaService, stream: int) -> Steps:
    """Wait for a stream's work."""
    yield from _drained(service.session, u64(stream))
    return streams.stream_sync(call, stream)


@answering_in_steps
def event_sync(call: HostCall, service: CudaService, event: int) -> Steps:
    """Wait for what is before an event."""
    session = service.session
    yield Signal(partial(session.events.notify, u64(event)), partial(_look, session))
    return streams.event_sync(call, event)


@answering_in_steps
def finish(call: HostCall, service: CudaService) -> Steps:
    """Wait for what compiled code has started."""
    yield from _drained(service.session, _OWN_STREAM)
    return finish_started(call)


def _launch(parse: kernels.Parse) -> Callable[..., Steps]:
    """Return the launch of a version of the interface, whose argument records are parsed that way."""

    @answering_in_steps
    def launch(call: HostCall, service: CudaService, *numbers: int) -> Steps:
        session, launch = service.session, kernels.decode(parse, call, *numbers)
        placement = yield from _placed(call, session, partial(session.kernels.begin_launch, *launch, call.deadline))
        yield from _drained(session, _OWN_STREAM)
        session.kernels.end_launch(placement, call.deadline)
        return 0

    return launch


def _when_placed(body: Callable[..., int]) -> Callable[..., Steps]:
    """Return the steps of what starts work and does not wait for it."""

    @answering_in_steps
    def steps(call: HostCall, service: CudaService, *params: int) -> Steps:
        return (yield from _placed(call, service.session, partial(body, call, *params)))

    return steps


def _when_drained(body: Callable[..., int]) -> Callable[..., Steps]:
    """Return the steps of what waits for all work first."""

    @answering_in_steps
    def steps(call: HostCall, service: CudaService, *params: int) -> Steps:
        with suppress(InvalidArgs):  # a stream records: the body says so, after what it looks at first
            yield from _drained(service.session, *service.session.streams.numbers)
        answer: int = yield Work(partial(body, call, *params))
        return answer

    return steps


STEPS: Final[dict[Callable[..., Any], Callable[..., Steps]]] = {
    streams.sync: sync,
    streams.stream_sync: stream_sync,
    streams.event_sync: event_sync,
    kernels.launch: _launch(parse_argv),
    kernels.launch_0_1: _launch(kernels.refuse_argv),
    **{
        body: _when_drained(body)
        for body in (
            buffers.free,
            buffers.memcpy_h2d,
            buffers.memcpy_d2h,
            graphs.graph_destroy,
            kernels.unload,
            streams.stream_destroy,
        )
    },
    **{
        body: _when_placed(body)
        for body in (buffers.memcpy_d2h_async, buffers.memcpy_h2d_async, graphs.graph_launch, kernels.launch_async)
    },
}
"""Steps by the body that means the same. Bodies that are not here wait for the driver, or not at all."""

FINISH: Final = dict.fromkeys((kernels.launch, buffers.memcpy_h2d, buffers.memcpy_d2h), finish)
"""Steps to the end of what the compiled form of a body has started."""
