import mmap
from ctypes import addressof, c_char

import numpy as np
import pytest

from fakes.emulation import kernel, store_result
from tensorwasm.errors import LaunchRefused
from tensorwasm.values import Region

ADDRESS = "ld.param.u64 %rd0, [p0]; mad.wide.u32 %rd0, %r0, 4, %rd0;"


def line_of(text, part):
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def test_a_fault_names_kernel_thread_line_instruction_address_and_neighbour(emulation):
    text = kernel(ADDRESS + "\nld.global.f32 %f1, [%rd0+8];")
    # Both rows of a block have the same %tid.x: they read elements 2 to 17.
    emulation.launch(text, emulation.buffer([0] * 18), block=(16, 2, 1), grid=(3, 1, 1))
    region = emulation.buffer([0] * 17)
    message = emulation.fault(text, region, block=(16, 2, 1), grid=(3, 1, 1))
    assert "kernel k, block (0, 0, 0) thread (15, 0, 0)" in message
    assert f"line {line_of(text, 'ld.global.f32')}: `ld.global.f32 %f1, [%rd0+8]`" in message
    assert f"accesses 4 bytes at {region.address + 68:#x}" in message
    assert f"0 bytes past the end of the 68-byte allocation at {region.address:#x}" in message


def test_the_thread_of_a_later_batch_is_named(emulation):
    text = kernel(
        "mov.u32 %r1, %ctaid.y; setp.eq.u32 %p0, %r1, 700; setp.eq.and.u32 %p0, %r0, 5, %p0; @%p0 trap;", params=0
    )
    message = emulation.fault(text, grid=(3, 701, 1), block=(8, 2, 1))
    assert "block (0, 700, 0) thread (5, 0, 0)" in message


@pytest.mark.parametrize(
    ("access", "size"),
    [("ld.global.u32 %r1, [%rd0+2]", 4), ("st.global.v4.u32 [%rd0+4], {%r0, %r0, %r0, %r0}", 16)],
)
def test_a_misaligned_access(emulation, access, size):
    message = emulation.fault(kernel(ADDRESS + access + ";"), emulation.buffer([0] * 64))
    assert f"accesses {size} bytes at 0x" in message
    assert message.endswith("which is misaligned")


def test_a_negative_offset_and_address_zero(emulation):
    region = emulation.buffer([0] * 32)
    before = emulation.fault(kernel(ADDRESS + "ld.global.u32 %r1, [%rd0+-4];"), region)
    assert "thread (0, 0, 0)" in before
    assert f"4 bytes before the 128-byte allocation at {region.address:#x}" in before
    assert "at 0x0" in emulation.fault(kernel("mov.u64 %rd0, 0; ld.global.u32 %r1, [%rd0];"), region)
    wrapped = emulation.fault(kernel("mov.u64 %rd0, -4; ld.u32 %r1, [%rd0];"), region)
    assert "0xfffffffffffffffc" in wrapped


def test_the_right_lane_is_named_when_lanes_touch_several_spaces(emulation):
    text = kernel(
        """
        .shared .b32 cells[32]; mov.u64 %rd4, cells; mad.wide.u32 %rd4, %r0, 4, %rd4; cvta.shared.u64 %rd4, %rd4;
        ld.param.u64 %rd0, [p0]; setp.lt.u32 %p0, %r0, 4; selp.b64 %rd4, %rd4, %rd0, %p0;
        setp.eq.u32 %p0, %r0, 9; @%p0 add.u64 %rd4, %rd4, 4; st.b32 [%rd4], %r0;
        """
    )
    region = emulation.buffer([0])
    message = emulation.fault(text, region)
    assert "thread (9, 0, 0)" in message
    assert f"at {region.end:#x}" in message


def test_memory_that_the_launch_was_not_given(emulation):
    mine, other = emulation.buffer([1]), emulation.buffer([2])
    text = kernel("ld.param.u64 %rd0, [p0]; ld.global.u32 %r1, [%rd0];")
    args = [other.address.to_bytes(8, "little")]
    assert f"at {other.address:#x}" in emulation.fault(text, mine, args=args)


def test_use_after_free_is_recognised(emulation):
    gone, mine = emulation.buffer([1, 2, 3]), emulation.buffer([2])
    emulation.device.free(gone.address)
    text = kernel("ld.param.u64 %rd0, [p0]; ld.global.u32 %r1, [%rd0+4];")
    message = emulation.fault(text, mine, args=[gone.address.to_bytes(8, "little")])
    assert f"inside a freed 12-byte allocation at {gone.address:#x} (use after free)" in message


