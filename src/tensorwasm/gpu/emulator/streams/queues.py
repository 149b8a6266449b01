"""Streams as queues: work waits until a thread needs it done, and runs in that thread.

Background threads run work that is only polled. What a wait depends on is run first, across streams. One thread at a
time runs the work of a stream, and several streams may run side by side. A mark only ever stands behind work that was
given before it, so no work can wait for itself.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import DeviceLost, InternalError, InvokeTimeout, LaunchRefused, TensorWasmError
from tensorwasm.gpu.device.protocols import Stream
from tensorwasm.gpu.emulator.handles import OpenObjects
from tensorwasm.gpu.emulator.memory.planes import NOTHING, AccessRanges
from tensorwasm.values import NEVER, Deadline, Region

THREADS: Final = 4
"""Most background threads of a device."""
DEPTH: Final = 1024
"""Most pieces of work that wait in a stream. A thread that gives more runs the oldest first; hardware makes it wait."""

_log: Final = logging.getLogger(__name__)


Action = Callable[[AccessRanges, Deadline], None]
"""Something to do in a stream, whose kernels may touch some ranges. With a `TensorWasmError`, the stream has failed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a stream: behind its first ``count`` pieces of work."""

    stream: EmulatedStream
    count: int

    def run(self, _ranges: AccessRanges, _deadline: Deadline) -> None:
        """As an action, fail if the work before the mark has failed."""
        self.has_ended()

    @property
    def settled(self) -> bool:
        """Whether the work before it has ended or failed."""
        return self.stream.done >= self.count or self.stream.failure is not None

    def has_ended(self) -> bool:
        """Return whether the work before it has ended; raises the error with which it has failed."""
        if self.stream.done >= self.count:
            return True
        if self.stream.failure is not None:
            raise copy_error(self.stream.failure)
        return False


@dataclass(frozen=True, slots=True)
class QueuedWork:
    """One piece of work in a stream, whose kernels may touch ``ranges``.

    It begins when ``after`` is settled; with ``always``, it is done even if the work before it has failed.
    """

    action: Action
    ranges: AccessRanges = NOTHING
    deadline: Deadline = NEVER
    after: Mark | None = None
    always: bool = False


@dataclass(slots=True, eq=False)
class EmulatedStream:
    """An order of work.

    Attributes:
        queue: work that has not begun.
        given, done, requested: pieces of work since the stream was opened; how many of them have ended; how many of
            them background threads have been asked to run.
        running: a thread runs the next.
        failure: the first error; nothing of the stream runs any more.
        recording: what is recorded instead of queued, or None.
        regions, deadline: of the kernels that compiled code launches.
    """

    queue: deque[QueuedWork] = field(default_factory=deque)
    given: int = 0
    done: int = 0
    requested: int = 0
    running: bool = False
    failure: TensorWasmError | None = None
    recording: list[Action] | None = None
    regions: tuple[Region, ...] = ()
    deadline: Deadline = NEVER

    @property
    def idle(self) -> bool:
        """Whether everything given has ended."""
        return self.done == self.given


def copy_error(failure: TensorWasmError) -> TensorWasmError:
    """Return the same error for another caller, with a traceback of its own."""
    return type(failure)(failure.message)


class Queues:
    """The work of one device's open ``streams``.

    A method raises `LaunchRefused` if the stream is recording and the call cannot be recorded, or if recording begins
    or ends twice.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self.streams: Final = OpenObjects(EmulatedStream, "the stream is not open on this device")

    def open(self) -> EmulatedStream:
        """Return a new stream."""
        return self.streams.add(EmulatedStream())

    def close(self, stream: Stream) -> None:
        """Release a stream. Queued work is dropped, except what is always done, once the running work has ended."""
        if not isinstance(stream, EmulatedStream):
            return
        with self._changed:
            self.streams.discard(stream)
            stream.recording = None
        if not stream.idle:
            self._end(stream, DeviceLost("the stream was closed"), ran=False)

    def clear(self) -> None:
        """Release every stream."""
        for stream in self.streams.take_all():
            self.close(stream)

    # ---------------------------------------------------------------------------------------------- giving

    def give(self, stream: EmulatedStream, work: QueuedWork) -> Mark:
        """Put work behind what the stream has, or record it; return the mark behind it, or raise the stream's error."""
        with self._changed:
            if stream.recording is not None:
                if work.after is not None or work.always:
                    raise LaunchRefused("a stream that is recording takes launches and copies only")
                stream.recording.append(work.action)
            elif stream.failure is not None:
                raise copy_error(stream.failure)
            else:
                stream.queue.append(work)
                stream.given += 1
            mark = Mark(stream, stream.given)
            full = len(stream.queue) > DEPTH
        if full:
            with suppress(TensorWasmError):  # the work has been given; the wait for it raises the error
                self.run_to(Mark(stream, mark.count - DEPTH), NEVER)
        return mark

    def mark(self, stream: EmulatedStream) -> Mark:
        """Return the mark behind the work given so far."""
        with self._changed:
            if stream.recording is not None:
                raise LaunchRefused("the stream is recording")
            return Mark(stream, stream.given)

    def begin_recording(self, stream: EmulatedStream) -> None:
        """Record from now on."""
        with self._changed:
            if stream.recording is not None:
                raise LaunchRefused("the stream is recording already")
            stream.recording = []

    def end_recording(self, stream: EmulatedStream) -> tuple[Action, ...]:
        """Return what was recorded."""
        with self._changed:
            if stream.recording is None:
                raise LaunchRefused("the stream is not recording")
            recorded, stream.recording = stream.recording, None
            return tuple(recorded)

    # --------------------------------------------------------------------------------------------- running

    def reached(self, mark: Mark) -> bool:
        """Return whether the work before a mark has ended."""
        with self._changed:
            return mark.has_ended()

    def run_to(self, mark: Mark, deadline: Deadline) -> None:
        """Run the work before a mark, and all that it waits for; wait where another thread is running it.

        A kernel that this thread runs is stopped at the earlier of this deadline and its own. Raises `InvokeTimeout` at
        the deadline, and the error with which the work has failed.
        """
        trail = [mark]
        while trail:
            with self._changed:
                work = self._next(trail, deadline)
            if work is not None:
                self._run(trail[-1].stream, work, deadline)

    def _next(self, trail: list[Mark], deadline: Deadline) -> QueuedWork | None:
        """Take the work that the last mark of a trail needs next; None if the trail or a stream has changed first."""
        mark = trail[-1]
        stream = mark.stream
        if len(trail) == 1 and mark.has_ended():
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

    def _run(self, stream: EmulatedStream, work: QueuedWork, deadline: Deadline) -> None:
        failure: TensorWasmError | None = None
        try:
            work.action(work.ranges, work.deadline.earlier(deadline))
        except TensorWasmError as error:
            failure = error
        except BaseException as error:
            failure = InternalError(f"work on the device broke off: {error!r}")
            raise
        finally:
            self._end(stream, failure, ran=True)

    def _end(self, stream: EmulatedStream, failure: TensorWasmError | None, *, ran: bool) -> None:
        """Note that a piece of work has ended, or that the stream has failed; ``ran`` if by this thread's work."""
        left: list[QueuedWork] = []
        with self._changed:
            if failure is None:
                stream.done += 1
            else:
                stream.failure = stream.failure or failure
            stream.running = stream.running and not ran
            if stream.failure is not None and not stream.running:
                left += [work for work in stream.queue if work.always]
                stream.queue.clear()
            self._changed.notify_all()
        for work in left:
            try:
                work.action(work.ranges, work.deadline)
            except TensorWasmError:
                _log.exception("work that is always done has failed in a stream that had failed before")


