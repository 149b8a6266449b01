"""The functions of ``wasi:cuda`` that wait, in steps, for guests that run as fibers.

They answer what the bodies answer that they stand beside. While work on the device goes on, its notification is
awaited, and at a full gate the guest's turn, and no thread is held; what may wait for the driver is done on another
thread. What gives the device work waits until there is room for it, so that no call waits in the driver for that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tensorwasm.errors import DeviceLost, InvalidArgs, TensorWasmError
from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.gpu.device.limits import MOST_MOVES
from tensorwasm.gpu.limits.permit import NoPermit
from tensorwasm.gpu.limits.quota import patience
from tensorwasm.guest.imports.argv import parse_argv
from tensorwasm.guest.imports.cuda import buffers, graphs, kernels, streams
from tensorwasm.guest.imports.cuda.finish import finish as finish_started
from tensorwasm.guest.imports.cuda.grant import CudaService, answering_in_steps, u64, whole
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.guest.imports.suspension import Signal, Steps, Turn, Work
from tensorwasm.values import Region

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session

_OWN_STREAM: Final = 0
_ONE_PIECE: Final = 1
_LAUNCH_PIECES: Final = 1 + MOST_MOVES
"""A kernel, and the moves of its windows on managed memory ahead of it."""
_R = TypeVar("_R")
_Waiting = Generator[Signal, bool, None]
_Pieces = Callable[..., int]
"""How much work a call gives the device: called with the session and the parameters."""
_Before = Callable[..., list[int]]
"""Which streams have to drain before a call: called with the call, the session and the parameters."""


def _look(session: Session, ended: Callable[[int], bool], number: int) -> bool:
    """Return whether there is nothing to wait for on a stream or an event. Raise if the device has failed."""
    if session.failure is not None:
        raise DeviceLost(f"this GPU session ended with an earlier failure: {session.failure}")
    return ended(number)


def _drained(session: Session, *numbers: int) -> _Waiting:
    """Wait until streams have no work of this guest.

    The notification comes behind all of it, so it is counted off then, and no body has anything left to wait for: what
    others gave to a stream that sessions share may go on for long.
    """
    for number in numbers:
        ended = partial(_look, session, session.streams.ended, number)
        if (yield Signal(partial(session.streams.notify, number), ended)):
            session.streams.conclude(number)


def _room(call: HostCall, session: Session, pieces: int) -> Generator[Signal | Turn, Any, None]:
    """Wait until so much more work may be given at once; while a stream records, what is given is only noted."""
    with suppress(InvalidArgs):
        while not session.streams.make_room(pieces):
            if session.share.held:
                yield from _drained(session, session.streams.busiest)
            else:
                yield Turn(session.share, call.deadline)


def _placed(
    call: HostCall, session: Session, pieces: int, work: Callable[[], _R]
) -> Generator[Signal | Turn | Work, Any, _R]:
    """Do what may take the session's place at the gate, once that can be had, and refuse first what will be refused."""
    while True:
        yield from _room(call, session, pieces)
        with suppress(NoPermit):
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
def event_sync(_call: HostCall, service: CudaService, event: int) -> Steps:
    """Wait for what is before an event."""
    session = service.session
    ended = partial(_look, session, session.events.reached, u64(event))
    if (yield Signal(partial(session.events.notify, u64(event)), ended)):
        session.events.reached(u64(event))  # raises if what was before it has failed
    return 0


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
        _, _, arguments, memory = launch
        before = session.kernels.before_launch(memory)
        if before and _has_windows(arguments):
            yield from _drained(session, *before)
        begin = partial(session.kernels.begin_launch, *launch, call.deadline)
        placement = yield from _placed(call, session, _LAUNCH_PIECES, begin)
        yield from _drained(session, _OWN_STREAM)
        session.kernels.end_launch(placement, call.deadline)
        return 0

    return launch


def _has_windows(arguments: Callable[[], Any]) -> bool:
    with suppress(TensorWasmError):  # the launch says what is wrong with them, after what it looks at first
        return any(isinstance(argument, HostWindow) for argument in arguments())
    return False


