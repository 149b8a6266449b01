"""What parent and worker say to each other, and how it looks on the socket.

A frame is a header of five bytes, kind and length of the body (unsigned, big-endian), and a body in MessagePack: an
array of the fields of one structure. The kind stands in the header so that the length is judged before anything is
allocated for the body, and the body decoded as that structure and nothing else. Whatever is large goes in parts of at
most `PART_BYTES`, so that nothing small waits long behind it.

What comes from a worker is hostile. A frame that is too long, of an unknown kind, of the wrong types, or has a field
too many raises `BrokenFrame`, and the reader must end the conversation.

Source: MessagePack specification.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tensorwasm.errors import MAX_NAME
from tensorwasm.guest.engine.traps import MAX_FILE, MAX_FRAMES
from tensorwasm.runtime.executor.request import MAX_COUNT, NAME_CHARACTERS, TENANT_PATTERN, TEXT_BYTES, Argument
from tensorwasm.values import MemoryKind

PROTOCOL: Final = 4
PART_BYTES: Final = 64 << 10
"""Most bytes in one part: what ``emit-chunk`` takes at once, so that a chunk is one frame."""

WINDOW: Final = 32
"""Parts of a call's output that a worker sends before its listener has taken any; then its guest waits for `Credit`."""

_HEADER: Final = struct.Struct(">BI")

Identity = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Number = int | float
Word = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(max_length=NAME_CHARACTERS)]
Tenant = Annotated[str, Meta(max_length=64, pattern=rf"^{TENANT_PATTERN}\Z")]
Part = Annotated[bytes, Meta(min_length=1, max_length=PART_BYTES)]
OutputName = Literal["stdout", "stderr", "chunk"]


class BrokenFrame(Exception):
    """What was read is no frame of ours. Never leaves this package."""


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all frames: immutable, exactly their fields."""


class Setup(Frame, frozen=True):
    """To a worker, first: what it is to be.

    Attributes:
        protocol: `PROTOCOL` of the sender.
        device: ``emulator`` or ``cuda:N``.
        multiprocessors: its share of the device's, None for all.
        place: where the share lies, `tensorwasm.values.SmPlacement` as unit and what is before; None for wherever.
        jit: whether the device's driver may compile PTX of guests in the worker's process.
        places: calls at a time.
        beat_s: seconds between its heartbeats.
    """

    protocol: Count
    device: Word
    multiprocessors: Identity | None
    place: tuple[Identity, tuple[Identity, ...]] | None
    jit: bool
    places: Identity
    beat_s: float


class Blob(Frame, frozen=True):
    """To a worker: parts of so many bytes will follow under a number.

    Attributes:
        blob: the number, never used twice for one worker.
        size_bytes: all parts together; 0 has none.
    """

    blob: Identity
    size_bytes: Count


class BlobPart(Frame, frozen=True):
    """To a worker: the next bytes of a blob."""

    blob: Identity
    data: Part


class Forget(Frame, frozen=True):
    """To a worker: a blob that is not needed again. Calls that were sent before go on."""

    blob: Identity


class Invoke(Frame, frozen=True):
    """To a worker: make a call; `tensorwasm.runtime.executor.request.Request` says what the fields mean.

    Attributes:
        request: the number that its outcome is to bear, never used twice.
        module: number of a complete blob.
        stdin: number of a complete blob, which is forgotten with this; None for nothing.
        input: the same.
        deadline_s: seconds left.
        stream: output is wanted as it is written.
    """

    request: Identity
    module: Identity
    name: Name
    export: Name | None
    args: tuple[Argument, ...]
    argv: tuple[Name, ...] | None
    env: tuple[tuple[Name, Name], ...]
    stdin: Identity | None
    input: Identity | None
    cuda: bool
    directories: tuple[tuple[Name, Name, bool], ...]
    tenant: Tenant
    limits: tuple[Count, Count, Count, Count, float, Count, Count]
    deadline_s: float | None
    memory_kind: MemoryKind | None
    gpu_bytes: Count | None
    stream: bool


class Cancel(Frame, frozen=True):
    """To a worker: nobody takes a call's output any more.

    Attributes:
        request: the call's number; it may have been answered meanwhile.
        stop: nor does anybody wait for its outcome.
    """

    request: Identity
    stop: bool


class Credit(Frame, frozen=True):
    """To a worker: the listener of a call has taken parts of its output, and as many more may be sent.

    Attributes:
        request: the call's number; it may have been answered meanwhile.
        parts: how many.
    """

    request: Identity
    parts: Annotated[int, Meta(ge=1, le=WINDOW)]


class Stop(Frame, frozen=True):
    """To a worker: leave."""


class Ready(Frame, frozen=True):
    """From a worker, first: it can be used.

    Attributes:
        protocol: `PROTOCOL` of the sender.
        version: of the package.
        kind, ordinal, name, compute_capability, ptx_version, memory_bytes, multiprocessors, max_shared_bytes,
            concurrent_managed_access, driver: the device, as `tensorwasm.values.DeviceInfo` has it.
    """

    protocol: Count
    version: Word
    kind: Literal["emulator", "cuda"]
    ordinal: Count
    name: Text
    compute_capability: tuple[Count, Count]
    ptx_version: tuple[Count, Count]
    memory_bytes: Count
    multiprocessors: Count
    max_shared_bytes: Count
    concurrent_managed_access: bool
    driver: Text


class Unfit(Frame, frozen=True):
    """From a worker, instead of `Ready`: why it cannot be used."""

    kind: Word
    message: Text


class Charge(Frame, frozen=True):
    """What a tenant holds on the worker's device."""

    tenant: Tenant
    device_bytes: Count
    pinned_bytes: Count


