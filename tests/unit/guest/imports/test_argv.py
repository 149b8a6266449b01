"""Argument records: strict, bounded, and read back as written."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fakes.argv import encode_argv
from strategies.argv import around, records
from tensorwasm.errors import InvalidKernelArgs, InvalidPointer, KernelArgsUnsupported
from tensorwasm.gpu.device.arguments import BufferOffset, HostWindow, Scalar
from tensorwasm.guest.imports.abi import ARG_TAGS
from tensorwasm.guest.imports.argv import NumberArg, WindowArg, parse_argv, resolve_args

ADDRESS = 1 << 46
SIZES = {row.tag: 1 + row.value_bytes for row in ARG_TAGS}


@given(st.lists(records, max_size=128))
def test_encoded_arguments_are_decoded_unchanged(args):
    assert parse_argv(encode_argv(args)) == tuple(args)


def test_no_bytes_are_no_arguments():
    assert parse_argv(b"") == ()


def test_the_wire_format():
    data = (
        bytes([1]) + struct.pack("<i", -2)
        + bytes([2]) + struct.pack("<q", -3)
        + bytes([3]) + struct.pack("<f", 1.5)
        + bytes([4]) + struct.pack("<d", 2.5)
        + bytes([5]) + struct.pack("<I", 6)
        + bytes([6]) + struct.pack("<Q", 7)
        + bytes([7]) + struct.pack("<II", 8, 9)
        + bytes([8]) + struct.pack("<QQ", 10, 11)
    )  # fmt: skip
    assert len(data) == 3 * 5 + 4 * 9 + 17
    assert parse_argv(data) == (
        NumberArg("i32", struct.pack("<i", -2)),
        NumberArg("i64", struct.pack("<q", -3)),
        NumberArg("f32", struct.pack("<f", 1.5)),
        NumberArg("f64", struct.pack("<d", 2.5)),
        NumberArg("u32", struct.pack("<I", 6)),
        NumberArg("u64", struct.pack("<Q", 7)),
        WindowArg(8, 9),
        BufferOffset(10, 11),
    )


def test_vector_adds_arguments_are_32_bytes():
    three_windows = [WindowArg(0, 4), WindowArg(4, 4), WindowArg(8, 4)]
    assert len(encode_argv([*three_windows, NumberArg("u32", bytes(4))])) == 32


def test_a_launch_carries_128_records_and_no_more():
    record = encode_argv([NumberArg("u32", bytes(4))])
    assert len(parse_argv(record * 128)) == 128
    with pytest.raises(KernelArgsUnsupported):
        parse_argv(record * 129)
    with pytest.raises(KernelArgsUnsupported):
        parse_argv(record * 128 + b"\xff")


def test_a_launch_carries_4096_bytes_and_no_more():
    with pytest.raises(InvalidKernelArgs):
        parse_argv(bytes(4096))
    with pytest.raises(KernelArgsUnsupported):
        parse_argv(bytes(4097))


@pytest.mark.parametrize("tag", [0x00, *range(0x09, 0x100)])
def test_unknown_tags_are_refused(tag):
    with pytest.raises(InvalidKernelArgs, match="unknown tag"):
        parse_argv(encode_argv([WindowArg(0, 0)]) + bytes([tag]) + bytes(16))


@given(st.lists(records, max_size=5), records, st.data())
def test_a_record_cut_short_is_refused(args, last, data):
    whole = encode_argv([last])
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(InvalidKernelArgs, match="cut short"):
        parse_argv(encode_argv(args) + whole[:cut])


@given(st.binary(max_size=5000) | st.lists(st.sampled_from(range(10)), max_size=5000).map(bytes))
@example(b"\x07" * 4096)
def test_any_bytes_are_read_exactly_or_refused(data):
    try:
        args = parse_argv(data)
    except (InvalidKernelArgs, KernelArgsUnsupported):
        return
    assert encode_argv(args) == data
    assert len(args) <= 128
    assert len(data) <= 4096


@given(around(32), around(32), st.sampled_from([0, 1, 65536, 1 << 31, (1 << 31) + 65536, 1 << 32]))
@example(65536, 0, 65536)
@example(65536, 1, 65536)
@example(65537, 0, 65536)
@example(0, 1 << 31, 1 << 31)
@example((1 << 32) - 1, 1, 1 << 32)
@example((1 << 32) - 1, 2, 1 << 32)
@example((1 << 32) - 1, (1 << 32) - 1, 65536)
@pytest.mark.rule("1-regions")
def test_a_window_is_inside_the_memory_or_refused(offset, length, size):
    try:
        (argument,) = resolve_args([WindowArg(offset, length)], ADDRESS, size)
    except InvalidPointer:
        assert offset + length > size
    else:
        assert offset + length <= size
        assert argument == HostWindow(ADDRESS + offset, length)


def test_numbers_and_buffers_resolve_to_themselves():
    number, buffer = NumberArg("u64", bytes(8)), BufferOffset(1, 2)
    assert resolve_args([number, buffer], ADDRESS, 0) == (Scalar(bytes(8)), buffer)


def test_every_tag_of_the_table_is_parsed():
    for row in ARG_TAGS:
        (arg,) = parse_argv(bytes([row.tag]) + bytes(row.value_bytes))
        (argument,) = resolve_args([arg], ADDRESS, 0)
        assert argument.size_bytes == row.param_bytes