def _when_placed(body: Callable[..., int], pieces: _Pieces, before: _Before) -> Callable[..., Steps]:
    """Return the steps of what starts work and does not wait for it."""

    @answering_in_steps
    def steps(call: HostCall, service: CudaService, *params: int) -> Steps:
        session = service.session
        with suppress(InvalidArgs):  # a stream records
            yield from _drained(session, *before(call, session, *params))
        return (yield from _placed(call, session, pieces(session, *params), partial(body, call, *params)))

    return steps


def _when_roomy(body: Callable[..., int], pieces: _Pieces) -> Callable[..., Steps]:
    """Return the steps of what gives work to the device and needs no place at the gate; the driver takes it at once."""

    @answering_in_steps
    def steps(call: HostCall, service: CudaService, *params: int) -> Steps:
        session = service.session
        yield from _room(call, session, pieces(session, *params))
        return body(call, *params)

    return steps


@answering_in_steps
def alloc(call: HostCall, service: CudaService, size_lo: int, size_hi: int) -> Steps:
    """Allocate device memory: on another thread if the driver has to be asked for it."""
    session = service.session
    yield from _room(call, session, _clearing(session))
    if session.buffers.at_hand(whole(size_lo, size_hi)):
        return buffers.alloc(call, size_lo, size_hi)
    handle: int = yield Work(partial(buffers.alloc, call, size_lo, size_hi))
    return handle


def _when_drained(body: Callable[..., int]) -> Callable[..., Steps]:
    """Return the steps of what waits for all work first."""

    @answering_in_steps
    def steps(call: HostCall, service: CudaService, *params: int) -> Steps:
        with suppress(InvalidArgs):  # a stream records: the body says so, after what it looks at first
            yield from _drained(service.session, *service.session.streams.numbers)
        answer: int = yield Work(partial(body, call, *params))
        return answer

    return steps


# ------------------------------------------------------------------------------ how much, and behind which streams


def _one(_session: Session, *_params: int) -> int:
    return _ONE_PIECE


def _one_launch(_session: Session, *_params: int) -> int:
    return _LAUNCH_PIECES


def _clearing(session: Session) -> int:
    """Count the zeros in new memory, the mark behind them, and that every other stream is put behind it."""
    return len(session.streams.numbers) + 2


def _recorded(session: Session, graph: int, *_params: int) -> int:
    with suppress(TensorWasmError):  # the replay says what is wrong
        return session.graphs.steps(u64(graph))
    return _ONE_PIECE


def _before_nothing(_call: HostCall, _session: Session, *_params: int) -> list[int]:
    return []


def _before_start(call: HostCall, session: Session, *params: int) -> list[int]:
    with suppress(TensorWasmError):  # the launch says what is wrong
        _, _, arguments, memory = kernels.decode(parse_argv, call, *params[:-1])
        before = session.kernels.before_submit(memory)
        return before if before and _has_windows(arguments) else []
    return []


def _before_copy(call: HostCall, session: Session, *params: int) -> list[int]:
    with suppress(TensorWasmError):  # the copy says what is wrong
        memory = Region(call.memory.address, call.memory.size_bytes, host=True)
        return session.buffers.before_copy(memory, u64(params[-1]))
    return []


STEPS: Final[dict[Callable[..., Any], Callable[..., Steps]]] = {
    streams.sync: sync,
    streams.stream_sync: stream_sync,
    streams.event_sync: event_sync,
    kernels.launch: _launch(parse_argv),
    kernels.launch_0_1: _launch(kernels.refuse_argv),
    kernels.launch_async: _when_placed(kernels.launch_async, _one_launch, _before_start),
    graphs.graph_launch: _when_placed(graphs.graph_launch, _recorded, _before_nothing),
    buffers.alloc: alloc,
    **{body: _when_placed(body, _one, _before_copy) for body in (buffers.memcpy_d2h_async, buffers.memcpy_h2d_async)},
    **{
        body: _when_roomy(body, _one)
        for body in (streams.stream_create, streams.event_record, streams.stream_wait_event)
    },
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
}
"""Steps by the body that means the same. Bodies that are not here wait for the driver, or not at all."""

FINISH: Final = dict.fromkeys((kernels.launch, buffers.memcpy_h2d, buffers.memcpy_d2h), finish)
"""Steps to the end of what the compiled form of a body has started."""
