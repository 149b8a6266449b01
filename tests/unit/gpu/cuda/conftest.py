"""A CUDA device on the fake driver."""

import pytest

from fakes.driver import FakeDriver
from tensorwasm.gpu.cuda.driver.calls import Driver
from tensorwasm.gpu.cuda.opening import open_with
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, LaunchConfig

KERNEL = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) { ret; }
"""


@pytest.fixture
def fake():
    return FakeDriver()


@pytest.fixture
def device(fake):
    opened = open_with(Driver(fake), 0)
    yield opened
    fake.fail.clear()
    fake.finish()
    opened.close()


@pytest.fixture
def stream(device):
    return device.open_stream()


@pytest.fixture
def loaded(device):
    return device.load(parse(KERNEL), NEVER)


@pytest.fixture
def work(device, loaded):
    """Give a kernel to a stream."""

    def launch(stream, deadline=NEVER):
        device.launch(loaded, "k", LaunchConfig((1, 1, 1), (32, 1, 1)), [bytes(8)], (), stream, deadline)

    return launch
