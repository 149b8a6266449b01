"""Geometry at its limits, and every argument against its parameter."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.device import INFO
from tensorwasm.errors import (
    InvalidDimensions,
    InvalidHandle,
    InvalidKernelArgs,
    KernelArgsUnsupported,
    LaunchRefused,
    TensorWasmError,
)
from tensorwasm.gpu.device.arguments import (
    BufferOffset,
    HostWindow,
    RegionTable,
    Scalar,
    bind,
    check_fit,
    check_geometry,
)
from tensorwasm.values import KernelParam, KernelSignature, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
GUEST = Region(1 << 40, 1 << 16, host=True)
BUFFER = Region(1 << 32, 100, host=False)
NEIGHBOUR = Region(BUFFER.end, 100, host=False)
BUFFERS = {1: BUFFER, 2: NEIGHBOUR}
REGIONS = RegionTable()
for owned in (GUEST, BUFFER, NEIGHBOUR):
    REGIONS.add(owned)

POINTER = KernelParam("p", 8, 8, pointer=True, access_align_bytes=4)
WORD = KernelParam("n", 4, 4)
LONG = KernelParam("m", 8, 8)


def bind_one(param, *arguments):
    return bind(KernelSignature("k", (param,)), arguments, BUFFERS, REGIONS)


def u64(value):
    return Scalar(struct.pack("<Q", value))


@pytest.mark.parametrize(
    "config",
    [
        replace(ONE, grid=(2**31 - 1,) * 3),
        replace(ONE, block=(1024, 1, 1)),
        replace(ONE, block=(1, 1024, 1)),
        replace(ONE, block=(1, 1, 1024)),
        replace(ONE, block=(32, 32, 1)),
        replace(ONE, shared_bytes=228 * 1024),
    ],
)
def test_geometry_at_the_limit_passes(config):
    check_geometry(config)


@pytest.mark.parametrize(
    "config",
    [
        *(replace(ONE, grid=grid) for grid in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (2**31, 1, 1), (1, 2**31, 1)]),
        *(replace(ONE, grid=grid) for grid in [(1, 1, 2**31), (-1, 1, 1), (-(2**31), 1, 1)]),
        *(replace(ONE, block=block) for block in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1025, 1, 1), (1, 1025, 1)]),
        *(replace(ONE, block=block) for block in [(1, 1, 1025), (32, 32, 2), (1024, 2, 1), (-1, -1, 1)]),
        *(replace(ONE, shared_bytes=size) for size in [-1, 228 * 1024 + 1]),
    ],
)
def test_geometry_past_the_limit_is_refused(config):
    with pytest.raises(InvalidDimensions):
        check_geometry(config)


def test_the_kernels_own_block_is_required():
    signature = KernelSignature("k", (), required_block=(8, 4, 1), max_threads=32)
    check_fit(replace(ONE, block=(8, 4, 1)), signature, INFO)
    with pytest.raises(InvalidDimensions):
        check_fit(replace(ONE, block=(4, 8, 1)), signature, INFO)


def test_the_kernels_most_threads_are_kept():
    signature = KernelSignature("k", (), max_threads=64)
    check_fit(replace(ONE, block=(64, 1, 1)), signature, INFO)
    with pytest.raises(InvalidDimensions):
        check_fit(replace(ONE, block=(65, 1, 1)), signature, INFO)


def test_static_and_dynamic_shared_memory_share_the_devices():
    signature = KernelSignature("k", (), static_shared_bytes=1024)
    check_fit(replace(ONE, shared_bytes=INFO.max_shared_bytes - 1024), signature, INFO)
    with pytest.raises(InvalidDimensions):
        check_fit(replace(ONE, shared_bytes=INFO.max_shared_bytes - 1023), signature, INFO)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_number_of_arguments_is_the_kernels(count):
    with pytest.raises(InvalidKernelArgs):
        bind(KernelSignature("k", (WORD, WORD)), [Scalar(bytes(4))] * count, BUFFERS, REGIONS)


@pytest.mark.parametrize(
    ("param", "argument"),
    [
        (WORD, Scalar(bytes(8))),
        (WORD, HostWindow(GUEST.address, 4)),
        (WORD, BufferOffset(1, 0)),
        (LONG, Scalar(bytes(4))),
        (POINTER, Scalar(bytes(4))),
    ],
)
def test_the_size_of_an_argument_is_its_parameters(param, argument):
    with pytest.raises(InvalidKernelArgs):
        bind_one(param, argument)


@pytest.mark.parametrize(
    "param",
    [
        KernelParam("s", 8, 8, scalar=False),
        KernelParam("s", 4, 4, scalar=False),
        KernelParam("s", 16, 8, scalar=False),
        KernelParam("s", 16, 8),
        KernelParam("s", 2, 2),
        KernelParam("s", 1, 1),
        KernelParam("s", 4, 4, pointer=True),
    ],
)
def test_shapes_that_no_record_fills_are_said_to_be_so(param):
    with pytest.raises(KernelArgsUnsupported):
        bind_one(param, Scalar(bytes(param.size_bytes)))


@given(st.binary(min_size=8, max_size=8))
def test_values_that_are_no_addresses_pass_as_they_are(data):
    assert bind_one(LONG, Scalar(data)) == (data,)
    assert bind_one(WORD, Scalar(data[:4])) == (data[:4],)


@pytest.mark.parametrize(
    "value",
    [
        0,  # null
        1,
        GUEST.address - 4,
        GUEST.end,
        BUFFER.address - 4,
        NEIGHBOUR.end,
        1 << 31,
        1 << 53,
        1 << 63,
        (1 << 64) - 4,
        pytest.param(id(REGIONS) & ~7, id="heap"),  # an object of the host
    ],
)
@pytest.mark.rule("5-owned")
def test_a_number_used_as_a_pointer_is_refused_unless_it_is_the_guests(value):
    with pytest.raises(LaunchRefused):
        bind_one(POINTER, u64(value))


@pytest.mark.parametrize("value", [GUEST.address, GUEST.end - 4, BUFFER.address, NEIGHBOUR.end - 4])
def test_a_number_used_as_a_pointer_passes_when_it_is_the_guests(value):
    assert bind_one(POINTER, u64(value)) == (struct.pack("<Q", value),)


def test_a_number_may_point_at_the_last_byte():
    last = u64(GUEST.end - 1)
    assert bind_one(replace(POINTER, access_align_bytes=1), last) == (last.data,)


@pytest.mark.parametrize("argument", [u64(GUEST.address + 2), HostWindow(GUEST.address + 1, 8), BufferOffset(1, 6)])
@pytest.mark.rule("5-aligned")
def test_misaligned_pointers_are_refused(argument):
    with pytest.raises(LaunchRefused, match="alignment"):
        bind_one(POINTER, argument)


def test_alignment_does_not_matter_to_what_is_no_pointer():
    assert bind_one(LONG, BufferOffset(1, 3)) == (struct.pack("<Q", BUFFER.address + 3),)


@pytest.mark.parametrize("param", [POINTER, LONG])
@pytest.mark.parametrize("handle", [0, 3, 1 << 63, (1 << 64) - 1])
def test_a_buffer_that_does_not_exist_is_no_argument(param, handle):
    with pytest.raises(InvalidHandle):
        bind_one(param, BufferOffset(handle, 0))


@pytest.mark.parametrize("param", [POINTER, LONG])
@pytest.mark.parametrize("offset", [100, 104, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 4])
@pytest.mark.rule("5-owned")
def test_an_offset_past_its_buffer_does_not_land_in_the_next(param, offset):
    with pytest.raises(LaunchRefused):
        bind_one(param, BufferOffset(1, offset))


def test_the_last_byte_of_a_buffer_belongs_to_it():
    assert bind_one(POINTER, BufferOffset(1, 96)) == (struct.pack("<Q", BUFFER.address + 96),)


@pytest.mark.parametrize("param", [POINTER, LONG])
def test_an_empty_window_at_the_end_becomes_null(param):
    assert bind_one(param, HostWindow(GUEST.end, 0)) == (bytes(8),)


def test_an_empty_window_inside_keeps_its_address():
    assert bind_one(POINTER, HostWindow(GUEST.end - 4, 0)) == (struct.pack("<Q", GUEST.end - 4),)


@pytest.mark.parametrize("window", [HostWindow(GUEST.end - 4, 8), HostWindow(GUEST.address - 4, 8), HostWindow(64, 4)])
@pytest.mark.parametrize("param", [POINTER, LONG])
def test_a_window_outside_the_registered_memory_is_refused(param, window):
    with pytest.raises(LaunchRefused):
        bind_one(param, window)


EDGES = [
    0,
    GUEST.address,
    GUEST.end,
    BUFFER.address,
    BUFFER.end,
    NEIGHBOUR.end,
    1 << 31,
    1 << 53,
    1 << 63,
    (1 << 64) - 8,
]
near = st.builds(lambda edge, by: max(0, min(edge + by, (1 << 64) - 1)), st.sampled_from(EDGES), st.integers(-9, 9))


@given(
    st.builds(u64, near)
    | st.builds(HostWindow, near, st.integers(0, 70000))
    | st.builds(BufferOffset, st.integers(0, 3), st.integers(0, 110) | near),
    st.sampled_from([1, 2, 4, 8, 16]),
)
@pytest.mark.rule("5-owned", "5-aligned")
def test_addresses_that_reach_the_device_are_owned_and_aligned(argument, align):
    try:
        (value,) = bind_one(replace(POINTER, access_align_bytes=align), argument)
    except TensorWasmError:
        return
    address = int.from_bytes(value, "little")
    assert address % align == 0
    assert (address == 0 and argument == HostWindow(argument.address, 0)) or any(
        region.address <= address < region.end for region in (GUEST, BUFFER, NEIGHBOUR)
    )
