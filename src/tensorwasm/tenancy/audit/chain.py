"""Lines that contain the hash of the line before: a removed, changed or moved line breaks the chain.

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
"""Longest line; what is longer is not a line."""

_END: Final = b',"hash":"'
_TAIL_BYTES: Final = len(_END) + 2 * HASH_BYTES + len(b'"}')


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Number, 0 for none, and hash of a chain's last line."""

    seq: int = 0
    hash: str = GENESIS

    def encode(self) -> bytes:
        """Return the content of the head's file."""
        return msgspec.json.encode({"seq": self.seq, "hash": self.hash}) + b"\n"

    @classmethod
    def decode(cls, text: bytes) -> ChainHead | None:
        """Return the head in a file; None if the content is invalid."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeError):
            return None


class ChainLink(msgspec.Struct):
    """The members of a line that concern the chain."""

    seq: int
    prev: str
    hash: str
    notice: str = ""
    last_seq: int = 0
    last_hash: str = ""


@dataclass(slots=True)
class Chain:
    """A growing chain, by number and hash of its last line."""

    seq: int
    hash: str

    def link(self, body: bytes) -> bytes:
        """Return the next line, with its newline, made from a JSON object that has members."""
        self.seq += 1
        text = b'{"seq":%d,"prev":"%s",%s' % (self.seq, self.hash.encode(), body[1:-1])
        self.hash = blake2b(text, digest_size=HASH_BYTES).hexdigest()
        return b'%s,"hash":"%s"}\n' % (text, self.hash.encode())


def read_link(line: bytes) -> ChainLink | None:
    """Return the link of a line without its newline; None if it is not a line, or was changed."""
    if len(line) > MAX_LINE_BYTES or line[-_TAIL_BYTES:][: len(_END)] != _END:
        return None
    try:
        link = _decode(line)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    good = blake2b(line[:-_TAIL_BYTES], digest_size=HASH_BYTES).hexdigest()
    return link if line[-_TAIL_BYTES:] == b'%s%s"}' % (_END, good.encode()) and link.hash == good else None


def last_link(lines: bytes) -> ChainLink | None:
    """Return the link of the last valid line; None if there is none."""
    return next(filter(None, map(read_link, reversed(lines.split(b"\n")))), None)


_decode = msgspec.json.Decoder(ChainLink).decode
