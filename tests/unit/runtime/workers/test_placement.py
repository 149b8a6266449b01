import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.runtime.workers.placement import GpuShares, Start, Use, WorkerLoad, choose
from tensorwasm.values import SmPlacement

TENANTS = ("ann", "bob", "cyn", "dan")


def shared(loads, devices=2):
    return choose(loads, None, devices, 1)


def apart(loads, tenant="ann", devices=1, most=2):
    return choose(loads, tenant, devices, most)


def test_the_first_request_starts_a_worker():
    assert shared([]) == Start(0)
    assert apart([]) == Start(0)


def test_an_idle_shared_worker_is_used_before_another_device_is_opened():
    assert shared([WorkerLoad(1, 0, None)]) == Use(1)
    assert shared([WorkerLoad(1, 0, None, requests=1)]) == Start(1)


def test_of_shared_workers_the_one_with_the_fewest_requests_then_bytes_is_used():
    assert shared([WorkerLoad(1, 0, None, 3), WorkerLoad(2, 1, None, 2)]) == Use(2)
    assert shared([WorkerLoad(1, 0, None, 2, 500), WorkerLoad(2, 1, None, 2, 100)]) == Use(2)
    assert shared([WorkerLoad(1, 0, None, 2, 5), WorkerLoad(2, 1, None, 2, 5)]) == Use(1)


def test_a_shared_worker_that_was_given_up_is_not_started_over_and_over():
    assert shared([WorkerLoad(1, 0, None, takes=False)], devices=1) is None
    assert shared([WorkerLoad(1, 0, None, takes=False), WorkerLoad(2, 1, None, 9)]) == Use(2)


def test_a_tenant_keeps_its_own_worker_however_busy():
    loads = [WorkerLoad(1, 0, "ann", 50), WorkerLoad(2, 0, "bob", 0)]
    assert apart(loads) == Use(1)
    assert apart(loads, "bob") == Use(2)


def test_a_tenants_worker_goes_to_the_device_with_the_fewest():
    loads = [WorkerLoad(1, 0, "bob"), WorkerLoad(2, 0, "cyn"), WorkerLoad(3, 1, "dan")]
    assert apart(loads, devices=2, most=3) == Start(1)


def test_a_full_device_makes_room_by_the_idle_worker_that_was_used_least_lately():
    loads = [WorkerLoad(1, 0, "bob", 0, used_at=7), WorkerLoad(2, 0, "cyn", 0, used_at=3)]
    assert apart(loads) == Start(0, instead_of=2)
    assert apart([WorkerLoad(1, 0, "bob", 1), WorkerLoad(2, 0, "cyn", 2)]) is None


def test_a_tenant_whose_worker_was_given_up_gets_no_other():
    assert apart([WorkerLoad(1, 0, "ann", takes=False)], most=9) is None


@st.composite
def situations(draw):
    devices, most = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    pairs = st.tuples(st.integers(0, devices - 1), st.booleans())
    shared = [(device, None, long) for device, long in draw(st.sets(pairs))]
    owners = [(draw(st.integers(0, devices - 1)), tenant, False) for tenant in draw(st.sets(st.sampled_from(TENANTS)))]
    loads = [
        WorkerLoad(
            number, device, owner, *(draw(st.integers(0, 3)) for _ in range(2)), draw(st.booleans()), number, long
        )
        for number, (device, owner, long) in enumerate([*shared, *owners])
    ]
    full = any(sum(load.device == device for load in loads if load.tenant) > most for device in range(devices))
    return loads, devices, most if not full else len(loads)


@given(situations(), st.none() | st.sampled_from(TENANTS), st.booleans())
@pytest.mark.rule("4-process")
def test_no_tenant_gets_anothers_worker_and_no_device_too_many(situation, owner, long):
    loads, devices, most = situation
    long = long and owner is None
    decision = choose(loads, owner, devices, most, long=long)
    own = [load for load in loads if load.tenant == owner and load.long == long]
    by_number = {load.number: load for load in loads}
    if isinstance(decision, Use):
        used = by_number[decision.number]
        assert used in own
        assert used.takes
        assert used.requests == min(load.requests for load in own if load.takes)
    elif isinstance(decision, Start):
        assert 0 <= decision.device < devices
        there = [load for load in loads if load.device == decision.device and load.tenant is not None]
        assert owner is not None or not any(load.device == decision.device for load in own)
        if decision.instead_of is not None:
            gone = by_number[decision.instead_of]
            assert gone.takes
            assert not gone.requests
            assert gone.tenant not in {owner, None}
            assert gone.device == decision.device
        elif owner is not None:
            assert len(there) < most
    else:
        assert not any(load.takes and not load.requests for load in own)


def test_tenants_whose_kernels_run_long_have_a_worker_beside_the_others():
    loads = [WorkerLoad(1, 0, None, 7)]
    assert choose(loads, None, 1, 1, long=True) == Start(0)
    loads.append(WorkerLoad(2, 0, None, 9, long=True))
    assert choose(loads, None, 1, 1, long=True) == Use(2)
    assert choose(loads, None, 1, 1) == Use(1)


def test_workers_of_all_tenants_take_no_places_of_those_of_one():
    loads = [WorkerLoad(1, 0, None), WorkerLoad(2, 0, None, long=True)]
    assert apart(loads, most=1) == Start(0)
    loads.append(WorkerLoad(3, 0, "bob"))
    assert apart(loads, most=1) == Start(0, instead_of=3)


def groups(place, multiprocessors, size):
    """Return the groups of a split into groups of a size that a share at a place has, as its process finds them."""
    first = sum(math.ceil(share / size) for share in place.before)
    return set(range(first, first + math.ceil(multiprocessors / size)))


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=4),
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 7)), max_size=40),
    st.integers(0, 30),
)
def test_no_two_shares_overlap_in_any_order_of_arrivals_and_for_any_rounding_of_the_driver(sizes, events, more):
    shares, living, numbers = GpuShares(sizes), {}, iter(range(100))
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
    shares = GpuShares([16])
    assert [shares.take(owner, 16) for owner in range(3)] == [SmPlacement(16, (16,) * before) for before in range(3)]
    shares.leave(1)
    assert shares.take(3, 16) == SmPlacement(16, (16,))
    assert shares.take(4, 16) == SmPlacement(16, (16, 16, 16))


def test_the_smallest_gap_that_is_large_enough_is_taken_and_gaps_that_touch_are_one():
    shares = GpuShares([8, 16, 64])
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


def test_groups_at_the_end_are_free_for_a_share_of_any_size():
    shares = GpuShares([8, 64])
    for owner, asked in enumerate([8, 64, 8]):
        shares.take(owner, asked)
    shares.leave(1)
    shares.leave(2)
    assert shares.take(3, 64) == SmPlacement(8, (8,))
    shares.leave(5)
    assert shares.take(4, 8) == SmPlacement(8, (8, 64))
