"""Options of the whole suite. They stand here, at the root, so that pytest knows them whatever it is asked to run."""

import gc
import os
import signal

import pytest
from hypothesis import settings

# No deadline for an example: a busy machine is no bug. Continuous integration tries the same examples every time, so
# that a red run is the change's doing; everybody else tries new ones.
settings.register_profile("explore", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "explore")


def pytest_addoption(parser):
    parser.addoption("--require-gpu", action="store_true", help="a test that needs a GPU and finds none fails")


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background job has it: so would all commands
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # No test leaves compiled modules, or the key that signs them, on the machine that it runs on.
    os.environ["TENSOR_WASM_CODE_CACHE"] = os.environ["TENSOR_WASM_KERNEL_CACHE"] = "0"
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; skipped with the reason where there is none")
    config.addinivalue_line("markers", "hardware(*ids): shows these claims of tools/hardware.py on a device")
    config.addinivalue_line("markers", "rule(*ids): shows these parts of the safety rules of tools/safety.py")


def pytest_collection_finish():
    # Thousands of tests stay to the end: a collector that looked at them each time would stop the tests for seconds.
    gc.collect()
    gc.freeze()


@pytest.fixture(params=[signal.default_int_handler, "custom"])
def interrupt_handler(request):
    """The program's own handler of Ctrl-C, which must be in its place again after the test."""

    def custom(number, frame):
        raise KeyboardInterrupt

    wanted = custom if request.param == "custom" else request.param
    before = signal.signal(signal.SIGINT, wanted)
    yield wanted
    assert signal.getsignal(signal.SIGINT) is wanted
    signal.signal(signal.SIGINT, before)
