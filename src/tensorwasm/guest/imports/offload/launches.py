"""Launches of plans, in pieces that a session records as graphs where they come again.

A launch takes the host some 50 us and more, a graph of many launches not much more than that, and its kernels follow on
one another within 2 us.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from tensorwasm.errors import InvalidArgs, QuotaExceeded
from tensorwasm.gpu.device.arguments import Argument
from tensorwasm.guest.imports.host_function import HostCall
from tensorwasm.values import Deadline, LaunchConfig

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session

SHORT_PIECE: Final = 128
"""Launches, and those of the rest of the innermost loop's turn. A loop that does the same in each turn has few pieces
that differ."""
LONG_PIECE: Final = 1024
"""Of other launches."""
MOST_GRAPHS: Final = 24
"""Of an instance; what was used longest ago is not recorded any more."""
MOST_LAUNCHES: Final = 1 << 15
"""That an instance keeps, about 16 MB. A run of more is not recorded, and what was used longest ago makes room."""
LEAST_LAUNCHES: Final = 8
"""Of a piece, to be recorded."""
_OWN: Final = 0


class PlanLaunch(NamedTuple):
    """One launch; a piece may end behind it if ``last`` is set."""

    kernel: int
    config: LaunchConfig
    arguments: tuple[Argument, ...]
    last: bool


@dataclass(slots=True, eq=False)
class _LaunchPiece:
    """Launches in order.

    Attributes:
        graph: of all of them, None if there is none.
        runs: how often they were made.
    """

    launches: tuple[PlanLaunch, ...]
    graph: int | None = None
    runs: int = 0


class PlanLaunches:
    """The launches of an instance's plans. Used by one thread at a time."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[Hashable, list[_LaunchPiece]] = OrderedDict()
        self._graphs: OrderedDict[_LaunchPiece, None] = OrderedDict()
        self._may_record = True
        self._kept = 0  # launches of all sequences

    def run(self, session: Session, key: Hashable, launches: Iterator[PlanLaunch], call: HostCall) -> int:
        """Make all launches; return how many they were.

        Args:
            session: the instance's.
            key: of all that the launches depend on.
            launches: in order; taken only if the key is a new one.
            call: the guest's.
        """
        pieces = self._sequences.get(key)
        if pieces is None:
            taken = list(islice(launches, MOST_LAUNCHES))
            if len(taken) < LEAST_LAUNCHES or len(taken) == MOST_LAUNCHES:
                return _submit(session, chain(taken, launches), call)
            pieces = self._sequences[key] = _pieces(taken)
            self._kept += _count(pieces)
            while self._kept > MOST_LAUNCHES or len(self._sequences) > MOST_GRAPHS:
                oldest = self._sequences.popitem(last=False)[1]
                self._kept -= _count(oldest)
                self._drop(session, oldest, call.deadline)
        self._sequences.move_to_end(key)
        for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
            call.check()
            self._run_piece(session, piece, call, again=piece.runs > 0 or following is piece)
        return sum(len(piece.launches) for piece in pieces)

    def forget(self, session: Session, deadline: Deadline) -> None:
        """Release all graphs: buffers that they use are about to be freed."""
        for pieces in self._sequences.values():
            self._drop(session, pieces, deadline)
        self._sequences.clear()
        self._kept = 0

    def _run_piece(self, session: Session, piece: _LaunchPiece, call: HostCall, *, again: bool) -> None:
        if again and piece.graph is None and self._may_record and len(piece.launches) >= LEAST_LAUNCHES:
            self._record(session, piece, call)
        piece.runs += 1
        if piece.graph is None:
            _submit(session, piece.launches, call)
        else:
            self._graphs.move_to_end(piece)
            session.graphs.replay(piece.graph, None, call.deadline)

    def _record(self, session: Session, piece: _LaunchPiece, call: HostCall) -> None:
        """Record a piece, if the session takes it."""
        if len(self._graphs) == MOST_GRAPHS:
            self._drop(session, [next(iter(self._graphs))], call.deadline)
        try:
            session.graphs.begin(_OWN)
        except QuotaExceeded:
            self._may_record = False
            return
        whole = False
        try:
            _submit(session, piece.launches, call)
            whole = True
        except (QuotaExceeded, InvalidArgs):
            self._may_record = False
        finally:
            graph = session.graphs.end(_OWN)
            if whole:
                piece.graph = graph
                self._graphs[piece] = None
            else:
                session.graphs.close(graph, call.deadline)

    def _drop(self, session: Session, pieces: Iterable[_LaunchPiece], deadline: Deadline) -> None:
        for piece in dict.fromkeys(pieces):
            if piece.graph is not None:
                session.graphs.close(piece.graph, deadline)
                piece.graph = None
                del self._graphs[piece]


def _submit(session: Session, launches: Iterable[PlanLaunch], call: HostCall) -> int:
    count = 0
    for count, launch in enumerate(launches, 1):  # noqa: B007 - it is the number of all
        call.check()
        arguments = launch.arguments
        session.kernels.submit(launch.kernel, launch.config, lambda: arguments, None, call.deadline)  # noqa: B023 - called before it returns
    return count


def _count(pieces: Iterable[_LaunchPiece]) -> int:
    """Return the number of launches, of which those that come again count once."""
    return sum(len(piece.launches) for piece in dict.fromkeys(pieces))


def _pieces(launches: Sequence[PlanLaunch]) -> list[_LaunchPiece]:
    """Return launches in pieces, equal ones as one object."""
    cut = _cut(launches, SHORT_PIECE)
    if 2 * len(set(cut)) > len(cut):
        cut = _cut(launches, LONG_PIECE)
    known: dict[tuple[PlanLaunch, ...], _LaunchPiece] = {}
    return [known.setdefault(piece, _LaunchPiece(piece)) for piece in cut]


def _cut(launches: Sequence[PlanLaunch], least: int) -> list[tuple[PlanLaunch, ...]]:
    pieces: list[tuple[PlanLaunch, ...]] = []
    piece: list[PlanLaunch] = []
    for launch in launches:
        piece.append(launch)
        if launch.last and len(piece) >= least:
            pieces.append(tuple(piece))
            piece = []
    return [*pieces, tuple(piece)] if piece else pieces
