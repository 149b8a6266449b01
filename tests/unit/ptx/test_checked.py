"""Checks that are written into kernels: what is found, what is let through, and that results stay the same."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.emulation import kernel
from tensorwasm.errors import KernelFault
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.device.guarded_kernel import guard_kernel
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.ptx import extract, parse, render
from tensorwasm.ptx.checked import MARK, MAX_RANGES, RECORD_BYTES, instrument, ranges_of, read_report
from tensorwasm.values import MIB, NEVER, LaunchConfig

SIZE_BYTES = 64
ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
WORDS = struct.Struct("<II")


@pytest.fixture
def shared():
    device = EmulatorDevice()
    if not device.windows.available:
        pytest.skip("this system has no windows of addresses")
    accounts = Accounts(MemoryLedger())
    accounts.register("ann", 64 * MIB, 64 * MIB)
    with SharedDevice(device, accounts, Gate(4), guarded=True, checked=True) as shared:
        yield shared
    device.close()


def run(shared, body, before="", config=ONE):
    """Run a kernel whose %rd1 is the address of a buffer of 64 bytes; return what is in the buffer."""
    text = kernel(f"ld.param.u64 %rd1, [p0];\n{body}", before=before).encode()
    with shared.open_session("ann") as session:
        own, into = session.buffers.allocate(SIZE_BYTES), bytearray(SIZE_BYTES)
        loaded = session.kernels.load(text, "k", NEVER)
        session.kernels.launch(loaded, config, lambda: [BufferOffset(own, 0)], None, NEVER)
        session.buffers.read(own, memoryview(into), NEVER)
        return bytes(into)


ACCESSES = {
    "ld.global.u8 %r1, [{at}];": 1,
    "ld.global.nc.u16 %h1, [{at}];": 2,
    "ldu.global.u32 %r1, [{at}];": 4,
    "ld.global.v2.u32 {{%r1, %r2}}, [{at}];": 8,
    "ld.global.v4.f32 {{%f1, %f2, %f3, %f4}}, [{at}];": 16,
    "ld.u64 %rd5, [{at}];": 8,
    "st.global.u32 [{at}], %r1;": 4,
    "st.v2.u64 [{at}], {{%rd1, %rd1}};": 16,
    "atom.global.add.u32 %r1, [{at}], 1;": 4,
    "atom.cas.b64 %rd5, [{at}], 1, 2;": 8,
    "red.global.max.s32 [{at}], 1;": 4,
}


@pytest.mark.parametrize(("access", "size"), ACCESSES.items())
def test_an_access_may_begin_and_end_with_its_buffer(shared, access, size):
    prepare = "mov.u32 %r1, 0;"
    run(shared, f"{prepare} {access.format(at='%rd1')} {access.format(at=f'%rd1+{SIZE_BYTES - size}')}")


@pytest.mark.parametrize(("access", "size"), ACCESSES.items())
@pytest.mark.parametrize("place", ["before", "behind", "far", "null"])
def test_an_access_outside_is_reported(shared, access, size, place):
    where = {
        "before": ("", f"%rd1+-{size}", f"begins {size} bytes before"),
        "behind": ("", f"%rd1+{SIZE_BYTES}", f"ends {size} bytes behind buffer"),
        "far": ("mov.u64 %rd4, 0x7ff000000000;", "%rd4", "bytes b"),
        "null": ("mov.u64 %rd4, 0;", "%rd4", "before"),
    }
    before, at, words = where[place]
    with pytest.raises(KernelFault, match=words) as caught:
        run(shared, f"mov.u32 %r1, 0; {before}\n{access.format(at=at)}")
    message = caught.value.message
    assert f"{size} bytes" in message
    assert access.split()[0] in message
    assert "block (0, 0, 0), thread (0, 0, 0)" in message


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_an_access_that_is_not_aligned_is_reported(shared, offset):
    with pytest.raises(KernelFault, match="is not aligned, in buffer"):
        run(shared, f"add.u64 %rd2, %rd1, {offset}; ld.global.u32 %r1, [%rd2];")


def test_the_first_thread_outside_is_named(shared):
    body = "mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd1, %rd2;\nst.global.u32 [%rd2], %r1;"
    run(shared, body, config=LaunchConfig((1, 1, 1), (16, 1, 1)))
    with pytest.raises(KernelFault, match=r"thread \((16|17), 0, 0\): st\.global\.u32, a store"):
        run(shared, body, config=LaunchConfig((1, 1, 1), (18, 1, 1)))


def test_an_access_that_is_not_made_is_not_checked(shared):
    body = (
        "setp.ne.u64 %p1, %rd1, %rd1; mov.u64 %rd4, 0; @%p1 ld.global.u32 %r1, [%rd4]; @!%p1 st.global.u32 [%rd1], 7;"
    )
    assert WORDS.unpack_from(run(shared, body)) == (7, 0)


def test_generic_accesses_of_shared_and_local_memory_are_let_through(shared):
    body = """.shared .align 8 .b8 s[16]; .local .align 8 .b8 l[16];
