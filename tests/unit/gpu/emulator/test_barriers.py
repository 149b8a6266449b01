import pytest

from fakes.emulation import kernel, store_result

CELLS = ".shared .align 4 .b32 cells[256];"
SLOT = "mov.u32 %r12, cells; mad.lo.u32 %r10, %r0, 4, %r12;"


def run(emulation, body, threads=64, **options):
    text = kernel(SLOT + body + store_result(), before=CELLS)
    blocks = options.get("grid", (1, 1, 1))[0]
    return emulation.run(text, threads * blocks, block=(threads, 1, 1), **options).tolist()


def fault(emulation, body, threads=64, **options):
    text = kernel(SLOT + body, before=CELLS)
    return emulation.fault(text, emulation.buffer([0]), block=(threads, 1, 1), **options)


def test_every_block_waits_for_its_own_threads(emulation):
    # Half of the threads take a detour; each block exchanges through shared memory.
    body = """
        mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 1000, %r0; setp.lt.u32 %p0, %r0, 32; @%p0 bra far;
        st.shared.u32 [%r10], %r3; bar.sync 0; bra after;
        far: add.u32 %r3, %r3, 7; st.shared.u32 [%r10], %r3; bar.sync 0;
        after: xor.b32 %r4, %r0, 63; mad.lo.u32 %r4, %r4, 4, %r12; ld.shared.u32 %r1, [%r4];
    """
    expected = [1000 * b + (t ^ 63) + 7 * (t ^ 63 < 32) for b in range(3) for t in range(64)]
    assert run(emulation, body, grid=(3, 1, 1)) == expected


def test_a_producer_arrives_and_does_not_wait(emulation):
    body = """
        setp.ge.u32 %p0, %r0, 32; @%p0 bra consume;
        st.shared.u32 [%r10], %r0; bar.arrive 1, 64; mov.u32 %r1, 1; bra done;
        consume: bar.sync 1, 64; sub.u32 %r4, %r10, 128; ld.shared.u32 %r1, [%r4];
        done:
    """
    assert run(emulation, body) == [1] * 32 + list(range(32))


def test_the_barrier_of_half_a_block_in_a_loop(emulation):
    body = """
        shr.u32 %r2, %r0, 5; add.u32 %r2, %r2, 1; mov.u32 %r3, 0; mov.u32 %r1, 0; mul.lo.u32 %r4, %r2, 3;
        again: barrier.sync %r2, 32; add.u32 %r1, %r1, %r2; add.u32 %r3, %r3, 1;
        setp.lt.u32 %p0, %r3, %r4; @%p0 bra again;
    """
    assert run(emulation, body) == [3] * 32 + [12] * 32


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("bar.red.popc.u32 %r1, 0, %p0;", 20),
        ("barrier.cta.red.popc.aligned.u32 %r1, 0, !%p0;", 44),
        ("bar.red.and.pred %p1, 0, %p0; selp.u32 %r1, 1, 0, %p1;", 0),
        ("bar.red.or.pred %p1, 0, %p0; selp.u32 %r1, 1, 0, %p1;", 1),
        ("bar.red.popc.u32 %r1, 2, 64, %p0;", 20),
    ],
)
def test_reductions(emulation, form, expected):
    assert run(emulation, f"setp.lt.u32 %p0, %r0, 20; {form}") == [expected] * 64


def test_a_reduction_that_threads_reach_at_different_times(emulation):
    body = """
        and.b32 %r2, %r0, 1; setp.eq.u32 %p0, %r2, 1; setp.lt.u32 %p1, %r0, 10;
        @%p0 bra odd; bar.red.popc.u32 %r1, 0, %p1; add.u32 %r1, %r1, 100; bra out;
        odd: bar.red.popc.u32 %r1, 0, %p1;
        out:
    """
    assert run(emulation, body) == [10 if t % 2 else 110 for t in range(64)]


def test_threads_that_exit_are_not_waited_for(emulation):
    body = """
        mov.u32 %r1, 9; setp.ge.u32 %p0, %r0, 50; @%p0 exit; setp.lt.u32 %p0, %r0, 8; @%p0 bra wait;
        add.u32 %r1, %r1, 1;
        wait: bar.sync 0; setp.lt.u32 %p0, %r0, 4; @%p0 exit; bar.red.popc.u32 %r1, 0, %p0;
    """
    assert run(emulation, body) == [0] * 4 + [0] * 46 + [0] * 14


