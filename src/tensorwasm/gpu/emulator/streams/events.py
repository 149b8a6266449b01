"""Order between the emulator's streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorwasm.gpu.device.protocols import Event, Stream
from tensorwasm.gpu.emulator.handles import OpenObjects
from tensorwasm.gpu.emulator.streams.queues import BackgroundThreads, Mark, QueuedWork, Queues
from tensorwasm.values import NEVER, Deadline


@dataclass(slots=True, eq=False)
class EmulatedEvent:
    """A mark in a stream, None until it is recorded."""

    mark: Mark | None = None


class EmulatedEvents:
    """The open events of a device; others, and streams that are not open, are refused with `InvalidHandle`."""

    def __init__(self, queues: Queues, background: BackgroundThreads) -> None:
        self._queues, self._background = queues, background
        self.open: Final = OpenObjects(EmulatedEvent, "the event is not open on this device")

    def open_event(self) -> Event:
        """Return a new event."""
        return self.open.add(EmulatedEvent())

    def close_event(self, event: Event) -> None:
        """Release an event."""
        self.open.discard(event)

    def record(self, event: Event, stream: Stream) -> None:
        """Set the mark behind the work given to the stream so far."""
        self.open.require(event).mark = self._queues.mark(self._queues.streams.require(stream))

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Put what is given to the stream next behind the mark."""
        own, mark = self._queues.streams.require(stream), self.open.require(event).mark
        if mark is not None and mark.stream is not own:
            self._queues.give(own, QueuedWork(mark, after=mark))

    def event_reached(self, event: Event) -> bool:
        """Return whether the work before the mark has ended; if not, let it run in the background."""
        mark = self.open.require(event).mark
        return mark is None or self._background.poll(mark)

    def patience(self, event: Event) -> Deadline:
        """Return no deadline: the device is never given up for its work, which is stopped."""
        self.open.require(event)
        return NEVER

    def synchronize_event(self, event: Event, deadline: Deadline) -> None:
        """Run the work before the mark; at the deadline, what this call is running is stopped."""
        mark = self.open.require(event).mark
        if mark is not None:
            self._queues.run_to(mark, deadline)