def test_addresses_are_not_used_again(emulation):
    seen = set()
    for _ in range(50):
        address = emulation.device.allocate(100)
        emulation.device.free(address)
        assert address % 256 == 0
        assert address not in seen
        seen.add(address)


def test_lanes_may_touch_several_regions_and_spaces_in_one_instruction(emulation):
    first, second = emulation.buffer(list(range(100, 116))), emulation.buffer(list(range(200, 216)))
    text = kernel(
        """
        .shared .b32 cells[32]; .local .b32 mine[2];
        ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2];
        mad.wide.u32 %rd1, %r0, 4, %rd1; mad.wide.u32 %rd2, %r0, 4, %rd2; sub.u64 %rd2, %rd2, 64;
        setp.lt.u32 %p0, %r0, 16; selp.b64 %rd3, %rd1, %rd2, %p0;
        mov.u64 %rd4, cells; mad.wide.u32 %rd4, %r0, 4, %rd4; st.shared.b32 [%rd4], %r0; cvta.shared.u64 %rd4, %rd4;
        mov.u64 %rd5, mine; add.u32 %r2, %r0, 1000; st.local.b32 [%rd5+4], %r2; cvta.local.u64 %rd5, %rd5;
        add.u64 %rd5, %rd5, 4;
        and.b32 %r3, %r0, 3; setp.eq.u32 %p1, %r3, 1; selp.b64 %rd3, %rd4, %rd3, %p1;
        setp.eq.u32 %p1, %r3, 2; selp.b64 %rd3, %rd5, %rd3, %p1;
        ld.b32 %r1, [%rd3]; st.b32 [%rd3], %r0;
        """
        + store_result(),
        params=3,
    )
    found = emulation.run(text, 32, first, second)
    whole = [*range(100, 116), *range(200, 216)]
    assert found.tolist() == [(whole[t], t, 1000 + t, whole[t])[t % 4] for t in range(32)]
    after = [*emulation.read(first), *emulation.read(second)]
    assert after == [(t, whole[t], whole[t], t)[t % 4] for t in range(32)]


@pytest.mark.parametrize("start", [0, 1, 2, 4, 60, 100])
def test_host_memory_at_any_address(emulation, start):
    pages = mmap.mmap(-1, 8192)
    base = addressof(c_char.from_buffer(pages))
    emulation.device.register(base, 8192)
    pages[start : start + 256] = bytes(range(256))
    region = Region(base + start, 256, host=True)
    low = -(base + start) % 4
    text = kernel(f"{ADDRESS} ld.u32 %r1, [%rd0+{low}]; add.u32 %r1, %r1, 1; st.u32 [%rd0+{low}], %r1;")
    emulation.launch(text, region)
    expected = np.frombuffer(bytes(range(low, low + 128)), np.uint32) + np.uint32(1)
    assert np.array_equal(np.frombuffer(pages[start + low : start + low + 128], np.uint32), expected)
    emulation.device.unregister(base)
    with pytest.raises(LaunchRefused):
        emulation.launch(text, region)


def test_overlapping_regions_are_one(emulation):
    whole = emulation.buffer(list(range(64)))
    parts = [Region(whole.address, 160, host=False), Region(whole.address + 128, 128, host=False)]
    text = kernel("ld.param.u64 %rd0, [p0]; mad.wide.u32 %rd0, %r0, 4, %rd0; st.global.u32 [%rd0], %r0;")
    emulation.launch(text, *parts, block=(64, 1, 1), args=[whole.address.to_bytes(8, "little")])
    assert emulation.read(whole).tolist() == list(range(64))


def test_a_region_that_is_no_memory_is_refused(emulation):
    region = emulation.buffer([0])
    for bad in (
        Region(region.address, 8, host=False),
        Region(region.address, 4, host=True),
        Region(4096, 4, host=True),
    ):
        with pytest.raises(LaunchRefused):
            emulation.launch(kernel(""), bad)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (".shared .b32 x[4]; mov.u64 %rd0, x; ld.shared.b32 %r1, [%rd0+4];", "reads uninitialised shared memory"),
        (".shared .b32 x; atom.shared.add.u32 %r1, [x], 1;", "reads uninitialised shared memory"),
        (".shared .b32 x[4]; st.shared.b32 [x+16], 1;", "outside the 16 bytes of shared memory of the block"),
        (".local .b32 x[8]; st.local.b32 [x+32], 1;", "local memory of the thread"),
        ("ld.shared.b32 %r1, [0];", "outside the 0 bytes of shared memory"),
        ("mov.u64 %rd0, c; st.b32 [%rd0], 1;", "which is read-only"),
        ("mov.u64 %rd0, c; atom.or.b32 %r1, [%rd0], 1;", "which is read-only"),
        ("mov.b64 %rd0, p0; cvta.param.u64 %rd0, %rd0; st.b32 [%rd0], 1;", "which is read-only"),
        ("trap;", "traps"),
        ("brkpt;", "breakpoint"),
    ],
)
@pytest.mark.rule("4-shared-memory")
def test_faults_of_other_spaces(emulation, body, part):
    text = kernel(body, before=".const .b32 c[2] = {1, 2};")
    message = emulation.fault(text, emulation.buffer([0]))
    assert part in message
    assert "thread (0, 0, 0)" in message


