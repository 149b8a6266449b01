import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.emulation import Emulation, kernel, store_result
from oracles import programs as oracle
from strategies.programs import programs, render
from tensorwasm.errors import InvokeTimeout
from tensorwasm.gpu.emulator.execution import scheduler
from tensorwasm.gpu.emulator.execution.machine import CHECK_STEPS
from tensorwasm.gpu.emulator.loader import arrange


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from([1, 5, 32, 33, 64]), st.sampled_from([1, 3]), st.sampled_from([32, 1 << 14]))
def test_any_program_computes_what_its_threads_compute_alone(program, threads, blocks, lanes):
    total = threads * blocks
    found = Emulation(lanes=lanes).run(render(program), 4 * total, grid=(blocks, 1, 1), block=(threads, 1, 1))
    assert found.reshape(total, 4).tolist() == [oracle.run(program, thread) for thread in range(total)]


@settings(max_examples=25, deadline=None)
@given(programs(), st.integers(1, 300))
def test_impatience_changes_no_result(program, patience):
    # Fairness may interrupt any group at any time; only the order of independent lanes changes.
    usual = scheduler.PATIENCE_STEPS
    scheduler.PATIENCE_STEPS = patience
    try:
        found = Emulation().run(render(program), 4 * 64, block=(64, 1, 1))
    finally:
        scheduler.PATIENCE_STEPS = usual
    assert found.reshape(64, 4).tolist() == [oracle.run(program, thread) for thread in range(64)]


def test_lanes_that_went_different_ways_run_together_again(emulation):
    text = kernel(
        """
        and.b32 %r2, %r0, 3; setp.eq.u32 %p0, %r2, 0; @%p0 bra one; setp.eq.u32 %p0, %r2, 1; @%p0 bra two;
        add.u32 %r3, %r3, 1; bra join; two: add.u32 %r3, %r3, 2; bra join; one: add.u32 %r3, %r3, 3;
        join: activemask.b32 %r1;
        """
        + store_result()
    )
    assert emulation.run(text, 32).tolist() == [0xFFFFFFFF] * 32


def test_lanes_of_one_warp_that_wait_for_each_other_all_get_the_lock(emulation):
    text = kernel(
        """
        again: atom.global.cas.b32 %r2, [lock], 0, 1; setp.ne.u32 %p0, %r2, 0; @%p0 bra again;
        ld.volatile.global.u32 %r1, [count]; add.u32 %r3, %r1, 1; st.volatile.global.u32 [count], %r3;
        membar.gl; atom.global.exch.b32 %r2, [lock], 0;
        """
        + store_result(),
        before=".global .u32 lock; .global .u32 count;",
    )
    assert sorted(emulation.run(text, 64, block=(64, 1, 1)).tolist()) == list(range(64))


def test_a_lane_that_spins_on_plain_memory_lets_the_others_run(emulation):
    # The waiting lanes come first in the program, so that only fairness lets the one that they wait for run.
    text = kernel(
        """
        setp.eq.u32 %p0, %r0, 7; @%p0 bra release;
        wait: ld.global.u32 %r1, [flag]; setp.eq.u32 %p1, %r1, 0; @%p1 bra wait; bra out;
        release: st.global.u32 [flag], 9; mov.u32 %r1, 1;
        out:
        """
        + store_result(),
        before=".global .u32 flag;",
    )
    assert emulation.run(text, 32).tolist() == [1 if lane == 7 else 9 for lane in range(32)]


def test_a_block_that_waits_for_another_one_of_its_batch(emulation):
    text = kernel(
        """
        mov.u32 %r2, %ctaid.x; setp.eq.u32 %p0, %r2, 3; @%p0 bra release;
        wait: ld.acquire.gpu.global.u32 %r1, [flag]; nanosleep.u32 20; setp.eq.u32 %p1, %r1, 0; @%p1 bra wait; bra out;
        release: st.release.gpu.global.u32 [flag], 9; mov.u32 %r1, 9;
        out:
        """
        + store_result(),
        before=".global .u32 flag;",
    )
    assert emulation.run(text, 128, grid=(4, 1, 1)).tolist() == [9] * 128


