"""Programs of small steps over streams, ordered by events where they must be."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

SLOTS = 4
STREAMS = 3


@dataclass(frozen=True)
class Step:
    """One step of a program: in ``stream``, ``word[to] = word[to] * factor + word[source] + 1``, or a fill or a copy.

    Attributes:
        stream: index of the stream.
        kind: ``mix``, ``zero`` (``to`` becomes 0), ``in`` (host word ``source`` to ``to``), ``out`` (the reverse).
        to: slot that is written.
        source: slot that is read.
        factor: for ``mix``.
        look: what the host does behind it: nothing, ask whether the stream has ended, or wait for it.
        after: earlier steps that this one waits for by events.
    """

    stream: int
    kind: str
    to: int
    source: int
    factor: int
    look: str
    after: tuple[int, ...]


def touched(step: Step) -> tuple[frozenset[tuple[str, int]], frozenset[tuple[str, int]]]:
    """Return what a step reads and what it writes."""
    device, host = ("device", step.to), ("host", step.source)
    return {
        "mix": (frozenset({device, ("device", step.source)}), frozenset({device})),
        "zero": (frozenset(), frozenset({device})),
        "in": (frozenset({host}), frozenset({device})),
        "out": (frozenset({device}), frozenset({host})),
    }[step.kind]


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """Return steps that mean one thing only: those that touch the same word are ordered by a stream or by an event."""
    found: list[Step] = []
    slots = st.integers(0, SLOTS - 1)
    for _ in range(draw(st.integers(1, 16))):
        step = Step(
            stream=draw(st.integers(0, STREAMS - 1)),
            kind=draw(st.sampled_from(["mix", "mix", "mix", "zero", "in", "out"])),
            to=draw(slots),
            source=draw(slots),
            factor=draw(st.integers(0, 9)),
            look=draw(st.sampled_from(["", "", "", "ask", "wait"])),
            after=(),
        )
        more = draw(st.sets(st.integers(0, len(found) - 1), max_size=2)) if found else set()
        after = sorted(more | {index for index, one in enumerate(found) if _conflict(one, step)})
        found.append(Step(**{**vars(step), "after": tuple(after)}))
    return found


def _conflict(one: Step, other: Step) -> bool:
    (reads, writes), (other_reads, other_writes) = touched(one), touched(other)
    return bool(writes & other_writes or writes & other_reads or reads & other_writes)