class BackgroundThreads:
    """At most `THREADS` daemon threads, no two on one stream. They start when needed, and end when nothing is left."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._lock = threading.Lock()
        self._waiting: deque[EmulatedStream] = deque()
        self._requested: set[EmulatedStream] = set()
        self._threads = 0

    def request(self, mark: Mark) -> None:
        """Have the work before a mark run. Another request for the same work changes nothing."""
        stream = mark.stream
        with self._lock:
            if mark.settled or stream.requested >= mark.count:
                return
            stream.requested = mark.count
            if stream in self._requested:
                return
            self._requested.add(stream)
            self._waiting.append(stream)
            if self._threads == THREADS:
                return
            self._threads += 1
        threading.Thread(target=self._work, name="tensorwasm-emulator", daemon=True).start()

    def poll(self, mark: Mark) -> bool:
        """Return whether the work before a mark has ended, or raise its error; if neither, request it."""
        if self._queues.reached(mark):
            return True
        self.request(mark)
        return False

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                stream = self._waiting.popleft()
            try:
                self._queues.run_to(Mark(stream, stream.requested), NEVER)
            except TensorWasmError:
                _log.debug("work in the background failed; the next wait for it raises the error", exc_info=True)
            except Exception:  # noqa: BLE001 - the stream has failed with it; this thread has others to run
                _log.exception("work in the background broke off")
            with self._lock:
                if Mark(stream, stream.requested).settled:
                    self._requested.discard(stream)
                else:
                    self._waiting.append(stream)
