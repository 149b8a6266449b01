"""Checks that are written into kernels: what is found, what is let through, and that results stay the same."""

from __future__ import annotations

import struct
from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fakes.emulation import HEAD, Emulation, kernel
from tensorwasm.errors import KernelFault
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.device.guarded_kernel import guard_kernel
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.ptx import extract, parse, render
from tensorwasm.ptx.checked import MARK, MAX_RANGES, RECORD_BYTES, Site, instrument, new_record, read_report
from tensorwasm.ptx.checked.record import helper
from tensorwasm.ptx.model import Position
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
    "red.global.add.noftz.bf16x2 [{at}], %r1;": 4,
    "atom.global.add.noftz.f16x2 %r2, [{at}], %r1;": 4,
    "ld.relaxed.gpu.global.u32 %r1, [{at}];": 4,
    "ld.global.L1::no_allocate.L2::128B.v2.u64 {{%rd6, %rd7}}, [{at}];": 16,
    "cp.async.ca.shared.global [%r9], [{at}], 8;": 8,
    "cp.async.cg.shared.global [%r9], [{at}], 16, %r8;": 16,
}
PREPARE = ".shared .align 16 .b8 target[16]; mov.u32 %r9, target; mov.u32 %r8, 16; mov.u32 %r1, 0;"
SHARED_ACCESSES = {
    "ld.shared.u8 %r1, [{at}];": 1,
    "ld.volatile.shared.v2.u32 {{%r1, %r2}}, [{at}];": 8,
    "st.shared.v4.f32 [{at}], {{%f1, %f2, %f3, %f4}};": 16,
    "st.shared.u16 [{at}], %h1;": 2,
    "atom.shared.add.u32 %r1, [{at}], 1;": 4,
    "red.shared.or.b32 [{at}], 1;": 4,
    "cp.async.ca.shared.global [{at}], [%rd1], 4;": 4,
}
GENERIC_ACCESSES = {
    "ld.u32 %r1, [{at}];": 4,
    "st.v2.u64 [{at}], {{%rd1, %rd1}};": 16,
    "atom.add.u32 %r1, [{at}], 1;": 4,
}


@pytest.mark.parametrize(("access", "size"), ACCESSES.items())
def test_an_access_may_begin_and_end_with_its_buffer(shared, access, size):
    run(shared, f"{PREPARE} {access.format(at='%rd1')} {access.format(at=f'%rd1+{SIZE_BYTES - size}')}")


@pytest.mark.parametrize(("access", "size"), ACCESSES.items())
@pytest.mark.parametrize("place", ["before", "behind", "far", "null"])
def test_an_access_outside_is_reported(shared, access, size, place):
    where = {
        "before": ("", f"%rd1+-{size}", f"begins {size} bytes before"),
        "behind": ("", f"%rd1+{SIZE_BYTES}", f"ends {size} bytes behind buffer"),
        "far": ("mov.u64 %rd4, 0x7ff000000000;", "%rd4", "is far from all that it may access; nearest is"),
        "null": ("mov.u64 %rd4, 0;", "%rd4", "is far from all"),
    }
    before, at, words = where[place]
    with pytest.raises(KernelFault, match=words) as caught:
        run(shared, f"{PREPARE} {before}\n{access.format(at=at)}")
    message = caught.value.message
    assert f"{size} bytes" in message
    assert access.split()[0] in message
    assert "block (0, 0, 0), thread (0, 0, 0)" in message


@pytest.mark.parametrize(("access", "size"), [each for each in ACCESSES.items() if each[1] > 1])
def test_an_access_that_is_not_aligned_is_reported(shared, access, size):
    with pytest.raises(KernelFault, match="is not aligned, in buffer"):
        run(shared, f"{PREPARE} add.u64 %rd2, %rd1, {size // 2};\n{access.format(at='%rd2')}")


def shared_body(access, offset, bits, generic):
    """Return a body with an access at an offset in 64 bytes of shared memory."""
    register = "%rd8" if bits == 64 else "%r10"
    body = f".shared .align 16 .b8 s[64]; mov.u32 %r1, 0; mov.u{bits} {register}, s;"
    if generic:
        body += f"cvta.shared.u64 {register}, {register};"
    return f"{body}\nadd.u{bits} {register}, {register}, {offset};\n{access.format(at=register)}"


ALL_SHARED = [
    *((access, size, bits, False) for access, size in SHARED_ACCESSES.items() for bits in (32, 64)),
    *((access, size, 64, True) for access, size in GENERIC_ACCESSES.items()),
]


