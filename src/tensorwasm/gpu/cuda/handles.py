"""What this device hands out: opaque outside, each with the driver's own handle inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tensorwasm.values import NEVER, Deadline


@dataclass(eq=False, slots=True)
class CudaStream:
    """A stream of ours.

    Attributes:
        handle: the driver's stream.
        event: marks the end of the work that is waited for.
        deadline: when the work given last must have stopped.
        cleared: how many clearings of new memory the stream is ordered behind.
        recording: whether what is given to it is recorded instead of run.
    """

    handle: Any
    event: Any
    deadline: Deadline = NEVER
    cleared: int = 0
    recording: bool = False


@dataclass(eq=False, slots=True)
class CudaEvent:
    """An event of ours.

    Attributes:
        handle: the driver's event.
        deadline: when the work before the mark must have stopped.
    """

    handle: Any
    deadline: Deadline = NEVER


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