class Beat(Frame, frozen=True):
    """From a worker, every few seconds: it is alive.

    Attributes:
        number: 1, 2, 3 ...
        charges: tenants that hold anything.
    """

    number: Identity
    charges: tuple[Charge, ...]


class Output(Frame, frozen=True):
    """From a worker: what a guest wrote; for ``chunk`` exactly one chunk."""

    request: Identity
    name: OutputName
    data: Part


class Gpu(Frame, frozen=True):
    """What a guest held on the device at its end, as `tensorwasm.gpu.session.SessionStatistics` has it."""

    counts: dict[Word, Count]
    abandoned: bool


class Done(Frame, frozen=True):
    """From a worker: a call's result. All its output was sent before."""

    request: Identity
    export: Name
    values: tuple[Number, ...]
    result_types: tuple[Literal["i32", "i64", "f32", "f64"], ...]
    exit_code: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
    elapsed_s: Annotated[float, Meta(ge=0)]
    gpu: Gpu | None
    stdout_truncated: bool
    stderr_truncated: bool


class StackFrame(Frame, frozen=True):
    """One function on the stack of a guest that trapped, as `tensorwasm.errors.Frame` has it."""

    function: Count
    name: Annotated[str, Meta(max_length=MAX_NAME)]
    offset: Count
    file: Annotated[str, Meta(max_length=MAX_FILE)]
    line: Count


class Failed(Frame, frozen=True):
    """From a worker: a call's error. All its output was sent before.

    Attributes:
        kind: of an error of ours.
        message: for people.
        details: what an error of that kind carries, by name.
        stack: of a trap, innermost first.
    """

    request: Identity
    kind: Word
    message: Text
    details: dict[Word, Word | Count] = msgspec.field(default_factory=dict)
    stack: Annotated[tuple[StackFrame, ...], Meta(max_length=MAX_FRAMES)] = ()


class Sick(Frame, frozen=True):
    """From a worker: its device is lost. It answers what it has and takes nothing more."""

    message: Text


