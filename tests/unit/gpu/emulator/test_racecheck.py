import pytest

from fakes.emulation import kernel, store_result

CELLS = ".shared .align 4 .b32 cells[256];"
MINE = """
    mov.u32 %r12, cells; mad.lo.u32 %r10, %r0, 4, %r12; xor.b32 %r11, %r0, 1; mad.lo.u32 %r11, %r11, 4, %r12;
"""


def run(emulation, body, **options):
    return emulation.run(kernel(MINE + body + store_result(), before=CELLS), 256, **{"block": (64, 1, 1)} | options)


def fault(emulation, body, **options):
    text = kernel(MINE + body, before=CELLS)
    return emulation.fault(text, emulation.buffer([0]), **{"block": (64, 1, 1)} | options)


def test_a_read_of_what_another_thread_wrote_without_a_barrier(emulation):
    message = fault(emulation, "st.shared.u32 [%r10], %r0; ld.shared.u32 %r1, [%r11];")
    assert "thread (0, 0, 0)" in message
    assert "races: reads what thread 1 wrote with no barrier between at shared address 0x4" in message


def test_a_write_to_what_another_thread_read(emulation):
    body = "st.shared.u32 [%r10], %r0; bar.sync 0; ld.shared.u32 %r1, [%r11]; st.shared.u32 [%r10], %r1;"
    assert "races: writes what thread 1 read" in fault(emulation, body)


def test_a_write_to_what_another_thread_wrote(emulation):
    assert "races: writes what thread 1 wrote" in fault(
        emulation, "st.shared.u32 [%r10], %r0; st.shared.u32 [%r11], %r0;"
    )


def test_two_values_at_one_place_in_one_instruction(emulation):
    assert "another thread writes another value" in fault(emulation, "st.shared.u32 [cells], %r0;")


def test_one_value_at_one_place_is_no_race(emulation):
    found = run(emulation, "st.shared.u32 [cells], 5; bar.sync 0; ld.shared.u32 %r1, [cells];")
    assert found[:64].tolist() == [5] * 64


@pytest.mark.parametrize(
    "order",
    [
        "bar.sync 0;",
        "barrier.cta.sync.aligned 3, 64;",
        "bar.red.popc.u32 %r9, 0, 1;",
        "bar.warp.sync -1;",
        "membar.cta;",
        "fence.acq_rel.cta;",
    ],
)
def test_operations_that_order_accesses_of_a_warp(emulation, order):
    body = f"st.shared.u32 [%r10], %r0; {order} ld.shared.u32 %r1, [%r11]; {order} st.shared.u32 [%r10], %r1;"
    assert run(emulation, body)[:64].tolist() == [t ^ 1 for t in range(64)]


def test_a_barrier_of_the_warp_does_not_order_the_block(emulation):
    body = """
        xor.b32 %r9, %r0, 32; mad.lo.u32 %r9, %r9, 4, %r12;
        st.shared.u32 [%r10], %r0; bar.warp.sync -1; ld.shared.u32 %r1, [%r9];
    """
    assert "thread (0, 0, 0)" in fault(emulation, body)
    assert "reads what thread 32 wrote" in fault(emulation, body)


def test_warp_synchronous_code_is_no_race(emulation):
    # The classical reduction of the last warp, with a barrier of the warp after every step.
    steps = "".join(
        f"ld.shared.u32 %r2, [%r10+{4 * width}]; bar.warp.sync -1; "
        "add.u32 %r1, %r1, %r2; st.shared.u32 [%r10], %r1; bar.warp.sync -1;"
        for width in (16, 8, 4, 2, 1)
    )
    body = f"""
        st.shared.u32 [%r10], %r0; mov.u32 %r1, %r0; bar.sync 0; setp.gt.u32 %p0, %r0, 31; @%p0 bra out;
        ld.shared.u32 %r2, [%r10+128]; add.u32 %r1, %r1, %r2; bar.warp.sync -1;
        st.shared.u32 [%r10], %r1; bar.warp.sync -1;
        {steps}
        out:
    """
    assert run(emulation, body)[0] == sum(range(64))


def test_volatile_and_atomic_accesses_do_not_race(emulation):
    body = """
        st.volatile.shared.u32 [%r10], %r0; ld.volatile.shared.u32 %r1, [%r11]; st.relaxed.cta.shared.u32 [%r11], 1;
        bar.sync 0; atom.shared.add.u32 %r2, [cells], 1; atom.shared.add.u32 %r1, [cells], 1;
    """
    run(emulation, body)


def test_neighbouring_bytes_do_not_race(emulation):
    body = """
        add.u32 %r9, %r12, %r0; cvt.u16.u32 %h0, %r0;
        st.shared.u8 [%r9], %h0; ld.shared.u8 %r1, [%r9];
    """
    assert run(emulation, body)[:64].tolist() == list(range(64))


def test_every_block_has_its_own_history(emulation):
    # Each block writes what the same thread of another block reads later.
    body = "mov.u32 %r2, %ctaid.x; st.shared.u32 [%r10], %r2; ld.shared.u32 %r1, [%r10];"
    assert run(emulation, body, grid=(4, 1, 1)).tolist() == [block for block in range(4) for _ in range(64)]


def test_one_block_that_waits_does_not_order_another(emulation):
    body = """
        mov.u32 %r2, %ctaid.x; setp.eq.u32 %p0, %r2, 1; st.shared.u32 [%r10], %r0; @%p0 bra go; bar.sync 0; go:
        ld.shared.u32 %r1, [%r11];
    """
    assert "block (1, 0, 0)" in fault(emulation, body, grid=(2, 1, 1))


def test_a_missing_barrier_between_reading_and_refilling_a_tile(emulation):
    body = """
        mov.u32 %r5, 0;
        again: st.shared.u32 [%r10], %r5; bar.sync 0; ld.shared.u32 %r1, [%r11];
        add.u32 %r5, %r5, 1; setp.lt.u32 %p0, %r5, 2; @%p0 bra again;
    """
    assert "writes what thread 1 read" in fault(emulation, body)


def test_a_vector_races_with_a_part_of_it(emulation):
    body = """
        mov.u32 %r9, cells; mad.lo.u32 %r9, %r0, 8, %r9; st.shared.v2.u32 [%r9], {%r0, %r0};
        mov.u32 %r8, cells; mad.lo.u32 %r8, %r0, 4, %r8; ld.shared.u32 %r1, [%r8];
    """
    assert "thread (1, 0, 0)" in fault(emulation, body)
