"""Order between the emulator's streams."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwasm.errors import InvalidHandle
from tensorwasm.gpu.device.protocols import Event, Stream
from tensorwasm.gpu.emulator.background import Background
from tensorwasm.gpu.emulator.queues import Mark, Queues, Work
from tensorwasm.values import NEVER, Deadline


@dataclass(slots=True, eq=False)
class EmulatedEvent:
    """A mark in a stream, None until it is recorded."""

    mark: Mark | None = None


class EmulatedEvents:
    """The events of a device.

    Args:
        queues: its streams.
        background: runs what is only asked after.
    """

    def __init__(self, queues: Queues, background: Background) -> None:
        self._queues, self._background = queues, background
        self._events: set[EmulatedEvent] = set()

    def __len__(self) -> int:
        """Return how many events are open."""
        return len(self._events)

    def open_event(self) -> Event:
        """Return a new event, which counts as reached until it is recorded."""
        event = EmulatedEvent()
        self._events.add(event)
        return event

    def close_event(self, event: Event) -> None:
        """Release an event."""
        if isinstance(event, EmulatedEvent):
            self._events.discard(event)

    def clear(self) -> None:
        """Release every event."""
        self._events.clear()

    def record(self, event: Event, stream: Stream) -> None:
        """Set the mark behind the work given to the stream so far.

        Raises:
            InvalidHandle: no such event or stream.
            LaunchRefused: the stream is recording.
        """
        self._own(event).mark = self._queues.mark(self._queues.own(stream))

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Put what is given to the stream next behind the mark.

        Raises:
            InvalidHandle: no such event or stream.
            LaunchRefused: the stream is recording.
            TensorWasmError: what the stream has failed with.
        """
        own, mark = self._queues.own(stream), self._own(event).mark
        if mark is not None and mark.stream is not own:
            self._queues.give(own, Work(mark, after=mark))

    def event_reached(self, event: Event) -> bool:
        """Return whether the work before the mark has ended; asking lets it run in the background.

        Raises:
            InvalidHandle: no such event.
            TensorWasmError: that work has failed.
        """
        mark = self._own(event).mark
        if mark is None or self._queues.reached(mark):
            return True
        self._background.ask(mark)
        return False

    def patience(self, event: Event) -> Deadline:
        """Return no deadline: the device is never given up for its work, which is stopped.

        Raises:
            InvalidHandle: no such event.
        """
        self._own(event)
        return NEVER

    def synchronize_event(self, event: Event, deadline: Deadline) -> None:
        """Wait for the work before the mark, running it.

        Raises:
            InvalidHandle: no such event.
            InvokeTimeout: the deadline passed, and what this call was running has been stopped.
            TensorWasmError: that work has failed.
        """
        mark = self._own(event).mark
        if mark is not None:
            self._queues.run_to(mark, deadline)

    def _own(self, event: Event) -> EmulatedEvent:
        if not isinstance(event, EmulatedEvent) or event not in self._events:
            raise InvalidHandle("the event is not open on this device")
        return event
