"""How often a tenant may hold up the thread that reads all connections."""

from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.runtime.workers.child.stalls import FIRST_S, LONGEST_S, Stalls


def test_a_tenant_that_held_up_others_may_not_for_a_while_and_others_may():
    stalls = Stalls()
    assert stalls.may_lead("ann", 5.0)
    stalls.note("ann", 5.0)
    assert not stalls.may_lead("ann", 5.0 + 0.9 * FIRST_S)
    assert stalls.may_lead("bob", 5.0)
    assert stalls.may_lead("ann", 5.0 + 1.1 * FIRST_S)


def test_one_that_holds_nobody_up_for_long_begins_anew():
    stalls = Stalls()
    for second in range(20):
        stalls.note("ann", float(second))
    later_s = 20.0 + 3 * LONGEST_S
    stalls.note("ann", later_s)
    assert stalls.may_lead("ann", later_s + 1.1 * FIRST_S)


@given(st.lists(st.sampled_from(["ann", "bob"]), min_size=1), st.floats(0.001, 0.1))
def test_a_tenant_that_always_does_holds_up_the_others_ever_less(names, step_s):
    stalls, now_s, held = Stalls(), 0.0, 0
    while now_s < 100.0:
        for name in names:
            if stalls.may_lead(name, now_s):
                held += 1
                stalls.note(name, now_s)
        now_s += step_s
    assert held <= len(set(names)) * (10 + 100.0 / LONGEST_S)
