"""What became of loops is counted under a bounded number of labels; a run that differed is in the audit log."""

from __future__ import annotations

import json

import pytest

from tensorwasm.service.offload_meter import FUNCTIONS, OffloadMeter
from tensorwasm.telemetry.metrics import TENANTS, Metrics
from tensorwasm.tenancy.audit import encode
from tensorwasm.values import OffloadUse

USE = OffloadUse(3, 1, 0.5, 4096, (("busy", 2), ("sequential", 1)))


@pytest.fixture
def audited():
    return []


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def meter(metrics, audited):
    return OffloadMeter(metrics, audited.append)


def values(metrics, what):
    return dict(metrics.snapshot().values[f"tensor_wasm_offload_{what}_total"])


def test_calls_add_up(meter, metrics, audited):
    for function in ("f", "g", "f"):
        meter.note(1, function, USE)
    assert values(metrics, "success") == {(): 9}
    assert values(metrics, "fallback") == {(): 9}
    assert values(metrics, "compared") == {(): 3}
    assert values(metrics, "taken") == {("T#1", "f"): 6, ("T#1", "g"): 3}
    assert values(metrics, "seconds") == {("T#1", "f"): 1.0, ("T#1", "g"): 0.5}
    assert values(metrics, "moved_bytes") == {("T#1", "f"): 8192, ("T#1", "g"): 4096}
    assert values(metrics, "declined") == {("T#1", "busy"): 6, ("T#1", "sequential"): 3}
    assert values(metrics, "mismatches") == {}
    assert audited == []


def test_labels_are_bounded_and_nothing_is_lost(meter, metrics):
    for number in range(3 * max(TENANTS, FUNCTIONS)):
        meter.note(number, f"f{number}", USE)
        meter.note(0, f"g{number}", USE)
    taken = values(metrics, "taken")
    assert len({tenant for tenant, _ in taken}) == TENANTS + 1
    assert len({function for _, function in taken}) == FUNCTIONS + 1
    assert len(taken) <= FUNCTIONS + TENANTS + 1
    assert sum(taken.values()) == 3 * 2 * 3 * max(TENANTS, FUNCTIONS)


def test_a_run_that_differed_is_in_the_audit_log(meter, metrics, audited):
    meter.note(4, "f", USE._replace(mismatches=('{"region": 2}',)))
    (record,) = (json.loads(encode(each)) for each in audited)
    assert record["action"] == "offload_mismatch"
    assert record["resource"] == {"tenant_id": 4, "function_id": "f", "evidence": '{"region": 2}'}
    assert values(metrics, "mismatches") == {("T#4", "f"): 1}