@pytest.mark.parametrize(("access", "size", "bits", "generic"), ALL_SHARED)
def test_shared_memory_is_checked(shared, access, size, bits, generic):
    for offset in (0, 64 - size):
        run(shared, shared_body(access, offset, bits, generic))
    wrong = {64: f"at offset 64, ends {size} bytes behind the 64 bytes of shared memory", 4096: "behind the 64 bytes"}
    wrong |= {} if generic else {-size: f"at offset -{size}, begins {size} bytes before the 64 bytes"}
    wrong |= {size // 2: f"at offset {size // 2}, is not aligned, in the 64 bytes"} if size > 1 else {}
    for offset, words in wrong.items():
        with pytest.raises(KernelFault, match=words):
            run(shared, shared_body(access, offset, bits, generic))


def test_dynamic_shared_memory_is_what_the_launch_asks_for(shared):
    before = ".extern .shared .align 16 .b8 d[];"
    body = (
        ".shared .align 16 .b8 s[16]; mov.u32 %r9, s; mov.u32 %r2, d;\n"
        "st.shared.u32 [%r2+28], 7; ld.shared.u32 %r1, [%r2+28]; st.global.u32 [%rd1], %r1;"
    )
    assert WORDS.unpack_from(run(shared, body, before, LaunchConfig((1, 1, 1), (1, 1, 1), 32))) == (7, 0)
    with pytest.raises(KernelFault, match="ends 4 bytes behind the 44 bytes of shared memory"):
        run(shared, body, before, LaunchConfig((1, 1, 1), (1, 1, 1), 28))


def test_what_the_launch_does_not_give_is_not_there_however_large_the_program_calls_it(shared):
    before = ".extern .shared .align 16 .b8 d[64];"
    run(shared, "st.shared.u32 [d+28], 7;", before, LaunchConfig((1, 1, 1), (1, 1, 1), 32))
    with pytest.raises(KernelFault, match="at offset 32, ends 4 bytes behind the 32 bytes of shared memory"):
        run(shared, "st.shared.u32 [d+32], 7;", before, LaunchConfig((1, 1, 1), (1, 1, 1), 32))


def test_dynamic_shared_memory_is_not_there_without_a_variable_of_it(shared):
    body = ".shared .align 16 .b8 s[16]; mov.u32 %r2, s; st.shared.u32 [%r2+16], 7;"
    with pytest.raises(KernelFault, match="ends 4 bytes behind the 16 bytes of shared memory"):
        run(shared, body, config=LaunchConfig((1, 1, 1), (1, 1, 1), 32))


def test_numbers_as_addresses_in_shared_memory_count_from_what_is_the_systems():
    module = extract(parse(kernel("st.shared.u32 [1032], 7;")), "k")
    assert "mov.u64 %__chk_0, 8;" in render(instrument(module, shared_base=1024)[0])
    assert "mov.u64 %__chk_0, 1032;" in render(instrument(module, shared_base=0)[0])


def test_offsets_in_shared_memory_are_numbers_of_32_bits(shared):
    body = ".shared .align 16 .b8 s[16]; mov.u32 %r2, s; sub.u32 %r2, %r2, 4; st.shared.u32 [%r2+4], 7;"
    run(shared, body)


@pytest.mark.parametrize("offset", [-4, -1 << 20, 61, 64])
def test_the_function_finds_offsets_outside_of_shared_memory(offset):
    """What `cvta.to.shared` makes of a generic address before the first variable is a negative number of 64 bits."""
    call = "{ .param .b64 q0; .param .b32 q1; .param .b32 q2; st.param.b64 [q0], %rd2; st.param.b32 [q1], 4;"
    call += f"st.param.b32 [q2], {1 << 31}; call c_access, (q0, q1, q2); }}"
    body = "mov.u64 %rd3, c_record; st.global.u32 [%rd3+56], 64; mov.u64 %rd2, {}; {} st.global.u32 [%rd1], 7;"

    def text(offset):
        return render(helper("c", NEVER)) + kernel(f"ld.param.u64 %rd1, [p0]; {body.format(offset, call)}")[len(HEAD) :]

    emulation = Emulation()
    assert list(emulation.run(text(60), 1, block=(1, 1, 1))) == [7]
    assert emulation.fault(text(offset), emulation.buffer([0]), block=(1, 1, 1))
    emulation.device.close()


@pytest.mark.parametrize("used", ["0", "%r8"])
def test_a_copy_that_reads_nothing_may_be_of_any_address(shared, used):
    body = f"{PREPARE} mov.u32 %r8, 0; mov.u64 %rd4, 8; cp.async.ca.shared.global [%r9], [%rd4], 16, {used};"
    run(shared, f"{body} cp.async.wait_all;")


@pytest.mark.parametrize("used", ["4", "%r8"])
def test_a_copy_may_read_less_than_it_writes(shared, used):
    body = f"{PREPARE} mov.u32 %r8, 4;\ncp.async.ca.shared.global [%r9], [{{}}], 16, {used}; cp.async.wait_all;"
    with shared.open_session("ann") as session:  # 16 bytes more would end behind the buffer
        own = session.buffers.allocate(52)
        for at, words in {"%rd1+48": None, "%rd1+64": "a load of 4 bytes, ends 16 bytes behind buffer 1"}.items():
            text = kernel("ld.param.u64 %rd1, [p0];" + body.format(at)).encode()
            loaded = session.kernels.load(text, "k", NEVER)
            if words is None:
                session.kernels.launch(loaded, ONE, lambda: [BufferOffset(own, 0)], None, NEVER)
                continue
            with pytest.raises(KernelFault, match=words):
                session.kernels.launch(loaded, ONE, lambda: [BufferOffset(own, 0)], None, NEVER)


@pytest.mark.parametrize("access", ["ld.global.u32 %r2, [%r1];", "ld.u32 %r2, [%r1];", "ld.global.u32 %r2, [8];"])
def test_addresses_of_32_bits_and_numbers_are_checked(shared, access):
    run(shared, f"setp.ne.u64 %p1, %rd1, %rd1; mov.u32 %r1, 8; @%p1 {access}")
    with pytest.raises(KernelFault, match="is far from all"):
        run(shared, f"mov.u32 %r1, 8; {access}")


def test_the_first_row_of_a_matrix_is_checked(shared):
    load = "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9}, [%rd1+64], 16;"
    with pytest.raises(KernelFault, match=r"wmma\.load.*, a load of 16 bytes, ends 16 bytes behind buffer"):
        run(shared, load, config=LaunchConfig((1, 1, 1), (32, 1, 1)))


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


@pytest.mark.parametrize(("at", "words"), [(0, None), (8, "ends 4 bytes behind the variables of another kernel, k")])
def test_variables_of_another_kernel_may_be_accessed_through_a_pointer(shared, at, words):
    first = kernel("ld.param.u64 %rd1, [p0]; mov.u64 %rd2, v; st.global.u64 [%rd1], %rd2;", before=".global .u32 v[2];")
    second = kernel(f"ld.param.u64 %rd1, [p0]; ld.global.u64 %rd2, [%rd1];\nst.global.u32 [%rd2+{at}], 7;")
    with shared.open_session("ann") as session:
        own = session.buffers.allocate(SIZE_BYTES)
        first, second = (session.kernels.load(each.encode(), "k", NEVER) for each in (first, second))
        session.kernels.launch(first, ONE, lambda: [BufferOffset(own, 0)], None, NEVER)
        with pytest.raises(KernelFault, match=words) if words else nullcontext():
            session.kernels.launch(second, ONE, lambda: [BufferOffset(own, 0)], None, NEVER)


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


@pytest.mark.parametrize("at", ["v+-4", "v+8", "%rd2+-4", f"%rd2+{-RECORD_BYTES}"])
def test_a_program_does_not_reach_beyond_the_variables_of_its_module(shared, at):
    with pytest.raises(KernelFault, match=r"the variables of its module|behind buffer"):
        run(shared, f"mov.u64 %rd2, v; st.global.u32 [{at}], 1;", ".global .align 16 .u32 v[2];")


@given(st.binary(min_size=64, max_size=64), st.booleans(), st.integers(0, 20))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_program_that_writes_its_own_record_cheats_itself_alone(shared, forged, marked, size):
    forged = (MARK + struct.pack("<II", size, 0) + forged[24:] if marked else forged).ljust(RECORD_BYTES, b"\xff")
    text = kernel("ld.param.u64 %rd1, [p0]; st.global.u32 [%rd1], 7; trap;").encode()
    with shared.open_session("ann") as session:
        own = session.buffers.allocate(SIZE_BYTES)
        loaded = session.kernels.load(text, "k", NEVER)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                shared.device, "read", lambda _, into, *__: into.__setitem__(slice(None), forged[: len(into)])
            )
            with pytest.raises(KernelFault) as caught:
                session.kernels.launch(loaded, ONE, lambda: [BufferOffset(own, 0)], None, NEVER)
    assert len(caught.value.message) < 400
    assert WORDS.unpack_from(run(shared, "st.global.u32 [%rd1], 7;")) == (7, 0)


