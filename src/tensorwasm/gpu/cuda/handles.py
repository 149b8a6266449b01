"""What this device hands out: opaque outside, each with the driver's own handle inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tensorwasm.gpu.cuda.dues import Dues
from tensorwasm.values import Deadline


@dataclass(eq=False, slots=True)
class CudaStream:
    """A stream of ours.

    Attributes:
        handle: the driver's stream.
        event: marks the end of the work that is waited for.
        dues: when its work must have stopped.
        cleared: how many clearings of new memory the stream is ordered behind.
        recording: whether what is given to it is recorded instead of run.
        overdue: what is known of its work that has missed its deadline, if any has.
    """

    handle: Any
    event: Any
    dues: Dues = field(default_factory=Dues)
    cleared: int = 0
    recording: bool = False
    overdue: Overdue | None = None


@dataclass(slots=True)
class Rival:
    """Work of another stream, which may hold up what is overdue.

    Attributes:
        stream: the other.
        mark: the last of that work, as `Dues.mark` counts; None if only the stream itself can tell.
        until_ns: when it is no excuse any more.
    """

    stream: CudaStream
    mark: int | None
    until_ns: int


@dataclass(slots=True)
class Overdue:
    """Work that has missed its deadline.

    Attributes:
        ended: how much of the stream's work had been seen to end: what comes behind it is another matter.
        rivals: what may hold it up, of what had been given when it was first found overdue.
        excused_until_ns: how long it is excused.
    """

    ended: int
    rivals: list[Rival]
    excused_until_ns: int = 0


@dataclass(eq=False, slots=True)
class CudaEvent:
    """An event of ours.

    Attributes:
        handle: the driver's event.
        deadline: when the work before the mark must have stopped; None without work that has a deadline.
        source: the stream that the mark is in.
        number: of the mark among that stream's work.
    """

    handle: Any
    deadline: Deadline | None = None
    source: CudaStream | None = None
    number: int = 0


@dataclass(eq=False, slots=True)
class CudaGraph:
    """A graph of ours.

    Attributes:
        handle: the driver's executable graph.
    """

    handle: Any


@dataclass(eq=False, slots=True)
class CudaPool:
    """A pool of ours.

    Attributes:
        handle: the driver's memory pool.
        addresses: where its live allocations begin.
    """

    handle: Any
    addresses: set[int] = field(default_factory=set)
