import math

import pytest

from tensorwasm.values import Deadline


@pytest.mark.parametrize("seconds", [None, math.inf, 1e300])
def test_more_time_than_a_clock_can_count_is_no_deadline(seconds):
    deadline = Deadline.after(seconds)
    assert deadline.at_ns is None
    assert deadline.remaining_s() == math.inf
    assert not deadline.expired()


@pytest.mark.parametrize("seconds", [0.0, -1.0, -1e300, -math.inf, math.nan])
def test_a_deadline_of_no_time_has_passed(seconds):
    deadline = Deadline.after(seconds)
    assert deadline.expired()
    assert deadline.remaining_s() == 0.0
