"""Stop sequences: found across any borders, and nothing sent that may yet turn out to be one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from tensorwasm.server.openai.reading import Token

_NONE: Final[list[Token]] = []


class Released(NamedTuple):
    """Text that may be sent.

    Attributes:
        text: some of the answer.
        logprobs: of the tokens that begin in it.
    """

    text: str
    logprobs: list[Token]


class Stopper:
    """Holds text back until it can be no part of a stop sequence.

    Args:
        stops: the sequences, none empty.
    """

    __slots__ = ("_held", "_stops", "_text", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._text = ""
        self._held: deque[Released] = deque()
        self.stopped = False

    def feed(self, text: str, logprobs: list[Token]) -> list[Released]:
        """Take more of the answer; return what may be sent. After a stop sequence was found, nothing may."""
        if not self._stops:
            return [Released(text, logprobs)]
        if self.stopped:
            return []
        self._held.append(Released(text, logprobs))
        self._text += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._text.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._release(min(found)[1])  # of the one that is complete first, wherever chunks end
        return self._release(len(self._text) - max(map(self._waiting, self._stops)))

    def finish(self) -> list[Released]:
        """Return what was held back, now that no more comes."""
        return [] if self.stopped else self._release(len(self._text), last=True)

    def _waiting(self, stop: str) -> int:
        """Return how much of the end of the text a sequence may begin with."""
        text = self._text
        first = max(0, len(text) - len(stop) + 1)
        return next((len(text) - at for at in range(first, len(text)) if stop.startswith(text[at:])), 0)

    def _release(self, count: int, *, last: bool = False) -> list[Released]:
        """Return the first characters that are held, and whatever has none right after them."""
        released = []
        self._text = self._text[count:]
        while self._held and (len(self._held[0].text) <= count if count or last else not self._held[0].text):
            piece = self._held.popleft()
            count -= len(piece.text)
            released.append(piece)
        if count and self._held:
            piece = self._held.popleft()
            released.append(Released(piece.text[:count], piece.logprobs))
            self._held.appendleft(Released(piece.text[count:], _NONE))
        return released