cvta.shared.u64 %rd2, s; mov.u64 %rd3, s; cvta.shared.u64 %rd2, %rd3; st.u32 [%rd2], 5; ld.u32 %r1, [%rd2];
mov.u64 %rd3, l; cvta.local.u64 %rd4, %rd3; st.u32 [%rd4], 6; ld.u32 %r2, [%rd4];
st.global.v2.u32 [%rd1], {%r1, %r2};"""
    body = body.replace("cvta.shared.u64 %rd2, s; ", "")
    assert WORDS.unpack_from(run(shared, body)) == (5, 6)


def test_variables_of_the_module_may_be_accessed(shared):
    body = "mov.u64 %rd2, v; ld.global.u32 %r1, [%rd2+4]; ld.global.u32 %r2, [v]; st.global.v2.u32 [%rd1], {%r1, %r2};"
    assert WORDS.unpack_from(run(shared, body, ".global .align 8 .u32 v[2] = {3, 4};")) == (4, 3)


def test_functions_are_checked(shared):
    before = (
        ".func get(.param .u64 a) { .reg .u64 %a; .reg .u32 %b; ld.param.u64 %a, [a]; ld.global.u32 %b, [%a]; ret; }"
    )
    call = "{{ .param .u64 q; st.param.u64 [q], {}; call get, (q); }}"
    run(shared, call.format("%rd1"), before)
    with pytest.raises(KernelFault, match=r"ld\.global\.u32, a load of 4 bytes"):
        run(shared, "mov.u64 %rd2, 8;" + call.format("%rd2"), before)


def test_a_source_line_is_named(shared):
    text = kernel("ld.param.u64 %rd1, [p0];\n.loc 1 42 3\nst.global.u32 [%rd1+64], 1;") + '\n.file 1 "dir/a.cu"\n'
    with shared.open_session("ann") as session:
        own = session.buffers.allocate(SIZE_BYTES)
        loaded = session.kernels.load(text.encode(), "k", NEVER)
        with pytest.raises(KernelFault, match=r"\(a\.cu:42\)"):
            session.kernels.launch(loaded, ONE, lambda: [BufferOffset(own, 0)], None, NEVER)


def test_a_trap_of_the_program_is_no_report(shared):
    with pytest.raises(KernelFault) as caught:
        run(shared, "trap;")
    assert "bytes" not in caught.value.message


@pytest.mark.parametrize(
    "writes", [((16, 1),), ((16, 1), (20, 0xFFFF_FFFF)), ((0, 0),), ((16, 2), (20, 0)), ((60, 99),)]
)
def test_a_program_that_writes_its_own_record_cheats_itself_alone(shared, writes):
    stores = " ".join(f"st.global.u32 [%rd2+{at - RECORD_BYTES}], {value};" for at, value in writes)
    with pytest.raises(KernelFault):
        run(shared, f"mov.u64 %rd2, v; {stores} trap;", ".global .align 16 .u32 v[2];")
    assert WORDS.unpack_from(run(shared, "st.global.u32 [%rd1], 7;")) == (7, 0)


def test_names_of_the_program_are_avoided():
    module = extract(parse(kernel("ld.param.u64 %rd1, [p0]; __chk: st.global.u32 [%rd1], 1;")), "k")
    written, sites = instrument(module)
    assert parse(render(written)) == written
    assert len(sites) == 1
    assert guard_kernel(written)


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 20)), max_size=3 * MAX_RANGES))
def test_every_range_is_in_the_table(pairs):
    ranges = [(start, start + size) for start, size in pairs]
    table = ranges_of(ranges)
    assert len(table) <= RECORD_BYTES
    (count,) = struct.unpack_from("<I", table, 60)
    held = [struct.unpack_from("<QQ", table, 64 + 16 * at) for at in range(count)]
    assert held == sorted(held)
    assert all(any(low <= start and end <= high for low, high in held) for start, end in ranges)
    if count < MAX_RANGES:
        edges = {edge for each in ranges for edge in each}
        assert {edge for each in held for edge in each} <= edges


@given(st.binary(min_size=64, max_size=64), st.booleans(), st.integers(0, 3))
def test_any_bytes_are_a_report_or_none(record, marked, sites):
    report = read_report(MARK + struct.pack("<I", 1) + record[20:] if marked else record, sites)
    assert report is None or report.site < sites
