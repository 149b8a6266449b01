import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.frames import from_worker, nearly_frames, to_worker
from tensorwasm.runtime.workers import frames
from tensorwasm.runtime.workers.conversation.outbox import split
from tensorwasm.runtime.workers.frames import BrokenFrame
from tensorwasm.runtime.workers.wire import FROM_WORKER, TO_WORKER, Splitter, encode

HEADER_BYTES = 5


def header(code, length):
    return struct.pack(">BI", code, length)


def read(splitter, data, sizes):
    """Feed data in pieces of the given sizes, and the rest at once."""
    found = []
    for size in sizes:
        found += splitter.feed(data[:size])
        data = data[size:]
    return found + list(splitter.feed(data))


@given(st.lists(to_worker, max_size=5), st.lists(st.integers(0, 40), max_size=10))
def test_frames_of_a_parent_arrive_unchanged_in_any_pieces(said, sizes):
    splitter = Splitter(TO_WORKER)
    assert read(splitter, b"".join(map(encode, said)), sizes) == said
    assert not splitter._pending


@given(st.lists(from_worker, max_size=5), st.lists(st.integers(0, 40), max_size=10))
def test_frames_of_a_worker_arrive_unchanged_in_any_pieces(said, sizes):
    splitter = Splitter(FROM_WORKER)
    assert read(splitter, b"".join(map(encode, said)), sizes) == said
    assert not splitter._pending


@given(st.lists(nearly_frames(), min_size=1, max_size=4), st.lists(st.integers(0, 40), max_size=10))
@pytest.mark.rule("11-types")
def test_hostile_bytes_give_frames_or_a_broken_frame_and_nothing_else(pieces, sizes):
    splitter = Splitter(FROM_WORKER)
    try:
        found = read(splitter, b"".join(pieces), sizes)
    except BrokenFrame:
        return
    assert all(type(frame) in {kind.type for kind in FROM_WORKER.values()} for frame in found)


@given(to_worker)
@pytest.mark.rule("11-types")
def test_a_worker_may_not_say_what_a_parent_says(frame):
    with pytest.raises(BrokenFrame, match="unknown kind"):
        list(Splitter(FROM_WORKER).feed(encode(frame)))


@pytest.mark.parametrize("code", sorted(FROM_WORKER | TO_WORKER))
@pytest.mark.rule("11-length")
def test_a_length_over_the_kinds_limit_is_refused_before_its_body_is_there(code):
    kinds = FROM_WORKER if code in FROM_WORKER else TO_WORKER
    limit = kinds[code].limit_bytes
    assert list(Splitter(kinds).feed(header(code, limit))) == []
    with pytest.raises(BrokenFrame, match=f"{limit + 1} bytes"):
        list(Splitter(kinds).feed(header(code, limit + 1)))


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [1],
        [1, True, "extra"],
        [0, True],
        [-1, True],
        [1 << 63, True],
        ["1", True],
        [1.0, True],
        [1, 1],
        [None, True],
        {"request": 1, "stop": True},
    ],
    ids=repr,
)
@pytest.mark.rule("11-types")
def test_a_body_with_other_fields_is_refused(fields):
    body = msgspec.msgpack.encode(fields)
    with pytest.raises(BrokenFrame, match="no Cancel"):
        list(Splitter(TO_WORKER).feed(header(6, len(body)) + body))


def test_a_body_nested_deeper_than_any_stack_is_refused():
    body = b"\x91" * 60_000
    with pytest.raises(BrokenFrame):
        list(Splitter(FROM_WORKER).feed(header(71, len(body)) + body))


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("field", ["elapsed_s", "device_s"])
def test_a_result_took_a_finite_time(field, seconds):
    done = frames.DoneFrame(1, "f", (), (), 0, 0.0, None, False, False)
    data = encode(msgspec.structs.replace(done, **{field: seconds}))
    with pytest.raises(BrokenFrame):
        list(Splitter(FROM_WORKER).feed(data))


def test_frames_before_a_broken_one_are_still_given():
    splitter = Splitter(FROM_WORKER)
    found = []
    with pytest.raises(BrokenFrame):
        found.extend(iter(splitter.feed(encode(frames.SickFrame("first")) + header(0, 0))))
    taken = Splitter(FROM_WORKER).feed(encode(frames.SickFrame("first")) + header(0, 0))
    assert next(taken) == frames.SickFrame("first")


@pytest.mark.parametrize("bits", [0x7FF8000000000000, 0x7FF0000000000ABC, 0xFFF8000000000001, 0x8000000000000000])
def test_every_bit_of_a_float_arrives(bits):
    (number,) = struct.unpack("<d", struct.pack("<Q", bits))
    (done,) = Splitter(FROM_WORKER).feed(
        encode(frames.DoneFrame(1, "f", (number,), ("f64",), 0, 0.0, None, False, False))
    )
    assert struct.unpack("<Q", struct.pack("<d", done.values[0])) == (bits,)


def test_a_frame_too_long_for_its_kind_is_not_sent():
    with pytest.raises(BrokenFrame, match="at most"):
        encode(frames.SickFrame("x" * (65 << 10)))


@given(st.binary(max_size=200_000))
def test_parts_are_the_whole(data):
    parts = list(split(data))
    assert b"".join(parts) == data
    assert all(0 < len(part) <= frames.PART_BYTES for part in parts)
