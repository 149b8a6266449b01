import pytest

from tensorwasm.bench.waiting import measure_waiting
from tensorwasm.guest.native.loading import may_have_fibers

pytestmark = pytest.mark.skipif(not may_have_fibers(), reason="there are no fibers here")


def test_every_guest_waits_at_once_and_is_right():
    figures = {figure.name: figure for figure in measure_waiting("emulator", guests=64).figures}
    assert figures["guests that wait for the device at once"].value == 64
    assert figures["guests with the right result"].value == 64
    assert figures["resident memory of each"].bar == 40
