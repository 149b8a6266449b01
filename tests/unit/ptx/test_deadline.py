"""However long PTX takes to read, a deadline ends it."""

import pytest

from strategies.longest import LONGEST, nested, straight
from tensorwasm.errors import InvokeTimeout
from tensorwasm.ptx import parse, render, signature
from tensorwasm.values import Deadline
from timing import costs_less

LIMIT_S, OVER_S = 0.25, 2.0


def ended(work):
    """The work ends at its deadline, give or take what one look at the clock may be late."""

    def try_() -> None:
        with pytest.raises(InvokeTimeout, match="the deadline passed while"):
            work(Deadline.after(LIMIT_S))

    return costs_less(LIMIT_S + OVER_S, try_)


@pytest.fixture(scope="module", params=[straight, nested])
def module(request):
    return parse(request.param(2 << 20))


@pytest.mark.parametrize("name", LONGEST)
def test_a_deadline_ends_the_parsing_of_the_longest_texts(name):
    text = LONGEST[name]()
    assert ended(lambda deadline: parse(text, deadline))


def test_a_deadline_ends_the_checks_after_parsing(monkeypatch):
    text = nested(1 << 20)
    checks = []
    real = Deadline.expired
    monkeypatch.setattr(Deadline, "expired", lambda self: checks.append(1) or real(self))
    parse(text)
    looks = len(checks)
    for passes_at in (looks // 4, looks // 2, looks - looks // 4, looks - 1):
        checks.clear()
        monkeypatch.setattr(Deadline, "expired", lambda self, at=passes_at: checks.append(1) or len(checks) > at)
        with pytest.raises(InvokeTimeout):
            parse(text)
        assert len(checks) == passes_at + 1


def test_a_deadline_ends_the_tracing_of_parameters(module):
    assert ended(lambda deadline: signature(module, "k", deadline))


def test_a_deadline_that_has_passed_ends_everything_at_once(module):
    passed = Deadline.after(0)
    for work in (
        lambda: parse(straight(), passed),
        lambda: signature(module, "k", passed),
        lambda: render(module, passed),
    ):

        def try_(work=work) -> None:
            with pytest.raises(InvokeTimeout):
                work()

        assert costs_less(0.5, try_)


def test_many_accesses_through_a_sum_of_many_parameters_are_traced_in_proportion():
    names = [f"p{index}" for index in range(4000)]
    params = ", ".join(f".param .u64 {name}" for name in names)
    sums = "".join(f"ld.param.u64 %rd1, [{name}]; add.u64 %rd2, %rd2, %rd1;" for name in names)
    head = (
        f".version 8.0 .target sm_80 .address_size 64 .entry k({params}) {{ .reg .b64 %rd<3>; .reg .b32 %r<2>; {sums}"
    )
    module = parse(head + "ld.global.u32 %r1, [%rd2];" * 4000 + "}")
    traced = []
    assert costs_less(3, lambda: traced.append(signature(module, "k")))
    assert {param.access_align_bytes for param in traced[0].params} <= {1, 4}
