"""The parent's side of what one worker process asks to have made. What comes from the process is hostile."""

from __future__ import annotations

from tensorwasm.runtime.workers.frames import Asked, AskFrame, AskPartFrame, BrokenFrame, PlanAskFrame
from tensorwasm.runtime.workers.kernels.room import ASKS, ASKS_EACH, PLANS, PLANS_EACH, Room


class KernelAsks:
    """The asks of one process that were not answered, with as much of their texts and jobs as has come."""

    def __init__(self) -> None:
        self._asks: dict[int, Asked] = {}
        self._texts: dict[int, bytearray] = {}
        self._rooms = {AskFrame: Room(ASKS_EACH, ASKS), PlanAskFrame: Room(PLANS_EACH, PLANS)}

    def open(self, frame: Asked) -> None:
        """Take a new ask; raise `BrokenFrame` if its number is taken, or there are too many."""
        if frame.ask in self._asks or not self._rooms[type(frame)].enter(frame.tenant, frame.size_bytes):
            raise BrokenFrame("one ask for a kernel or a plan too many")
        self._asks[frame.ask], self._texts[frame.ask] = frame, bytearray()

    def fill(self, frame: AskPartFrame) -> tuple[Asked, bytes] | None:
        """Take a part of a text or a job; return the ask and that once it is whole, None before.

        Raises `BrokenFrame` for more than was announced.
        """
        text = self._texts.get(frame.ask)
        if text is None or len(text) + len(frame.data) > self._asks[frame.ask].size_bytes:
            raise BrokenFrame("more of an ask than was announced")
        text += frame.data
        if len(text) < self._asks[frame.ask].size_bytes:
            return None
        return self._asks[frame.ask], bytes(self._texts.pop(frame.ask))

    def close(self, ask: int) -> None:
        """Note that an ask is answered."""
        self._texts.pop(ask, None)
        frame = self._asks.pop(ask)
        self._rooms[type(frame)].leave(frame.tenant, frame.size_bytes)
