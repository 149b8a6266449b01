import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.driver import FakeDriver
from tensorwasm.errors import DeviceLost, DeviceUnavailable, InvalidArgs, LaunchRefused
from tensorwasm.gpu.cuda.driver.calls import Driver
from tensorwasm.gpu.cuda.opening import open_with
from tensorwasm.gpu.device.port import DeviceStatistics
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, LaunchConfig, SmPlacement

from .conftest import KERNEL

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))


@pytest.fixture
def driver(fake):
    return Driver(fake)


def use(device) -> None:
    """Do something of everything that belongs to a context."""
    stream = device.open_stream()
    loaded = device.load(parse(KERNEL), NEVER)
    device.launch(loaded, "k", ONE, [bytes(8)], (), stream, NEVER)
    device.write(device.allocate(8), bytes(8), stream)
    device.synchronize(stream, NEVER)


@pytest.mark.parametrize(("asked", "given"), [(1, 8), (16, 16), (20, 24), (132, 132)])
def test_a_share_is_rounded_up_and_reports_its_size(driver, fake, asked, given):
    device = open_with(driver, 0, multiprocessors=asked)
    assert device.info.multiprocessors == given
    use(device)
    device.close()
    assert fake.leftovers() == []


def test_everything_of_a_share_happens_in_it_and_nothing_of_another(driver, fake):
    whole, share = open_with(driver, 0), open_with(driver, 0, multiprocessors=16)
    for device in (whole, share):
        use(device)
    with share.native.bound():
        assert fake.stack()[-1] is not fake.primary
        assert share.native.table.context == int(fake.stack()[-1])
    theirs = share.load(parse(KERNEL), NEVER)
    with pytest.raises(Exception, match="not loaded"):
        whole.launch(theirs, "k", ONE, [bytes(8)], (), whole.open_stream(), NEVER)
    whole.close()
    use(share)
    share.close()
    assert fake.leftovers() == []


@pytest.mark.parametrize("asked", [0, -1])
def test_a_share_of_nothing_is_refused(driver, asked):
    with pytest.raises(InvalidArgs, match="at least 1"):
        open_with(driver, 0, multiprocessors=asked)


@pytest.mark.parametrize(
    ("asked", "options", "words"),
    [
        (133, {}, "has 132 multiprocessors"),
        (131, {}, "another number"),
        (8, {"cuda": 12040}, "upgrade it to 555"),
    ],
)
def test_a_share_that_is_not_available_is_refused_with_a_remedy(asked, options, words):
    fake = FakeDriver(**options)
    fake.attributes["MULTIPROCESSOR_COUNT"] = 132 if asked != 131 else 131 + 1
    with pytest.raises(DeviceUnavailable, match=words):
        open_with(Driver(fake), 0, multiprocessors=asked)
    assert fake.leftovers() == []


@pytest.mark.parametrize(
    "function",
    [
        "cuDeviceGetDevResource",
        "cuDevSmResourceSplitByCount",
        "cuDevResourceGenerateDesc",
        "cuGreenCtxCreate",
        "cuCtxFromGreenCtx",
    ],
)
@pytest.mark.parametrize("how", ["fails", "is missing"])
@pytest.mark.parametrize("place", [None, SmPlacement(4, (8,))])
def test_a_driver_that_does_not_divide_the_device_leaves_nothing_behind(driver, fake, function, how, place):
    fake.missing |= {function} if how == "is missing" else set()
    fake.fail |= {function: 801} if how == "fails" else {}
    with pytest.raises(DeviceUnavailable, match="whole device" if how == "fails" else "upgrade the driver"):
        open_with(driver, 0, multiprocessors=8, place=place)
    fake.missing.clear()
    fake.fail.clear()
    assert fake.leftovers() == []
    open_with(driver, 0).close()


def processors_of(asked, place):
    """Return the multiprocessors that a process of its own gets for a share, and the number that it reports."""
    fake = FakeDriver()
    device = open_with(Driver(fake), 0, multiprocessors=asked, place=place)
    (green,) = (handle for handle in fake.handles if handle.kind == "green")
    found = green.multiprocessors, device.info.multiprocessors
    device.close()
    assert fake.leftovers() == []
    return found


@given(st.lists(st.integers(1, 132), min_size=1, max_size=6))
def test_shares_of_several_processes_do_not_overlap(shares):
    unit, taken = math.gcd(*shares), set()
    size = -(-unit // 8) * 8
    for index, asked in enumerate(shares):
        place = SmPlacement(unit, tuple(shares[:index]))
        needed = sum(-(-share // size) for share in shares[: index + 1])
        if needed > 132 // size and not (index == 0 and asked == 132):
            with pytest.raises(DeviceUnavailable, match=r"no room|another number"):
                processors_of(asked, place)
            return
        own, reported = processors_of(asked, place)
        assert asked <= len(own) == reported
        assert not own & taken
        taken |= own


@pytest.mark.parametrize("asked", [8, 16, 32, 33])
def test_equal_shares_take_the_groups_of_one_split_in_order(asked):
    size = -(-asked // 8) * 8
    for index in range(132 // size):
        own, _ = processors_of(asked, SmPlacement(asked, (asked,) * index))
        assert own == set(range(index * size, (index + 1) * size))
    with pytest.raises(DeviceUnavailable, match=f"no room for {asked} more; give smaller shares or fewer workers"):
        processors_of(asked, SmPlacement(asked, (asked,) * (132 // size)))


def test_a_share_of_several_groups_is_as_small_as_they_allow():
    own, reported = processors_of(20, SmPlacement(4, (8, 9)))
    assert own == set(range(24, 48))
    assert reported == 24


def test_the_whole_device_may_be_the_first_share_and_no_other():
    assert processors_of(132, SmPlacement(132)) == (set(range(132)), 132)
    with pytest.raises(DeviceUnavailable, match="no room"):
        processors_of(8, SmPlacement(4, (132,)))


@pytest.mark.parametrize("place", [SmPlacement(0), SmPlacement(-1), SmPlacement(8, (0,)), SmPlacement(8, (8, -8))])
def test_a_place_that_is_none_is_refused(driver, place):
    with pytest.raises(InvalidArgs, match="at least 1"):
        open_with(driver, 0, multiprocessors=8, place=place)


def test_only_a_share_has_a_place(driver):
    with pytest.raises(InvalidArgs, match="share"):
        open_with(driver, 0, place=SmPlacement(8))


def test_a_share_keeps_its_place_over_a_reset(driver, fake):
    device = open_with(driver, 0, multiprocessors=16, place=SmPlacement(16, (16,)))
    fake.reset()
    use(device)
    (green,) = (handle for handle in fake.handles if handle.kind == "green")
    assert green.multiprocessors == set(range(16, 32))
    device.close()


def test_a_reset_is_survived_by_a_share_that_holds_nothing(driver, fake):
    device = open_with(driver, 0, multiprocessors=16)
    fake.reset()
    use(device)
    fake.reset()
    with pytest.raises(DeviceLost, match="reset"):
        device.open_stream()
    device.close()


def test_a_share_is_not_destroyed_under_what_could_not_be_given_back(driver, fake):
    device = open_with(driver, 0, multiprocessors=16)
    stream = device.open_stream()
    with fake.failing("cuStreamDestroy", 801), pytest.raises(LaunchRefused):
        device.close_stream(stream)
    with fake.failing("cuStreamDestroy", 801):
        device.close()
    assert device.statistics() == DeviceStatistics(streams=1, release_failures=6)
    assert any(handle.kind == "green" for handle in fake.handles)