def test_padding_that_travels_with_its_structure_is_no_fault(emulation):
    # As nvcc copies a structure of u8 and u16: the whole of it, and its padding by itself.
    body = """
        .local .align 8 .b8 from[8]; .local .align 8 .b8 to[8];
        mov.u16 %h0, 7; st.local.u8 [from], %h0;
        ld.local.u32 %r1, [from]; st.local.u32 [to], %r1; ld.local.u8 %h1, [from+5]; st.local.u8 [to+5], %h1;
        ld.local.u32 %r1, [to];
    """
    assert emulation.run(kernel(body + store_result()), 1, block=(1, 1, 1)).tolist() == [7]


@pytest.mark.rule("4-local-memory")
@pytest.mark.parametrize(
    "load", ["ld.local.b32 %r1, [x];", "mov.u64 %rd0, x; cvta.local.u64 %rd0, %rd0; ld.b32 %r1, [%rd0];"]
)
def test_local_memory_of_one_batch_is_zero_for_the_next(emulation, load):
    # More blocks than run side by side: the second batch must not see what the first one stored.
    text = kernel(
        ".local .b32 x; mov.u32 %r1, %ctaid.x; setp.lt.u32 %p0, %r1, 600; @%p0 st.local.b32 [x], 5;"
        f"{load} ld.param.u64 %rd2, [p0]; atom.global.add.u32 %r2, [%rd2], %r1;"
    )
    assert emulation.run(text, 1, block=(1, 1, 1), grid=(700, 1, 1)).tolist() == [3000]


def test_stores_to_one_address_keep_the_last_lane(emulation):
    text = kernel("ld.param.u64 %rd0, [p0]; st.global.u32 [%rd0], %r0;")
    assert emulation.run(text, 1).tolist() == [31]


def test_vectors_of_bytes_and_doubles(emulation):
    source = emulation.buffer(np.arange(64, dtype=np.uint8))
    text = kernel(
        """
        ld.param.u64 %rd1, [p1]; mad.wide.u32 %rd1, %r0, 16, %rd1;
        ld.global.v4.u8 {%h0, %h1, %h2, %h3}, [%rd1]; ld.global.v2.f64 {%fd0, %fd1}, [%rd1];
        ld.global.v2.b64 {_, %rd2}, [%rd1]; mov.b64 %rd3, %fd1; setp.ne.u64 %p0, %rd2, %rd3; @%p0 trap;
        cvt.u32.u16 %r1, %h3; cvt.u32.u16 %r2, %h0; mad.lo.u32 %r1, %r1, 256, %r2;
        """
        + store_result(),
        params=2,
    )
    found = emulation.run(text, 4, source, block=(4, 1, 1))
    assert found.tolist() == [(16 * t + 3) * 256 + 16 * t for t in range(4)]


@pytest.mark.parametrize(
    ("offset", "access", "part"),
    [
        (4096, "ld.global.u8 %r1, [%rd1]", "accesses 1 bytes at byte 4096 of the 4096-byte host region"),
        (-8, "st.u64 [%rd1], %rd1", "accesses 8 bytes at byte -8 of the 4096-byte host region"),
        (2, "ld.u32 %r1, [%rd1]", "accesses 4 bytes at byte 2 of the 4096-byte host region, which is misaligned"),
        (-1 << 30, "ld.u8 %r1, [%rd1]", "accesses 1 bytes at a host address far from the 4096-byte host region"),
        (0, "call %rd1, (), p", "calls a host address, which is no function it may call"),
    ],
)
@pytest.mark.rule("16-messages")
def test_a_fault_does_not_disclose_host_addresses(emulation, offset, access, part):
    pages = mmap.mmap(-1, 4096)
    base = addressof(c_char.from_buffer(pages))
    emulation.device.register(base, 4096)
    text = kernel(f"p: .callprototype _ (); ld.param.u64 %rd1, [p0]; {access};")
    address = (base + offset).to_bytes(8, "little")
    message = emulation.fault(text, Region(base, 4096, host=True), args=[address])
    assert message.endswith(part)
    assert "0x" not in message.rpartition("`")[2]
    assert f"{1 << 30}" not in message
    emulation.device.unregister(base)
