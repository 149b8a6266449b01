"""Graphs of a guest: recorded from a stream, and replayed."""

from __future__ import annotations

from tensorwasm.gpu.launcher import Launcher
from tensorwasm.gpu.session.lock import SessionLock, in_turn
from tensorwasm.gpu.state.graph_book import GraphBook
from tensorwasm.gpu.state.streams import OWN
from tensorwasm.gpu.state.work import SessionWork
from tensorwasm.values import Deadline, Region


class SessionGraphs:
    """The graphs of one session, by their numbers. Any thread may call.

    Args:
        turns: of the session.
        work: the streams.
        book: the graphs.
        launcher: of launches and copies.
    """

    __slots__ = ("_book", "_launcher", "_turns", "_work")

    def __init__(self, turns: SessionLock, work: SessionWork, book: GraphBook, launcher: Launcher) -> None:
        self._turns = turns
        self._work = work
        self._book = book
        self._launcher = launcher

    @in_turn()
    def begin(self, stream: int) -> None:
        """Record what a stream is given from now on, instead of running it.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: a stream records already.
            QuotaExceeded: the session has as many graphs as it may.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._work.known(stream)
        self._launcher.begin(stream)

    @in_turn(recording=True)
    def end(self, stream: int) -> int:
        """Stop recording; return the number of the graph.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: it does not record.
            LaunchRefused: what was recorded cannot be replayed. The stream records no longer.
            DeviceLost: the session is over, or the device does not answer.
        """
        return self._launcher.end(stream)

    @in_turn()
    def replay(self, graph: int, memory: Region | None, deadline: Deadline, stream: int = OWN) -> None:
        """Start everything that a graph holds, in its order, behind the work of a stream.

        Args:
            graph: its number.
            memory: the guest's memory as it is now. What the graph reaches of it is at the same place as when it was
                recorded, and still registered, or the graph is dead.
            deadline: when all of it must have stopped.
            stream: its number.

        Raises:
            InvalidHandle: no such graph or stream, or a buffer, a kernel or memory that the graph uses has gone.
            InvalidArgs: a stream records.
            CapacityExhausted: no place on the GPU in time.
            LaunchRefused: the device refused.
            KernelFault: a kernel, or work before it, broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._launcher.replay(graph, memory, deadline, stream)

    @in_turn()
    def close(self, graph: int, deadline: Deadline) -> None:
        """Release a graph, once all work has ended.

        Raises:
            InvalidHandle: no such graph.
            InvalidArgs: a stream records.
            KernelFault: that work broke a rule.
            InvokeTimeout: that work did not end in time.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._book.find(graph)
        self._work.drain(deadline)
        self._book.close(graph)

    @in_turn(recording=True)
    def steps(self, graph: int) -> int:
        """Return how many launches and copies a graph holds.

        Raises:
            InvalidHandle: no such graph.
            DeviceLost: the session is over.
        """
        return self._book.find(graph).needs.steps
