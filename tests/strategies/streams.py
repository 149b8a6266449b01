"""Programs for streams: what a guest does, step by step, with results that do not depend on what overlaps.

Every stream has a word of guest memory and a word of a device buffer. Only work of that stream touches them, unless
another stream borrows them between two events.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

STREAMS = 3

_streams = st.integers(0, STREAMS - 1)
_words = st.integers(0, (1 << 32) - 1)


@dataclass(frozen=True)
class Step:
    """``word = word * factor + term``, asynchronously, in guest memory or in the buffer."""

    stream: int
    factor: int
    term: int
    in_buffer: bool


@dataclass(frozen=True)
class Copy:
    """Between a stream's two words, asynchronously."""

    stream: int
    inward: bool


@dataclass(frozen=True)
class Borrow:
    """The word of one stream's guest memory is stepped by another, in between."""

    owner: int
    borrower: int
    factor: int
    term: int


@dataclass(frozen=True)
class Record:
    """Steps and copies of one stream are recorded as a graph, and replayed that often."""

    stream: int
    body: tuple[Step | Copy, ...]
    replays: int


@dataclass(frozen=True)
class Wait:
    """For a stream, or for all of them; guest memory is compared then."""

    stream: int | None


@dataclass(frozen=True)
class Grow:
    """The guest's memory, by a page."""


def _pieces(streams: st.SearchStrategy[int]) -> st.SearchStrategy[Step | Copy]:
    return st.builds(Step, streams, _words, _words, st.booleans()) | st.builds(Copy, streams, st.booleans())


def _recordings(stream: int) -> st.SearchStrategy[Record]:
    body = st.lists(_pieces(st.just(stream)), max_size=5).map(tuple)
    return st.builds(Record, st.just(stream), body, st.integers(0, 3))


programs = st.lists(
    _pieces(_streams)
    | st.builds(Borrow, _streams, _streams, _words, _words)
    | _streams.flatmap(_recordings)
    | st.builds(Wait, st.none() | _streams)
    | st.builds(Grow),
    max_size=20,
)
"""Programs, which end wherever they like."""
