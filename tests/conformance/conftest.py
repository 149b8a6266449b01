"""One suite, every device: a test that takes `device` runs on the emulator and on the GPU."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

import pytest

from conformance.launcher import Launcher
from tensorwasm.errors import DeviceUnavailable
from tensorwasm.gpu.opening import open_device


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--require-gpu") and find_spec("cuda") is None:
        _keep_one_of_each(config, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # End a worker whose test hangs: a signal waits until the driver returns, and that may be never; and it comes
        # once, so that what is taken down after the test hangs on.
        for item in items:
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(method="thread"))


def _keep_one_of_each(config, items):
    """Leave one case of each test for a GPU, skipped with the reason: 8,000 cases take 20 s and say no more."""
    kept, left, seen = [], [], set()
    for item in items:
        name = (item.path, getattr(item, "originalname", item.name))
        is_gpu = item.get_closest_marker("gpu") is not None
        (left if is_gpu and name in seen else kept).append(item)
        if is_gpu:
            seen.add(name)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


@pytest.fixture(scope="session")
def gpu(request):
    """The machine's first GPU, opened once."""
    try:
        device, _ = open_device("cuda")
    except DeviceUnavailable as error:
        if request.config.getoption("--require-gpu"):
            pytest.fail(f"--require-gpu: {error.message}", pytrace=False)
        pytest.skip(f"no usable GPU: {error.message}")
    yield device
    device.close()


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """A device; a test module that leaves something on it fails."""
    chosen = request.getfixturevalue("gpu") if request.param == "cuda" else open_device("emulator")[0]
    before = chosen.statistics()
    yield chosen
    after = chosen.statistics()
    assert replace(after, launches=0) == replace(before, launches=0), "something was left on the device"
    if request.param == "emulator":
        chosen.close()


@pytest.fixture(scope="module")
def launcher(device):
    """Kernels from arrays to arrays on the device; a test module loads each PTX text once."""
    with Launcher(device) as launcher:
        yield launcher


@pytest.fixture(params=[False, True], ids=["python", "compiled"])
def compiled(request):
    """Whether the host functions of a `Puppet` are compiled ones."""
    return request.param


@pytest.fixture(params=[False, True], ids=["plain", "guarded"])
def guarded(request):
    """Whether the kernels of a `Puppet` are guarded, and confined to its session's window."""
    if request.param and not request.getfixturevalue("device").windows.available:
        pytest.skip("this device has no windows of addresses")
    return request.param