@pytest.mark.parametrize(
    "body",
    [
        "again: bra again;",
        "again: setp.eq.u32 %p0, %r0, %r0; @%p0 bra again;",
        "again: atom.global.cas.b32 %r1, [lock], 1, 2; bra again;",
        "again: bar.sync 0; bra again;",
        "again: nanosleep.u32 100; bra again;",
        "again: shfl.sync.idx.b32 %r1, %r0, 0, 31, -1; bra again;",
    ],
)
@pytest.mark.rule("13-deadline")
def test_a_kernel_that_never_ends_stops_at_its_deadline(emulation, body):
    with pytest.raises(InvokeTimeout):
        emulation.launch(kernel(body, before=".global .u32 lock;"), emulation.buffer([0]), seconds=0.1)


@pytest.mark.rule("13-deadline")
def test_straight_code_is_cut_where_the_clock_is_due():
    blocks = arrange([lambda _machine: None] * 1000, 7)
    assert sum(len(block.steps) for block in blocks) == 1000
    assert max(len(block.steps) for block in blocks) <= CHECK_STEPS
    assert [block.end(None, pc) for pc, block in enumerate(blocks, 7)] == [8 + index for index in range(len(blocks))]


@pytest.mark.rule("4-registers")
def test_registers_that_nothing_wrote_are_zero(emulation):
    assert emulation.run(kernel(store_result("%r5")), 32).tolist() == [0] * 32


def test_a_copied_register_is_no_alias(emulation):
    text = kernel(
        "mov.u32 %r1, %r0; mov.u32 %r2, %r1; setp.lt.u32 %p0, %r0, 8; @%p0 add.u32 %r1, %r1, 100; "
        "@!%p0 mov.u32 %r2, 3; mov.u32 %r3, 7; @%p0 mov.u32 %r3, %r2; mad.lo.u32 %r1, %r1, 1000, %r2; "
        "mad.lo.u32 %r1, %r1, 10, %r3;" + store_result()
    )
    found = emulation.run(text, 32)
    expected = [((t + 100) * 1000 + t) * 10 + t if t < 8 else (t * 1000 + 3) * 10 + 7 for t in range(32)]
    assert found.tolist() == expected


def test_swapping_registers_through_a_vector(emulation):
    text = kernel(
        "mov.u32 %r1, %r0; add.u32 %r2, %r0, 50; setp.lt.u32 %p0, %r0, 16; "
        "@%p0 mov.b64 %rd1, {%r2, %r1}; @%p0 mov.b64 {%r1, %r2}, %rd1; mad.lo.u32 %r1, %r1, 100, %r2;" + store_result()
    )
    expected = [(t + 50) * 100 + t if t < 16 else t * 100 + t + 50 for t in range(32)]
    assert emulation.run(text, 32).tolist() == expected


def test_results_do_not_depend_on_how_many_lanes_run_side_by_side():
    text = kernel(
        """
        mov.u32 %r1, %ctaid.x; mul.lo.u32 %r2, %r1, 40503; xor.b32 %r2, %r2, %r0; and.b32 %r3, %r2, 15; mov.u32 %r4, 0;
        again: setp.eq.u32 %p0, %r3, 0; @%p0 bra done; mad.lo.u32 %r4, %r4, 31, %r3; sub.u32 %r3, %r3, 1; bra again;
        done: atom.global.add.u32 %r5, [total], %r4; add.u32 %r1, %r4, 0;
        """
        + store_result(),
        before=".global .u32 total;",
    )
    found = [
        Emulation(lanes=lanes).run(text, 48 * 40, grid=(40, 1, 1), block=(48, 1, 1)) for lanes in (1, 100, 1 << 14)
    ]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