def test_a_check_is_one_call_without_branches():
    body = """.shared .align 16 .b8 s[16]; mov.u64 %rd2, s; cvta.shared.u64 %rd2, %rd2; setp.eq.u32 %p1, %r0, 0;
.local .align 8 .b8 l[16]; mov.u64 %rd3, l; cvta.local.u64 %rd3, %rd3; @!%p1 ld.u32 %r1, [%rd2]; st.u32 [%rd3], %r1;"""
    written, sites = instrument(extract(parse(kernel(body)), "k"))
    text = render(written).partition(".entry")[2]
    assert (len(sites), text.count("call"), text.count("bra ")) == (2, 2, 0)


def test_a_kernel_without_accesses_stays_as_it_is():
    module = extract(parse(kernel("add.u32 %r1, %r0, 1; ld.param.u64 %rd1, [p0];")), "k")
    assert instrument(module) == (module, ())


def test_names_of_the_program_are_avoided():
    module = extract(parse(kernel("ld.param.u64 %rd1, [p0]; __chk: st.global.u32 [%rd1], 1;")), "k")
    written, sites = instrument(module)
    assert parse(render(written)) == written
    assert len(sites) == 1
    assert guard_kernel(written)


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 20)), max_size=3 * MAX_RANGES))
def test_every_range_is_in_the_table(pairs):
    ranges = [(start, start + size) for start, size in pairs]
    table = new_record(ranges)
    assert len(table) <= RECORD_BYTES
    (count,) = struct.unpack_from("<I", table, 60)
    held = [struct.unpack_from("<QQ", table, 64 + 16 * at) for at in range(count)]
    assert held == sorted(held)
    assert all(any(low <= start and end <= high for low, high in held) for start, end in ranges)
    if count < MAX_RANGES:
        edges = {edge for each in ranges for edge in each}
        assert {edge for each in held for edge in each} <= edges


