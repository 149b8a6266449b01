import pytest

from tensorwasm.bench.device.waiting import measure_waiting
from tensorwasm.guest.native.loading import may_have_fibers

pytestmark = pytest.mark.skipif(not may_have_fibers(), reason="there are no fibers here")


def test_all_guests_wait_at_once_and_return_right_results():
    figures = {figure.name: figure for figure in measure_waiting("emulator", guests=64).figures}
    assert figures["guests that wait for the device at once"].value == 64
    assert figures["guests with the right result"].value == 64
    assert figures["resident memory of each"].bar == 40
