"""How streams ended is kept for some time, and no tenant costs another anything."""

from __future__ import annotations

import pytest

from tensorwasm.errors import NotFound
from tensorwasm.service.invocations.outcomes import ALL, KEPT, KEPT_S, TENANTS, Outcome, Outcomes


def test_an_outcome_is_its_tenants_own():
    outcomes = Outcomes()
    outcomes.put(1, Outcome("a", "f", "running"))
    outcomes.put(1, Outcome("a", "f", "done"))
    assert outcomes.get(1, "a").status == "done"
    with pytest.raises(NotFound):
        outcomes.get(2, "a")
    with pytest.raises(NotFound):
        outcomes.get(1, "b")


def test_an_outcome_is_gone_after_a_time():
    now_s = [0.0]
    outcomes = Outcomes(lambda: now_s[0])
    outcomes.put(1, Outcome("a", "f", "done"))
    now_s[0] = KEPT_S - 1
    assert outcomes.get(1, "a").status == "done"
    now_s[0] = KEPT_S
    with pytest.raises(NotFound):
        outcomes.get(1, "a")


def test_a_tenant_with_many_streams_loses_its_own_first_ones_only():
    outcomes = Outcomes()
    outcomes.put(2, Outcome("other", "f", "done"))
    for at in range(KEPT + 1):
        outcomes.put(1, Outcome(str(at), "f", "done"))
    assert outcomes.get(2, "other").status == "done"
    assert outcomes.get(1, "1").status == "done"
    with pytest.raises(NotFound):
        outcomes.get(1, "0")


def test_of_too_many_outcomes_those_go_whose_tenants_were_quiet_the_longest():
    outcomes = Outcomes()
    for tenant in range(ALL // KEPT + 1):
        for at in range(KEPT):
            outcomes.put(tenant, Outcome(str(at), "f", "running"))
            outcomes.put(tenant, Outcome(str(at), "f", "done"))
    assert sum(map(len, outcomes._tenants.values())) <= ALL
    assert outcomes.get(1, "0").status == outcomes.get(tenant, str(KEPT - 1)).status == "done"
    with pytest.raises(NotFound):
        outcomes.get(0, str(KEPT - 1))


def test_of_too_many_tenants_those_go_that_were_quiet_the_longest():
    outcomes = Outcomes()
    for tenant in range(TENANTS):
        outcomes.put(tenant, Outcome("a", "f", "running"))
    outcomes.put(0, Outcome("a", "f", "done"))
    outcomes.put(TENANTS, Outcome("a", "f", "running"))
    assert outcomes.get(0, "a").status == "done"
    with pytest.raises(NotFound):
        outcomes.get(1, "a")