_SMALL: Final = 4 << 10
_OF_A_PART: Final = PART_BYTES + 64


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of frame looks.

    Attributes:
        code: in the header.
        type: the structure.
        limit_bytes: most bytes of its body.
        decoder: reads the body.
    """

    code: int
    type: type[Frame]
    limit_bytes: int
    decoder: msgspec.msgpack.Decoder[Frame]


def _table(*rows: tuple[int, type[Frame], int]) -> dict[int, Kind]:
    return {code: Kind(code, each, limit, msgspec.msgpack.Decoder(each)) for code, each, limit in rows}


TO_WORKER: Final = _table(
    (1, Setup, _SMALL),
    (2, Blob, _SMALL),
    (3, BlobPart, _OF_A_PART),
    (4, Forget, _SMALL),
    (5, Invoke, TEXT_BYTES + _SMALL),
    (6, Cancel, _SMALL),
    (7, Stop, _SMALL),
    (8, Credit, _SMALL),
)
"""What a parent may say."""

FROM_WORKER: Final = _table(
    (65, Ready, 64 << 10),
    (66, Unfit, 64 << 10),
    (67, Beat, 1 << 20),
    (68, Output, _OF_A_PART),
    (69, Done, 256 << 10),
    (70, Failed, 64 << 10),
    (71, Sick, 64 << 10),
)
"""What a worker may say."""

_KINDS: Final = {kind.type: kind for kind in (*TO_WORKER.values(), *FROM_WORKER.values())}
_encoder: Final = msgspec.msgpack.Encoder()


def encode(frame: Frame) -> bytes:
    """Return a frame as it goes over the socket.

    Raises:
        BrokenFrame: it is longer than its kind may be, or holds what MessagePack cannot.
    """
    kind = _KINDS[type(frame)]
    try:
        body = _encoder.encode(frame)
    except (ValueError, TypeError, OverflowError, UnicodeError) as error:
        raise BrokenFrame(str(error)) from None
    if len(body) > kind.limit_bytes:
        raise BrokenFrame(f"{len(body)} bytes for a {kind.type.__name__}, at most {kind.limit_bytes}")
    return _HEADER.pack(kind.code, len(body)) + body


class Splitter:
    """Makes frames of what arrives on a stream, in whatever pieces.

    Never holds more than one frame of the longest kind and what was just fed.

    Args:
        kinds: what the other side may say.
    """

    def __init__(self, kinds: dict[int, Kind]) -> None:
        self._kinds = kinds
        self._pending = bytearray()

    @property
    def idle(self) -> bool:
        """Whether the stream is between two frames."""
        return not self._pending

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete with this data; take all of them before feeding again.

        Raises:
            BrokenFrame: not a frame that the other side may send. Nothing can be read after that.
        """
        self._pending += data
        start = 0
        try:
            while len(self._pending) - start >= _HEADER.size:
                code, length = _HEADER.unpack_from(self._pending, start)
                kind = self._require(code, length)
                end = start + _HEADER.size + length
                if end > len(self._pending):
                    return
                body, start = bytes(memoryview(self._pending)[start + _HEADER.size : end]), end
                yield _decode(kind, body)
        finally:
            del self._pending[:start]

    def _require(self, code: int, length: int) -> Kind:
        kind = self._kinds.get(code)
        if kind is None:
            raise BrokenFrame(f"a frame of the unknown kind {code}")
        if length > kind.limit_bytes:
            raise BrokenFrame(f"a {kind.type.__name__} of {length} bytes, at most {kind.limit_bytes}")
        return kind


def _decode(kind: Kind, body: bytes) -> Frame:
    try:
        frame = kind.decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BrokenFrame(f"no {kind.type.__name__}: {str(error)[:200]}") from None
    if isinstance(frame, Done) and not math.isfinite(frame.elapsed_s):
        raise BrokenFrame("no Done: it took no finite time")
    return frame


def split(data: bytes) -> Iterator[bytes]:
    """Yield bytes in parts; nothing for no bytes."""
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]
