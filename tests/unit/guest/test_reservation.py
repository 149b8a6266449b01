from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tensorwasm.errors import CapacityExhausted
from tensorwasm.guest.engine import reservation
from tensorwasm.guest.engine.engine import IMAGE_MAPPINGS, Engine, EngineConfig
from tensorwasm.guest.engine.reservation import PoolLayout
from tensorwasm.guest.memory.images import MAX_EXTENTS
from tensorwasm.values import MIB


def layout(slots: int) -> PoolLayout:
    return PoolLayout(slots=slots, memory_bytes=1 << 32, guard_bytes=32 * MIB, table_bytes=32 * MIB)


def test_a_pool_that_fits_keeps_nothing():
    before = reservation._mapping_count()
    reservation.check(layout(100))
    assert reservation._mapping_count() <= before + 2


def test_an_empty_pool_is_refused():
    with pytest.raises(CapacityExhausted, match="at least one slot"):
        reservation.check(layout(0))


def test_a_pool_larger_than_the_address_space_is_refused_with_what_fits():
    with pytest.raises(CapacityExhausted, match=r"TiB of address space.*ask for at most (\d+) slots") as caught:
        reservation.check(layout(10**6))
    fits = int(caught.value.message.split("at most ")[1].split()[0])
    assert layout(fits).total_bytes <= 1 << 47 < layout(fits + 2).total_bytes


def test_a_pool_with_more_mappings_than_the_kernel_allows_is_refused(monkeypatch):
    monkeypatch.setattr(reservation, "_mapping_limit", lambda: 1000)
    with pytest.raises(CapacityExhausted, match=r"5000 mappings and the kernel allows 1000.*vm\.max_map_count"):
        reservation.check(layout(1000))


def test_the_most_slots_follow_the_mapping_limit_less_a_reserve_and_what_is_held(monkeypatch):
    monkeypatch.setattr(reservation, "_mapping_limit", lambda: 65530)
    monkeypatch.setattr(reservation, "_mapping_count", lambda: 338)
    assert reservation.most_slots(layout(1)) == (65530 - 8192 - 338) // 5
    monkeypatch.setattr(reservation, "_mapping_limit", lambda: 1000)
    assert reservation.most_slots(layout(1)) == 1


def test_restored_sandboxes_are_counted_with_the_mappings_of_their_images(monkeypatch):
    monkeypatch.setattr(reservation, "_mapping_limit", lambda: 65530)
    monkeypatch.setattr(reservation, "_mapping_count", lambda: 338)
    assert 2 * MAX_EXTENTS <= IMAGE_MAPPINGS
    assert reservation.most_slots(EngineConfig(images=True).layout) == (65530 - 8192 - 338) // (5 + IMAGE_MAPPINGS)


def test_the_most_slots_fit_the_address_space(monkeypatch):
    monkeypatch.setattr(reservation, "_mapping_limit", lambda: sys.maxsize)
    for fibers in (False, True):
        config = EngineConfig(slots=1, fibers=fibers)
        most = reservation.most_slots(config.layout)
        assert replace(config, slots=most).layout.total_bytes <= 1 << 47
        assert replace(config, slots=most + 3).layout.total_bytes > 1 << 47


def test_a_pool_of_the_most_slots_can_be_made():
    config = EngineConfig(slots=1, fibers=True)
    reservation.check(replace(config, slots=reservation.most_slots(config.layout)).layout)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS binds on Linux")
def test_a_limit_on_the_address_space_is_a_typed_error_not_an_abort():
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, hard))
    try:
        with pytest.raises(CapacityExhausted, match="ulimit -v"):
            Engine(EngineConfig(slots=900))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
