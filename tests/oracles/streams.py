"""What programs of `strategies.streams` leave behind, computed one step after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

from strategies.streams import STREAMS, Borrow, Copy, Record, Step


@dataclass
class Words:
    """The words of every stream.

    Attributes:
        memory: in guest memory.
        buffer: in the device buffer.
    """

    memory: list[int] = field(default_factory=lambda: [0] * STREAMS)
    buffer: list[int] = field(default_factory=lambda: [0] * STREAMS)

    def do(self, piece: object) -> None:
        """Do one piece of a program; waiting and growing change no word."""
        match piece:
            case Step(stream, factor, term, in_buffer):
                words = self.buffer if in_buffer else self.memory
                words[stream] = _affine(words[stream], factor, term)
            case Copy(stream, inward):
                source, target = (self.memory, self.buffer) if inward else (self.buffer, self.memory)
                target[stream] = source[stream]
            case Borrow(owner, _, factor, term):
                self.memory[owner] = _affine(self.memory[owner], factor, term)
            case Record(_, body, replays):
                for _ in range(replays):
                    for each in body:
                        self.do(each)


def _affine(word: int, factor: int, term: int) -> int:
    return (word * factor + term) & 0xFFFF_FFFF
