"""Places for loads of kernels: a tenant has few, so that it does not hold all threads."""

from __future__ import annotations

import pytest

from tensorwasm.errors import InvokeTimeout
from tensorwasm.gpu.limits.load_places import LoadPlaces
from tensorwasm.values import NEVER


class Waiter:
    """One load, and whether it was told that it has its place."""

    def __init__(self, places, tenant="ann"):
        self.place = places.open(tenant)
        self.told = 0
        self.waits = self.place.join(self.tell, NEVER)

    def tell(self):
        self.told += 1

    def load(self):
        return self.place.hold(lambda: 7)


@pytest.fixture
def places():
    return LoadPlaces(2)


def test_a_tenant_waits_for_its_own_loads_alone_and_in_order(places):
    first, second, third, fourth = (Waiter(places) for _ in range(4))
    assert [each.waits for each in (first, second, third, fourth)] == [False, False, True, True]
    assert not Waiter(places, "bob").waits
    assert first.load() == 7
    assert (third.told, fourth.told) == (1, 0)
    third.load()
    assert fourth.told == 1
    for each in (second, fourth):
        each.load()
    assert not Waiter(places).waits


def test_a_load_that_fails_gives_its_place_back(places):
    waiters = [Waiter(places) for _ in range(3)]
    with pytest.raises(ValueError, match="no kernel"):
        waiters[0].place.hold(lambda: int("no kernel"))
    assert waiters[2].told == 1


def test_who_gives_up_is_not_told_unless_the_place_came_first(places):
    holders, late, patient = [Waiter(places) for _ in range(2)], Waiter(places), Waiter(places)
    with pytest.raises(InvokeTimeout):
        late.place.give_up()
    holders[0].load()
    assert (late.told, patient.told) == (0, 1)
    patient.place.give_up()
    assert patient.load() == 7


def test_a_guest_that_ends_gives_its_place_to_the_next(places):
    holders, waiting, following = [Waiter(places) for _ in range(2)], Waiter(places), Waiter(places)
    waiting.place.abandon()
    holders[0].place.abandon()
    assert (waiting.told, following.told) == (0, 1)
    following.place.abandon()
    holders[1].load()
    assert not places._taken
    assert not places._waiting
