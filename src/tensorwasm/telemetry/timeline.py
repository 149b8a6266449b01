"""`RequestTimeline`: where the time of one request goes, for requests that are timed.

The spans of a request do not overlap, and lie between its arrival and its reply:

- ``relay``: it and its answer were on their way between a front and the primary, which has the other spans;
- ``queue``: from its arrival until it was admitted;
- ``gate``: it waited for a turn or for memory;
- ``load``: its function was loaded;
- ``sandbox``: a session was brought into memory;
- ``guest``: a sandbox was made and its guest ran;
- ``offload``: loops of the guest ran elsewhere;
- ``kernel``: the guest waited for the device: for its kernels and copies, and for those ahead of them;
- ``dispatch``: its body was decoded, and it was on its way to the thread or process of its guest, and back;
- ``first``: in place of these four for a stream that has begun: until its guest's first output;
- ``answer``: from the guest's end until the reply was written.

A guest tells how long it ran, not when: its span ends with its outcome's arrival here, so the way back counts in front.
So it does of its loops that ran elsewhere, and of its waits for the device: each are one span, at the end of its time.

A request's timeline is found by what runs in its context (`contextvars`), and takes nothing once it is closed: a task
that outlives the request adds nothing to it.

Source: W3C Server Timing, "The Server-Timing Header Field": ``name;dur=MILLISECONDS``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, NamedTuple

Waiting = Literal["gate", "load", "sandbox"]

MOST_WAITS: Final = 16
"""Spans of waiting that one request may have; further ones count as ``dispatch``."""


class Span(NamedTuple):
    """A part of a request's time, from its arrival on."""

    name: str
    start_ns: int
    length_ns: int


class RequestTimeline:
    """The times of one request. For one event loop.

    Attributes:
        sampled: it is traced because of its turn, not because its client asked.
    """

    __slots__ = ("_admitted_ns", "_began_ns", "_closed", "_first_ns", "_guest", "_now_ns", "_waits", "sampled")

    def __init__(
        self, began_ns: int, *, sampled: bool = False, now_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.sampled = sampled
        self._began_ns, self._now_ns = began_ns, now_ns
        self._admitted_ns: int | None = None
        self._first_ns: int | None = None
        # When its outcome came, how long it ran, and of that waited and had loops elsewhere.
        self._guest: tuple[int, int, int, int] | None = None
        self._waits: list[tuple[str, int, int]] = []
        self._closed = False

    @contextmanager
    def current(self) -> Iterator[None]:
        """Be the timeline of what runs in the block, and of tasks that it makes."""
        token = CURRENT.set(self)
        try:
            yield
        finally:
            CURRENT.reset(token)

    def admit(self) -> None:
        """Note that the request was admitted."""
        self._admitted_ns = self._now_ns()

    def end_guest(self, elapsed_s: float, device_s: float, offload_s: float = 0.0) -> None:
        """Note a guest's outcome, how long it took, and how much of that it waited for a device or its loops elsewhere.

        The last of several outcomes counts.
        """
        if not self._closed:
            elapsed_ns = max(0, int(elapsed_s * 1e9))
            waited_ns = min(max(0, int(device_s * 1e9)), elapsed_ns)
            offload_ns = min(max(0, int(offload_s * 1e9)), elapsed_ns - waited_ns)
            self._guest = self._now_ns(), elapsed_ns, waited_ns, offload_ns

    def begin_output(self) -> None:
        """Note that a stream has begun."""
        if not self._closed:
            self._first_ns = self._now_ns()

    @contextmanager
    def waiting(self, name: Waiting) -> Iterator[None]:
        """Measure a block in which the request waits."""
        start_ns = self._now_ns()
        try:
            yield
        finally:
            if not self._closed and len(self._waits) < MOST_WAITS:
                self._waits.append((name, start_ns, self._now_ns()))

    def close(self) -> None:
        """Take nothing more."""
        self._closed = True

    def spans(self) -> tuple[list[Span], int]:
        """Return the spans until now, by their start, and the nanoseconds since the request's arrival."""
        now_ns, admitted_ns = self._now_ns(), self._admitted_ns
        found: list[Span] = []
        if admitted_ns is None:
            return found, now_ns - self._began_ns
        at_ns = self._began_ns

        def until(name: str, end_ns: int) -> None:
            nonlocal at_ns
            if end_ns > at_ns:
                found.append(Span(name, at_ns - self._began_ns, end_ns - at_ns))
                at_ns = end_ns

        until("queue", admitted_ns)
        called_ns = self._guest[0] if self._guest is not None else self._first_ns
        between = "dispatch" if self._guest is not None else "first"
        last_ns = now_ns if called_ns is None else called_ns
        for name, start_ns, end_ns in self._waits:
            if called_ns is not None:  # else it is not known what came between
                until(between, min(start_ns, last_ns))
            at_ns = max(at_ns, min(start_ns, last_ns))
            until(name, min(end_ns, last_ns))
        if called_ns is not None:
            if self._guest is not None:
                until("dispatch", called_ns - self._guest[1])
                until("guest", called_ns - self._guest[2] - self._guest[3])
                until("offload", called_ns - self._guest[2])
                until("kernel", called_ns)
            until("first", called_ns)
            until("answer", now_ns)
        return found, now_ns - self._began_ns

    def header(self) -> str:
        """Return the value of ``Server-Timing``; empty before the request was admitted."""
        if self._admitted_ns is None:
            return ""
        found, total_ns = self.spans()
        lengths: dict[str, int] = {}
        for name, _, length_ns in found:
            lengths[name] = lengths.get(name, 0) + length_ns
        return ", ".join(f"{name};dur={_ms(length_ns)}" for name, length_ns in (*lengths.items(), ("total", total_ns)))


CURRENT: Final[ContextVar[RequestTimeline | None]] = ContextVar("tensorwasm_timeline", default=None)
"""The timeline of the request that is being answered; None for one that is not timed."""


@contextmanager
def waiting(name: Waiting) -> Iterator[None]:
    """Measure a block in which the request waits, if it is timed. For what takes longer than that costs."""
    timeline = CURRENT.get()
    if timeline is None:
        yield
        return
    with timeline.waiting(name):
        yield


def note_guest(elapsed_s: float, device_s: float, offload_s: float = 0.0) -> None:
    """Note a guest's outcome, if the request is timed. The way of most calls asks `CURRENT` itself."""
    timeline = CURRENT.get()
    if timeline is not None:
        timeline.end_guest(elapsed_s, device_s, offload_s)


def note_output() -> None:
    """Note that a stream has begun, if the request is timed."""
    timeline = CURRENT.get()
    if timeline is not None:
        timeline.begin_output()


def add_relay(header: str, total_ns: int) -> str:
    """Return another process's ``Server-Timing`` with the span of the process that relayed the request to it.

    Args:
        header: as `RequestTimeline.header` makes it.
        total_ns: from the request's arrival at the relaying process until now.
    """
    spans, _, total_ms = header.rpartition("total;dur=")
    relayed_ns = total_ns - round(float(total_ms) * 1e6)
    return f"relay;dur={_ms(max(0, relayed_ns))}, {spans}total;dur={_ms(max(total_ns, total_ns - relayed_ns))}"


def _ms(length_ns: int) -> str:
    """Return milliseconds with three decimals, cut off: parts never add up to more than the whole."""
    return f"{length_ns // 1_000_000}.{length_ns // 1000 % 1000:03}"
