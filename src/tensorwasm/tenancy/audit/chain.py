"""Lines that hold the hash of the line before: one that is removed, changed or moved breaks the chain.

A line is ``{"seq":N,"prev":"P",...,"hash":"H"}``: P is the hash of the line before, and H the BLAKE2b-256 of the line
up to and without ``,"hash"``, both as 64 hex digits. Numbers go up by one, and the first line's P is all zeros.

Source: RFC 7693 (BLAKE2).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec

HASH_BYTES: Final = 32
GENESIS: Final = "0" * (2 * HASH_BYTES)
MAX_LINE_BYTES: Final = 32 << 10
"""No line is longer; what is, is none."""

_END: Final = b',"hash":"'
_TAIL_BYTES: Final = len(_END) + 2 * HASH_BYTES + len(b'"}')


@dataclass(frozen=True, slots=True)
class Head:
    """Where a chain has come to: its last line's number, 0 for none, and hash."""

    seq: int = 0
    hash: str = GENESIS

    def encode(self) -> bytes:
        """Return it as the side file has it."""
        return msgspec.json.encode({"seq": self.seq, "hash": self.hash}) + b"\n"

    @classmethod
    def decode(cls, text: bytes) -> Head | None:
        """Return what a side file says; None if it says nothing that can be."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeError):
            return None


class Link(msgspec.Struct):
    """What a line says of its place."""

    seq: int
    prev: str
    hash: str
    notice: str = ""
    last_seq: int = 0
    last_hash: str = ""


class Chain:
    """A chain that lines are added to.

    Attributes:
        seq: number of the last line.
        hash: its hash.
    """

    __slots__ = ("hash", "seq")

    def __init__(self, head: Head) -> None:
        """Go on from a head."""
        self.seq = head.seq
        self.hash = head.hash

    def head(self) -> Head:
        """Return where it has come to."""
        return Head(self.seq, self.hash)

    def link(self, body: bytes) -> bytes:
        """Return the next line, with its newline, made from a JSON object that has members."""
        self.seq += 1
        text = b'{"seq":%d,"prev":"%s",%s' % (self.seq, self.hash.encode(), body[1:-1])
        self.hash = blake2b(text, digest_size=HASH_BYTES).hexdigest()
        return b'%s,"hash":"%s"}\n' % (text, self.hash.encode())


def read_link(line: bytes) -> Link | None:
    """Return what a line without its newline says of its place; None if it is no line, or not as it was written."""
    if len(line) > MAX_LINE_BYTES or line[-_TAIL_BYTES:][: len(_END)] != _END:
        return None
    try:
        link = _decode(line)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    text = line[:-_TAIL_BYTES]
    good = blake2b(text, digest_size=HASH_BYTES).hexdigest()
    return link if line[-_TAIL_BYTES:] == b'%s%s"}' % (_END, good.encode()) and link.hash == good else None


_decode = msgspec.json.Decoder(Link).decode