def test_threads_that_exit_while_others_wait(emulation):
    body = "setp.lt.u32 %p0, %r0, 5; @%p0 bra wait; exit; wait: bar.sync 0; mov.u32 %r1, 3;"
    assert run(emulation, body) == [3] * 5 + [0] * 59


@pytest.mark.parametrize("wait", ["bar.sync 0;", "bar.warp.sync -1;", "vote.sync.ballot.b32 %r2, %p0, -1;"])
def test_waiting_threads_go_on_when_the_others_exit_later(emulation, wait):
    # The waiting threads come first in the program, so that they wait before the others exit.
    body = f"setp.ge.u32 %p0, %r0, 5; @%p0 bra leave; {wait} mov.u32 %r1, 3; bra out; leave: exit; out:"
    assert run(emulation, body, threads=32) == [3] * 5 + [0] * 27


def test_a_deadlock_of_two_barriers_names_the_waiting_thread_and_barrier(emulation):
    body = "setp.lt.u32 %p0, %r0, 32;\n@%p0 bra low;\nbar.sync 1;\nbra out;\nlow: bar.sync 2;\nout:"
    message = fault(emulation, body, grid=(2, 1, 1))
    assert message.startswith("deadlock: kernel k, block (0, 0, 0) thread (0, 0, 0), line ")
    assert "`bar.sync 2` waits at barrier 2 for ever" in message


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("bar.sync 16;", "names a barrier above 15"),
        ("mov.u32 %r2, 99; bar.sync %r2;", "names a barrier above 15"),
        ("bar.sync 0, 40;", "not a multiple of the warp size"),
        ("bar.sync 0, 0;", "not a multiple of the warp size"),
        ("and.b32 %r2, %r0, 32; add.u32 %r2, %r2, 32; bar.sync 0, %r2;", "another number of threads"),
        ("bar.sync 0, 32;", "one arrival too many"),
        ("bar.warp.sync 1;", "is not in its own member mask 0x00000001"),
        ("setp.lt.u32 %p0, %r0, 8; @%p0 bar.warp.sync -1; @!%p0 bar.sync 3;", "deadlock"),
    ],
)
def test_faults(emulation, body, part):
    message = fault(emulation, body)
    assert part in message
    assert "thread (" in message


def test_lanes_of_a_warp_meet_from_different_places(emulation):
    body = """
        setp.lt.u32 %p0, %r0, 40; @%p0 bra low;
        st.shared.u32 [%r10], 2; bar.warp.sync -1; bra after;
        low: st.shared.u32 [%r10], 1; bar.warp.sync 0xffffffff;
        after: xor.b32 %r4, %r0, 31; mad.lo.u32 %r4, %r4, 4, %r12; ld.shared.u32 %r1, [%r4];
    """
    assert run(emulation, body) == [1 if t ^ 31 < 40 else 2 for t in range(64)]


def test_lanes_of_a_warp_meet_in_groups(emulation):
    body = """
        and.b32 %r2, %r0, 3; mov.u32 %r3, 0x11111111; shl.b32 %r3, %r3, %r2; mov.u32 %r1, 0;
        setp.gt.u32 %p0, %r2, 1; @%p0 bra skip; bar.warp.sync %r3; mov.u32 %r1, 5;
        skip: bar.warp.sync %r3;
    """
    assert run(emulation, body) == [5 if t % 4 < 2 else 0 for t in range(64)]


def test_a_warp_barrier_does_not_wait_for_lanes_that_exited(emulation):
    body = "setp.lt.u32 %p0, %r0, 40; @%p0 bra wait; exit; wait: bar.warp.sync -1; mov.u32 %r1, 3;"
    assert run(emulation, body) == [3] * 40 + [0] * 24


def test_the_last_warp_of_a_block_may_be_short(emulation):
    body = "bar.warp.sync -1; setp.lt.u32 %p0, %r0, 37; bar.red.popc.u32 %r1, 0, %p0;"
    assert run(emulation, body, threads=45, grid=(3, 1, 1)) == [37] * 135
