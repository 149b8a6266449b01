"""The functions of ``wasi:cuda`` that wait, in steps, for guests that run as fibers. They answer what their bodies do.

No thread is held during a wait for the device or for a full gate; a wait for the driver is a `BlockingCall`. Work is
given to the device only when there is room in the driver's queue, so that the driver does not block.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tensorwasm.errors import CallerError, DeviceLost, InvalidArgs, LimitError
from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.gpu.device.limits import GUARDED_PIECES, MOST_MOVES
from tensorwasm.gpu.limits.gate import NoPermit, patience
from tensorwasm.guest.imports.argv import parse_argv
from tensorwasm.guest.imports.cuda import kernels, resources
from tensorwasm.guest.imports.cuda.grant import CudaService, answering_in_steps, memory_of, u32, u64, whole
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.guest.imports.suspension import BlockingCall, DeviceWait, QueueWait, Steps, elsewhere

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session
    from tensorwasm.values import LaunchConfig

_OWN_STREAM: Final = 0
_ONE_PIECE: Final = 1
_R = TypeVar("_R")
_Before = Callable[..., list[int]]
"""Which streams have to drain before a call: called with the call, the session and the parameters."""
_Pieces = Callable[..., int]
"""How many pieces of work a call starts: called alike."""


def _has_ended(session: Session, ended: Callable[[int], bool], number: int) -> bool:
    """Return whether a stream or an event has nothing to wait for. Raise if the device has failed."""
    if session.failure is not None:
        raise DeviceLost(f"this GPU session ended with an earlier failure: {session.failure}")
    return ended(number)


def _drained(session: Session, *numbers: int) -> Generator[DeviceWait, bool, None]:
    """Wait until streams have no work of this guest.

    That work is counted off with the notification behind it, so a body has nothing left to wait for on a shared stream.
    """
    for number in numbers:
        ended = partial(_has_ended, session, session.streams.ended, number)
        if (yield DeviceWait(partial(session.streams.notify, number), ended)):
            session.streams.conclude(number)


def _room(call: HostCall, session: Session, pieces: int) -> Generator[DeviceWait | QueueWait, Any, None]:
    """Wait until so much more work may be given to the device; a recording stream needs no room."""
    try:
        with suppress(InvalidArgs):
            while not session.streams.make_room(pieces):
                session.permit.settle()  # others may need it meanwhile
                if (queue := session.credits.queue) is None:
                    yield from _drained(session, session.streams.busiest)
                else:
                    yield QueueWait(queue, patience(call.deadline))
    except BaseException:
        session.credits.given()
        raise


def _placed(
    call: HostCall, session: Session, pieces: int, work: Callable[[], _R]
) -> Generator[DeviceWait | QueueWait | BlockingCall, Any, _R]:
    """Run what may take the session's permit at the gate once that is free; what will be refused is refused first."""
    while True:
        yield from _room(call, session, pieces)
        try:
            with suppress(NoPermit):
                done: _R = yield from elsewhere(session.attempt, work)
                return done
        finally:
            session.credits.given()
        yield QueueWait(session.permit, patience(call.deadline))


@answering_in_steps
def sync(call: HostCall, service: CudaService) -> Steps:
    """Wait for all work of the instance."""
    yield from _drained(service.session, *service.session.streams.numbers)
    return resources.sync(call)


@answering_in_steps
def stream_sync(call: HostCall, service: CudaService, stream: int) -> Steps:
    """Wait for a stream's work."""
    yield from _drained(service.session, u64(stream))
    return resources.stream_sync(call, stream)


@answering_in_steps
def event_sync(_call: HostCall, service: CudaService, event: int) -> Steps:
    """Wait for the work before an event."""
    session = service.session
    ended = partial(_has_ended, session, session.events.reached, u64(event))
    if (yield DeviceWait(partial(session.events.notify, u64(event)), ended)):
        session.events.reached(u64(event))  # raises if the work before it has failed
    return 0


@answering_in_steps
def finish(call: HostCall, service: CudaService) -> Steps:
    """Wait for work that compiled code has started."""
    yield from _drained(service.session, _OWN_STREAM)
    return kernels.finish_started(call)


@answering_in_steps
def load_ptx(call: HostCall, service: CudaService, *params: int) -> Steps:
    """Load a kernel, on another thread, of which a tenant's loads hold a few at most."""
    place = service.session.kernels.open_load_place()
    yield QueueWait(place, call.deadline)
    answer: int = yield from elsewhere(place.hold, partial(kernels.load_ptx, call, *params))
    return answer


@answering_in_steps
def alloc(call: HostCall, service: CudaService, size_lo: int, size_hi: int) -> Steps:
    """Allocate device memory: on another thread if the driver has to be asked for it."""
    session = service.session
    # The zeros in new memory, the mark behind them, and the wait of every other stream for that mark.
    yield from _room(call, session, len(session.streams.numbers) + 2)
    try:
        if session.buffers.at_hand(whole(size_lo, size_hi)):
            return resources.alloc(call, size_lo, size_hi)
        return (yield from elsewhere(resources.alloc, call, size_lo, size_hi))
    finally:
        session.credits.given()


@answering_in_steps
def graph_launch(call: HostCall, service: CudaService, graph: int, stream: int) -> Steps:
    """Start everything that a graph holds."""
    session, pieces = service.session, _ONE_PIECE
    with suppress(CallerError, LimitError):  # the replay reports it
        pieces = session.graphs.pieces(u64(graph))
    return (yield from _placed(call, session, pieces, partial(resources.graph_launch, call, graph, stream)))


