"""Saved sessions: such as a guest could have left, and such as nobody ever had."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from strategies.kernels import AFFINE, FILL
from tensorwasm.saved import PAGE_BYTES, SavedBuffer, SavedKernel, SavedRun, SavedSession

SIZES = st.sampled_from([1, 4, 100, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 5 * PAGE_BYTES, 70_000])
NUMBERS = st.integers(1, 40)
ODD = st.sampled_from(
    [0, -1, 1, 2, 32, 33, 64, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 80, True, 1.0, None, "1", b"", ()]
)
_ODD_DATA = [
    bytes,
    lambda: b"x",
    lambda: bytes(PAGE_BYTES),
    lambda: bytes(9001),
    lambda: memoryview(bytes(PAGE_BYTES)),
    lambda: memoryview(bytes(8 * PAGE_BYTES)).cast("Q"),
    lambda: memoryview(bytes(2 * PAGE_BYTES))[::2],
    lambda: "x" * PAGE_BYTES,
    lambda: None,
]
TEXTS = st.sampled_from([(FILL, "fill"), (AFFINE, "affine")])


@st.composite
def runs(draw, size):
    """Runs of a buffer of that size."""
    pages = -(-size // PAGE_BYTES)
    edges = sorted(draw(st.sets(st.integers(0, pages), max_size=6)))
    found = []
    for first, last in zip(edges[::2], edges[1::2], strict=False):
        start, end = first * PAGE_BYTES, min(last * PAGE_BYTES, size)
        found.append(SavedRun(start, bytes([draw(st.integers(0, 255))]) * (end - start)))
    return tuple(found)


@st.composite
def sessions(draw):
    """Sessions that can be restored, within small limits."""
    buffers = []
    for handle in sorted(draw(st.sets(NUMBERS, max_size=4))):
        size = draw(SIZES)
        buffers.append(SavedBuffer(handle, size, draw(runs(size))))
    ids = sorted(draw(st.sets(st.integers(1, 1 << 40), max_size=2)))
    streams = draw(
        st.sets(
            NUMBERS.filter(lambda number: number % 32),
            max_size=2,
        ).filter(lambda found: len({n % 32 for n in found}) == len(found))
    )
    events = draw(st.sets(NUMBERS, max_size=3))
    return SavedSession(
        tuple(buffers),
        tuple(SavedKernel(number, *draw(TEXTS)) for number in ids),
        tuple(sorted(streams)),
        tuple(sorted(events)),
        (
            ("handle", draw(st.integers(41, 50))),
            ("kernel", draw(st.integers(1 << 41, 1 << 42))),
            ("stream", draw(st.integers(41, 50))),
            ("event", draw(st.integers(41, 50))),
            ("graph", draw(st.integers(1, 50))),
        ),
        draw(st.sampled_from(["auto", "staged", "pinned"])),
    )


@st.composite
def hostile_sessions(draw):
    """Sessions with something in them that may make no sense."""
    saved = draw(sessions())
    for _ in range(draw(st.integers(1, 2))):
        saved = draw(st.sampled_from(_SPOILERS))(draw, saved)
    return saved


def _spoil_part(part, fields, item):
    """Return what puts an odd value into one of a part's items, or has one of them twice, or turns their order."""

    def spoil(draw, saved):
        items = list(getattr(saved, part)) or [item]
        if not isinstance(items, list) or not all(isinstance(each, type(item)) for each in items):
            return saved
        index = draw(st.integers(0, len(items) - 1))
        match draw(st.sampled_from(["field", "twice", "order", "stranger"])):
            case "field":
                items[index] = replace(items[index], **{draw(st.sampled_from(fields)): draw(ODD)})
            case "twice":
                items.insert(index, items[index])
            case "order":
                items.reverse()
            case _:
                items[index] = draw(ODD)
        return replace(saved, **{part: tuple(items)})

    return spoil


def _spoil_run(draw, saved):
    """Put an odd run into a buffer."""
    buffers = [buffer for buffer in saved.buffers if isinstance(buffer, SavedBuffer)] or [SavedBuffer(1, 9000, ())]
    index = draw(st.integers(0, len(buffers) - 1))
    runs = buffers[index].runs if isinstance(buffers[index].runs, tuple) else ()
    data = draw(st.sampled_from(_ODD_DATA))()
    at = draw(ODD | st.sampled_from([PAGE_BYTES, 2 * PAGE_BYTES, 100]))
    buffers[index] = replace(buffers[index], runs=(*runs, SavedRun(at, data)))
    return replace(saved, buffers=tuple(buffers))


def _spoil_numbers(draw, saved):
    """Put an odd number among those of streams or events, or among the next ones."""
    match draw(st.sampled_from(["streams", "events", "next", "name", "pair"])):
        case "next":
            pairs = [(name, draw(ODD)) if draw(st.booleans()) else (name, number) for name, number in _pairs(saved)]
            return replace(saved, next_numbers=tuple(pairs))
        case "name":
            return replace(saved, next_numbers=(*_pairs(saved), (draw(st.sampled_from(["handle", "", None, 5])), 60)))
        case "pair":
            return replace(saved, next_numbers=draw(ODD | st.just(((1, 2, 3),)) | st.just(("handle",))))
        case part:
            return replace(saved, **{part: (*_numbers(getattr(saved, part)), draw(ODD))})


def _pairs(saved):
    return [pair for pair in _numbers(saved.next_numbers) if isinstance(pair, tuple) and len(pair) == 2]


def _numbers(items):
    return items if isinstance(items, tuple) else ()


def _spoil_whole(draw, saved):
    """Replace a whole part."""
    part = draw(st.sampled_from(["buffers", "kernels", "streams", "events", "next_numbers", "memory_kind"]))
    return replace(saved, **{part: draw(ODD)})


def _shielded(spoil):
    """Leave a session alone that is spoilt too far to be spoilt further."""

    def tried(draw, saved):
        parts = saved.buffers, saved.kernels, saved.streams, saved.events
        return spoil(draw, saved) if all(isinstance(part, tuple) for part in parts) else saved

    return tried


_SPOILERS = [
    _shielded(_spoil_part("buffers", ["handle", "size_bytes", "runs"], SavedBuffer(1, 9000, ()))),
    _shielded(_spoil_part("kernels", ["kernel_id", "text", "entry"], SavedKernel(1, FILL, "fill"))),
    _shielded(_spoil_run),
    _shielded(_spoil_numbers),
    _shielded(_spoil_whole),
]
