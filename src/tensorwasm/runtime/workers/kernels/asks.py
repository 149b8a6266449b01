"""The parent's side of what one worker process asks to have compiled. What comes from the process is hostile."""

from __future__ import annotations

from tensorwasm.runtime.workers.frames import AskFrame, AskPartFrame, BrokenFrame
from tensorwasm.runtime.workers.kernels.room import ASKS, ASKS_EACH, Room


class KernelAsks:
    """The asks of one process that were not answered, with as much of their texts as has come."""

    def __init__(self) -> None:
        self._asks: dict[int, AskFrame] = {}
        self._texts: dict[int, bytearray] = {}
        self._room = Room(ASKS_EACH, ASKS)

    def open(self, frame: AskFrame) -> None:
        """Take a new ask; raise `BrokenFrame` if its number is taken, or there are too many."""
        if frame.ask in self._asks or not self._room.enter(frame.tenant, frame.size_bytes):
            raise BrokenFrame("one ask for a kernel too many")
        self._asks[frame.ask], self._texts[frame.ask] = frame, bytearray()

    def fill(self, frame: AskPartFrame) -> tuple[AskFrame, bytes] | None:
        """Take a part of a text; return the ask and its text once that is whole, None before.

        Raises `BrokenFrame` for more than was announced.
        """
        text = self._texts.get(frame.ask)
        if text is None or len(text) + len(frame.data) > self._asks[frame.ask].size_bytes:
            raise BrokenFrame("more of a kernel's text than was announced")
        text += frame.data
        if len(text) < self._asks[frame.ask].size_bytes:
            return None
        return self._asks[frame.ask], bytes(self._texts.pop(frame.ask))

    def close(self, ask: int) -> None:
        """Note that an ask is answered."""
        self._texts.pop(ask, None)
        frame = self._asks.pop(ask)
        self._room.leave(frame.tenant, frame.size_bytes)
