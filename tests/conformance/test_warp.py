"""Instructions in which the lanes of a warp exchange values: shfl, vote, match, redux, activemask, elect, bar.warp.

Source: PTX ISA 9.7.9.6 (shfl.sync), 9.7.13.9 to 9.7.13.14 (vote.sync, match.sync, activemask, redux.sync, elect.sync).
"""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from strategies.lanes import LaneKernel, module

LANES = 64  # two warps, which must not see each other
FULL = 0xFFFFFFFF


@pytest.fixture
def values():
    return np.random.default_rng(1).integers(0, 1 << 32, LANES, dtype=np.uint32)


# ------------------------------------------------------------------------------------------------- shfl


def shuffle(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Return the source lane and whether it is in range: the pseudocode of the manual."""
    b &= 0x1F
    clamp, segment = c & 0x1F, (c >> 8) & 0x1F
    most = (lane & segment) | (clamp & ~segment & 0x1F)
    least = lane & segment
    source = {
        "up": lane - b,
        "down": lane + b,
        "bfly": lane ^ b,
        "idx": least | (b & ~segment & 0x1F),
    }[mode]
    inside = source >= most if mode == "up" else source <= most
    return (source if inside else lane), inside


WIDTHS = {32: 0, 16: 0x10, 8: 0x18, 2: 0x1E}


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl_in_segments_of_every_width(launcher, values, mode):
    random = np.random.default_rng(2)
    kernel = LaneKernel(
        f"shfl_{mode}", ("b32", "b32", "b32"), ("b32", "pred"), f"shfl.sync.{mode}.b32 %d0|%d1, %a0, %a1, %a2, -1;"
    )
    for width, segment in WIDTHS.items():
        # up clamps at the low end of a segment, the others at its high end.
        clamp = 0 if mode == "up" else 31
        b = random.integers(0, 64, LANES, dtype=np.uint32)
        # A lane's own c picks its own source; b above 31 counts by its low five bits.
        c = np.full(LANES, segment << 8 | clamp, np.uint32)
        got, inside = launcher.run_lanes(kernel, [values, b, c], lanes=LANES)
        expected = [shuffle(mode, lane % 32, int(b[lane]), int(c[lane])) for lane in range(LANES)]
        sources = [lane // 32 * 32 + source for lane, (source, _) in enumerate(expected)]
        assert_array_equal(got, values[sources], err_msg=f"width {width}")
        assert_array_equal(inside, [flag for _, flag in expected], err_msg=f"width {width}")


def test_shfl_with_immediate_operands_and_no_predicate(launcher, values):
    kernel = LaneKernel("shfl_plain", ("b32",), ("b32",), "shfl.sync.bfly.b32 %d0, %a0, 1, 0x1f, -1;")
    (got,) = launcher.run_lanes(kernel, [values], lanes=LANES)
    assert_array_equal(got, values.reshape(-1, 2)[:, ::-1].ravel())


def test_shfl_among_the_lanes_of_one_side_of_a_branch(launcher, values):
    body = """
        and.b32 %r0, %lane, 1;
        setp.eq.u32 %p0, %r0, 0;
        mov.b32 %d0, 7;
        @!%p0 bra odd;
        shfl.sync.down.b32 %d0, %a0, 2, 0x1f, 0x55555555;
        bra joined;
    odd:
        shfl.sync.up.b32 %d0, %a0, 2, 0, 0xaaaaaaaa;
    joined:
    """
    (got,) = launcher.run_lanes(LaneKernel("shfl_split", ("b32",), ("b32",), body), [values], lanes=LANES)
    lanes = np.arange(LANES)
    sources = np.where(
        lanes % 2 == 0, np.where(lanes % 32 < 30, lanes + 2, lanes), np.where(lanes % 32 > 1, lanes - 2, lanes)
    )
    assert_array_equal(got, values[sources])


# ------------------------------------------------------------------------------------------ vote, match


def per_warp(compute, *arrays):
    """Apply a function to the 32 values of each warp and give its result to all of its lanes."""
    warps = zip(*(np.asarray(array).reshape(-1, 32) for array in arrays), strict=True)
    return np.concatenate([np.broadcast_to(np.asarray(compute(*warp)), 32) for warp in warps])


def ballot(flags) -> int:
    return sum(1 << lane for lane, flag in enumerate(flags) if flag)


PREDICATES = {
    "none": np.zeros(LANES, np.uint32),
    "all": np.ones(LANES, np.uint32),
    "first warp": (np.arange(LANES) < 32).astype(np.uint32),
    "some": (np.arange(LANES) % 3 == 1).astype(np.uint32),
    "one": (np.arange(LANES) == 41).astype(np.uint32),
}


@pytest.mark.parametrize("case", PREDICATES)
@pytest.mark.parametrize(
    ("mode", "judge"),
    [("all", np.all), ("any", np.any), ("uni", lambda flags: np.all(flags) or not np.any(flags))],
)
def test_vote(launcher, mode, judge, case):
    flags = PREDICATES[case]
    kernel = LaneKernel(f"vote_{mode}", ("pred",), ("pred",), f"vote.sync.{mode}.pred %d0, %a0, -1;")
    assert_array_equal(launcher.run_lanes(kernel, [flags], lanes=LANES)[0], per_warp(judge, flags))
    negated = LaneKernel(f"vote_not_{mode}", ("pred",), ("pred",), f"vote.sync.{mode}.pred %d0, !%a0, -1;")
    assert_array_equal(launcher.run_lanes(negated, [flags], lanes=LANES)[0], per_warp(judge, 1 - flags))


@pytest.mark.parametrize("case", PREDICATES)
def test_vote_ballot(launcher, case):
    flags = PREDICATES[case]
    kernel = LaneKernel("vote_ballot", ("pred",), ("b32",), "vote.sync.ballot.b32 %d0, %a0, -1;")
    assert_array_equal(launcher.run_lanes(kernel, [flags], lanes=LANES)[0], per_warp(ballot, flags))


def test_vote_counts_only_the_lanes_of_its_mask(launcher):
    body = """
        setp.lt.u32 %p0, %lane, 40;
        mov.b32 %d0, 0;
        @%p0 bra voting;
        bra joined;
    voting:
        activemask.b32 %r0;
        vote.sync.ballot.b32 %d0, %a0, %r0;
    joined:
    """
    flags = PREDICATES["some"]
    (got,) = launcher.run_lanes(LaneKernel("vote_part", ("pred",), ("b32",), body), [flags], lanes=LANES)
    expected = np.concatenate([np.full(32, ballot(flags[:32])), np.full(8, ballot(flags[32:40])), np.zeros(24)])
    assert_array_equal(got, expected)


@pytest.mark.parametrize("bits", [32, 64])
def test_match_any(launcher, bits):
    data = np.random.default_rng(3).integers(0, 4, LANES).astype(f"u{bits // 8}") << np.uint8(bits - 4)
    kernel = LaneKernel(f"match_any_{bits}", (f"b{bits}",), ("b32",), f"match.any.sync.b{bits} %d0, %a0, -1;")
    (got,) = launcher.run_lanes(kernel, [data], lanes=LANES)
    expected = [ballot(data[lane // 32 * 32 :][:32] == data[lane]) for lane in range(LANES)]
    assert_array_equal(got, expected)


@pytest.mark.parametrize("bits", [32, 64])
def test_match_all(launcher, bits):
    data = np.full(LANES, (1 << bits) - 5, f"u{bits // 8}")
    data[45] = 1
    kernel = LaneKernel(
        f"match_all_{bits}", (f"b{bits}",), ("b32", "pred"), f"match.all.sync.b{bits} %d0|%d1, %a0, -1;"
    )
    mask, same = launcher.run_lanes(kernel, [data], lanes=LANES)
    assert_array_equal(mask, [FULL] * 32 + [0] * 32)
    assert_array_equal(same, [1] * 32 + [0] * 32)


# ---------------------------------------------------------------------------------- redux, activemask, ...

REDUCTIONS = {
    "add.u32": lambda warp: sum(map(int, warp)) & FULL,
    "add.s32": lambda warp: sum(map(int, warp)) & FULL,
    "min.u32": min,
    "max.u32": max,
    "min.s32": lambda warp: int(warp.view(np.int32).min()) & FULL,
    "max.s32": lambda warp: int(warp.view(np.int32).max()) & FULL,
    "and.b32": functools.partial(functools.reduce, operator.and_),
    "or.b32": functools.partial(functools.reduce, operator.or_),
    "xor.b32": functools.partial(functools.reduce, operator.xor),
}


@pytest.mark.parametrize("form", REDUCTIONS)
def test_redux(launcher, values, form):
    launcher.require(80)
    data = values | np.uint32(0x10) if form.startswith("and") else values
    kernel = LaneKernel(f"redux_{form.replace('.', '_')}", ("b32",), ("b32",), f"redux.sync.{form} %d0, %a0, -1;")
    (got,) = launcher.run_lanes(kernel, [data], lanes=LANES, text=module([kernel], "sm_80"))
    assert_array_equal(got, per_warp(lambda warp: np.uint32(REDUCTIONS[form](warp)), data))


def test_redux_of_some_lanes(launcher, values):
    launcher.require(80)
    body = """
        mov.b32 %d0, 0;
        and.b32 %r0, %lane, 3;
        setp.ne.u32 %p0, %r0, 0;
        @%p0 bra joined;
        redux.sync.xor.b32 %d0, %a0, 0x11111111;
    joined:
    """
    kernel = LaneKernel("redux_part", ("b32",), ("b32",), body)
    (got,) = launcher.run_lanes(kernel, [values], lanes=LANES, text=module([kernel], "sm_80"))
    chosen = np.arange(LANES) % 4 == 0
    expected = per_warp(lambda warp: np.bitwise_xor.reduce(warp[::4]), values)
    assert_array_equal(got, np.where(chosen, expected, 0))


def test_activemask_of_lanes_that_run_together(launcher):
    # Which lanes run together after a divergent branch is the hardware's choice; that a lane sees itself is not, nor
    # that lanes which have exited are missing.
    body = """
        setp.ge.u32 %p0, %lane, 48;
        @%p0 exit;
        activemask.b32 %d0;
    """
    (mask,) = launcher.run_lanes(LaneKernel("activemask", (), ("b32",), body), [], lanes=LANES)
    own = np.uint32(1) << (np.arange(48, dtype=np.uint32) % 32)
    assert_array_equal(mask[:48] & own, own)
    assert_array_equal(mask[32:48] & 0xFFFF0000, 0)
    assert_array_equal(mask[48:], 0xA5A5A5A5)


def test_elect_picks_one_lane_of_the_mask(launcher):
    launcher.require(90)
    kernel = LaneKernel("elect", (), ("b32", "pred"), "elect.sync %d0|%d1, -1;")
    leader, elected = launcher.run_lanes(kernel, [], lanes=LANES, text=module([kernel], "sm_90"))
    for warp in (slice(0, 32), slice(32, 64)):
        assert len(set(leader[warp])) == 1
        assert_array_equal(np.flatnonzero(elected[warp]), leader[warp][:1])


def test_bar_warp_orders_shared_memory(launcher, values):
    body = """
        mov.u32 %r0, slots;
        shl.b32 %r1, %lane, 2;
        add.u32 %r2, %r0, %r1;
        st.shared.b32 [%r2], %a0;
        bar.warp.sync -1;
        xor.b32 %r1, %r1, 124;
        add.u32 %r2, %r0, %r1;
        ld.shared.b32 %d0, [%r2];
    """
    kernel = LaneKernel("bar_warp", ("b32",), ("b32",), body, f".shared .align 4 .b8 slots[{4 * LANES}];")
    (got,) = launcher.run_lanes(kernel, [values], lanes=LANES)
    assert_array_equal(got, values.reshape(-1, 32)[:, ::-1].ravel())
