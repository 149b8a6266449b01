import pytest

from tensorwasm.errors import InvokeTimeout
from tensorwasm.values import NEVER, Deadline
from tensorwasm.watch import STRIDE, UNLIMITED, Watch


class Clock(Deadline):
    """Passes at a given look."""

    def __init__(self, looks):
        super().__init__()
        object.__setattr__(self, "left", looks)

    def expired(self):
        object.__setattr__(self, "left", self.left - 1)
        return self.left < 0


@pytest.mark.parametrize("looks", [0, 1, 2, 5])
def test_work_ends_at_the_first_check_after_the_deadline(looks):
    watch = Watch(Clock(looks), "while it counted")
    items = watch.over(range(1000))
    assert [next(items) for _ in range(looks * STRIDE)] == list(range(looks * STRIDE))
    with pytest.raises(InvokeTimeout, match="the deadline passed while it counted"):
        next(items)
    watch = Watch(Clock(looks), "while it counted")
    for _ in range(looks * STRIDE):
        watch.step()
    with pytest.raises(InvokeTimeout):
        watch.step()


def test_many_short_loops_end_as_a_long_one_does():
    watch = Watch(Clock(10), "")
    loops = (list(watch.over(range(2))) for _ in range(100))
    with pytest.raises(InvokeTimeout):
        list(loops)


@pytest.mark.parametrize("count", [0, 1, STRIDE - 1, STRIDE, STRIDE + 1, 10 * STRIDE])
def test_every_item_comes_once_and_only_when_asked_for(count):
    assert list(UNLIMITED.over(range(count))) == list(range(count))
    assert list(Watch(NEVER, "").over(iter(range(count)))) == list(range(count))
    source = iter(range(count))
    for item in UNLIMITED.over(source):
        assert next(source, count) == item + 1
        break
