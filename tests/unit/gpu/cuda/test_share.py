import pytest

from fakes.driver import FakeDriver
from tensorwasm.errors import DeviceLost, DeviceUnavailable, InvalidArgs, LaunchRefused
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.opening import open_with
from tensorwasm.gpu.device import DeviceStatistics
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, LaunchConfig

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
def test_a_share_is_rounded_up_and_says_so(driver, fake, asked, given):
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
def test_a_share_that_cannot_be_had_says_what_to_do(asked, options, words):
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
def test_a_driver_that_does_not_divide_the_device_leaves_nothing_behind(driver, fake, function, how):
    fake.missing |= {function} if how == "is missing" else set()
    fake.fail |= {function: 801} if how == "fails" else {}
    with pytest.raises(DeviceUnavailable, match="whole device" if how == "fails" else "upgrade the driver"):
        open_with(driver, 0, multiprocessors=8)
    fake.missing.clear()
    fake.fail.clear()
    assert fake.leftovers() == []
    open_with(driver, 0).close()


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
    assert device.statistics() == DeviceStatistics(streams=1, release_failures=2)
    assert any(handle.kind == "green" for handle in fake.handles)
