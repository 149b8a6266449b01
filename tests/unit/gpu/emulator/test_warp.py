import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.emulation import HEAD, Emulation, kernel, store_result
from oracles import warps
from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER

LOAD = "ld.param.u64 %rd1, [p1]; mad.wide.u32 %rd1, %r0, 4, %rd1; ld.global.b32 %r2, [%rd1];"
VALUES = st.lists(st.integers(0, 2**32 - 1), min_size=45, max_size=45)
FEW = st.lists(st.integers(0, 3), min_size=45, max_size=45)


def run(body, values, threads=45):
    """Run on one and a half warps, to have a short one; ``%r2`` is the thread's value."""
    emulation = Emulation()
    text = kernel(LOAD + body + store_result(), params=2)
    return emulation.run(text, threads, emulation.buffer(values), block=(threads, 1, 1)).tolist()


def by_warp(values):
    return [values[:32], values[32:]]


@settings(max_examples=40, deadline=None)
@given(
    VALUES, st.sampled_from(["up", "down", "bfly", "idx"]), st.integers(0, 40), st.integers(0, 31), st.integers(0, 31)
)
def test_shuffles(values, mode, b, segment, clamp):
    c = segment << 8 | clamp
    body = f"shfl.sync.{mode}.b32 %r1|%p0, %r2, {b}, {c}, -1; "
    expected = [one for warp in by_warp(values) for one in warps.shuffle(mode, warp, b, c)]
    assert run(body, values) == [value for value, _ in expected]
    assert run(body + "selp.u32 %r1, 1, 0, %p0;", values) == [int(valid) for _, valid in expected]


def test_the_old_shuffle_reads_active_lanes(emulation):
    text = kernel("setp.lt.u32 %p0, %r0, 8; mov.u32 %r1, 99; @%p0 shfl.down.b32 %r1, %r0, 1, 31;" + store_result())
    text = text.replace("sm_80", "sm_60").replace("8.0", "6.0")
    assert emulation.run(text, 32).tolist() == [1, 2, 3, 4, 5, 6, 7, 7] + [99] * 24


@settings(max_examples=30, deadline=None)
@given(FEW, st.integers(1, 2**32 - 1))
def test_votes_of_the_lanes_in_a_mask(values, mask):
    # Lanes outside the mask take another way.
    head = f"mov.u32 %r9, %laneid; mov.u32 %r8, {mask}; shr.u32 %r8, %r8, %r9; and.b32 %r8, %r8, 1; mov.u32 %r1, 77;"
    head += "setp.eq.u32 %p0, %r8, 0; @%p0 bra out; setp.gt.u32 %p1, %r2, 1;"
    forms = {
        "ballot.b32": lambda bits, _: bits,
        "all.pred": lambda bits, members: int(bits == members),
        "any.pred": lambda bits, _: int(bits != 0),
        "uni.pred": lambda bits, members: int(bits in (0, members)),
    }
    for form, judge in forms.items():
        pred = form.endswith("pred")
        target = "%p2" if pred else "%r1"
        body = f"{head} vote.sync.{form} {target}, %p1, {mask}; {'selp.u32 %r1, 1, 0, %p2;' if pred else ''} out:"
        expected = []
        for warp in by_warp(values):
            members = mask & ((1 << len(warp)) - 1)
            found = judge(warps.ballot([value > 1 for value in warp], mask), members)
            expected += [found if mask >> lane & 1 else 77 for lane in range(len(warp))]
        assert run(body, values) == expected


@settings(max_examples=20, deadline=None)
@given(FEW)
def test_matches(values):
    masks = [(1 << len(warp)) - 1 for warp in by_warp(values)]
    equal = [bits for warp, mask in zip(by_warp(values), masks, strict=True) for bits in warps.equals(warp, mask)]
    assert run("match.any.sync.b32 %r1, %r2, -1;", values) == equal
    whole = [mask for mask, warp in zip(masks, by_warp(values), strict=True) for _ in warp]
    expected = [mask if bits == mask else 0 for bits, mask in zip(equal, whole, strict=True)]
    assert run("match.all.sync.b32 %r1|%p0, %r2, -1;", values) == expected
    wide = "cvt.u64.u32 %rd2, %r2; shl.b64 %rd2, %rd2, 32; match.any.sync.b64 %r1, %rd2, -1;"
    assert run(wide, values) == equal


@settings(max_examples=20, deadline=None)
@given(VALUES, st.sampled_from(sorted(warps.REDUCTIONS)))
def test_reductions(values, form):
    expected = [warps.REDUCTIONS[form](warp) for warp in by_warp(values) for _ in warp]
    assert run(f"redux.sync.{form} %r1, %r2, -1;", values) == expected


