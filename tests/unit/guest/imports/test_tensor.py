"""Input and output of a call."""

import pytest

from fakes.guest import FakeCall, FakeMemory
from tensorwasm.errors import InternalError
from tensorwasm.guest.imports.abi import MAX_CHUNK_BYTES, MAX_TOTAL_STREAM_BYTES
from tensorwasm.guest.imports.call import OutputStream, emit_chunk, flush, input_len, read_input

PAGE = 1 << 16


class ListSink:
    """Keeps chunks until its client goes."""

    def __init__(self):
        self.chunks = []
        self.flushes = 0
        self.gone = False

    def send(self, chunk):
        if not self.gone:
            self.chunks.append(chunk)
        return not self.gone

    def flush(self):
        self.flushes += 1


@pytest.fixture
def sink():
    return ListSink()


@pytest.fixture
def call(sink):
    return FakeCall(FakeMemory(bytearray(b"ab" * PAGE)), services={"stream": OutputStream(sink)})


def test_without_a_listener_streaming_is_off():
    assert emit_chunk(FakeCall(), 0, -1) == -1
    assert flush(FakeCall()) == -1


def test_chunks_arrive_whole_and_in_order(call, sink):
    assert [emit_chunk(call, 0, 3), emit_chunk(call, 1, 1), flush(call)] == [0, 0, 0]
    assert sink.chunks == [b"aba", b"b"]
    assert sink.flushes == 1


@pytest.mark.rule("2-chunk")
def test_a_chunk_is_a_copy(call, sink):
    emit_chunk(call, 0, 2)
    call.memory.write(0, b"zz")
    assert sink.chunks == [b"ab"]


def test_an_empty_chunk_sends_nothing(call, sink):
    assert emit_chunk(call, 2 * PAGE, 0) == 0
    assert sink.chunks == []


def test_a_chunk_has_at_most_64_kib(call, sink):
    assert emit_chunk(call, 0, MAX_CHUNK_BYTES) == 0
    assert emit_chunk(call, 0, MAX_CHUNK_BYTES + 1) == -2
    assert emit_chunk(call, 0, -1) == -2
    assert emit_chunk(call, 0, -(1 << 31)) == -2
    assert len(sink.chunks) == 1


@pytest.mark.parametrize(("ptr", "length"), [(2 * PAGE, 1), (2 * PAGE - 1, 2), (-1, 1), (-(1 << 31), 1), (-1, 0)])
def test_a_chunk_lies_inside_the_memory(call, sink, ptr, length):
    assert emit_chunk(call, ptr, length) == -2
    assert sink.chunks == []


def test_a_guest_without_memory_has_no_chunk(sink):
    assert emit_chunk(FakeCall(None, services={"stream": OutputStream(sink)}), 0, 1) == -2


def test_a_stream_has_at_most_64_mib(call):
    for _ in range(MAX_TOTAL_STREAM_BYTES // MAX_CHUNK_BYTES - 1):
        assert emit_chunk(call, 0, MAX_CHUNK_BYTES) == 0
    assert emit_chunk(call, 0, MAX_CHUNK_BYTES - 1) == 0
    assert emit_chunk(call, 0, 2) == -2
    assert emit_chunk(call, 0, 1) == 0
    assert emit_chunk(call, 0, 1) == -2
    assert emit_chunk(call, 0, 0) == 0
    assert call.service("stream").sent_bytes == MAX_TOTAL_STREAM_BYTES


def test_a_client_that_went_takes_nothing(call, sink):
    sink.gone = True
    assert emit_chunk(call, 0, 10) == -3
    assert call.service("stream").sent_bytes == 0


def input_call(data, size=16):
    return FakeCall(FakeMemory(bytearray(size)), services={"input": data})


@pytest.mark.parametrize("call", [FakeCall(), FakeCall(services={"input": b""}), FakeCall(None)])
def test_without_input_there_is_nothing_to_read(call):
    assert input_len(call) == 0
    assert read_input(call, -1, -1) == 0


def test_input_is_read_from_its_start_every_time():
    call = input_call(b"hello")
    assert input_len(call) == 5
    assert read_input(call, 1, 3) == 3
    assert read_input(call, 8, 100) == 5
    assert bytes(call.memory.buffer) == b"\0hel\0\0\0\0hello\0\0\0"


@pytest.mark.parametrize("length", [5, 6, -1, -(1 << 31), (1 << 31) - 1])
def test_only_what_is_copied_has_to_fit(length):
    call = input_call(b"hello", size=5)
    assert read_input(call, 0, length) == 5


@pytest.mark.parametrize(("ptr", "length"), [(12, 5), (16, 1), (-1, 1), (-(1 << 31), 5)])
def test_input_outside_the_memory_is_refused(ptr, length):
    call = input_call(b"hello")
    assert read_input(call, ptr, length) == -2
    assert bytes(call.memory.buffer) == bytes(16)


def test_reading_nothing_answers_nothing():
    assert read_input(input_call(b"hello"), -1, 0) == 0


def test_a_guest_without_memory_cannot_read():
    assert read_input(FakeCall(None, services={"input": b"x"}), 0, 1) == -2


def test_services_of_another_kind_are_a_bug_here():
    with pytest.raises(InternalError):
        emit_chunk(FakeCall(services={"stream": object()}), 0, 1)
    with pytest.raises(InternalError):
        input_len(FakeCall(services={"input": "text"}))