@given(st.binary(min_size=64, max_size=64), st.booleans(), st.integers(0, 3))
def test_any_bytes_are_a_report_or_none(record, marked, count):
    sites = [Site("ld.global.u32", Position(1, 1), "", 4, "load")] * count
    report = read_report(MARK + struct.pack("<I", 1) + record[20:] if marked else record, sites)
    assert report is None or (report.site < count and 0 < report.size_bytes <= 4)


@st.composite
def programs(draw):
    """Draw statements that access a buffer, shared memory and a variable within their 64 bytes; and a wrong one."""
    lines, wrong = [], None
    kinds = st.sampled_from([*ACCESSES.items(), *((each, size) for each, size in SHARED_ACCESSES.items())])
    count = draw(st.integers(1, 12))
    broken = draw(st.none() | st.integers(0, count - 1))
    for number in range(count):
        access, size = draw(kinds)
        is_shared = access in SHARED_ACCESSES
        offset = size * draw(st.integers(0, 64 // size - 1))
        if number == broken:
            offset, wrong = draw(st.sampled_from([128, 1 << 18] + [-size] * is_shared)), number  # behind all variables
        at = f"{'%r10' if is_shared else draw(st.sampled_from(['%rd1', '%rd9']))}+{offset}"
        lines.append(access.format(at=at) + " cp.async.wait_all;" * access.startswith("cp.async"))
    return lines, wrong


def test_a_copy_that_is_not_waited_for_is_read_unwritten(shared):
    copied = "cp.async.ca.shared.global [%r10+0], [%rd1], 4; {} ld.shared.u8 %r1, [%r10+0];"
    prepare = ".shared .align 16 .b8 s[64]; mov.u32 %r10, s;"
    run(shared, f"{prepare} {copied.format('cp.async.wait_all;')}")
    with pytest.raises(KernelFault, match="reads uninitialised shared memory"):
        run(shared, f"{prepare} {copied.format('')}")


@given(programs())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_inside_is_not_reported_and_the_first_that_is_not_is(shared, drawn):
    lines, wrong = drawn
    prepare = ".shared .align 16 .b8 s[64]; mov.u32 %r10, s; mov.u64 %rd9, v; " + PREPARE.replace("target[16]", "t[16]")
    body = prepare.replace("mov.u32 %r9, target", "mov.u32 %r9, t") + "\n" + "\n".join(lines)
    before = ".global .align 16 .b8 v[64];"
    if wrong is None:
        run(shared, body, before)
        return
    text = kernel(f"ld.param.u64 %rd1, [p0];\n{body}", before=before)
    number = text[: text.index(body)].count("\n") + 2 + wrong
    note(text)
    with pytest.raises(KernelFault, match=f"line {number} of the PTX"):
        run(shared, body, before)
