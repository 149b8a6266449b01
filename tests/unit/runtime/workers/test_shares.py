import math

from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.runtime.workers.shares import Shares
from tensorwasm.values import SmPlacement


def groups(place, multiprocessors, size):
    """Return the groups of a split into groups of a size that a share at a place has, as its process finds them."""
    first = sum(math.ceil(share / size) for share in place.before)
    return set(range(first, first + math.ceil(multiprocessors / size)))


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=4),
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 7)), max_size=40),
    st.integers(0, 30),
)
def test_no_two_shares_overlap_whoever_comes_and_goes_and_whatever_the_driver_rounds_to(sizes, events, more):
    shares, living, numbers = Shares(sizes), {}, iter(range(100))
    size = math.gcd(*sizes) + more
    for comes, which, whose in events:
        if comes:
            asked = sizes[which % len(sizes)]
            place = shares.take(owner := next(numbers), asked)
            assert place.unit == math.gcd(*sizes)
            own = groups(place, asked, size)
            assert not any(own & theirs for theirs in living.values())
            living[owner] = own
        elif living:
            gone = sorted(living)[whose % len(living)]
            del living[gone]
            shares.leave(gone)
            shares.leave(gone)


def test_equal_shares_lie_side_by_side_and_a_gap_is_filled_first():
    shares = Shares([16])
    assert [shares.take(owner, 16) for owner in range(3)] == [SmPlacement(16, (16,) * before) for before in range(3)]
    shares.leave(1)
    assert shares.take(3, 16) == SmPlacement(16, (16,))
    assert shares.take(4, 16) == SmPlacement(16, (16, 16, 16))


def test_the_smallest_gap_that_is_large_enough_is_taken_and_gaps_that_touch_are_one():
    shares = Shares([8, 16, 64])
    for owner, asked in enumerate([64, 8, 16, 8, 8, 8]):
        shares.take(owner, asked)
    for owner in (0, 2, 4):
        shares.leave(owner)
    assert shares.take(6, 8) == SmPlacement(8, (64, 8, 16, 8))
    assert shares.take(7, 8) == SmPlacement(8, (64, 8))
    assert shares.take(8, 8) == SmPlacement(8)
    for owner in (7, 3, 6):
        shares.leave(owner)
    assert shares.take(9, 16) == SmPlacement(8, (64, 8))
    shares.leave(9)
    assert shares.take(10, 32) == SmPlacement(8, (64, 8))


def test_what_nobody_is_behind_is_free_for_a_share_of_any_size():
    shares = Shares([8, 64])
    for owner, asked in enumerate([8, 64, 8]):
        shares.take(owner, asked)
    shares.leave(1)
    shares.leave(2)
    assert shares.take(3, 64) == SmPlacement(8, (8,))
    shares.leave(5)
    assert shares.take(4, 8) == SmPlacement(8, (8, 64))
