"""The comparison of straight-line programs itself: what it takes for a reason, what it cuts away, whom it blames."""

from __future__ import annotations

from concurrent.futures import Executor, Future

import pytest

from straight_lines import MODULE, OPTIMISER, Compared, Comparer, judge
from strategies.straight_lines import program
from tensorwasm.errors import DeviceLost

RIGHT = Compared((), (1, 2))


def differing(lines):
    """Return a comparison in which the programs with one of some lines differ."""

    def compare(given):
        programs = [program(one) if isinstance(one, int) else one for one in given]
        return [Compared(("%w0",), (3, 4)) if lines & set(one.statements) else RIGHT for one in programs]

    return compare


@pytest.mark.parametrize(("plain", "reason"), [(set(), OPTIMISER), ({program(3).statements[5]}, "")])
def test_only_what_is_right_without_the_optimiser_has_a_reason(plain, reason):
    wrong = program(3).statements[5]
    result = judge(range(MODULE), differing({wrong}), differing(plain))
    assert [(one.program, one.reason, one.statements) for one in result.differences] == [(3, reason, wrong)]
    assert result.checksums == ([RIGHT.checksums] * MODULE if reason else [])


def test_a_program_that_is_wrong_without_the_optimiser_once_it_is_cut_down_has_no_reason():
    one = program(3)

    def plain(given):
        return [RIGHT if isinstance(given_one, int) else Compared(("%w0",), (3, 4)) for given_one in given]

    assert [found.reason for found in judge(range(MODULE), differing({one.statements[5]}), plain).differences] == [""]


class Card(Executor):
    """Loses the GPU to some numbers; what was lost stays so."""

    def __init__(self, losing):
        self.losing, self.lost = losing, False

    def submit(self, _compare, given):
        future = Future()
        self.lost = self.lost or self.losing(set(given))
        if self.lost:
            future.set_exception(DeviceLost("lost"))
        else:
            future.set_result([RIGHT] * len(given))
        return future


def test_only_what_loses_the_gpu_is_blamed_for_it():
    compare = Comparer(lambda: Card(lambda given: given & {17, 18, 90}))
    assert [at for at, one in enumerate(compare(range(100))) if one != RIGHT] == [17, 18, 90]
    assert compare(range(10)) == [RIGHT] * 10


def test_a_gpu_that_is_lost_to_no_program_alone_is_an_error():
    with pytest.raises(DeviceLost):
        Comparer(lambda: Card(lambda given: {17, 90} <= given))(range(100))