def test_groups_of_one_warp_reduce_for_themselves():
    body = "and.b32 %r3, %r0, 3; mov.u32 %r4, 0x11111111; shl.b32 %r4, %r4, %r3; redux.sync.add.u32 %r1, %r2, %r4;"
    values = list(range(32))
    assert run(body, values, threads=32) == [sum(values[t % 4 :: 4]) for t in range(32)]


def test_float_reductions(emulation):
    floats = np.array([1.5, -2.5, np.nan, 7.0] * 8, np.float32)
    form = "redux.sync.{} %f2, %f1, -1; mov.b32 %r1, %f2;"
    for words, expected in {"min.f32": -2.5, "max.f32": 7.0, "min.abs.f32": 1.5, "max.NaN.f32": np.nan}.items():
        text = kernel(LOAD + "mov.b32 %f1, %r2;" + form.format(words) + store_result(), params=2)
        text = text.replace("sm_80", "sm_100a").replace("8.0", "8.6")
        blackwell = Emulation(compute_capability=(10, 0))
        found = blackwell.run(text, 32, blackwell.buffer(floats)).view(np.float32)
        np.testing.assert_array_equal(found, np.full(32, expected, np.float32))


def test_lanes_that_took_different_ways_wait_for_each_other(emulation):
    body = """
        setp.lt.u32 %p0, %r0, 16; mov.u32 %r2, %r0; @%p0 bra join;
        mul.lo.u32 %r2, %r0, 10; setp.lt.u32 %p1, %r0, 20; @%p1 bra join; add.u32 %r2, %r2, 1;
        join: shfl.sync.bfly.b32 %r1, %r2, 31, 31, -1;
    """

    def sent(t):
        return t if t < 16 else 10 * t + (t >= 20)

    assert emulation.run(kernel(body + store_result()), 32).tolist() == [sent(t ^ 31) for t in range(32)]


def test_lanes_that_exited_are_not_waited_for(emulation):
    body = "setp.lt.u32 %p0, %r0, 8; @!%p0 exit; vote.sync.ballot.b32 %r1, %p0, -1;"
    assert emulation.run(kernel(body + store_result()), 32).tolist() == [255] * 8 + [0] * 24
    late = "setp.lt.u32 %p0, %r0, 8; @%p0 bra wait; exit; wait: vote.sync.ballot.b32 %r1, %p0, -1;"
    assert emulation.run(kernel(late + store_result()), 32).tolist() == [255] * 8 + [0] * 24


def test_active_lanes_and_elections(emulation):
    body = "setp.ge.u32 %p0, %r0, 20; mov.u32 %r1, 0; @%p0 activemask.b32 %r1;"
    assert emulation.run(kernel(body + store_result()), 32).tolist() == [0] * 20 + [0xFFF00000] * 12
    body = "elect.sync %r2|%p0, -1; selp.u32 %r3, 100, 0, %p0; add.u32 %r1, %r2, %r3;"
    text = kernel(body + store_result()).replace("sm_80", "sm_90")
    assert emulation.run(text, 32).tolist() == [100] + [0] * 31


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("shfl.sync.idx.b32 %r1, %r0, 0, 31, 0x0000ffff;", "thread (16, 0, 0)"),
        ("vote.sync.any.pred %p0, %p1, 2;", "is not in its own member mask 0x00000002"),
        ("setp.lt.u32 %p0, %r0, 9; @%p0 redux.sync.add.u32 %r1, %r0, -1; @!%p0 bar.sync 0;", "deadlock"),
    ],
)
def test_faults(emulation, body, part):
    assert part in emulation.fault(kernel(body), emulation.buffer([0]))


@pytest.mark.parametrize(
    ("instruction", "error"),
    [
        ("shfl.sync.left.b32 %r1, %r1, 0, 31, -1", UnsupportedPtx),
        ("shfl.sync.idx.b64 %r1, %r1, 0, 31, -1", UnsupportedPtx),
        ("shfl.sync.idx.b32 %r1, %r1, 0, 31", MalformedPtx),
        ("vote.sync.ballot.pred %p1, %p1, -1", UnsupportedPtx),
        ("match.any.sync.b16 %r1, %r1, -1", UnsupportedPtx),
        ("redux.sync.mul.u32 %r1, %r1, -1", UnsupportedPtx),
        ("redux.sync.add.b32 %r1, %r1, -1", UnsupportedPtx),
        ("activemask.u32 %r1", UnsupportedPtx),
    ],
)
def test_forms_that_do_not_exist(emulation, instruction, error):
    text = f"{HEAD}.entry k() {{ .reg .b32 %r<4>; .reg .pred %p<4>;\n{instruction};\nret; }}"
    with pytest.raises(error):
        emulation.device.load(parse(text), NEVER)
