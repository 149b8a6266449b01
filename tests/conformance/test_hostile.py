"""What a hostile guest tries, through real Wasm, on every device: a code, no harm, and the next guest unaffected."""

from __future__ import annotations

import ctypes
import dataclasses
import struct
import time
from pathlib import Path

import pytest

from conformance.puppet import PAGES, TEXT_AT, Puppet
from fakes.argv import encode_argv
from strategies.longest import nested, straight
from tensorwasm.errors import InvokeTimeout
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.opening import open_device
from tensorwasm.guest.imports.abi import CUDA_MODULE_0_1, CUDA_MODULE_0_2
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.values import Deadline
from timing import costs_less

VECTOR_ADD = (Path(__file__).resolve().parents[2] / "examples/vector_add/vector_add.sm_75.ptx").read_bytes()
A, B, C, BYTES = 1024, 2048, 3072, 256
SPIN = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry spin() { L: bra L; }
"""


def u32(value):
    return NumberArg("u32", struct.pack("<I", value))


def u64(value):
    return NumberArg("u64", struct.pack("<Q", value))


GOOD = (WindowArg(A, BYTES), WindowArg(B, BYTES), WindowArg(C, BYTES), u32(64))


@pytest.fixture
def puppet(device, compiled):
    with Puppet(device, compiled=compiled) as puppet:
        yield puppet


@pytest.fixture
def loader(device):
    """A puppet that only loads, which no compiled function does."""
    with Puppet(device) as puppet:
        yield puppet


@pytest.fixture
def kernel(puppet):
    loaded = puppet.load(VECTOR_ADD, b"vector_add")
    assert loaded > 0, puppet.error()
    return loaded


def works(puppet, kernel):
    """The same guest, the same kernel, the right answer."""
    values = [float(index) for index in range(64)]
    puppet.put(A, struct.pack("<64f", *values))
    puppet.put(B, struct.pack("<64f", *values))
    puppet.put(C, bytes(BYTES))
    assert puppet.start(kernel, encode_argv(GOOD), grid=(2, 1, 1)) == 0, puppet.error()
    assert struct.unpack("<64f", puppet.get(C, BYTES)) == tuple(2 * value for value in values)
    return True


@pytest.mark.hardware("BUG-8-memory")
def test_the_honest_case(puppet, kernel):
    assert works(puppet, kernel)
    assert puppet.sync() == 0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0",
        VECTOR_ADD.replace(b"add.rn.f32", b"add.\0f32"),
        VECTOR_ADD.replace(b"//", b"// \xe2\x80\x94", 1),
        VECTOR_ADD.replace(b".version", b".vision"),
        VECTOR_ADD.replace(b".target sm_75", b".target sm_999"),
        VECTOR_ADD.replace(b".version 8.0", b".version 99.0"),
        VECTOR_ADD[: len(VECTOR_ADD) // 2],
        VECTOR_ADD.replace(b"add.rn.f32", b"frobnicate.f32"),
        VECTOR_ADD.replace(b"%f3, %f2, %f1", b"%f3, %f2, %f999"),
        VECTOR_ADD + b"{",
        b"\xff" * 1000,
    ],
    ids=lambda text: repr(bytes(text[:8])),
)
@pytest.mark.hardware("BUG-7-ascii")
def test_ptx_that_is_none_answers_malformed(loader, text):
    assert text != VECTOR_ADD
    assert loader.load(text, b"vector_add") == -4
    assert loader.error()


@pytest.mark.parametrize("brace", [b"{", b"(", b"[", b"}", b'"', b"/*", b".reg .b32 %r<999999999>;", b"%", b"-"])
def test_eight_megabytes_of_anything_are_refused_quickly(loader, brace):
    text = (VECTOR_ADD[: VECTOR_ADD.index(b"{") + 1] + brace * (8 << 20))[: 8 << 20]
    start = time.monotonic()
    assert loader.load(text, b"vector_add") == -4
    assert time.monotonic() - start < 20


def test_ten_megabytes_of_braces_are_over_the_limit(loader):
    assert loader.load(b"{" * (10 << 20), b"x") == -6


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((TEXT_AT, -1, 16, 10), -2),
        ((TEXT_AT, (8 << 20) + 1, 16, 10), -6),
        ((TEXT_AT, 10, 16, 257), -6),
        ((TEXT_AT, 10, 16, -1), -6),
        ((PAGES << 16, 1, 16, 1), -2),
        ((-1, 2, 16, 1), -2),
        ((TEXT_AT, 10, (PAGES << 16) - 1, 2), -2),
        ((-2147483648, 1, 0, 1), -2),
    ],
)
def test_regions_of_a_load_are_checked_in_order(loader, arguments, code):
    assert loader.load_ptx(*arguments) == code


def test_an_entry_that_does_not_exist_and_one_that_is_no_text(loader):
    assert loader.load(VECTOR_ADD, b"vector_sub") == -3
    assert "vector_sub" in loader.error()
    assert loader.load(VECTOR_ADD, b"\xff\xfe") == -9


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [
        ((0, 1, 1), (32, 1, 1), 0),
        ((1, 0, 1), (32, 1, 1), 0),
        ((1, 1, 1), (32, 0, 1), 0),
        ((-1, 1, 1), (32, 1, 1), 0),
        ((1, 1, -2147483648), (32, 1, 1), 0),
        ((1, 1, 1), (1025, 1, 1), 0),
        ((1, 1, 1), (32, 33, 1), 0),
        ((1, 1, 1), (1, 1, 65), 0),
        ((1, 65536, 1), (1, 1, 1), 0),
        ((1, 1, 65536), (1, 1, 1), 0),
        ((1, 1, 1), (32, 1, 1), -1),
        ((1, 1, 1), (32, 1, 1), (228 << 10) + 1),
    ],
)
def test_a_geometry_that_cannot_be_is_refused(puppet, kernel, grid, block, shared):
    assert puppet.start(kernel, encode_argv(GOOD), grid, block, shared) == -8
    assert works(puppet, kernel)


def test_two_to_the_31_blocks_are_one_too_many(device):
    with Puppet(device) as puppet:
        kernel = puppet.load(SPIN, b"spin")
        assert puppet.start(kernel, b"", grid=(-2147483648, 1, 1)) == -8  # 2**31, read as unsigned


GOOD_BYTES = encode_argv(GOOD)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (GOOD_BYTES[:-1], -9),
        (GOOD_BYTES + b"\x05", -9),
        (b"\x00" + GOOD_BYTES[1:], -9),
        (b"\x09" + GOOD_BYTES[1:], -9),
        (b"\xff" * 32, -9),
        (b"", -9),
        (encode_argv(GOOD[:3]), -9),
        (encode_argv((*GOOD, u32(1))), -9),
        (encode_argv((*GOOD[:3], u64(64))), -9),
        (encode_argv((u32(0), *GOOD[1:])), -9),
        (encode_argv([u32(0)] * 129), -10),
        (b"\x05" * 4097, -10),
        (encode_argv((WindowArg(PAGES << 16, 1), *GOOD[1:])), -2),
        (encode_argv((WindowArg((PAGES << 16) - BYTES + 1, BYTES), *GOOD[1:])), -2),
        (encode_argv((WindowArg(0xFFFFFFFF, 0xFFFFFFFF), *GOOD[1:])), -2),
        (encode_argv((WindowArg(0, 0xFFFFFFFF), *GOOD[1:])), -2),
        (encode_argv((BufferOffset(1, 0), *GOOD[1:])), -11),
        (encode_argv((BufferOffset(2**64 - 1, 2**64 - 1), *GOOD[1:])), -11),
        (encode_argv((u64(0), *GOOD[1:])), -5),
        (encode_argv((u64(2**64 - 4), *GOOD[1:])), -5),
        (encode_argv((u64(0xDEAD_BEEF_0000), *GOOD[1:])), -5),
        (encode_argv((WindowArg(A + 1, BYTES), *GOOD[1:])), -5),
    ],
)
@pytest.mark.rule("5-owned", "5-aligned")
def test_damaged_arguments_are_refused_with_their_code(puppet, kernel, argv, code):
    assert puppet.start(kernel, argv) == code
    assert puppet.error()
    assert works(puppet, kernel)


@pytest.mark.hardware("BUG-pointer")
@pytest.mark.rule("5-first")
def test_plain_heap_memory_as_a_kernel_argument_never_reaches_the_device(puppet, kernel):
    heap = ctypes.create_string_buffer(4096)
    argv = encode_argv((u64(ctypes.addressof(heap) & ~15), *GOOD[1:]))
    assert puppet.start(kernel, argv) == -5
    assert works(puppet, kernel)


@pytest.mark.hardware("BUG-pointer")
@pytest.mark.rule("5-owned")
def test_memory_and_buffers_of_another_guest_are_out_of_reach(device, puppet, kernel):
    with Puppet(device) as victim:
        theirs = victim.load(VECTOR_ADD, b"vector_add")
        assert works(victim, theirs)
        handle = victim.alloc(4096, 0)
        assert handle > 0
        address = victim.instance.memory.address
        assert puppet.start(kernel, encode_argv((u64(address + A), *GOOD[1:]))) == -5
        assert puppet.start(kernel, encode_argv((BufferOffset(handle, 0), *GOOD[1:]))) == -11
        assert puppet.start(theirs, GOOD_BYTES) == -3
        assert puppet.free(handle, 0) == -11
        assert puppet.memcpy_d2h(0, handle, 0, 16) == -11
        assert works(victim, theirs)
    assert works(puppet, kernel)


def test_the_kernel_id_must_be_ours(puppet, kernel):
    for bad in (-1, 0, 1, kernel + 1, kernel ^ (1 << 40), 2**63 - 1, -(2**63)):
        assert puppet.start(bad, GOOD_BYTES) == -3


def test_the_last_window_may_end_with_the_memory_and_an_empty_one_lie_at_its_end(puppet, kernel):
    end = PAGES << 16
    assert puppet.start(kernel, encode_argv((GOOD[0], GOOD[1], WindowArg(end - BYTES, BYTES), u32(64))), (2, 1, 1)) == 0
    assert puppet.start(kernel, encode_argv((GOOD[0], GOOD[1], WindowArg(end, 0), u32(0)))) in {0, -5}
    assert works(puppet, kernel)


@pytest.mark.rule("1-regions")
def test_memory_grown_between_launches_is_reached(puppet, kernel):
    assert works(puppet, kernel)
    assert puppet.grow(4) == PAGES
    at = (PAGES + 3) << 16
    argv = encode_argv((GOOD[0], GOOD[1], WindowArg(at, BYTES), u32(64)))
    assert puppet.start(kernel, argv, (2, 1, 1)) == 0, puppet.error()
    assert puppet.get(at, BYTES) == puppet.get(C, BYTES)


@pytest.mark.hardware("H5")
@pytest.mark.rule("4-device")
def test_device_buffers_go_there_and_back_and_are_zeroed_and_freed_once(puppet, kernel):
    first = puppet.alloc(BYTES, 0)
    assert first > 0
    puppet.put(C, b"\xff" * BYTES)
    assert puppet.memcpy_d2h(C, first, 0, BYTES) == 0
    assert puppet.get(C, BYTES) == bytes(BYTES)
    puppet.put(A, struct.pack("<64f", *range(64)))
    assert puppet.memcpy_h2d(first, 0, A, BYTES) == 0
    argv = encode_argv((BufferOffset(first, 0), BufferOffset(first, 0), WindowArg(C, BYTES), u32(64)))
    assert puppet.start(kernel, argv, (2, 1, 1)) == 0, puppet.error()
    assert struct.unpack("<64f", puppet.get(C, BYTES)) == tuple(2.0 * value for value in range(64))
    assert puppet.memcpy_h2d(first, 0, A, BYTES + 1) == -9
    assert puppet.memcpy_h2d(first, 0, (PAGES << 16) - 1, 2) == -2
    assert puppet.start(kernel, encode_argv((BufferOffset(first, BYTES), *GOOD[1:]))) == -5
    assert puppet.free(first, 0) == 0
    assert puppet.free(first, 0) == -11
    assert puppet.memcpy_h2d(first, 0, A, 1) == -11


@pytest.mark.parametrize(("low", "high", "code"), [(0, 0, -9), (1, 1, -6), ((256 << 20) + 1, 0, -6), (-1, -1, -6)])
def test_sizes_that_cannot_be_are_refused(puppet, low, high, code):
    assert puppet.alloc(low, high) == code


def test_more_kernels_than_the_limit_are_refused_and_nothing_is_lost(device):
    with Puppet(device) as puppet:
        ids = [puppet.load(SPIN, b"spin") for _ in range(257)]
        assert all(kernel > 0 for kernel in ids[:256])
        assert len(set(ids[:256])) == 256
        assert ids[256] == -6


@pytest.mark.rule("15-grant")
def test_without_the_grant_everything_answers_not_available(device):
    with Puppet(device, granted=False) as puppet:
        assert puppet.load(VECTOR_ADD, b"vector_add") == -1
        assert puppet.start(1, GOOD_BYTES) == -1
        assert (puppet.sync(), puppet.alloc(1, 0), puppet.free(1, 0)) == (-1, -1, -1)
        assert (puppet.memcpy_h2d(1, 0, 0, 1), puppet.memcpy_d2h(0, 1, 0, 1)) == (-1, -1)
        assert (puppet.last_error_len(), puppet.last_error_copy(0, 10)) == (-1, -1)


def test_version_0_2_is_as_it_was(device, compiled):
    with Puppet(device, module=CUDA_MODULE_0_2, compiled=compiled) as puppet:
        kernel = puppet.load(VECTOR_ADD, b"vector_add")
        assert works(puppet, kernel)
        assert puppet.sync() == 0
        assert not hasattr(puppet, "launch_async")


def test_version_0_1_takes_no_arguments(device):
    with Puppet(device, module=CUDA_MODULE_0_1) as puppet:
        kernel = puppet.load(VECTOR_ADD, b"vector_add")
        assert puppet.start(kernel, GOOD_BYTES) == -10


def test_a_long_error_is_cut_and_a_short_buffer_gets_its_start(loader):
    assert loader.load(VECTOR_ADD, b"x" * 256) == -3
    length = loader.last_error_len()
    assert 0 < length <= 512
    assert loader.last_error_copy(0, 5) == 5
    assert loader.last_error_copy(0, 0) == 0
    assert loader.last_error_copy((PAGES << 16) - 1, 5) == -2
    assert loader.last_error_len() == length


@pytest.mark.rule("13-deadline")
def test_a_kernel_that_never_ends_ends_the_call_on_the_emulator():
    device, _ = open_device("emulator")
    with Puppet(device) as puppet:
        kernel = puppet.load(SPIN, b"spin")
        start = time.monotonic()
        with pytest.raises(InvokeTimeout):
            puppet.start(kernel, b"", grid=(2**31 - 1, 1, 1), deadline=Deadline.after(0.3))
        assert time.monotonic() - start < 5
        assert puppet.sync() == -7
    with Puppet(device) as other:
        assert works(other, other.load(VECTOR_ADD, b"vector_add"))
    device.close()


def ends_in_time(device, text, limit_s):
    before = device.statistics()
    with Puppet(device) as puppet:
        kernel = puppet.load(VECTOR_ADD, b"vector_add")

        def load() -> None:
            with pytest.raises(InvokeTimeout):
                puppet.load(text.encode(), b"k", deadline=Deadline.after(limit_s))

        assert costs_less(limit_s + 2, load)
        assert puppet.session.statistics().kernels == 1
        assert works(puppet, kernel)
        assert puppet.load(VECTOR_ADD, b"vector_add") == kernel + 1
    return device.statistics() == dataclasses.replace(before, launches=device.statistics().launches)


@pytest.mark.parametrize("text", [straight, nested])
@pytest.mark.rule("13-reading")
def test_a_text_that_takes_too_long_to_read_ends_the_call_and_harms_nothing(device, text):
    assert ends_in_time(device, text(7 << 20), 0.5)


@pytest.mark.rule("13-reading")
def test_a_text_that_takes_too_long_to_load_ends_the_call_and_harms_nothing():
    device, _ = open_device("emulator")
    assert ends_in_time(device, straight(7 << 20), 3.0)
    device.close()
