"""Streams as queues: work waits until somebody needs it done, and runs in the thread of whoever does.

What a wait depends on is run first, across streams. One thread at a time runs the work of a stream, and several streams
may run side by side. A mark only ever stands behind work that was given before it, so nothing can wait for itself.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from tensorwasm.errors import DeviceLost, InternalError, InvalidHandle, InvokeTimeout, LaunchRefused, TensorWasmError
from tensorwasm.gpu.device.protocols import Stream
from tensorwasm.gpu.emulator.reach import NOWHERE, Reach
from tensorwasm.values import NEVER, Deadline, Region

DEPTH: Final = 1024
"""Pieces of work that wait in a stream. Whoever gives more runs the oldest first; hardware makes him wait."""

_log: Final = logging.getLogger(__name__)


class Action(Protocol):
    """Something to do in a stream."""

    def run(self, reach: Reach, deadline: Deadline) -> None:
        """Do it.

        Args:
            reach: what kernels may touch.
            deadline: when it must have stopped.

        Raises:
            TensorWasmError: it failed, and with it the stream.
        """


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a stream: behind its first ``count`` pieces of work."""

    stream: EmulatedStream
    count: int

    def run(self, reach: Reach, deadline: Deadline) -> None:
        """Fail if the work before the mark has failed: whoever waits for it must not go on."""
        del reach, deadline
        if self.stream.done < self.count and self.stream.failure is not None:
            raise renewed(self.stream.failure)

    @property
    def settled(self) -> bool:
        """Whether the work before it has ended or failed."""
        return self.stream.done >= self.count or self.stream.failure is not None


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of work in a stream.

    Attributes:
        action: what to do.
        reach: what its kernels may touch.
        deadline: when it must have stopped.
        after: what has to be settled before.
        certain: it is done even if the work before it has failed.
    """

    action: Action
    reach: Reach = NOWHERE
    deadline: Deadline = NEVER
    after: Mark | None = None
    certain: bool = False


@dataclass(slots=True, eq=False)
class EmulatedStream:
    """An order of work.

    Attributes:
        queue: work that has not begun.
        given: pieces of work since the stream was opened.
        done: how many of them have ended.
        asked: how many of them background threads have been asked for.
        running: a thread is at work on the next.
        failure: what went wrong; nothing of the stream runs any more.
        recording: what is recorded instead of queued, or None.
        regions: what kernels that compiled code launches may touch.
        deadline: when they must have stopped.
    """

    queue: deque[Work] = field(default_factory=deque)
    given: int = 0
    done: int = 0
    asked: int = 0
    running: bool = False
    failure: TensorWasmError | None = None
    recording: list[Action] | None = None
    regions: tuple[Region, ...] = ()
    deadline: Deadline = NEVER

    @property
    def idle(self) -> bool:
        """Whether everything given has ended."""
        return self.done == self.given


def renewed(failure: TensorWasmError) -> TensorWasmError:
    """Return the same error for another caller, with a traceback of its own."""
    return type(failure)(failure.message)


class Queues:
    """The streams of one device."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._streams: set[EmulatedStream] = set()

    def __len__(self) -> int:
        """Return how many streams are open."""
        return len(self._streams)

    def open(self) -> EmulatedStream:
        """Return a new stream."""
        stream = EmulatedStream()
        with self._changed:
            self._streams.add(stream)
        return stream

    def own(self, stream: Stream) -> EmulatedStream:
        """Return a stream that is open here.

        Raises:
            InvalidHandle: it is not.
        """
        if not isinstance(stream, EmulatedStream) or stream not in self._streams:
            raise InvalidHandle("the stream is not open on this device")
        return stream

    def close(self, stream: Stream) -> None:
        """Release a stream. What has not begun never will, but for what is certain, once what runs has ended."""
        if not isinstance(stream, EmulatedStream):
            return
        with self._changed:
            self._streams.discard(stream)
            stream.recording = None
        if not stream.idle:
            self._end(stream, DeviceLost("the stream was closed"), ran=False)

    def clear(self) -> None:
        """Release every stream."""
        for stream in list(self._streams):
            self.close(stream)

    # ---------------------------------------------------------------------------------------------- giving

    def give(self, stream: EmulatedStream, work: Work) -> Mark:
        """Put work behind what the stream has, or record it; return the mark behind it.

        Raises:
            LaunchRefused: the stream is recording, and this cannot be recorded.
            TensorWasmError: what the stream has failed with.
        """
        with self._changed:
            if stream.recording is not None:
                if work.after is not None or work.certain:
                    raise LaunchRefused("a stream that is recording takes launches and copies only")
                stream.recording.append(work.action)
            elif stream.failure is not None:
                raise renewed(stream.failure)
            else:
                stream.queue.append(work)
                stream.given += 1
            mark = Mark(stream, stream.given)
            full = len(stream.queue) > DEPTH
        if full:
            with suppress(TensorWasmError):  # the work has been given; the wait for it says what went wrong
                self.run_to(Mark(stream, mark.count - DEPTH), NEVER)
        return mark

    def mark(self, stream: EmulatedStream) -> Mark:
        """Return the mark behind the work given so far.

        Raises:
            LaunchRefused: the stream is recording.
        """
        with self._changed:
            if stream.recording is not None:
                raise LaunchRefused("the stream is recording")
            return Mark(stream, stream.given)

    def begin_recording(self, stream: EmulatedStream) -> None:
        """Record from now on.

        Raises:
            LaunchRefused: it does already.
        """
        with self._changed:
            if stream.recording is not None:
                raise LaunchRefused("the stream is recording already")
            stream.recording = []

    def end_recording(self, stream: EmulatedStream) -> tuple[Action, ...]:
        """Return what was recorded.

        Raises:
            LaunchRefused: the stream is not recording.
        """
        with self._changed:
            if stream.recording is None:
                raise LaunchRefused("the stream is not recording")
            recorded, stream.recording = stream.recording, None
            return tuple(recorded)

    # --------------------------------------------------------------------------------------------- running

    def reached(self, mark: Mark) -> bool:
        """Return whether the work before a mark has ended.

        Raises:
            TensorWasmError: it has failed.
        """
        with self._changed:
            return _reached(mark)

    def run_to(self, mark: Mark, deadline: Deadline) -> None:
        """Run the work before a mark, and all that it waits for; wait where another thread is running it.

        A kernel that this thread runs is stopped at the deadline, if its own does not come before.

        Raises:
            TensorWasmError: the work has failed.
            InvokeTimeout: the deadline has passed.
        """
        trail = [mark]
        while trail:
            with self._changed:
                work = self._next(trail, deadline)
            if work is not None:
                self._run(trail[-1].stream, work, deadline)

    def _next(self, trail: list[Mark], deadline: Deadline) -> Work | None:
        """Take the work that the last mark of a trail needs next; None if the trail or the world has changed first."""
        mark = trail[-1]
        stream = mark.stream
        if len(trail) == 1 and _reached(mark):
            trail.clear()
        elif mark.settled:
            trail.pop()
        elif stream.running:
            left_s = deadline.remaining_s()
            if not left_s:
                raise InvokeTimeout("work on the device was still running at the deadline")
            self._changed.wait(None if math.isinf(left_s) else min(left_s, threading.TIMEOUT_MAX))
        elif (after := stream.queue[0].after) is not None and not after.settled:
            trail.append(after)
        else:
            stream.running = True
            return stream.queue.popleft()
        return None

    def _run(self, stream: EmulatedStream, work: Work, deadline: Deadline) -> None:
        try:
            work.action.run(work.reach, work.deadline.earlier(deadline))
        except TensorWasmError as error:
            self._end(stream, error, ran=True)
        except BaseException as error:
            self._end(stream, InternalError(f"work on the device broke off: {error!r}"), ran=True)
            raise
        else:
            self._end(stream, None, ran=True)

    def _end(self, stream: EmulatedStream, failure: TensorWasmError | None, *, ran: bool) -> None:
        """Note that a piece of work has ended, or that the stream has failed.

        Args:
            stream: whose.
            failure: what it has failed with.
            ran: the calling thread was at work on it.
        """
        left: list[Work] = []
        with self._changed:
            if failure is None:
                stream.done += 1
            else:
                stream.failure = stream.failure or failure
            stream.running = stream.running and not ran
            if stream.failure is not None and not stream.running:
                left += [work for work in stream.queue if work.certain]
                stream.queue.clear()
            self._changed.notify_all()
        finish(left)


def _reached(mark: Mark) -> bool:
    if mark.stream.done >= mark.count:
        return True
    if mark.stream.failure is not None:
        raise renewed(mark.stream.failure)
    return False


def finish(left: Iterable[Work]) -> None:
    """Do what has to be done although the work before it has failed."""
    for work in left:
        try:
            work.action.run(work.reach, work.deadline)
        except TensorWasmError:
            _log.exception("work that had to be done in a stream that failed has failed as well")