def _launch(parse: kernels.Parse) -> Callable[..., Steps]:
    """Return the launch of an interface version whose argument records are parsed like this."""

    @answering_in_steps
    def launch(call: HostCall, service: CudaService, *numbers: int) -> Steps:
        session, launch = service.session, kernels.decode(parse, call, *numbers)
        kernel_id, config, arguments, memory = launch
        before = session.kernels.before_launch(memory)
        if before and _has_windows(arguments):
            yield from _drained(session, *before)
        begin = partial(session.kernels.begin_launch, *launch, call.deadline)
        placement = yield from _placed(call, session, _launch_pieces(session, kernel_id, config), begin)
        yield from _drained(session, _OWN_STREAM)
        session.kernels.end_launch(placement, call.deadline)
        return 0

    return launch


def _has_windows(arguments: Callable[[], Any]) -> bool:
    with suppress(CallerError, LimitError):  # the launch reports it, after what it checks first
        return any(isinstance(argument, HostWindow) for argument in arguments())
    return False


def _launch_pieces(session: Session, kernel_id: int, config: LaunchConfig) -> int:
    """Return how many pieces a kernel is, and the moves of its windows on managed memory ahead of it."""
    with suppress(CallerError, LimitError):  # the launch reports it, and refuses what is too large
        pieces = session.kernels.pieces(kernel_id, config)
        return pieces + MOST_MOVES if pieces <= GUARDED_PIECES else _ONE_PIECE
    return _ONE_PIECE


def _when_placed(body: Callable[..., int], pieces: _Pieces, before: _Before) -> Callable[..., Steps]:
    """Return the steps of a body that starts some pieces of work and does not wait for them."""

    @answering_in_steps
    def steps(call: HostCall, service: CudaService, *params: int) -> Steps:
        session = service.session
        with suppress(InvalidArgs):  # a stream records
            yield from _drained(session, *before(call, session, *params))
        return (yield from _placed(call, session, pieces(call, session, *params), partial(body, call, *params)))

    return steps


def _when_roomy(body: Callable[..., int]) -> Callable[..., Steps]:
    """Return the steps of a body that gives the device one piece of work, needs no permit and never blocks."""

    @answering_in_steps
    def steps(call: HostCall, service: CudaService, *params: int) -> Steps:
        yield from _room(call, service.session, _ONE_PIECE)
        try:
            return body(call, *params)
        finally:
            service.session.credits.given()

    return steps


def _when_drained(body: Callable[..., int]) -> Callable[..., Steps]:
    """Return the steps of a body that waits for all work first."""

    @answering_in_steps
    def steps(call: HostCall, service: CudaService, *params: int) -> Steps:
        with suppress(InvalidArgs):  # a stream records: the body reports it, after what it checks first
            yield from _drained(service.session, *service.session.streams.numbers)
        return (yield from elsewhere(body, call, *params))

    return steps


def _before_start(call: HostCall, session: Session, *params: int) -> list[int]:
    with suppress(CallerError, LimitError):  # the launch reports it
        _, _, arguments, memory = kernels.decode(parse_argv, call, *params[:-1])
        before = session.kernels.before_submit(memory)
        return before if before and _has_windows(arguments) else []
    return []


def _start_pieces(call: HostCall, session: Session, *params: int) -> int:
    with suppress(CallerError, LimitError):  # the launch reports it
        kernel_id, config, _, _ = kernels.decode(parse_argv, call, *params[:-1])
        return _launch_pieces(session, kernel_id, config)
    return _ONE_PIECE


def _copy_pieces(_call: HostCall, session: Session, *params: int) -> int:
    return session.buffers.pieces(u32(params[-2]))


def _before_copy(call: HostCall, session: Session, *params: int) -> list[int]:
    with suppress(CallerError, LimitError):  # the copy reports it
        return session.buffers.before_copy(memory_of(call), u64(params[-1]))
    return []


STEPS: Final[dict[Callable[..., Any], Callable[..., Steps]]] = {
    resources.sync: sync,
    resources.stream_sync: stream_sync,
    resources.event_sync: event_sync,
    kernels.launch: _launch(parse_argv),
    kernels.launch_0_1: _launch(kernels.refuse_argv),
    kernels.launch_async: _when_placed(kernels.launch_async, _start_pieces, _before_start),
    resources.graph_launch: graph_launch,
    resources.alloc: alloc,
    kernels.load_ptx: load_ptx,
    **{
        body: _when_placed(body, _copy_pieces, _before_copy)
        for body in (resources.memcpy_d2h_async, resources.memcpy_h2d_async)
    },
    **{
        body: _when_roomy(body)
        for body in (resources.stream_create, resources.event_record, resources.stream_wait_event)
    },
    **{
        body: _when_drained(body)
        for body in (
            resources.free,
            resources.memcpy_h2d,
            resources.memcpy_d2h,
            resources.graph_destroy,
            kernels.unload,
            resources.stream_destroy,
        )
    },
}
"""Steps by the equivalent body. Bodies that are missing here wait for the driver, or not at all."""

FINISH: Final = dict.fromkeys((kernels.launch, resources.memcpy_h2d, resources.memcpy_d2h), finish)
"""Steps to the end of work that a body's compiled form has started."""
