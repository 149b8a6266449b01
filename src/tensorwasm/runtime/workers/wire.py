"""The encoding of frames on the socket.

A frame is a header of five bytes, kind and length of the body (unsigned, big-endian), and a body in MessagePack, the
array of one structure's fields. So the length is checked before the body is allocated, and the body decoded as that
structure alone.

Frames from a worker are hostile. One that is too long, of an unknown kind, of wrong types, or has a field too many
raises `BrokenFrame`, and the reader must end the conversation. Source: MessagePack specification.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from tensorwasm.runtime.executor.request import TEXT_BYTES
from tensorwasm.runtime.workers.frames import (
    PART_BYTES,
    AskFrame,
    AskPartFrame,
    BeatFrame,
    BlobFrame,
    BlobPartFrame,
    BrokenFrame,
    CancelFrame,
    CreditFrame,
    DoneFrame,
    FailedFrame,
    ForgetFrame,
    InvokeFrame,
    KernelFrame,
    LongWorkFrame,
    NoKernelFrame,
    OutputFrame,
    PlanAskFrame,
    ReadyFrame,
    SetupFrame,
    SickFrame,
    StopFrame,
    TargetFrame,
    TurnEndFrame,
    TurnFrame,
    UnfitFrame,
    WishFrame,
    WorkerFrame,
)

_HEADER: Final = struct.Struct(">BI")
_SMALL: Final = 4 << 10
_OF_A_PART: Final = PART_BYTES + 64


@dataclass(frozen=True, slots=True)
class FrameKind:
    """The encoding of one kind of frame."""

    code: int  # in the header
    type: type[WorkerFrame]  # the structure
    limit_bytes: int  # most bytes of its body
    decoder: msgspec.msgpack.Decoder[WorkerFrame]  # reads the body


def _table(*rows: tuple[int, type[WorkerFrame], int]) -> dict[int, FrameKind]:
    return {code: FrameKind(code, each, limit, msgspec.msgpack.Decoder(each)) for code, each, limit in rows}


TO_WORKER: Final = _table(
    (1, SetupFrame, _SMALL),
    (2, BlobFrame, _SMALL),
    (3, BlobPartFrame, _OF_A_PART),
    (4, ForgetFrame, _SMALL),
    (5, InvokeFrame, TEXT_BYTES + _SMALL),
    (6, CancelFrame, _SMALL),
    (7, StopFrame, _SMALL),
    (8, CreditFrame, _SMALL),
    (9, TurnFrame, _SMALL),
    (10, KernelFrame, _SMALL),
    (11, NoKernelFrame, 64 << 10),
    (12, TargetFrame, TEXT_BYTES + _SMALL),
)
"""What a parent may say."""

FROM_WORKER: Final = _table(
    (65, ReadyFrame, 64 << 10),
    (66, UnfitFrame, 64 << 10),
    (67, BeatFrame, 1 << 20),
    (68, OutputFrame, _OF_A_PART),
    (69, DoneFrame, 256 << 10),
    (70, FailedFrame, 64 << 10),
    (71, SickFrame, 64 << 10),
    (72, LongWorkFrame, _SMALL),
    (73, WishFrame, 1 << 20),
    (74, TurnEndFrame, _SMALL),
    (75, AskFrame, TEXT_BYTES + _SMALL),
    (76, AskPartFrame, _OF_A_PART),
    (77, PlanAskFrame, _SMALL),
)
"""What a worker may say."""

_KINDS: Final = {kind.type: kind for kind in (*TO_WORKER.values(), *FROM_WORKER.values())}
_encoder: Final = msgspec.msgpack.Encoder()


def encode(frame: WorkerFrame) -> bytes:
    """Return a frame as it is sent; raise `BrokenFrame` if it is too long, or holds what MessagePack cannot."""
    kind = _KINDS[type(frame)]
    try:
        body = _encoder.encode(frame)
    except (ValueError, TypeError, OverflowError, UnicodeError) as error:
        raise BrokenFrame(str(error)) from None
    if len(body) > kind.limit_bytes:
        raise BrokenFrame(f"{len(body)} bytes for a {kind.type.__name__}, at most {kind.limit_bytes}")
    return _HEADER.pack(kind.code, len(body)) + body


class Splitter:
    """Makes frames of a stream that arrives in pieces of any size. Holds at most one frame and what was just fed."""

    def __init__(self, kinds: dict[int, FrameKind]) -> None:
        self._kinds = kinds
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[WorkerFrame]:
        """Yield the frames that are complete with this data; take all of them before feeding again.

        A frame that the other side may not send raises `BrokenFrame`, and the stream cannot be read any further.
        """
        held: bytes | bytearray = data
        if self._pending:
            self._pending += data
            data, held = b"", self._pending
        start = 0
        try:
            while len(held) - start >= _HEADER.size:
                code, length = _HEADER.unpack_from(held, start)
                kind = self._kinds.get(code)
                if kind is None:
                    raise BrokenFrame(f"a frame of the unknown kind {code}")
                if length > kind.limit_bytes:
                    raise BrokenFrame(f"a {kind.type.__name__} of {length} bytes, at most {kind.limit_bytes}")
                body_at = start + _HEADER.size
                end = body_at + length
                if end > len(held):
                    return
                body, start = bytes(held[body_at:end]), end
                yield _decode(kind, body)
        finally:
            if data:
                self._pending += data[start:]
            else:
                del self._pending[:start]


def _decode(kind: FrameKind, body: bytes) -> WorkerFrame:
    try:
        frame = kind.decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BrokenFrame(f"no {kind.type.__name__}: {str(error)[:200]}") from None
    if isinstance(frame, DoneFrame) and not all(map(math.isfinite, _seconds(frame))):
        raise BrokenFrame("no Done: it took no finite time")
    return frame


def _seconds(done: DoneFrame) -> tuple[float, ...]:
    return done.elapsed_s, done.device_s, 0.0 if done.offload is None else done.offload.seconds
