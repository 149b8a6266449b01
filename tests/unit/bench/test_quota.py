"""The benchmark of quotas detects quotas that do not hold."""

from dataclasses import replace

import pytest

from fakes.pools import FakePools
from tensorwasm.bench.device.quota import CAP_BYTES, ContentionResult, _figures, contend, measure_quota, refusals_us
from tensorwasm.errors import InternalError
from tensorwasm.gpu.memory.suballocator import Suballocator
from tensorwasm.values import Region


def test_quotas_hold_over_pools_that_check_their_caller():
    pools = FakePools()
    run = contend(pools, 20_000, cap_bytes=4 << 20)
    assert 0 < run.most_region_bytes <= 4 << 20
    assert 0 < run.most_chunk_bytes <= 4 << 20
    assert run.refused > 0
    assert run.left_bytes == 0
    assert not pools.broken
    assert pools.live == []


def test_refusals_are_counted_one_by_one():
    assert len(refusals_us(100)) == 100


def test_a_slab_that_fails_fails_the_benchmark(monkeypatch):
    monkeypatch.setattr(Suballocator, "free", lambda self, region: 1 / 0)
    with pytest.raises(InternalError, match="64 of 64"):
        contend(FakePools(), 1000)


def test_a_slab_that_exceeds_the_cap_is_detected(monkeypatch):
    monkeypatch.setattr(Suballocator, "allocate", lambda self, size: Region(1, 1 << 20, host=False))
    monkeypatch.setattr(Suballocator, "free", lambda self, region: None)
    run = contend(FakePools(), 2000, cap_bytes=1 << 20)
    assert run.most_region_bytes > 1 << 20


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, True),
        ({"most_charged_bytes": CAP_BYTES + 1}, False),
        ({"most_region_bytes": CAP_BYTES + 1}, False),
        ({"most_chunk_bytes": CAP_BYTES + 1}, False),
        ({"left_bytes": 1}, False),
        ({"refused": 0}, False),
    ],
)
def test_a_byte_over_or_left_misses_a_bar(changes, met):
    run = replace(ContentionResult(1.0, 10, 1, CAP_BYTES, CAP_BYTES, CAP_BYTES, 0), **changes)
    assert all(figure.met is not False for figure in _figures(run, [1.0] * 4, [1.0] * 4)) is met
    assert not all(figure.met is not False for figure in _figures(run, [11.0] * 4, [1.0] * 4))


def test_the_report_names_the_chosen_device():
    report = measure_quota("emulator", operations=2000)
    assert report.benchmark == "quota"
    assert "emulator" in report.device
